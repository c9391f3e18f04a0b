/* budget.h — a device's budget that moves while its pools serve.
 *
 * A budget that shrinks is an aim first: from then on no pool gets more than it allows. What is free goes at
 * once. Then experts leave, down to the fewest that sessions need, and then free KV blocks. Slots are fenced and drained
 * as for a move of the split. When both sides fit, the memory past the new end goes back to the system. */
#ifndef MP_SPLIT_BUDGET_H
#define MP_SPLIT_BUDGET_H

#include "kv/kv.h"
#include "pool/share.h"

/* Tries to make the budget `bytes`. BUSY while something in use is in the way: the aim and its fence stay,
 * and the same call goes on later. Any other failure leaves the old budget and no aim: BUDGET for less than
 * what must stay or more than max_budget_bytes, UNSUPPORTED where it cannot move, NO_MEMORY if the system does
 * not give the memory. A budget that grows gives pools back what smaller ones took, KV first, and the rest
 * to an expert pool that fills its arena. `stream`: of the caller's kernels. */
moepage_status mp_budget_set(struct moepage_device *home, uint64_t bytes, void *stream);

/* Sets the budget that the system's memory allows (planning/follow.h), as far as what must stay lets it. */
moepage_status mp_budget_follow(struct moepage_device *home, void *stream);

#endif
