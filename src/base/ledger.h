/* The byte budget: every device byte is reserved here before it is used.
 *
 * used <= limit holds at every instant, and the recorded peak proves it. Lock-free,
 * from any thread. */
#ifndef MP_BASE_LEDGER_H
#define MP_BASE_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mp_ledger {
    uint64_t limit;
    _Atomic uint64_t used;
    _Atomic uint64_t peak;
} mp_ledger;

void mp_ledger_init(mp_ledger *ledger, uint64_t limit);
bool mp_ledger_try_reserve(mp_ledger *ledger, uint64_t bytes);
void mp_ledger_release(mp_ledger *ledger, uint64_t bytes);

#endif
