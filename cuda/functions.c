/* The kernels' modules, the functions in them by name, and launching. */
#include "functions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "context.h"

#define ENTRY_NAME(entry) "mp_gpu_" #entry,
static const char *const entries[] = {MP_CUDA_ENTRIES(ENTRY_NAME) NULL};
_Static_assert(sizeof entries / sizeof *entries <= MP_CUDA_MAX_FUNCTIONS + 1,
               "MP_CUDA_MAX_FUNCTIONS is too small");

/* ---- Opening ---------------------------------------------------------------------------- */

/* Returns true for results that mean that an image is not for this GPU or this driver. */
static bool is_unfit(mp_cu_result result)
{
    switch (result) {
    case MP_CU_INVALID_IMAGE:
    case MP_CU_NO_BINARY_FOR_GPU:
    case MP_CU_INVALID_PTX:
    case MP_CU_JIT_COMPILER_NOT_FOUND:
    case MP_CU_UNSUPPORTED_PTX_VERSION:
    case MP_CU_JIT_COMPILATION_DISABLED: return true;
    default: return false;
    }
}

static moepage_status load_image(mp_cuda *cuda, const mp_cuda_image *image)
{
    mp_cuda_kernels *kernels = &cuda->kernels;
    mp_cu_result result =
        cuda->driver->module_load(&kernels->modules[kernels->n_modules], image->bytes);
    if (is_unfit(result))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: this build has no %s kernels for %s (compute capability %u.%u): build "
                       "with CUDA_ARCHS=\"%u%u\", and with a toolkit whose major version is the "
                       "driver's (CUDA %u.%u) or older; the driver says error %d",
                       cuda->name, image->family, cuda->info.name, cuda->info.compute_major,
                       cuda->info.compute_minor, cuda->info.compute_major, cuda->info.compute_minor,
                       cuda->info.driver_version / 1000, cuda->info.driver_version % 1000 / 10,
                       result);
    if (result)
        return mp_cuda_check(cuda, result, "loading kernels");
    kernels->n_modules++;
    return MOEPAGE_OK;
}

/* Searches the modules in turn. */
static moepage_status find_function(mp_cuda *cuda, const char *name, mp_cu_function *out)
{
    for (uint32_t i = 0; i < cuda->kernels.n_modules; i++) {
        mp_cu_result result = cuda->driver->module_function(out, cuda->kernels.modules[i], name);
        if (result != MP_CU_NOT_FOUND)
            return mp_cuda_check(cuda, result, name);
    }
    return mp_fail(MOEPAGE_E_VERSION,
                   "%s: this build has no kernel %s: its kernels are of another version",
                   cuda->name, name);
}

/* Loads a function's code onto the GPU now. If the driver left that to the first launch, the launch
 * could wait for the GPU to become idle, and deadlock until the timeout with a path's kernel that waits
 * for the result of that launch. Drivers without this call load a function when it is found. */
static moepage_status load_function(mp_cuda *cuda, mp_cu_function function)
{
    if (!cuda->driver->function_load)
        return MOEPAGE_OK;
    return mp_cuda_check(cuda, cuda->driver->function_load(function), "loading a kernel");
}

/* Allows all the shared memory that a block can have, so that no launch has to ask for more; and asks that
 * of the memory which caches and shared memory divide, shared memory has the most. Otherwise a driver might
 * leave less than resident blocks need, and would divide anew, on an idle multiprocessor, between kernels
 * that need more and less. What the kernels read twice is small. */
static moepage_status set_shared(mp_cuda *cuda, mp_cu_function function, uint32_t limit)
{
    const struct {
        int attribute, value;
    } wanted[] = {{MP_CU_FUNC_MAX_DYNAMIC_SHARED, (int)limit}, {MP_CU_FUNC_SHARED_CARVEOUT, 100}};
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < 2 && !status; i++)
        status = mp_cuda_check(cuda,
                               cuda->driver->function_set_attribute(function, wanted[i].attribute,
                                                                    wanted[i].value),
                               "allowing a kernel's shared memory");
    return status;
}

static moepage_status add_function(mp_cuda *cuda, const char *name, uint32_t shared_limit)
{
    mp_cuda_kernels *kernels = &cuda->kernels;
    mp_cuda_function *function = &kernels->functions[kernels->n_functions];
    moepage_status status = find_function(cuda, name, &function->handle);
    if (!status)
        status = set_shared(cuda, function->handle, shared_limit);
    if (!status)
        status = load_function(cuda, function->handle);
    if (status)
        return status;
    function->name = name;
    function->shared_limit = shared_limit;
    kernels->n_functions++;
    return MOEPAGE_OK;
}

