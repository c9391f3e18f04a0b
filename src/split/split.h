/* split.h — moving the boundary between experts and KV while both serve.
 *
 * The side that shrinks gives its bytes up before the other grows, so that bytes in use never pass the
 * budget. Nothing in use is taken away: a slot that an open plan holds, or a KV block that would have
 * to be copied while a step may read it, makes a move wait. Meanwhile what has to go is fenced:
 * slots beyond the new end take no more experts and lose those that no plan holds. */
#ifndef MP_SPLIT_SPLIT_H
#define MP_SPLIT_SPLIT_H

#include "kv/kv.h"
#include "pool/share.h"

/* Tries to bring the pools, on one device, to `slots` slots for dense experts and `blocks` KV
 * blocks, rounded up to whole granules (0: that pool stays as it is; either pool may be NULL). OK:
 * done. BUSY: what is in use is in the way; the experts' side, if it shrinks, is fenced, and the
 * same call again goes on. Any other failure: refused, nothing fenced, the old split in use (as in
 * moepage_split_set). Never waits for a plan, a step or a load; only a KV side that shrinks on a
 * device whose work outlasts its calls waits for what ended steps and `stream` have submitted.
 *
 * Every BUSY attempt frees what is free to go, so that one some time later succeeds: whatever is
 * held in slots that go cannot be found there any more, and sessions reserve less. What stays BUSY
 * for good is a pinned expert beyond the new end, and a device-driven path that nothing makes ask
 * for another expert. */
moepage_status mp_split_move(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                             uint64_t slots, uint64_t blocks, void *stream);

/* The same in one attempt: what waits for the device alone is waited for, and BUSY leaves the old
 * split in use, with no fence and nothing dropped where a slot is in use. */
moepage_status mp_split_set(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                            uint64_t slots, uint64_t blocks, void *stream);

/* Takes the fence away: the old split is in use as before. */
void mp_split_abandon(struct moepage_expert_pool *experts);

/* Makes `per_layer` experts of every layer stay compressed in device memory, taking whole slots at
 * the low end of the experts' side for their images, or giving them back: afterwards the pool has
 * `slots` slots above them. Experts that come are copied in the background and count when they have
 * landed; those that go are dropped. Staggered by construction: a step of one is one expert of each
 * layer. BUSY as above (fenced likewise), BUDGET (also when too few slots would be there both
 * before and after: take a smaller step), UNSUPPORTED without the EXPH form or staging. */
moepage_status mp_split_compress(struct moepage_expert_pool *experts, uint32_t per_layer,
                                 uint64_t slots);

#endif
