/* The byte budget's ledger. */
#include "base/ledger.h"

#include <assert.h>

void mp_ledger_init(mp_ledger *ledger, uint64_t limit)
{
    atomic_init(&ledger->limit, limit);
    atomic_init(&ledger->used, 0);
    atomic_init(&ledger->peak, 0);
}

static void raise_peak(mp_ledger *ledger, uint64_t used)
{
    uint64_t peak = atomic_load(&ledger->peak);
    while (peak < used && !atomic_compare_exchange_weak(&ledger->peak, &peak, used))
        ;
}

bool mp_ledger_try_reserve(mp_ledger *ledger, uint64_t bytes)
{
    uint64_t used = atomic_load(&ledger->used);
    do {
        if (bytes > atomic_load(&ledger->limit) - used)
            return false;
    } while (!atomic_compare_exchange_weak(&ledger->used, &used, used + bytes));
    raise_peak(ledger, used + bytes);
    return true;
}

/* A reservation that still saw the old peak has been added to `used` before. */
void mp_ledger_set_limit(mp_ledger *ledger, uint64_t limit)
{
    uint64_t before = atomic_exchange(&ledger->limit, limit);
    if (limit >= before)
        return;
    assert(atomic_load(&ledger->used) <= limit);
    atomic_store(&ledger->peak, 0);
    raise_peak(ledger, atomic_load(&ledger->used));
}

void mp_ledger_release(mp_ledger *ledger, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&ledger->used, bytes);
    assert(before >= bytes);
    (void)before;
}
