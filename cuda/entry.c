/* The module as libmoepage.so sees it: one function, and the last error, which is the library's. */
#include "device/module.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "gpu.h"
#include "images.h"

#ifndef MP_CUDA_TOOLKIT
#define MP_CUDA_TOOLKIT 0 /* version of the toolkit that compiled the kernels; the build says */
#endif

#define MP_MODULE_EXPORT __attribute__((visibility("default")))

MP_MODULE_EXPORT mp_module_open_fn mp_cuda_module_open;

#define IMAGE_OF(family_name) {.family = #family_name, .bytes = mp_cuda_fatbin_##family_name},
static const mp_cuda_image images[] = {MP_CUDA_FAMILIES(IMAGE_OF)};
enum { N_IMAGES = sizeof images / sizeof *images };
_Static_assert(N_IMAGES <= MP_CUDA_MAX_IMAGES, "MP_CUDA_MAX_IMAGES is too small");

/* The library's: there is one in a process, so that every open gives the same. */
static const mp_module_services *_Atomic services;

/* ---- The last error --------------------------------------------------------------------- */

void mp_error_set_list(const char *format, va_list args)
{
    const mp_module_services *library = atomic_load(&services);
    if (library)
        library->error_set(format, args);
}

void mp_error_set(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mp_error_set_list(format, args);
    va_end(args);
}

const char *moepage_last_error(void)
{
    const mp_module_services *library = atomic_load(&services);
    return library ? library->last_error() : "";
}

moepage_status mp_fail_within(moepage_status status, const char *format, ...)
{
    char prefix[256], inner[512];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(inner, sizeof inner, "%s", moepage_last_error());
    mp_error_set("%s: %s", prefix, inner);
    return status;
}

/* ---- Opening ---------------------------------------------------------------------------- */

/* A library of another build has another idea of all that comes after the version. */
static moepage_status check_library(const mp_module_services *library, uint32_t ordinal)
{
    if (library->version != MP_MODULE_VERSION)
        return MOEPAGE_E_VERSION;
    atomic_store(&services, library);
    if (library->ops == MP_DEVICE_OPS_VERSION && !strcmp(library->library, MP_MODULE_BUILD))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_VERSION,
                   "cuda:%u: the CUDA module is of libmoepage %s (devices of version %u), the "
                   "library that loads it is %s (version %u): install both from one build",
                   ordinal, MP_MODULE_BUILD, MP_DEVICE_OPS_VERSION, library->library, library->ops);
}

moepage_status mp_cuda_module_open(const mp_module_services *library, uint32_t ordinal,
                                   const moepage_device_config *config, mp_device **out)
{
    const mp_cuda_driver *driver = NULL;
    const char *blas_missing = NULL;
    moepage_status status = check_library(library, ordinal);
    if (status)
        return status;
    status = mp_cuda_driver_load(&driver);
    if (status)
        return mp_fail_within(status, "cuda:%u", ordinal);
    const mp_cuda_blas *blas = mp_cuda_blas_load(&blas_missing);
    status =
        mp_cuda_device_open(driver, blas, blas_missing, images, N_IMAGES, ordinal, config, out);
    if (!status)
        mp_cuda_of(*out)->info.toolkit_version = MP_CUDA_TOOLKIT;
    return status;
}
