/* A device's memory context: its ledgers, its arena, and workspace memory, which is charged both to
 * the workspace's share and to the whole budget. */
#include "arena/home.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"

/* Returns the arena's part of a budget. */
static uint64_t arena_share(const struct moepage_device *home, uint64_t budget)
{
    uint64_t rest = budget - home->workspace.limit;
    return rest < home->arena.bytes ? rest : home->arena.bytes;
}

static uint64_t most_budget(const moepage_device_config *config)
{
    return config->max_budget_bytes ? config->max_budget_bytes : config->budget_bytes;
}

static moepage_status arena_bytes_of(const mp_device *device, const moepage_device_config *config,
                                     uint64_t *out)
{
    uint64_t rest = most_budget(config) - config->workspace_bytes;
    *out = rest & ~(device->arena_align - 1);
    if (!*out)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget_bytes %llu leaves an arena of %llu bytes beside the workspace, at "
                       "least %llu are needed",
                       (unsigned long long)config->budget_bytes, (unsigned long long)rest,
                       (unsigned long long)device->arena_align);
    return MOEPAGE_OK;
}

/* Fails with BUDGET unless the arena's part of the budget is at least one part of the arena. */
static moepage_status check_share(const struct moepage_device *home, uint64_t budget)
{
    uint64_t least = home->device->part_bytes, workspace = atomic_load(&home->workspace.limit);
    if (budget > workspace && budget - workspace >= least)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_BUDGET,
                   "a budget of %llu bytes leaves the arena less than one part of %llu beside the "
                   "workspace of %llu",
                   (unsigned long long)budget, (unsigned long long)least,
                   (unsigned long long)workspace);
}

/* An arena whose addresses are for more than the budget. */
static moepage_status open_part(struct moepage_device *home, uint64_t bytes, uint64_t budget)
{
    mp_device *device = home->device;
    void *base = NULL;
    if (!device->ops->reserve)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %s: max_budget_bytes: the arena's memory is given once and for all",
                       device->name);
    moepage_status status = device->ops->reserve(device, bytes, &base);
    if (status)
        return status;
    mp_arena_init(&home->arena, base, bytes, &home->ledger);
    status = check_share(home, budget);
    if (!status)
        status = mp_arena_open_hole(&home->arena, device, arena_share(home, budget), false);
    if (status) {
        mp_arena_fini(&home->arena);
        device->ops->free(device, MP_MEMORY_ARENA, base, bytes);
    }
    return status;
}

static moepage_status open_whole(struct moepage_device *home, uint64_t bytes)
{
    mp_device *device = home->device;
    void *base = NULL;
    moepage_status status = device->ops->alloc(device, MP_MEMORY_ARENA, bytes, &base);
    if (status)
        return status;
    mp_arena_init(&home->arena, base, bytes, &home->ledger);
    return mp_arena_open_hole(&home->arena, device, bytes, true);
}

moepage_status mp_home_open(mp_device *device, const moepage_device_config *config,
                            struct moepage_device **out)
{
    uint64_t bytes;
    moepage_status status = arena_bytes_of(device, config, &bytes);
    if (status)
        return status;
    struct moepage_device *home = mp_alloc(sizeof *home);
    if (!home)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the device's handle");
    home->device = device;
    home->max_budget = most_budget(config);
    home->reserve_bytes = config->reserve_bytes;
    mp_ledger_init(&home->ledger, config->budget_bytes);
    mp_ledger_init(&home->workspace, config->workspace_bytes);
    status = home->max_budget > config->budget_bytes ? open_part(home, bytes, config->budget_bytes)
                                                     : open_whole(home, bytes);
    if (status) {
        mp_free(home);
        return status;
    }
    mp_graveyard_init(&home->graveyard);
    /* Starts at a value derived from the address, so that a sequence id of another device is
     * recognised as foreign. */
    atomic_init(&home->next_sequence, ((uint64_t)(uintptr_t)home * 0x9e3779b97f4a7c15u) >> 24);
    atomic_init(&home->residents, 0);
    atomic_init(&home->aim, config->budget_bytes);
    pthread_mutex_init(&home->compute_lock, NULL);
    pthread_mutex_init(&home->budget_lock, NULL);
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
    pthread_mutex_destroy(&home->budget_lock);
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
                       (unsigned long long)bytes,
                       (unsigned long long)atomic_load(&home->workspace.limit),
                       (unsigned long long)(atomic_load(&home->workspace.limit) -
                                            atomic_load(&home->workspace.used)));
    if (!mp_ledger_try_reserve(&home->ledger, bytes)) {
        status =
            mp_fail(MOEPAGE_E_BUDGET, "%llu bytes of workspace exceed the device's budget of %llu",
                    (unsigned long long)bytes,
                    (unsigned long long)atomic_load(&home->ledger.limit));
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

/* ---- the budget ---- */

moepage_status mp_home_check_budget(const struct moepage_device *home, uint64_t budget)
{
    if (budget > home->max_budget)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "a budget of %llu bytes: the device was opened with addresses for at most "
                       "%llu, its max_budget_bytes",
                       (unsigned long long)budget, (unsigned long long)home->max_budget);
    if (!home->arena.part)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "device %s: the budget cannot move: the arena's memory is given once and for "
            "all",
            home->device->name);
    return check_share(home, budget);
}

uint64_t mp_home_aim(struct moepage_device *home, uint64_t budget)
{
    uint64_t limit = arena_share(home, budget);
    atomic_store(&home->aim, budget);
    mp_arena_aim(&home->arena, limit);
    return limit;
}

bool mp_home_settle(struct moepage_device *home)
{
    if (!mp_arena_settle(&home->arena))
        return false;
    mp_ledger_set_limit(&home->ledger, atomic_load(&home->aim));
    return true;
}

moepage_status mp_home_grow(struct moepage_device *home, uint64_t budget)
{
    moepage_status status = mp_arena_grow(&home->arena, arena_share(home, budget));
    if (status)
        return status;
    atomic_store(&home->aim, budget);
    mp_ledger_set_limit(&home->ledger, budget);
    return MOEPAGE_OK;
}

/* ---- who lives here ---- */

void mp_home_set_experts(struct moepage_device *home, struct moepage_expert_pool *experts)
{
    pthread_mutex_lock(&home->budget_lock);
    home->experts = experts;
    home->owed_slots = 0;
    pthread_mutex_unlock(&home->budget_lock);
}

void mp_home_set_kv(struct moepage_device *home, struct moepage_kv_pool *kv)
{
    pthread_mutex_lock(&home->budget_lock);
    home->kv = kv;
    home->owed_blocks = 0;
    pthread_mutex_unlock(&home->budget_lock);
}

void mp_home_set_budget_watch(struct moepage_device *home, mp_budget_watch *watch)
{
    pthread_mutex_lock(&home->budget_lock);
    home->budget_watch = watch;
    pthread_mutex_unlock(&home->budget_lock);
}
