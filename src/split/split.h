/* split.h — moving the boundary between experts and KV while both serve.
 *
 * The side that shrinks gives up its bytes before the other grows, so that the bytes in use never
 * exceed the budget. Nothing in use is taken away: a move waits for a slot that an open plan holds,
 * and for a KV block that would have to be copied while a step may read it. Meanwhile the slots
 * that are to go are fenced: they take no more experts, and lose those that no plan holds. */
#ifndef MP_SPLIT_SPLIT_H
#define MP_SPLIT_SPLIT_H

#include "kv/kv.h"
#include "pool/share.h"

/* Tries to move the pools, on one device, to `slots` slots for dense experts and `blocks` KV
 * blocks, rounded up to whole granules (0: that pool stays as it is; either pool may be NULL).
 * Returns BUSY while something in use is in the way: an experts' side that shrinks is then fenced,
 * and the same call goes on later. Any other failure refuses the move: nothing is fenced, and the
 * old split stays in use (as in moepage_split_set). Never waits for a plan, a step or a load; only
 * a KV side that shrinks, on a device whose work outlasts its calls, waits for work submitted by
 * ended steps and on `stream`.
 *
 * Each BUSY attempt frees what it can, so that one will succeed: experts held in slots that are
 * to go cannot be found there any more, and sessions reserve fewer slots. Only two things can
 * stay BUSY for good: a pinned expert beyond the new end, and a device-driven path that never
 * asks for another expert. */
moepage_status mp_split_move(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                             uint64_t slots, uint64_t blocks, void *stream);

/* The same in a single attempt, as a host asks for it: a KV side that lends has `blocks` as its share then. It waits for everything that only the device delays; BUSY
 * leaves the old split in use, without a fence. If a slot that is to go is in use, nothing is
 * dropped at all. */
moepage_status mp_split_set(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                            uint64_t slots, uint64_t blocks, void *stream);

/* The same, of a caller that counts moves itself. */
moepage_status mp_split_once(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                             uint64_t slots, uint64_t blocks, void *stream);

/* Removes the fence: the old split is in use as before. */
void mp_split_abandon(struct moepage_expert_pool *experts);

/* Keeps `per_layer` experts of every layer compressed in device memory. Their images take whole
 * slots at the low end of the experts' side, or give them back, and the pool has `slots` slots
 * above them. New images are copied in the background and count once they have landed; images that
 * go are dropped. The smallest step is one expert of each layer. Fails with BUSY as above (with the
 * same fence), with BUDGET (also if too few slots would be there both before and after: take a
 * smaller step), and with UNSUPPORTED without the EXPH form or staging. */
moepage_status mp_split_compress(struct moepage_expert_pool *experts, uint32_t per_layer,
                                 uint64_t slots);

#endif
