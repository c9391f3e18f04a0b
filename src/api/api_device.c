/* Entry points of devices. */
#include <stddef.h>

#include "arena/home.h"
#include "base/config.h"
#include "base/first_forms.h"
#include "base/status.h"

#define WORKSPACE_SHARE 16u
#define WORKSPACE_MAX_BYTES (256ull << 20)

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
    return MOEPAGE_OK;
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
    if (!status)
        status = plan_workspace(&own);
    if (status)
        return status;

    mp_device *device;
    status = mp_device_open(name, &own, &device);
    if (status)
        return status;
    status = mp_home_open(device, &own, out);
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
        .arena_bytes = device->arena.bytes,
        .workspace_bytes = device->workspace.limit,
        .used_bytes = atomic_load(&device->ledger.used),
        .peak_bytes = atomic_load(&device->ledger.peak),
        .arena_expert_bytes = mp_arena_claimed(&device->arena, MP_SIDE_EXPERTS),
        .arena_kv_bytes = mp_arena_claimed(&device->arena, MP_SIDE_KV),
        .bus_bytes_per_s = device->device->bus_bytes_per_s,
        .name = device->device->name,
        .kernels = device->device->kernels,
        .pageable_bytes = atomic_load(&device->device->pageable_bytes),
    };
    return mp_config_write(info, &own, sizeof own, INFO_MIN_BYTES, "info");
}
