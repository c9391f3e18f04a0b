/* host_views.h — the host device's views: parts of the arena's file at second addresses.
 *
 * The granularity is the system's page, whatever the arena: views are laid out by it and counted
 * against the budget, and huge pages for a file in memory are rare and only ever advisory. A view
 * can be read, not written: nothing but loads changes weights, and those use the arena's own
 * addresses. */
#ifndef MP_DEVICE_HOST_VIEWS_H
#define MP_DEVICE_HOST_VIEWS_H

#include <stdint.h>

#include "moepage.h"

uint64_t mp_host_view_bytes(void);

/* As the functions of the same name in mp_device_ops; `file` is the arena's. */
moepage_status mp_host_view_reserve(uint64_t bytes, void **out);
void mp_host_view_release(void *base, uint64_t bytes);
moepage_status mp_host_view_map(int file, void *at, uint64_t offset, uint64_t bytes);
void mp_host_view_unmap(void *at, uint64_t bytes);

#endif
