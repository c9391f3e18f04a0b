/* in_place.h — experts that are not in a slot, computed in place: in host memory, as dense
 * bytes that the host's kernels can read.
 *
 * That is the mapping of a checkpoint or of a pack with plain dense images, or the caller's banks; of a
 * pool with a host tier, what the tier holds, as the rest is on storage. A hold of this kind has no
 * slot and is ready at once; the expert is fetched in the background for the next time. */
#ifndef MP_POOL_IN_PLACE_H
#define MP_POOL_IN_PLACE_H

#include "pool/expert_pool.h"

/* Before mp_pool_hold_rest: marks those of the n that are not held, and that it may hold so. The
 * lock is not held. `pieces`: the caller can run experts that lie in pieces. */
void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces);

/* Holds an expert that has been marked, unless a slot has it by now, or nothing does. The lock is
 * held. */
bool mp_in_place_hold(struct moepage_expert_pool *pool, mp_hold *hold);

/* Lets go of it; it has no kind any more. The lock is not held. */
void mp_in_place_release(struct moepage_expert_pool *pool, mp_hold *hold);

#endif