static int by_name(const void *a, const void *b)
{
    const mp_cuda_function *one = a, *other = b;
    return strcmp(one->name, other->name);
}

moepage_status mp_cuda_kernels_open(struct mp_cuda *cuda, const mp_cuda_image *images, uint32_t n)
{
    mp_cuda_kernels *kernels = &cuda->kernels;
    int shared_limit = 0;
    assert(n <= MP_CUDA_MAX_IMAGES);
    *kernels = (mp_cuda_kernels){0};
    moepage_status status =
        mp_cuda_check(cuda,
                      cuda->driver->device_attribute(&shared_limit, MP_CU_ATTR_SHARED_OPTIN,
                                                     cuda->gpu),
                      "asking for the shared memory of a block");
    for (uint32_t i = 0; i < n && !status; i++)
        status = load_image(cuda, &images[i]);
    for (const char *const *name = entries; *name && !status; name++)
        status = add_function(cuda, *name, (uint32_t)shared_limit);
    if (status) {
        mp_cuda_kernels_close(cuda);
        return status;
    }
    qsort(kernels->functions, kernels->n_functions, sizeof *kernels->functions, by_name);
    return MOEPAGE_OK;
}

void mp_cuda_kernels_close(struct mp_cuda *cuda)
{
    mp_cuda_kernels *kernels = &cuda->kernels;
    while (kernels->n_modules)
        mp_cuda_log_failure(cuda,
                            cuda->driver->module_unload(kernels->modules[--kernels->n_modules]),
                            "unloading kernels");
    kernels->n_functions = 0;
}

/* ---- Launching -------------------------------------------------------------------------- */

/* Finds a function by name; NULL for a name that is not in MP_CUDA_ENTRIES. */
static mp_cuda_function *function_of(mp_cuda *cuda, const char *name)
{
    mp_cuda_function *functions = cuda->kernels.functions;
    uint32_t first = 0, end = cuda->kernels.n_functions;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        int order = strcmp(name, functions[middle].name);
        if (!order)
            return &functions[middle];
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return NULL;
}

moepage_status mp_cuda_launch(struct mp_cuda *cuda, mp_cu_stream stream, const char *name,
                              uint32_t n_blocks, uint32_t n_threads, uint32_t shared_bytes,
                              const void *args)
{
    if (!n_blocks)
        return MOEPAGE_OK;
    const mp_cuda_function *function = function_of(cuda, name);
    if (!function)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "%s: there is no kernel %s", cuda->name, name);
    if (shared_bytes > function->shared_limit)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: kernel %s takes %u bytes of shared memory a block, and this GPU has %u",
                       cuda->name, name, shared_bytes, function->shared_limit);
    void *parameters[] = {(void *)(uintptr_t)args}; /* the driver only reads it */
    mp_cu_result result = cuda->driver->launch(function->handle, n_blocks, 1, 1, n_threads, 1, 1,
                                               shared_bytes, stream, parameters, NULL);
    return result ? mp_cuda_check(cuda, result, name) : MOEPAGE_OK;
}

/* Question and answer of mp_cuda_resident_blocks are cached in one word, so that threads with different
 * questions cannot mix them up: n_threads (11 bits), shared_bytes (21), blocks (32). */
static uint64_t pack_question(uint32_t n_threads, uint32_t shared_bytes)
{
    return (uint64_t)n_threads << 53 | (uint64_t)shared_bytes << 32;
}

uint32_t mp_cuda_resident_blocks(struct mp_cuda *cuda, const char *name, uint32_t n_threads,
                                 uint32_t shared_bytes)
{
    mp_cuda_function *function = function_of(cuda, name);
    int per_multiprocessor = 0;
    assert(n_threads < 1u << 11 && shared_bytes < 1u << 21);
    if (!function)
        return 1;
    const uint64_t question = pack_question(n_threads, shared_bytes);
    uint64_t known = atomic_load_explicit(&function->resident, memory_order_relaxed);
    if (known >> 32 == question >> 32 && known)
        return (uint32_t)known;
    mp_cu_result result = cuda->driver->occupancy(&per_multiprocessor, function->handle,
                                                  (int)n_threads, shared_bytes);
    if (result || per_multiprocessor < 1)
        return 1;
    uint32_t blocks = (uint32_t)per_multiprocessor * cuda->info.multiprocessors;
    atomic_store_explicit(&function->resident, question | blocks, memory_order_relaxed);
    return blocks;
}
