/* Finding the driver and cuBLAS. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

/* Puts a symbol's address where a pointer to a function is kept: ISO C has no cast for it. */
static bool take(void *library, const char *symbol, void *function)
{
    void *address = dlsym(library, symbol);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

#define TAKE(field, symbol, parameters)                           \
    if (!missing && !take(library, symbol, (void *)&table.field)) \
        missing = symbol;

const char *gpu_driver_load(gpu_driver *out)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    gpu_driver table = {.library = library};
    const char *missing = NULL;
    if (!library)
        return dlerror();
    GPU_DRIVER_FUNCTIONS(TAKE)
    if (missing) {
        dlclose(library);
        return missing;
    }
    *out = table;
    return NULL;
}

bool gpu_blas_load(gpu_blas *out)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        void *library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        gpu_blas table = {.library = library};
        const char *missing = NULL;
        if (!library)
            continue;
        GPU_BLAS_FUNCTIONS(TAKE)
        if (!missing) {
            *out = table;
            return true;
        }
        dlclose(library);
    }
    return false;
}
