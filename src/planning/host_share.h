/* host_share.h — which of the experts that a device lacks the host computes, and which are loaded. A pure function
 * of numbers.
 *
 * Loads and the host's computation go on at the same time, and the layer waits for both. A load takes as long
 * whatever the expert's rows; so the host takes those of the fewest rows, as many as let the last be there soonest. */
#ifndef MP_PLANNING_HOST_SHARE_H
#define MP_PLANNING_HOST_SHARE_H

#include <stdint.h>

/* Below this many rows an expert costs the host its weights, which come from memory, and not its rows. */
#define MP_HOST_LEAST_ROWS 8u

static inline uint32_t mp_host_rows(uint32_t n_rows)
{
    return n_rows < MP_HOST_LEAST_ROWS ? MP_HOST_LEAST_ROWS : n_rows;
}

/* Returns how many of n experts the host computes, and puts them in front of `which`, which is a list of indexes
 * into `rows`. load_ns: of one expert; row_ns: of the host and a row as mp_host_rows counts them, 0 = not known: the
 * host then gets one, for a figure. */
uint32_t mp_host_share(double row_ns, double load_ns, const uint32_t *rows, uint32_t *which,
                       uint32_t n);

#endif
