/* kv_loan.h — idle blocks of a KV pool, lent to the other side of the arena.
 *
 * A pool's share is what its sequences may use. Blocks of it that none uses may be lent: the pool then has fewer, and
 * takes back what a call is short of. Whoever looks at the pool or asks for admission sees the share, as if nothing
 * were lent. */
#ifndef MP_KV_KV_LOAN_H
#define MP_KV_KV_LOAN_H

#include "kv/kv.h"

typedef struct mp_kv_loan mp_kv_loan;
struct mp_kv_loan {
    /* Gives the pool so many blocks in all, or more: on the thread of a call that is short of them, without the pool's
     * lock; `native` is the stream of the caller's kernels. BUSY while something in use is in the way, BUDGET if not so
     * many can come back. */
    moepage_status (*recall)(mp_kv_loan *loan, uint64_t wanted, void *native);
};

/* Sets the pool's one loan, or ends it (NULL) with all that the pool has now as its share; waits for a recall. */
void mp_kv_pool_set_loan(struct moepage_kv_pool *pool, mp_kv_loan *loan);
/* Sets the share, of a pool with a loan; what the pool has beyond it is its own, too. */
void mp_kv_pool_set_share(struct moepage_kv_pool *pool, uint64_t blocks);

#endif
