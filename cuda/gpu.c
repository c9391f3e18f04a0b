/* Opening and closing a GPU, and its vtable. */
#include "gpu.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/thread.h"
#include "fast.h"
#include "handshake.h"
#include "launch.h"
#include "peers.h"
#include "poller.h"
#include "submit.h"
#include "vmm.h"

#define OLDEST_COMPUTE_MAJOR 8 /* BF16 matrix products and asynchronous copies to shared memory */

#define MAX_THREADS 1024u
#define MAX_IO_THREADS 64u
#define DEFAULT_THREADS 16u /* host threads that make a tier's pages present: more are no faster */
#define DEFAULT_IO_THREADS 4u

/* ---- What only CUDA devices do ---------------------------------------------------------- */

static moepage_status get_info(mp_device *device, moepage_cuda_info *out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    *out = cuda->info;
    out->poisoned = atomic_load(&cuda->health.poisoned) != 0;
    out->driver_calls = atomic_load(&cuda->memory_calls);
    out->handle_ns = atomic_load(&cuda->handle_ns);
    return MOEPAGE_OK;
}

/* Enters the context of a device that is not poisoned. */
static moepage_status begin_call(mp_cuda *cuda)
{
    moepage_status status = mp_cuda_check_health(cuda);
    return status ? status : mp_cuda_enter(cuda);
}

static moepage_status call(mp_device *device, mp_cuda_call which, const void *args, void *native)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_cu_stream stream = native;
    moepage_status status = begin_call(cuda);
    if (status)
        return status;
    const char *range = which == MP_CUDA_CALL_DECODE ? MP_CUDA_RANGE_DECODE : NULL;
    mp_cuda_range_push(cuda->ranges, range, 0);
    switch (which) {
    case MP_CUDA_CALL_DECODE: status = mp_cuda_call_decode(cuda, stream, args); break;
    case MP_CUDA_CALL_DEQUANT: status = mp_cuda_call_dequant(cuda, stream, args); break;
    case MP_CUDA_CALL_GEMV: status = mp_cuda_call_gemv(cuda, stream, args); break;
    case MP_CUDA_CALL_GATHER: status = mp_cuda_call_gather(cuda, stream, args); break;
    case MP_CUDA_CALL_SCATTER: status = mp_cuda_call_scatter(cuda, stream, args); break;
    case MP_CUDA_CALL_TOPK: status = mp_cuda_call_topk(cuda, stream, args); break;
    case MP_CUDA_CALL_REMAP: status = mp_cuda_call_remap(cuda, stream, args); break;
    }
    mp_cuda_range_pop(cuda->ranges, range);
    mp_cuda_leave(cuda);
    return status;
}

static moepage_status check_experts(mp_device *device, const mp_kernel_experts_args *kind)
{
    return mp_cuda_check_experts(mp_cuda_of(device), kind);
}

static moepage_status path_layer(mp_device *device, const mp_cuda_path_layer *layer, void *native)
{
    mp_cuda *cuda = mp_cuda_of(device);
    moepage_status status = begin_call(cuda);
    if (status)
        return status;
    status = mp_cuda_launch_path_layer(cuda, native, layer);
    mp_cuda_leave(cuda);
    return status;
}

static uint64_t now_ns(mp_device *device)
{
    (void)device;
    return mp_clock_ns();
}

static const mp_cuda_ext cuda_ext = {
    .get_info = get_info,
    .call = call,
    .check_experts = check_experts,
    .path_layer = path_layer,
    .write32 = mp_cuda_stream_write32,
    .shake_hands = mp_cuda_shake_hands,
    .shared_alloc = mp_cuda_shared_alloc,
    .shared_free = mp_cuda_shared_free,
    .poller_start = mp_cuda_poller_start,
    .poller_stop = mp_cuda_poller_stop,
    .fast_open = mp_cuda_fast_open,
    .reach = mp_cuda_reach,
    .ask = mp_cuda_stream_ask,
};

/* ---- Opening ---------------------------------------------------------------------------- */

static moepage_status check_config(const char *name, const moepage_device_config *config)
{
    if (config->threads > MAX_THREADS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: threads is %u, at most %u are supported", name,
                       config->threads, MAX_THREADS);
    if (config->io_threads > MAX_IO_THREADS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: io_threads is %u, at most %u are supported", name,
                       config->io_threads, MAX_IO_THREADS);
    if (config->bus_bytes_per_s)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "%s: bus_bytes_per_s is %llu, but only \"host\" has a throttle: 0 it must be", name,
            (unsigned long long)config->bus_bytes_per_s);
    return MOEPAGE_OK;
}

static moepage_status find_ranges(mp_cuda *cuda, const moepage_device_config *config)
{
    cuda->ranges = config->ranges ? mp_cuda_ranges_find() : NULL;
    if (!config->ranges || cuda->ranges)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%s: ranges are NVTX's, and this CUDA module was built without the toolkit's "
                   "nvtx3/nvToolsExt.h: leave ranges 0, or build it with one",
                   cuda->name);
}

