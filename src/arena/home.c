/* A device's memory context: its ledgers, its arena, and workspace memory, which is charged both to
 * the workspace's share and to the whole budget. */
#include "arena/home.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"

static moepage_status arena_bytes_of(const mp_device *device, const moepage_device_config *config,
                                     uint64_t *out)
{
    uint64_t rest = config->budget_bytes - config->workspace_bytes;
    *out = rest & ~(device->arena_align - 1);
    if (!*out)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget_bytes %llu leaves an arena of %llu bytes beside the workspace, at "
                       "least %llu are needed",
                       (unsigned long long)config->budget_bytes, (unsigned long long)rest,
                       (unsigned long long)device->arena_align);
    return MOEPAGE_OK;
}

moepage_status mp_home_open(mp_device *device, const moepage_device_config *config,
                            struct moepage_device **out)
{
    uint64_t arena_bytes;
    void *arena = NULL;
    moepage_status status = arena_bytes_of(device, config, &arena_bytes);
    if (status)
        return status;
    struct moepage_device *home = mp_alloc(sizeof *home);
    if (!home)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the device's handle");
    status = device->ops->alloc(device, MP_MEMORY_ARENA, arena_bytes, &arena);
    if (status) {
        mp_free(home);
        return status;
    }
    home->device = device;
    mp_ledger_init(&home->ledger, config->budget_bytes);
    mp_ledger_init(&home->workspace, config->workspace_bytes);
    mp_arena_init(&home->arena, arena, arena_bytes, &home->ledger);
    mp_graveyard_init(&home->graveyard);
    /* Starts at a value derived from the address, so that a sequence id of another device is
     * recognised as foreign. */
    atomic_init(&home->next_sequence, ((uint64_t)(uintptr_t)home * 0x9e3779b97f4a7c15u) >> 24);
    atomic_init(&home->residents, 0);
    pthread_mutex_init(&home->compute_lock, NULL);
    mp_handle_open(&home->handle, MP_KIND_DEVICE);
    *out = home;
    return MOEPAGE_OK;
}

void mp_home_close(struct moepage_device *home)
{
    assert(!atomic_load(&home->residents));
    assert(!atomic_load(&home->ledger.used) && !atomic_load(&home->workspace.used));
    mp_handle_kill(&home->handle);
    if (home->compute)
        home->device->ops->stream_destroy(home->compute);
    pthread_mutex_destroy(&home->compute_lock);
    home->device->ops->free(home->device, MP_MEMORY_ARENA, home->arena.base, home->arena.bytes);
    home->device->ops->close(home->device);
    mp_arena_fini(&home->arena);
    mp_graveyard_free(&home->graveyard);
    mp_free(home);
}

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

moepage_status mp_home_compute(struct moepage_device *home, mp_stream **out)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&home->compute_lock);
    if (!home->compute)
        status = home->device->ops->stream_create(home->device, MP_STREAM_COMPUTE, &home->compute);
    *out = home->compute;
    pthread_mutex_unlock(&home->compute_lock);
    return status;
}
