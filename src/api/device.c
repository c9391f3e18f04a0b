/* Entry points of devices: opening one builds its home (ledgers, arena, graveyard). */
#include <assert.h>
#include <stddef.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/status.h"
#include "memory/home.h"

#define ARENA_ALIGN 4096u
#define WORKSPACE_SHARE 16u
#define WORKSPACE_MAX_BYTES (256ull << 20)

/* The config as it was first published ends before this. */
#define CONFIG_MIN_BYTES offsetof(moepage_device_config, io_threads)

/* Fills in the default workspace and says how many bytes are left for the arena. */
static moepage_status plan_budget(moepage_device_config *config, uint64_t *arena_bytes)
{
    if (!config->budget_bytes)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget_bytes is 0: say how many bytes the device may hold");
    if (!config->workspace_bytes) {
        config->workspace_bytes = config->budget_bytes / WORKSPACE_SHARE;
        if (config->workspace_bytes > WORKSPACE_MAX_BYTES)
            config->workspace_bytes = WORKSPACE_MAX_BYTES;
    }
    if (config->budget_bytes <= config->workspace_bytes)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget_bytes %llu leaves nothing beside workspace_bytes %llu",
                       (unsigned long long)config->budget_bytes,
                       (unsigned long long)config->workspace_bytes);
    uint64_t rest = config->budget_bytes - config->workspace_bytes;
    *arena_bytes = rest - rest % ARENA_ALIGN;
    if (!*arena_bytes)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget_bytes %llu leaves an arena of %llu bytes beside the workspace, at "
                       "least %u are needed",
                       (unsigned long long)config->budget_bytes, (unsigned long long)rest,
                       ARENA_ALIGN);
    return MOEPAGE_OK;
}

moepage_status moepage_device_open(const char *name, const moepage_device_config *config,
                                   moepage_device **out)
{
    moepage_device_config own;
    uint64_t arena_bytes = 0;
    if (!name || !out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name ? "out" : "the device's name");
    moepage_status status = mp_config_read(&own, sizeof own, CONFIG_MIN_BYTES, config, "config");
    if (!status && own.reserved)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "config: reserved is %u, it must be 0", own.reserved);
    if (!status)
        status = plan_budget(&own, &arena_bytes);
    if (status)
        return status;

    struct moepage_device *home = mp_alloc(sizeof *home);
    if (!home)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the device's handle");
    void *arena = NULL;
    status = mp_device_open(name, &own, &home->device);
    if (status)
        goto fail_home;
    status = home->device->ops->alloc(home->device, MP_MEMORY_ARENA, arena_bytes, &arena);
    if (status)
        goto fail_device;

    mp_ledger_init(&home->ledger, own.budget_bytes);
    mp_ledger_init(&home->workspace, own.workspace_bytes);
    mp_arena_init(&home->arena, arena, arena_bytes, &home->ledger);
    mp_graveyard_init(&home->graveyard);
    /* Counts from a place of its own: an id of another device is not taken for one of ours. */
    atomic_init(&home->next_sequence, ((uint64_t)(uintptr_t)home * 0x9e3779b97f4a7c15u) >> 24);
    atomic_init(&home->residents, 0);
    mp_handle_open(&home->handle, MP_KIND_DEVICE);
    *out = home;
    return MOEPAGE_OK;

fail_device:
    home->device->ops->close(home->device);
fail_home:
    mp_free(home);
    return status;
}

moepage_status moepage_device_close(moepage_device *device)
{
    if (!device)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (status)
        return status;
    uint32_t residents = atomic_load(&device->residents);
    if (residents)
        return mp_fail(MOEPAGE_E_BUSY, "%u pool%s still live%s on the device: destroy %s first",
                       residents, residents == 1 ? "" : "s", residents == 1 ? "s" : "",
                       residents == 1 ? "it" : "them");
    assert(!atomic_load(&device->ledger.used) && !atomic_load(&device->workspace.used));

    mp_handle_kill(&device->handle);
    device->device->ops->free(device->device, MP_MEMORY_ARENA, device->arena.base,
                              device->arena.bytes);
    device->device->ops->close(device->device);
    mp_arena_fini(&device->arena);
    mp_graveyard_free(&device->graveyard);
    mp_free(device);
    return MOEPAGE_OK;
}

moepage_status moepage_device_get_info(moepage_device *device, moepage_device_info *info)
{
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (status)
        return status;
    moepage_device_info own = {
        .threads = device->device->threads,
        .budget_bytes = device->ledger.limit,
        .arena_bytes = device->arena.bytes,
        .workspace_bytes = device->workspace.limit,
        .used_bytes = atomic_load(&device->ledger.used),
        .peak_bytes = atomic_load(&device->ledger.peak),
        .arena_expert_bytes = mp_arena_claimed(&device->arena, MP_SIDE_EXPERTS),
        .arena_kv_bytes = mp_arena_claimed(&device->arena, MP_SIDE_KV),
        .bus_bytes_per_s = device->device->bus_bytes_per_s,
        .name = device->device->name,
        .kernels = device->device->kernels,
    };
    return MP_CONFIG_WRITE(info, own);
}
