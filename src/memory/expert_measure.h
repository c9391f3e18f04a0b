/* expert_measure.h — what a shard's tiers are worth: bandwidths measured when a pool is created,
 * on the streams and kernels that loads will use. Never constants (FluxMoE §4.2). */
#ifndef MP_MEMORY_EXPERT_MEASURE_H
#define MP_MEMORY_EXPERT_MEASURE_H

#include "memory/expert_pool.h"

/* Fills shard->rates. The expert side of the arena is attached and empty: its first slot's bytes
 * are written. */
moepage_status mp_measure_tiers(mp_shard *shard);

#endif
