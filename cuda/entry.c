/* The module's one exported function, by which libmoepage.so opens a GPU. */
#include "device/module.h"

#include <string.h>

#include "base/status.h"
#include "gpu.h"
#include "images.h"
#include "services.h"

#ifndef MP_CUDA_TOOLKIT
#define MP_CUDA_TOOLKIT 0 /* version of the toolkit that compiled the kernels; the build says */
#endif

#define MP_MODULE_EXPORT __attribute__((visibility("default")))

MP_MODULE_EXPORT mp_module_open_fn mp_cuda_module_open;

#define IMAGE_OF(family_name) {.family = #family_name, .bytes = mp_cuda_fatbin_##family_name},
static const mp_cuda_image images[] = {MP_CUDA_FAMILIES(IMAGE_OF)};
enum { N_IMAGES = sizeof images / sizeof *images };
_Static_assert(N_IMAGES <= MP_CUDA_MAX_IMAGES, "MP_CUDA_MAX_IMAGES is too small");

/* ---- Opening ---------------------------------------------------------------------------- */

/* Only `version` has a fixed meaning: a library of another build may lay out the rest differently. */
static moepage_status check_library(const mp_module_services *library, uint32_t ordinal)
{
    if (library->version != MP_MODULE_VERSION)
        return MOEPAGE_E_VERSION;
    mp_cuda_services_set(library);
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
