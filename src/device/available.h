/* available.h — how much memory this process may still take. */
#ifndef MP_DEVICE_AVAILABLE_H
#define MP_DEVICE_AVAILABLE_H

#include <stdint.h>

/* Returns the bytes that the system and every control group of this process can still give,
 * including page cache that they would drop, without swap; UINT64_MAX if unknown. Beyond that the
 * system does not refuse pages but kills processes. `root` is a prefix for every path that is read:
 * "" except in tests. */
uint64_t mp_available_bytes(const char *root);

#endif
