/* Reading and writing size-prefixed structs. */
#include "base/config.h"

#include <string.h>

#include "base/status.h"

static moepage_status check_size(const void *caller, size_t min_bytes, const char *what,
                                 uint32_t *out)
{
    memcpy(out, caller, sizeof *out);
    if (*out < min_bytes)
        return mp_fail(MOEPAGE_E_VERSION,
                       "%s: struct_size is %u, at least %zu is needed: set it to "
                       "sizeof the struct",
                       what, *out, min_bytes);
    return MOEPAGE_OK;
}

moepage_status mp_config_read(void *own, size_t own_bytes, size_t min_bytes, const void *caller,
                              const char *what)
{
    memset(own, 0, own_bytes);
    if (caller) {
        uint32_t size;
        moepage_status status = check_size(caller, min_bytes, what, &size);
        if (status)
            return status;
        const unsigned char *bytes = caller;
        for (size_t i = own_bytes; i < size; i++)
            if (bytes[i])
                return mp_fail(MOEPAGE_E_VERSION,
                               "%s: byte %zu is set, but this library (%s) knows "
                               "only %zu bytes of the struct",
                               what, i, moepage_version_text(), own_bytes);
        memcpy(own, caller, size < own_bytes ? size : own_bytes);
    }
    uint32_t known = (uint32_t)own_bytes;
    memcpy(own, &known, sizeof known);
    return MOEPAGE_OK;
}

moepage_status mp_config_write(void *caller, const void *own, size_t own_bytes, size_t min_bytes,
                               const char *what)
{
    if (!caller)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", what);
    uint32_t size;
    moepage_status status = check_size(caller, min_bytes, what, &size);
    if (status)
        return status;
    memset(caller, 0, size);
    memcpy(caller, own, size < own_bytes ? size : own_bytes);
    memcpy(caller, &size, sizeof size);
    return MOEPAGE_OK;
}
