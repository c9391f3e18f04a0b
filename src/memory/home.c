/* Workspace memory: device scratch charged to its share of the budget and to the whole. */
#include "memory/home.h"

#include <assert.h>

#include "base/status.h"

moepage_status mp_home_workspace_alloc(struct moepage_device *home, uint64_t bytes, void **out)
{
    assert(bytes > 0);
    moepage_status status;
    if (!mp_ledger_try_reserve(&home->workspace, bytes))
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%llu bytes of workspace are needed, but of the device's %llu only %llu are "
                       "free: raise workspace_bytes",
                       (unsigned long long)bytes, (unsigned long long)home->workspace.limit,
                       (unsigned long long)(home->workspace.limit -
                                            atomic_load(&home->workspace.used)));
    if (!mp_ledger_try_reserve(&home->ledger, bytes)) {
        status =
            mp_fail(MOEPAGE_E_BUDGET, "%llu bytes of workspace exceed the device's budget of %llu",
                    (unsigned long long)bytes, (unsigned long long)home->ledger.limit);
        goto fail_workspace;
    }
    status = home->device->ops->alloc(home->device, MP_MEMORY_WORKSPACE, bytes, out);
    if (status)
        goto fail_ledger;
    return MOEPAGE_OK;

fail_ledger:
    mp_ledger_release(&home->ledger, bytes);
fail_workspace:
    mp_ledger_release(&home->workspace, bytes);
    return status;
}

void mp_home_workspace_free(struct moepage_device *home, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    home->device->ops->free(home->device, MP_MEMORY_WORKSPACE, memory, bytes);
    mp_ledger_release(&home->ledger, bytes);
    mp_ledger_release(&home->workspace, bytes);
}
