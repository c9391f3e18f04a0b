/* available.h — how much memory this process may still take. */
#ifndef MP_DEVICE_AVAILABLE_H
#define MP_DEVICE_AVAILABLE_H

#include <stdint.h>

/* Bytes that the system and every control group above this process could still give, page cache
 * that they would drop for it included, swap left out. Beyond them the system does not refuse
 * pages, it kills processes. UINT64_MAX where nothing says. `root` is put before every path that
 * is read: "" for the running system. */
uint64_t mp_available_bytes(const char *root);

#endif
