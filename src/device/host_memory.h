/* host_memory.h — large ranges of host memory: huge pages where the system has them, on one NUMA
 * node where that makes sense, every page present. */
#ifndef MP_DEVICE_HOST_MEMORY_H
#define MP_DEVICE_HOST_MEMORY_H

#include "device/executor.h"
#include "device/seam.h"

/* Pages of a mapping that are not present yet. */
typedef struct mp_pages {
    unsigned char *base;
    uint64_t bytes;
    uint64_t page_bytes;
    int file;             /* behind them; -1 = anonymous memory */
    uint64_t file_offset; /* of the first of them */
} mp_pages;

/* Makes them present, on the executor's team cut into `n_parts`; *error is 0 or the errno of a part
 * that failed. NO_MEMORY when it could not even be tried. */
moepage_status mp_host_pages_touch(mp_executor *executor, uint32_t n_parts, const mp_pages *pages,
                                   int *error);

/* The same in the calling thread; returns 0 or an errno. */
int mp_host_pages_touch_here(const mp_pages *pages);

/* As host_map and host_unmap in mp_device_ops. `node` -1 = bind to no NUMA node. */
moepage_status mp_host_memory_map(mp_executor *executor, uint32_t n_parts, int32_t node,
                                  uint64_t bytes, mp_host_memory *out);
void mp_host_memory_unmap(const mp_host_memory *memory);

#endif
