/* Entry points of expert pools: check arguments, call down. */
#include <stddef.h>

#include "base/config.h"
#include "base/first_forms.h"
#include "base/handle.h"
#include "base/session_stats.h"
#include "base/status.h"
#include "pool/pool.h"
#include "pool/share.h"

/* The first published form of each struct ends before this member. */
#define INFO_MIN_BYTES offsetof(moepage_expert_pool_info, bus_form)

static moepage_status check_devices(moepage_device *const *devices, uint32_t n_devices)
{
    if (!devices || n_devices < 1 || n_devices > MOEPAGE_MAX_DEVICES)
        return mp_fail(MOEPAGE_E_ARGUMENT, "devices is NULL or n_devices (%u) is not 1 to %d",
                       n_devices, MOEPAGE_MAX_DEVICES);
    for (uint32_t d = 0; d < n_devices; d++) {
        moepage_status status = mp_handle_check(devices[d], MP_KIND_DEVICE);
        if (status)
            return status;
        for (uint32_t other = 0; other < d; other++)
            if (devices[other] == devices[d])
                return mp_fail(MOEPAGE_E_ARGUMENT, "devices %u and %u are the same", other, d);
    }
    return MOEPAGE_OK;
}

moepage_status moepage_expert_pool_create(moepage_device *const *devices, uint32_t n_devices,
                                          moepage_model *model,
                                          const moepage_expert_pool_config *config,
                                          moepage_expert_pool **out)
{
    moepage_expert_pool_config own;
    moepage_status status = check_devices(devices, n_devices);
    if (!status)
        status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (!status)
        status =
            mp_config_read(&own, sizeof own, MP_EXPERT_POOL_CONFIG_MIN_BYTES, config, "config");
    if (status)
        return status;
    return mp_pool_create(devices, n_devices, model, &own, out);
}

moepage_status moepage_expert_pool_sizes(const moepage_model *model,
                                         const moepage_expert_pool_config *config,
                                         uint32_t n_devices, uint64_t *workspace_bytes,
                                         uint64_t *arena_bytes)
{
    moepage_expert_pool_config own;
    uint64_t workspace, arena;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status =
            mp_config_read(&own, sizeof own, MP_EXPERT_POOL_CONFIG_MIN_BYTES, config, "config");
    if (!status)
        status = mp_pool_sizes(model, &own, n_devices, &workspace, &arena);
    if (status)
        return status;
    if (workspace_bytes)
        *workspace_bytes = workspace;
    if (arena_bytes)
        *arena_bytes = arena;
    return MOEPAGE_OK;
}

moepage_status moepage_expert_pool_destroy(moepage_expert_pool *pool)
{
    if (!pool)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(pool, MP_KIND_EXPERTS);
    if (status)
        return status;
    uint32_t sessions = mp_pool_sessions(pool);
    if (sessions)
        return mp_fail(MOEPAGE_E_BUSY, "%u session(s) use the expert pool: destroy them first",
                       sessions);
    if (mp_pool_is_watched(pool))
        return mp_fail(MOEPAGE_E_BUSY, "a controller watches the expert pool: destroy it first");
    mp_pool_destroy(pool);
    return MOEPAGE_OK;
}

moepage_status moepage_expert_pool_get_info(moepage_expert_pool *pool,
                                            moepage_expert_pool_info *info)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_EXPERTS);
    if (status)
        return status;
    moepage_expert_pool_info own;
    mp_pool_get_info(pool, &own);
    return mp_config_write(info, &own, sizeof own, INFO_MIN_BYTES, "info");
}

moepage_status moepage_expert_pool_get_stats(moepage_expert_pool *pool,
                                             moepage_session_stats *stats)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_EXPERTS);
    if (status)
        return status;
    moepage_session_stats own;
    mp_pool_get_stats(pool, &own);
    return mp_config_write(stats, &own, sizeof own, MP_STATS_MIN_BYTES, "stats");
}

static moepage_status find_key(const moepage_expert_pool *pool, uint32_t layer, uint32_t expert,
                               uint32_t *key)
{
    moepage_status status = mp_handle_check(pool, MP_KIND_EXPERTS);
    if (status)
        return status;
    const mp_pool_shape shape = mp_pool_get_shape(pool);
    if (layer >= shape.layers || expert >= shape.experts)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "there is no expert %u in layer %u: the model has %u MoE "
                       "layers of %u",
                       expert, layer, shape.layers, shape.experts);
    *key = layer * shape.experts + expert;
    return MOEPAGE_OK;
}

moepage_status moepage_expert_pool_lookup(moepage_expert_pool *pool, uint32_t layer,
                                          uint32_t expert, moepage_residency *out)
{
    uint32_t key;
    moepage_status status = find_key(pool, layer, expert, &key);
    if (status)
        return status;
    moepage_residency own;
    mp_pool_lookup(pool, key, &own);
    return MP_CONFIG_WRITE(out, own);
}

moepage_status moepage_expert_pool_pin(moepage_expert_pool *pool, uint32_t layer, uint32_t expert)
{
    uint32_t key;
    moepage_status status = find_key(pool, layer, expert, &key);
    return status ? status : mp_pool_pin(pool, key);
}

moepage_status moepage_expert_pool_unpin(moepage_expert_pool *pool, uint32_t layer, uint32_t expert)
{
    uint32_t key;
    moepage_status status = find_key(pool, layer, expert, &key);
    return status ? status : mp_pool_unpin(pool, key);
}
