/* Finds and loads the module of CUDA devices.
 *
 * The module is looked for next to the library that contains this code, so that several installed
 * builds do not load each other's. Only a directory that the dynamic linker has found by itself is
 * trusted: if a static archive has put this code into the program, its path is whatever the
 * program's caller made it. */
#include "device/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/status.h"

#define HOW_TO_GET_IT \
    "it is built by `make` where nvcc is, and installed beside libmoepage.so; \"host\" needs none"

static const mp_module_services services = {
    .version = MP_MODULE_VERSION,
    .ops = MP_DEVICE_OPS_VERSION,
    .library = MP_MODULE_BUILD,
    .error_set = mp_error_set_list,
    .last_error = moepage_last_error,
};

/* Returns dlerror's text, or a substitute. */
static const char *load_error(void)
{
    const char *text = dlerror();
    return text ? text : "no reason given";
}

/* The module's path in this library's own directory; "" when this code is in the program itself, or
 * was found by a path that depends on the working directory. */
static void path_beside_library(char *path, size_t capacity)
{
    Dl_info info;
    struct link_map *map = NULL;
    path[0] = 0;
    if (!dladdr1((const void *)&services, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return;
    const char *slash = map->l_name[0] == '/' ? strrchr(map->l_name, '/') : NULL;
    if (!slash)
        return;
    int n = snprintf(path, capacity, "%.*s/%s", (int)(slash - map->l_name), map->l_name,
                     MP_CUDA_MODULE_FILE);
    if (n < 0 || (size_t)n >= capacity)
        path[0] = 0;
}

/* A statically linked program has no dynamic linker: it can load a module, and with it a second C
 * library, whose threads and allocations then break. */
static bool program_is_static(void)
{
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    for (unsigned long n = header ? getauxval(AT_PHNUM) : 0; n; n--, header++) {
        if (header->p_type == PT_INTERP)
            return false;
    }
    return header != NULL;
}

/* Loads the module. A file beside the library that does not load is an error, not a reason to look
 * elsewhere: a module found elsewhere would belong to another build. */
static moepage_status load(const char *beside, uint32_t ordinal, void **out, const char **path)
{
    const int mode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    bool is_there = *beside && access(beside, F_OK) == 0;
    *path = is_there ? beside : MP_CUDA_MODULE_FILE;
    *out = dlopen(*path, mode);
    if (*out)
        return MOEPAGE_OK;
    if (is_there)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "cuda:%u: the CUDA module %s does not load: %s",
                       ordinal, beside, load_error());
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "cuda:%u: there is no CUDA module%s%s, nor does the dynamic linker find one "
                   "(%s): " HOW_TO_GET_IT,
                   ordinal, *beside ? " " : "", beside, load_error());
}

/* Checks a device that was opened. A module compares versions itself; this is for one too old or
 * too new to do so. */
static moepage_status check_device(mp_device *device, uint32_t ordinal, const char *path)
{
    if (!device || !device->ops)
        return mp_fail(MOEPAGE_E_VERSION,
                       "cuda:%u: the module %s opened nothing: install that of libmoepage %s",
                       ordinal, path, services.library);
    if (device->ops->version == MP_DEVICE_OPS_VERSION)
        return MOEPAGE_OK;
    moepage_status status =
        mp_fail(MOEPAGE_E_VERSION,
                "cuda:%u: the module %s has devices of version %u, this library (%s) knows version "
                "%u: install both from one build",
                ordinal, path, device->ops->version, services.library, MP_DEVICE_OPS_VERSION);
    device->ops->close(device);
    return status;
}

moepage_status mp_module_open(uint32_t ordinal, const moepage_device_config *config,
                              mp_device **out)
{
    char beside[PATH_MAX];
    void *module = NULL;
    const char *path = NULL;
    mp_device *device = NULL;
    mp_module_open_fn *open = NULL;
    if (program_is_static())
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "cuda:%u: this program is linked statically and cannot load the CUDA module: "
            "link the C library dynamically",
            ordinal);
    path_beside_library(beside, sizeof beside);
    moepage_status status = load(beside, ordinal, &module, &path);
    if (status)
        return status;
    void *symbol = dlsym(module, MP_CUDA_MODULE_SYMBOL);
    memcpy(&open, &symbol, sizeof open); /* ISO C has no cast from data to function */
    /* This sentence stays if the module sets none: it may not know these services. */
    status = mp_fail(MOEPAGE_E_VERSION,
                     "cuda:%u: %s is not the module of libmoepage %s: install both from one build",
                     ordinal, path, services.library);
    if (open)
        status = open(&services, ordinal, config, &device);
    if (!status)
        status = check_device(device, ordinal, path);
    if (!status)
        *out = device;
    dlclose(module); /* it stays: RTLD_NODELETE */
    return status;
}
