/* Reading and writing size-prefixed structs. */
#include "base/config.h"

#include <string.h>

#include "base/status.h"

/* No version of any struct is larger: a larger struct_size was never set by the caller. */
#define LARGEST_STRUCT 4096u

moepage_status mp_config_check(const void *caller, size_t min_bytes, const char *what)
{
    uint32_t size;
    if (!caller)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", what);
    memcpy(&size, caller, sizeof size);
    if (size < min_bytes || size > LARGEST_STRUCT)
        return mp_fail(MOEPAGE_E_VERSION,
                       "%s: struct_size is %u, it must be %zu to %u: set it to sizeof the struct",
                       what, size, min_bytes, LARGEST_STRUCT);
    return MOEPAGE_OK;
}

moepage_status mp_config_read(void *own, size_t own_bytes, size_t min_bytes, const void *caller,
                              const char *what)
{
    memset(own, 0, own_bytes);
    if (caller) {
        uint32_t size;
        moepage_status status = mp_config_check(caller, min_bytes, what);
        if (status)
            return status;
        memcpy(&size, caller, sizeof size);
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
    moepage_status status = mp_config_check(caller, min_bytes, what);
    if (status)
        return status;
    uint32_t size;
    memcpy(&size, caller, sizeof size);
    memset(caller, 0, size);
    memcpy(caller, own, size < own_bytes ? size : own_bytes);
    memcpy(caller, &size, sizeof size);
    return MOEPAGE_OK;
}
