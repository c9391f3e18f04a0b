/* The simulated driver's GPUs, error texts and contexts. */
#include <stdio.h>
#include <string.h>

#include "sim_inside.h"

/* ---- Without a context ------------------------------------------------------------------ */

mp_cu_result sim_do_init(unsigned flags)
{
    SIM_BEGIN(SIM_init);
    if (flags)
        return MP_CU_INVALID_VALUE;
    if (!sim.config.n_gpus)
        return MP_CU_NO_DEVICE;
    sim.initialized = true;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_driver_version(int *version)
{
    SIM_BEGIN(SIM_driver_version);
    *version = sim.config.driver_version;
    return MP_CU_SUCCESS;
}

static const struct {
    mp_cu_result result;
    const char *name, *text;
} errors[] = {
    {MP_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {MP_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {MP_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {MP_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {MP_CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {MP_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {MP_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {MP_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {MP_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {MP_CU_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
    {MP_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {MP_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {MP_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {MP_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
    {MP_CU_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources"},
    {MP_CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {MP_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {MP_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {MP_CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
};

static mp_cu_result error_text(sim_cuda_call call, mp_cu_result error, const char **text)
{
    SIM_BEGIN(call);
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].result == error)
            *text = call == SIM_error_name ? errors[i].name : errors[i].text;
    }
    return *text ? MP_CU_SUCCESS : MP_CU_INVALID_VALUE;
}

mp_cu_result sim_do_error_name(mp_cu_result error, const char **text)
{
    return error_text(SIM_error_name, error, text);
}

mp_cu_result sim_do_error_string(mp_cu_result error, const char **text)
{
    return error_text(SIM_error_string, error, text);
}

/* ---- GPUs ------------------------------------------------------------------------------- */

static const sim_cuda_gpu *gpu_of(mp_cu_device device)
{
    return device >= 0 && (uint32_t)device < sim.config.n_gpus ? &sim.config.gpus[device] : NULL;
}

mp_cu_result sim_do_device_count(int *count)
{
    SIM_BEGIN(SIM_device_count);
    *count = (int)sim.config.n_gpus;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_device_get(mp_cu_device *device, int ordinal)
{
    SIM_BEGIN(SIM_device_get);
    if (!gpu_of(ordinal))
        return MP_CU_INVALID_DEVICE;
    *device = ordinal;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_device_name(char *name, int capacity, mp_cu_device device)
{
    SIM_BEGIN(SIM_device_name);
    const sim_cuda_gpu *gpu = gpu_of(device);
    if (!gpu || capacity < 1)
        return gpu ? MP_CU_INVALID_VALUE : MP_CU_INVALID_DEVICE;
    snprintf(name, (size_t)capacity, "%s", gpu->name);
    return MP_CU_SUCCESS;
}

static bool attribute_of(const sim_cuda_gpu *gpu, int ordinal, int attribute, int *value)
{
    switch (attribute) {
    case MP_CU_ATTR_MULTIPROCESSORS: *value = gpu->multiprocessors; break;
    case MP_CU_ATTR_PCI_BUS: *value = ordinal + 1; break;
    case MP_CU_ATTR_PCI_DEVICE: *value = 0; break;
    case MP_CU_ATTR_PCI_DOMAIN: *value = 0; break;
    case MP_CU_ATTR_L2_BYTES: *value = 4 << 20; break;
    case MP_CU_ATTR_COPY_ENGINES: *value = 2; break;
    case MP_CU_ATTR_MAJOR: *value = gpu->major; break;
    case MP_CU_ATTR_MINOR: *value = gpu->minor; break;
    case MP_CU_ATTR_SHARED_OPTIN: *value = gpu->shared_optin; break;
    case MP_CU_ATTR_VMM: *value = !gpu->no_vmm; break;
    case MP_CU_ATTR_STREAM_MEM_OPS_64: *value = !gpu->no_stream_mem_ops_64; break;
    case MP_CU_ATTR_HOST_NUMA: *value = gpu->numa_node; break;
    default: return false;
    }
    return true;
}

mp_cu_result sim_do_device_attribute(int *value, int attribute, mp_cu_device device)
{
    SIM_BEGIN(SIM_device_attribute);
    const sim_cuda_gpu *gpu = gpu_of(device);
    if (!gpu)
        return MP_CU_INVALID_DEVICE;
    bool known = attribute_of(gpu, device, attribute, value);
    return known ? MP_CU_SUCCESS : MP_CU_INVALID_VALUE;
}

mp_cu_result sim_do_device_bytes(size_t *bytes, mp_cu_device device)
{
    SIM_BEGIN(SIM_device_bytes);
    const sim_cuda_gpu *gpu = gpu_of(device);
    if (!gpu)
        return MP_CU_INVALID_DEVICE;
    *bytes = gpu->bytes;
    return MP_CU_SUCCESS;
}

/* ---- Contexts --------------------------------------------------------------------------- */

mp_cu_result sim_do_context_retain(mp_cu_context *out, mp_cu_device device)
{
    SIM_BEGIN(SIM_context_retain);
    if (!gpu_of(device))
        return MP_CU_INVALID_DEVICE;
    mp_cu_context context = &sim.contexts[device];
    if (!context->retained++) {
        context->sticky = MP_CU_SUCCESS;
        context->legacy = sim_stream_new(context, true, true);
    }
    *out = context;
    return MP_CU_SUCCESS;
}

/* The last release destroys a context and what it holds. After a sticky failure that is the only
 * way to give anything back; otherwise it is a leak, and stays to be found. */
mp_cu_result sim_do_context_release(mp_cu_device device)
{
    SIM_BEGIN(SIM_context_release);
    if (!gpu_of(device) || !sim.contexts[device].retained) {
        sim_misuse("release of a context that is not retained");
        return MP_CU_INVALID_CONTEXT;
    }
    mp_cu_context context = &sim.contexts[device];
    if (--context->retained)
        return MP_CU_SUCCESS;
    for (int i = 0; i < SIM_MAX_GPUS; i++)
        sim.contexts[i].peers &= ~(1u << device);
    context->peers = 0;
    context->legacy->destroyed = true;
    pthread_cond_broadcast(&context->legacy->wake);
    if (context->sticky) {
        sim_streams_drop(device);
        sim_modules_drop(device);
        sim_virtual_drop(device);
        sim_memory_drop(device);
    }
    return MP_CU_SUCCESS;
}

/* ---- Peers ------------------------------------------------------------------------------ */

mp_cu_result sim_do_can_access_peer(int *can, mp_cu_device device, mp_cu_device peer)
{
    SIM_BEGIN(SIM_can_access_peer);
    if (!gpu_of(device) || !gpu_of(peer))
        return MP_CU_INVALID_DEVICE;
    *can = device != peer && !sim.config.no_peers;
    return MP_CU_SUCCESS;
}

/* Of the current context to all memory of another's that is no virtual memory, also in future. */
mp_cu_result sim_do_enable_peer(mp_cu_context peer, unsigned flags)
{
    SIM_BEGIN(SIM_enable_peer);
    mp_cu_context own = sim_current();
    if (flags)
        return MP_CU_INVALID_VALUE;
    if (!peer || peer == own || !peer->retained) {
        sim_misuse("access to the memory of a context that is not retained, or the current one");
        return MP_CU_INVALID_CONTEXT;
    }
    if (sim.config.no_peers)
        return MP_CU_PEER_ACCESS_UNSUPPORTED;
    if (own->peers >> peer->gpu & 1)
        return MP_CU_PEER_ACCESS_ALREADY_ENABLED;
    own->peers |= 1u << peer->gpu;
    return MP_CU_SUCCESS;
}

void sim_cuda_allow_peers(bool allow)
{
    SIM_LOCKED();
    sim.config.no_peers = !allow;
}

mp_cu_result sim_do_priority_range(int *least, int *greatest)
{
    SIM_BEGIN(SIM_priority_range);
    *least = 0;
    *greatest = -5;
    return MP_CU_SUCCESS;
}
