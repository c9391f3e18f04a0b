/* ranges.h — names for NVIDIA's profilers (NVTX): work that a thread hands to the driver between
 * push and pop is shown under the name, on the thread and on the GPU. When ranges are off, as by
 * default, one costs a comparison with NULL. */
#ifndef MP_CUDA_RANGES_H
#define MP_CUDA_RANGES_H

#include <stdint.h>

/* Of one thread, nested. `amount` is shown beside the name: bytes, experts or jobs. */
typedef struct mp_cuda_ranges {
    void (*push)(const char *name, uint64_t amount);
    void (*pop)(void);
} mp_cuda_ranges;

#define MP_CUDA_RANGE_DEMAND "demand transfer"
#define MP_CUDA_RANGE_PREFETCH "prefetch transfer"
#define MP_CUDA_RANGE_DECODE "decode"
#define MP_CUDA_RANGE_EXPERTS "experts"

/* Returns NVTX's functions; NULL if the module was built without the toolkit's header. */
const mp_cuda_ranges *mp_cuda_ranges_find(void);

static inline void mp_cuda_range_push(const mp_cuda_ranges *ranges, const char *name,
                                      uint64_t amount)
{
    if (ranges && name)
        ranges->push(name, amount);
}

static inline void mp_cuda_range_pop(const mp_cuda_ranges *ranges, const char *name)
{
    if (ranges && name)
        ranges->pop();
}

#endif
