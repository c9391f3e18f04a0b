/* The byte budget: every device byte is reserved here before it is used.
 *
 * used <= limit holds at every instant, and the recorded peak proves it. Lock-free,
 * from any thread; the limit is set by one thread at a time. */
#ifndef MP_BASE_LEDGER_H
#define MP_BASE_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mp_ledger {
    _Atomic uint64_t limit;
    _Atomic uint64_t used;
    _Atomic uint64_t peak; /* since the limit was last lowered */
} mp_ledger;

void mp_ledger_init(mp_ledger *ledger, uint64_t limit);
bool mp_ledger_try_reserve(mp_ledger *ledger, uint64_t bytes);
/* Sets the limit. To lower it, the caller has made sure that no more than that is used or will be. The
 * peak then begins anew. */
void mp_ledger_set_limit(mp_ledger *ledger, uint64_t limit);
void mp_ledger_release(mp_ledger *ledger, uint64_t bytes);

#endif
