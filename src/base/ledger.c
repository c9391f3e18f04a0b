/* The byte budget's ledger. */
#include "base/ledger.h"

#include <assert.h>

void mp_ledger_init(mp_ledger *ledger, uint64_t limit)
{
    ledger->limit = limit;
    atomic_init(&ledger->used, 0);
    atomic_init(&ledger->peak, 0);
}

bool mp_ledger_try_reserve(mp_ledger *ledger, uint64_t bytes)
{
    uint64_t used = atomic_load(&ledger->used);
    do {
        if (bytes > ledger->limit - used)
            return false;
    } while (!atomic_compare_exchange_weak(&ledger->used, &used, used + bytes));
    uint64_t peak = atomic_load(&ledger->peak);
    while (peak < used + bytes && !atomic_compare_exchange_weak(&ledger->peak, &peak, used + bytes))
        ;
    return true;
}

void mp_ledger_release(mp_ledger *ledger, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&ledger->used, bytes);
    assert(before >= bytes);
    (void)before;
}
