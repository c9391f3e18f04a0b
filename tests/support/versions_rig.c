/* A pool with two versions of every expert, and the look at its plans. */
#include "versions_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "model/model.h"
#include "pool_rig.h"
#include "testing.h"

#define WORKSPACE_BYTES (4u << 20)
#define ALL_FORMS                                                                   \
    (1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT8 | 1u << MOEPAGE_FORM_INT4 | \
     1u << MOEPAGE_FORM_INT2)

void versions_rig_open_over(versions_rig *rig, moepage_model *model,
                            const moepage_precision_config *precision, uint64_t slots)
{
    rig->precision = *precision;
    rig->precision.struct_size = sizeof rig->precision;
    rig->precision.lo_form = precision->lo_form ? precision->lo_form : MOEPAGE_FORM_INT2;
    rig->precision.interval_us = precision->interval_us ? precision->interval_us : 1;
    moepage_expert_pool_config pool = {.struct_size = sizeof pool,
                                       .slots = slots,
                                       .host_tier_bytes = rig->host_tier_bytes,
                                       .precision = &rig->precision};
    uint64_t arena = 0, workspace = 0;
    rig->n_devices = rig->n_devices ? rig->n_devices : 1;
    if (moepage_expert_pool_sizes(model, &pool, rig->n_devices, &workspace, &arena))
        fail_msg("sizes: %s", moepage_last_error());
    const uint64_t unit = device_rig_is_cuda() ? 2u << 20 : 1; /* of a GPU's arena */
    arena = (arena + rig->spare_bytes + unit - 1) / unit * unit;
    moepage_device_config device = {.struct_size = sizeof device,
                                    .threads = 1,
                                    .workspace_bytes = WORKSPACE_BYTES,
                                    .budget_bytes = WORKSPACE_BYTES + workspace + arena};
    for (uint32_t d = 0; d < rig->n_devices; d++)
        rig->devices[d] = device_rig_open_nth(&device, d);
    rig->device = rig->devices[0];
    if (moepage_expert_pool_create(rig->devices, rig->n_devices, model, &pool, &rig->pool))
        fail_msg("no pool: %s", moepage_last_error());
    rig->n_high = rig->precision.hi_experts;
}

void versions_rig_open(versions_rig *rig, const bank_shape *shape,
                       const moepage_precision_config *precision)
{
    versions_rig_open_wide(rig, shape, precision, 0);
}

void versions_rig_open_wide(versions_rig *rig, const bank_shape *shape,
                            const moepage_precision_config *precision, uint64_t spare_bytes)
{
    versions_rig_open_on(rig, 1, shape, precision, spare_bytes);
}

void versions_rig_open_on(versions_rig *rig, uint32_t n_devices, const bank_shape *shape,
                          const moepage_precision_config *precision, uint64_t spare_bytes)
{
    *rig = (versions_rig){.n_devices = n_devices, .spare_bytes = spare_bytes};
    bank_shape own = shape ? *shape : (bank_shape){0};
    own.layers = own.layers ? own.layers : 3;
    own.experts = own.experts ? own.experts : 8;
    own.top_k = own.top_k ? own.top_k : 2;
    own.hidden = own.hidden ? own.hidden : 64;
    own.intermediate = own.intermediate ? own.intermediate : 32;
    own.dtype = own.dtype ? own.dtype : MOEPAGE_DTYPE_BF16;
    own.pack_forms = own.pack_forms ? own.pack_forms : ALL_FORMS;
    own.bias = true;
    own.seed = own.seed ? own.seed : 11;
    bank_model_open(&rig->bank, &own);
    versions_rig_open_over(rig, rig->bank.model, precision, 0);
}

static moepage_device_info look_at(const versions_rig *rig, uint32_t device)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig->devices[device], &info), MOEPAGE_OK);
    return info;
}

void versions_rig_close(versions_rig *rig)
{
    for (uint32_t d = 0; d < rig->n_devices; d++)
        assert_true(look_at(rig, d).peak_bytes <= look_at(rig, d).budget_bytes);
    assert_int_equal(moepage_expert_pool_destroy(rig->pool), MOEPAGE_OK);
    for (uint32_t d = 0; d < rig->n_devices; d++) {
        assert_int_equal(look_at(rig, d).used_bytes, 0);
        device_rig_close(rig->devices[d]);
    }
    if (rig->bank.model)
        bank_model_close(&rig->bank);
}

moepage_expert_pool_info versions_rig_info(versions_rig *rig)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_expert_pool_get_info(rig->pool, &info), MOEPAGE_OK);
    return info;
}

