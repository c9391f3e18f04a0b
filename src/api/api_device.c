/* Entry points of devices. */
#include <stddef.h>

#include "arena/home.h"
#include "base/config.h"
#include "base/first_forms.h"
#include "base/status.h"

#define WORKSPACE_SHARE 16u
#define WORKSPACE_MAX_BYTES (256ull << 20)
#define RESERVE_SHARE 16u

/* The first published form of each struct ends before this member. */
#define INFO_MIN_BYTES offsetof(moepage_device_info, pageable_bytes)

static moepage_status plan_workspace(moepage_device_config *config)
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
    if (!config->max_budget_bytes)
        config->max_budget_bytes = config->budget_bytes;
    if (config->max_budget_bytes < config->budget_bytes)
        return mp_fail(MOEPAGE_E_BUDGET, "budget_bytes %llu is more than max_budget_bytes %llu",
                       (unsigned long long)config->budget_bytes,
                       (unsigned long long)config->max_budget_bytes);
    if (!config->reserve_bytes)
        config->reserve_bytes = config->max_budget_bytes / RESERVE_SHARE;
    return MOEPAGE_OK;
}

/* Turns BUDGET_AUTO into bytes. */
static moepage_status find_budget(mp_device *device, moepage_device_config *config)
{
    uint64_t available = 0;
    if (config->budget_bytes != MOEPAGE_BUDGET_AUTO)
        return MOEPAGE_OK;
    if (!device->ops->available)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "device %s: budget_bytes is MOEPAGE_BUDGET_AUTO, and nobody can say how much "
            "memory is free there",
            device->name);
    moepage_status status = device->ops->available(device, &available);
    if (status)
        return status;
    if (!config->max_budget_bytes)
        config->max_budget_bytes = available;
    if (!config->reserve_bytes)
        config->reserve_bytes = config->max_budget_bytes / RESERVE_SHARE;
    uint64_t reserve = config->reserve_bytes;
    config->budget_bytes = available > reserve ? available - reserve : 0;
    if (config->budget_bytes > config->max_budget_bytes)
        config->budget_bytes = config->max_budget_bytes;
    if (config->budget_bytes)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_BUDGET,
        "device %s: %llu bytes are free, all of which reserve_bytes %llu leaves to others",
        device->name, (unsigned long long)available, (unsigned long long)reserve);
}

/* On a device that is open. */
static moepage_status open_home(mp_device *device, moepage_device_config *config,
                                moepage_device **out)
{
    moepage_status status = find_budget(device, config);
    if (!status)
        status = plan_workspace(config);
    return status ? status : mp_home_open(device, config, out);
}

moepage_status moepage_device_open(const char *name, const moepage_device_config *config,
                                   moepage_device **out)
{
    moepage_device_config own;
    if (!name || !out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name ? "out" : "the device's name");
    moepage_status status =
        mp_config_read(&own, sizeof own, MP_DEVICE_CONFIG_MIN_BYTES, config, "config");
    if (!status && own.ranges > 1)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "config: ranges is %u, it must be 0 or 1", own.ranges);
    if (!status && own.budget_bytes != MOEPAGE_BUDGET_AUTO)
        status = plan_workspace(&own);
    if (status)
        return status;

    mp_device *device;
    status = mp_device_open(name, &own, &device);
    if (status)
        return status;
    status = open_home(device, &own, out);
    if (status)
        device->ops->close(device);
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
        return mp_fail(MOEPAGE_E_BUSY,
                       "%u pool%s or PagedTensor%s still live%s on the device: destroy %s first",
                       residents, residents == 1 ? "" : "s", residents == 1 ? "" : "s",
                       residents == 1 ? "s" : "", residents == 1 ? "it" : "them");
    mp_home_close(device);
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
        .arena_bytes = mp_arena_backed(&device->arena),
        .workspace_bytes = device->workspace.limit,
        .used_bytes = atomic_load(&device->ledger.used),
        .peak_bytes = atomic_load(&device->ledger.peak),
        .arena_expert_bytes = mp_arena_claimed(&device->arena, MP_SIDE_EXPERTS),
        .arena_kv_bytes = mp_arena_claimed(&device->arena, MP_SIDE_KV),
        .bus_bytes_per_s = device->device->bus_bytes_per_s,
        .name = device->device->name,
        .kernels = device->device->kernels,
        .pageable_bytes = atomic_load(&device->device->pageable_bytes),
        .budget_aim_bytes = atomic_load(&device->aim),
        .max_budget_bytes = device->max_budget,
        .reserve_bytes = device->reserve_bytes,
    };
    return mp_config_write(info, &own, sizeof own, INFO_MIN_BYTES, "info");
}
