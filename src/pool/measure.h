/* measure.h — what a shard's tiers are worth: bandwidths measured when a pool is created,
 * on the streams and kernels that loads will use. Never constants (FluxMoE §4.2). */
#ifndef MP_POOL_MEASURE_H
#define MP_POOL_MEASURE_H

#include "pool/expert_pool.h"

/* Fills shard->rates. The expert side of the arena is attached and empty: up to `slots` slots (0: all
 * that there is room for) are claimed for the time being, and written. */
moepage_status mp_measure_tiers(mp_shard *shard, uint64_t slots);

#endif