moepage_session *versions_rig_session(versions_rig *rig, uint32_t max_tokens)
{
    moepage_model_info info = {.struct_size = sizeof info};
    moepage_session *session = NULL;
    assert_int_equal(moepage_model_get_info(rig->pool->model, &info), MOEPAGE_OK);
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = max_tokens,
                                     .max_top_k = info.experts};
    if (moepage_session_create(rig->pool, NULL, &config, &session))
        fail_msg("no session: %s", moepage_last_error());
    return session;
}

static uint32_t form_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_INT8: return MOEPAGE_FORM_INT8;
    case MOEPAGE_DTYPE_INT4: return MOEPAGE_FORM_INT4;
    case MOEPAGE_DTYPE_INT2: return MOEPAGE_FORM_INT2;
    default: return MOEPAGE_FORM_DENSE;
    }
}

/* The part of an expert's image that a tensor is. */
static mp_image_part find_part(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                               uint32_t form, uint32_t tensor)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    if (form != MOEPAGE_FORM_DENSE) {
        mp_model_find_parts(model, layer, expert, form, parts);
        return parts[tensor];
    }
    const moepage_expert_tensor *dense = &mp_model_layout(model, layer)->tensors[tensor];
    return (mp_image_part){.offset = dense->offset, .bytes = dense->bytes};
}

uint64_t versions_rig_tensor(const versions_rig *rig, const moepage_plan_expert *expert,
                             uint32_t tensor, void *out, uint64_t most)
{
    const mp_image_part part =
        find_part(rig->pool->model, 0, expert->expert, form_of(expert->dtype), tensor);
    assert_true(part.bytes <= most);
    if (expert->device > 0)
        device_rig_wait(rig->devices[0]);
    device_rig_read(rig->devices[expert->device], expert->tensors[tensor], out, part.bytes);
    return part.bytes;
}

uint32_t versions_rig_check(const versions_rig *rig, uint32_t layer,
                            const moepage_plan_expert *expert)
{
    const struct moepage_model *model = rig->pool->model;
    uint32_t form = form_of(expert->dtype);
    uint64_t room = mp_model_image_room(model, form), read_bytes;
    unsigned char *image = aligned_alloc(4096, (room + 4095) / 4096 * 4096), *shown = malloc(room);
    mp_image where;
    assert_true(image && shown);
    assert_int_equal(mp_model_read_image(model, layer, expert->expert, form, image, room,
                                         &read_bytes),
                     MOEPAGE_OK);
    mp_model_find_image(model, layer, expert->expert, form, &where);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const mp_image_part part = find_part(model, layer, expert->expert, form, t);
        versions_rig_tensor(rig, expert, t, shown, room);
        if (memcmp(shown, image + where.skew + part.offset, part.bytes) != 0)
            fail_msg("tensor %u of expert %u of layer %u is not what the file has in form %u", t,
                     expert->expert, layer, form);
    }
    free(shown);
    free(image);
    return form;
}

void versions_rig_layer(versions_rig *rig, moepage_session *session, uint32_t layer,
                        const int32_t *ids, uint32_t n, uint8_t *forms)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    if (pool_rig_route(session, layer, ids, n, &plan))
        fail_msg("layer %u: %s", layer, moepage_last_error());
    assert_int_equal(plan.n_groups, 1);
    assert_int_equal(plan.n_experts, n);
    for (uint32_t i = 0; i < n; i++) {
        const moepage_plan_expert *expert = &plan.experts[i];
        uint32_t form = versions_rig_check(rig, layer, expert);
        assert_int_equal(expert->expert, ids[i]);
        assert_int_equal(plan.expert_map[expert->expert], expert->slot);
        if (form == rig->precision.lo_form)
            assert_int_equal(expert->slot, -1);
        else
            assert_true(expert->slot >= 0);
        if (forms)
            forms[i] = (uint8_t)form;
    }
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
}

moepage_session_stats versions_rig_step(versions_rig *rig, moepage_session *session,
                                        const int32_t *ids, uint32_t n)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < rig->pool->layers; l++)
        versions_rig_layer(rig, session, l, ids, n, NULL);
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.stall_ns, 0);
    assert_int_equal(stats.demand_bytes, 0);
    assert_int_equal(stats.misses + stats.late, 0);
    assert_int_equal(stats.hits + stats.low_experts, stats.routed);
    return stats;
}

uint32_t versions_rig_count_high(versions_rig *rig, uint32_t layer)
{
    struct moepage_expert_pool *pool = rig->pool;
    uint32_t n = 0;
    pthread_mutex_lock(&pool->lock); /* one that goes and one that comes are not counted both */
    for (uint32_t e = 0; e < pool->experts; e++)
        n += atomic_load(&pool->cache->entry[layer * pool->experts + e]) != MP_NO_SLOT;
    pthread_mutex_unlock(&pool->lock);
    return n;
}