static moepage_status no_gpu(mp_cuda *cuda, int count)
{
    if (count < 1)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "%s: the NVIDIA driver sees no GPU: is one there, and does "
                       "CUDA_VISIBLE_DEVICES or the container hide it?",
                       cuda->name);
    return mp_fail(MOEPAGE_E_NOT_FOUND,
                   "%s: the NVIDIA driver sees %d GPU%s, the last is \"cuda:%d\"", cuda->name,
                   count, count == 1 ? "" : "s", count - 1);
}

/* Starts the driver and finds the GPU's handle. */
static moepage_status find_gpu(mp_cuda *cuda, uint32_t ordinal)
{
    int count = 0, version = 0;
    moepage_status status = mp_cuda_driver_check(cuda->driver);
    if (status)
        return mp_fail_within(status, "%s", cuda->name);
    mp_cu_result result = cuda->driver->init(0);
    if (result == MP_CU_NO_DEVICE)
        return no_gpu(cuda, 0);
    status = mp_cuda_check(cuda, result, "starting the NVIDIA driver");
    if (!status)
        status = mp_cuda_check(cuda, cuda->driver->driver_version(&version),
                               "asking for the driver's version");
    if (!status)
        status = mp_cuda_check(cuda, cuda->driver->device_count(&count), "counting GPUs");
    if (status)
        return status;
    if (ordinal >= (uint32_t)count)
        return no_gpu(cuda, count);
    cuda->info.driver_version = (uint32_t)version;
    return mp_cuda_check(cuda, cuda->driver->device_get(&cuda->gpu, (int)ordinal),
                         "finding the GPU");
}

static moepage_status describe_gpu(mp_cuda *cuda)
{
    moepage_cuda_info *info = &cuda->info;
    int vmm = 0;
    size_t bytes = 0;
    const struct {
        int attribute;
        void *value;
    } asked[] = {
        {MP_CU_ATTR_MAJOR, &info->compute_major},
        {MP_CU_ATTR_MINOR, &info->compute_minor},
        {MP_CU_ATTR_MULTIPROCESSORS, &info->multiprocessors},
        {MP_CU_ATTR_COPY_ENGINES, &info->copy_engines},
        {MP_CU_ATTR_VMM, &vmm},
    };
    moepage_status status =
        mp_cuda_check(cuda, cuda->driver->device_name(info->name, sizeof info->name, cuda->gpu),
                      "asking for the GPU's name");
    for (size_t i = 0; i < sizeof asked / sizeof *asked && !status; i++)
        status = mp_cuda_check(cuda,
                               cuda->driver->device_attribute(asked[i].value, asked[i].attribute,
                                                              cuda->gpu),
                               "asking for an attribute of the GPU");
    if (!status)
        status = mp_cuda_check(cuda, cuda->driver->device_bytes(&bytes, cuda->gpu),
                               "asking for the GPU's memory");
    if (status)
        return status;
    info->device_bytes = bytes;
    info->numa_node = mp_cuda_numa_node(cuda, "");
    cuda->has_vmm = vmm != 0;
    snprintf(cuda->architecture, sizeof cuda->architecture, "sm_%u%u", info->compute_major,
             info->compute_minor);
    if (info->compute_major >= OLDEST_COMPUTE_MAJOR)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_UNSUPPORTED,
        "%s: %s has compute capability %u.%u, and %d.0 (Ampere) is the oldest that works",
        cuda->name, info->name, info->compute_major, info->compute_minor, OLDEST_COMPUTE_MAJOR);
}

static moepage_status start_executor(mp_cuda *cuda)
{
    const mp_host_kernel_set *kernels = mp_host_kernels_best();
    mp_executor_config config = {
        .threads = cuda->device.threads,
        .io_threads = cuda->device.io_threads,
        .kernels = kernels,
        .decoder = mp_exph_decoder_best(),
        .log = cuda->device.log,
    };
    return mp_executor_create(&config, &cuda->executor);
}

static void cuda_close(mp_device *device);

static const mp_device_ops cuda_ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .close = cuda_close,
    .alloc = mp_cuda_alloc,
    .free = mp_cuda_free,
    .reserve = mp_cuda_arena_reserve,
    .back = mp_cuda_arena_back,
    .unback = mp_cuda_arena_unback,
    .available = mp_cuda_available,
    .host_map = mp_cuda_host_map,
    .host_unmap = mp_cuda_host_unmap,
    .stream_create = mp_cuda_stream_create,
    .stream_destroy = mp_cuda_stream_destroy,
    .copy = mp_cuda_stream_copy,
    .launch = mp_cuda_stream_launch,
    .wait = mp_cuda_stream_wait,
    .mark = mp_cuda_stream_mark,
    .enter = mp_cuda_stream_enter,
    .follow = mp_cuda_stream_follow,
    .completed = mp_cuda_stream_completed,
    .settle = mp_cuda_stream_settle,
    .sync = mp_cuda_stream_sync,
    .post = mp_cuda_post,
    .now_ns = now_ns,
    .view_reserve = mp_cuda_view_reserve,
    .view_release = mp_cuda_view_release,
    .view_map = mp_cuda_view_map,
    .view_unmap = mp_cuda_view_unmap,
    .cuda = &cuda_ext,
};

