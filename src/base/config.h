/* The size field of structs that cross the ABI: reading, writing and checking them. */
#ifndef MP_BASE_CONFIG_H
#define MP_BASE_CONFIG_H

#include "moepage.h"

/* Copies a caller's config into `own` (sizeof own == own_bytes), zero-filling fields that the
 * caller's older header lacks. `caller` NULL means all defaults. A newer, larger struct is
 * accepted only where the excess is zero: an option we do not know must not be ignored.
 * `min_bytes` is the size of the struct's first published form. */
moepage_status mp_config_read(void *own, size_t own_bytes, size_t min_bytes, const void *caller,
                              const char *what);

/* Writes `own` into the caller's struct, up to its struct_size, which is kept. */
moepage_status mp_config_write(void *caller, const void *own, size_t own_bytes, size_t min_bytes,
                               const char *what);

/* Checks that `caller` can be written. For calls that cannot undo their work afterwards. */
moepage_status mp_config_check(const void *caller, size_t min_bytes, const char *what);

/* Shorthands for a struct whose first published form is its present one. */
#define MP_CONFIG_READ(own, caller) \
    mp_config_read(&(own), sizeof(own), sizeof(own), (caller), #caller)
#define MP_CONFIG_WRITE(caller, own) \
    mp_config_write((caller), &(own), sizeof(own), sizeof(own), #caller)

#define MP_CONFIG_CHECK(caller) mp_config_check((caller), sizeof *(caller), #caller)

#endif
