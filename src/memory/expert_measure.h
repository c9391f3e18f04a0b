/* expert_measure.h — what a shard's tiers are worth: bandwidths measured when a pool is created,
 * on the streams and kernels that loads will use. Never constants (FluxMoE §4.2). */
#ifndef MP_MEMORY_EXPERT_MEASURE_H
#define MP_MEMORY_EXPERT_MEASURE_H

#include "memory/expert_pool.h"

/* Fills shard->rates. The expert side of the arena is attached and empty: its first slot's bytes
 * are written. */
moepage_status mp_measure_tiers(mp_shard *shard);

/* Page-aligned host memory for one image, given back by mp_scratch_close. */
typedef struct mp_scratch {
    void *memory;
    uint64_t bytes;
    unsigned char *aligned;
    uint64_t room;
} mp_scratch;

moepage_status mp_scratch_open(struct moepage_device *home, uint64_t room, mp_scratch *out);
/* Safe after a failed open. */
void mp_scratch_close(struct moepage_device *home, mp_scratch *scratch);

#endif