static void init(mp_cuda *cuda, const mp_cuda_driver *driver, const mp_cuda_blas *blas,
                 const char *blas_missing, uint32_t ordinal, const moepage_device_config *config)
{
    uint32_t cpus = mp_thread_cpus(), threads = cpus < DEFAULT_THREADS ? cpus : DEFAULT_THREADS;
    snprintf(cuda->name, sizeof cuda->name, "cuda:%u", ordinal);
    cuda->driver = driver;
    cuda->blas = blas;
    cuda->blas_missing = blas_missing;
    atomic_flag_clear(&cuda->health.is_taken);
    pthread_mutex_init(&cuda->fast.lock, NULL);
    cuda->info.struct_size = sizeof cuda->info;
    cuda->info.ordinal = ordinal;
    cuda->info.cublas_version = blas ? blas->loaded_version : 0;
    cuda->info.numa_node = -1;
    cuda->pin_bytes = MP_CUDA_PIN_BYTES;
    cuda->device = (mp_device){
        .ops = &cuda_ops,
        .name = cuda->name,
        .kernels = cuda->architecture,
        .threads = config->threads ? config->threads : threads,
        .io_threads = config->io_threads ? config->io_threads : DEFAULT_IO_THREADS,
        .log = {.fn = config->log, .user = config->log_user},
    };
}

/* Context current. */
static moepage_status start(mp_cuda *cuda, const mp_cuda_image *images, uint32_t n_images)
{
    moepage_status status = mp_cuda_kernels_open(cuda, images, n_images);
    if (!status)
        status = start_executor(cuda);
    if (!status)
        status = mp_cuda_issuer_create(cuda);
    cuda->device.arena_align = mp_cuda_arena_align(cuda);
    return status;
}

#define GUEST_NS 20000u

/* Threads of other devices may still be leaving the context in which they issued from a stream that has been
 * destroyed since. */
static void await_guests(const mp_cuda *cuda)
{
    while (atomic_load(&cuda->guests) > 0)
        mp_clock_wait(mp_clock_ns() + GUEST_NS);
}

/* Closes what has been opened. Threads are ended even if the driver has failed. */
static void stop(mp_cuda *cuda)
{
    await_guests(cuda);
    bool entered = cuda->context && mp_cuda_enter(cuda) == MOEPAGE_OK;
    mp_cuda_issuer_destroy(cuda);
    if (cuda->executor)
        mp_executor_destroy(cuda->executor);
    if (entered)
        mp_cuda_fast_close(cuda);
    mp_cuda_kernels_close(cuda);
    if (entered)
        mp_cuda_leave(cuda);
    if (cuda->context)
        mp_cuda_log_failure(cuda, cuda->driver->context_release(cuda->gpu),
                            "giving back the context");
    pthread_mutex_destroy(&cuda->fast.lock);
    mp_free(cuda);
}

static void cuda_close(mp_device *device)
{
    assert(!mp_cuda_of(device)->arena);
    stop(mp_cuda_of(device));
}

moepage_status mp_cuda_device_open(const mp_cuda_driver *driver, const mp_cuda_blas *blas,
                                   const char *blas_missing, const mp_cuda_image *images,
                                   uint32_t n_images, uint32_t ordinal,
                                   const moepage_device_config *config, mp_device **out)
{
    mp_cuda *cuda = mp_alloc(sizeof *cuda);
    if (!cuda)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for device cuda:%u", ordinal);
    init(cuda, driver, blas, blas_missing, ordinal, config);
    moepage_status status = check_config(cuda->name, config);
    if (!status)
        status = find_ranges(cuda, config);
    if (!status)
        status = find_gpu(cuda, ordinal);
    if (!status)
        status = describe_gpu(cuda);
    if (!status)
        status = mp_cuda_check(cuda, driver->context_retain(&cuda->context, cuda->gpu),
                               "taking the GPU's primary context");
    if (!status)
        status = mp_cuda_enter(cuda);
    if (status)
        goto fail;
    status = start(cuda, images, n_images);
    mp_cuda_leave(cuda);
    if (status)
        goto fail;
    if (!blas)
        mp_log_write(&cuda->device.log, MOEPAGE_LOG_INFO,
                     "%s: there is no cuBLAS, so MATH_BF16_FAST runs as MATH_BF16: %s", cuda->name,
                     blas_missing ? blas_missing : "it was not looked for");
    *out = &cuda->device;
    return MOEPAGE_OK;

fail:
    stop(cuda);
    return status;
}
