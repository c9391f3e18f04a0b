/* module.h — the interface between libmoepage.so and libmoepage-cuda.so: one exported function, and
 * the loader that calls it.
 *
 * The module is built from sources of its own (cuda/) and from those of src/ that it shares
 * (allocation, host threads, COLD streams); what must exist once per process, the last error of
 * each thread, it reaches through the services below. */
#ifndef MP_DEVICE_MODULE_H
#define MP_DEVICE_MODULE_H

#include <stdarg.h>

#include "device/seam.h"

#define MP_MODULE_VERSION 1u
#define MP_MODULE_QUOTE(x) #x
#define MP_MODULE_DOTTED(major, minor, patch) \
    MP_MODULE_QUOTE(major) "." MP_MODULE_QUOTE(minor) "." MP_MODULE_QUOTE(patch)
/* The version text of the build that includes this. */
#define MP_MODULE_BUILD \
    MP_MODULE_DOTTED(MOEPAGE_VERSION_MAJOR, MOEPAGE_VERSION_MINOR, MOEPAGE_VERSION_PATCH)

#define MP_CUDA_MODULE_FILE "libmoepage-cuda.so"
#define MP_CUDA_MODULE_SYMBOL "mp_cuda_module_open"

/* Static storage: the module keeps the pointer. */
typedef struct mp_module_services {
    uint32_t version;    /* MP_MODULE_VERSION */
    uint32_t ops;        /* MP_DEVICE_OPS_VERSION */
    const char *library; /* MP_MODULE_BUILD */
    void (*error_set)(const char *format, va_list args);
    const char *(*last_error)(void);
} mp_module_services;

/* Opens CUDA device `ordinal`. VERSION when module and library are not of one build. */
typedef moepage_status mp_module_open_fn(const mp_module_services *services, uint32_t ordinal,
                                         const moepage_device_config *config, mp_device **out);

/* Loads the module from the directory of libmoepage.so, or else by its name in the dynamic linker's
 * search path, and opens a device of it. It stays loaded. UNSUPPORTED when there is none or it does
 * not load, VERSION; or the module's own: NOT_FOUND without a driver or such a GPU, UNSUPPORTED for
 * one too old. */
moepage_status mp_module_open(uint32_t ordinal, const moepage_device_config *config,
                              mp_device **out);

#endif
