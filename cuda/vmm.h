/* vmm.h — the memory of a CUDA device: what mp_device_ops has of alloc, host_map and view_*. */
#ifndef MP_CUDA_VMM_H
#define MP_CUDA_VMM_H

#include "context.h"

/* ---- vmm.c ---- */

/* The arena: `bytes` of device memory, page-aligned, in VMM handles where the driver has them and
 * in one piece where not; info and view_bytes say which. The driver gives memory in granules (2
 * MiB): the last one may reach past `bytes`. STATE if there is one, NO_MEMORY. */
moepage_status mp_cuda_arena_alloc(mp_cuda *cuda, uint64_t bytes, void **out);
void mp_cuda_arena_free(mp_cuda *cuda);

/* As reserve, back, unback and available in mp_device_ops. UNSUPPORTED without VMM. */
moepage_status mp_cuda_arena_reserve(mp_device *device, uint64_t bytes, void **out);
moepage_status mp_cuda_arena_back(mp_device *device, uint64_t offset, uint64_t bytes);
void mp_cuda_arena_unback(mp_device *device, uint64_t offset, uint64_t bytes);
moepage_status mp_cuda_available(mp_device *device, uint64_t *out);

/* The size of an arena's handles: the largest power of two times `granularity` that is at most 32 MiB
 * and at most 1/64 of the arena; at least `granularity`. Larger handles are mapped faster per byte, but
 * waste more in views, which are made of whole handles. */
uint64_t mp_cuda_handle_bytes(uint64_t granularity, uint64_t arena_bytes);

/* What an arena's size should be a multiple of: the driver's granularity, so that the driver takes no
 * more than the budget. Context current. */
uint64_t mp_cuda_arena_align(mp_cuda *cuda);

/* As in mp_device_ops. ARGUMENT for ranges that are not whole handles of the arena,
 * UNSUPPORTED without VMM. */
moepage_status mp_cuda_view_reserve(mp_device *device, uint64_t bytes, void **out);
void mp_cuda_view_release(mp_device *device, void *base, uint64_t bytes);
moepage_status mp_cuda_view_map(mp_device *device, void *at, uint64_t offset, uint64_t bytes);
void mp_cuda_view_unmap(mp_device *device, void *at, uint64_t bytes);

/* ---- memory.c ---- */

/* As in mp_device_ops. */
moepage_status mp_cuda_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out);
void mp_cuda_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes);
moepage_status mp_cuda_host_map(mp_device *device, uint64_t bytes, mp_host_memory *out);
void mp_cuda_host_unmap(mp_device *device, const mp_host_memory *memory);

/* As in mp_cuda_ext; zero-filled. */
moepage_status mp_cuda_shared_alloc(mp_device *device, uint64_t bytes, mp_cuda_shared *out);
void mp_cuda_shared_free(mp_device *device, const mp_cuda_shared *memory);

/* The NUMA node that a GPU is closest to; -1 = unknown. `root` is a prefix for the system's paths: ""
 * but in tests. */
int32_t mp_cuda_numa_node(mp_cuda *cuda, const char *root);

#endif
