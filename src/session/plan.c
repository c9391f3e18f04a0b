/* Holding a group's experts, and describing them to callers with kernels of their own. */
#include "base/config.h"
#include "base/status.h"
#include "features/precision.h"
#include "pool/in_place.h"
#include "session/session.h"

/* ---- holding ---- */

static void count_holds(struct moepage_session *session, mp_flight *flight, const mp_hold *holds,
                        uint32_t n)
{
    moepage_session_stats *stats = &session->step_stats;
    for (uint32_t i = 0; i < n; i++) {
        stats->hits += holds[i].kind == MP_HOLD_HIT;
        stats->late += holds[i].kind == MP_HOLD_LATE;
        stats->misses += holds[i].kind == MP_HOLD_MISS;
        stats->host_experts += holds[i].kind == MP_HOLD_HOST;
        stats->demand_bytes += holds[i].demanded;
        flight->missed += holds[i].kind == MP_HOLD_LATE || holds[i].kind == MP_HOLD_MISS;
    }
    stats->routed += n;
    stats->groups++;
}

moepage_status mp_plan_hold(struct moepage_session *session, mp_flight *flight, uint32_t index)
{
    const mp_group *group = &flight->groups[index];
    mp_hold *holds = &flight->holds[group->first_entry];
    if (mp_precision_hold(session, holds, group->n_entries)) {
        count_holds(session, flight, holds, group->n_entries);
        mp_precision_count_low(session, flight, group->first_entry, group->n_entries);
        return MOEPAGE_OK;
    }
    uint32_t held = mp_pool_hold_resident(session->pool, &session->client, holds, group->n_entries);
    if (held < group->n_entries) {
        uint64_t began_ns = mp_session_now_ns(session);
        if (flight->lies)
            mp_pool_mark_in_place(session->pool, holds, group->n_entries,
                                  session->operands.pieces.supported);
        moepage_status status = mp_pool_hold_rest(session->pool, holds, group->n_entries);
        uint64_t took_ns = mp_session_now_ns(session) - began_ns;
        session->step_stats.stall_ns += took_ns;
        session->step_stats.stall_slot_ns += took_ns;
        if (status)
            return status;
    }
    count_holds(session, flight, holds, group->n_entries);
    return MOEPAGE_OK;
}

static void clear_map(struct moepage_session *session, mp_flight *flight, const mp_group *group)
{
    for (uint32_t i = 0; i < group->n_entries; i++) {
        uint32_t key = flight->holds[group->first_entry + i].key;
        flight->expert_map[key % session->pool->experts] = -1;
    }
}

moepage_status mp_plan_mark(struct moepage_session *session, const mp_flight *flight)
{
    moepage_status status = MOEPAGE_OK;
    if (!session->async || !flight->planned)
        return status;
    for (uint32_t d = 0; d < session->pool->n_shards && !status; d++) {
        mp_bench *bench = &session->benches[d];
        const mp_device_ops *ops = session->pool->shards[d].home->device->ops;
        status = ops->enter(bench->compute, flight->native);
        if (!status)
            status = ops->mark(bench->compute, &bench->last);
    }
    return status;
}

void mp_plan_release(struct moepage_session *session, mp_flight *flight, uint32_t index)
{
    const mp_group *group = &flight->groups[index];
    mp_hold *holds = &flight->holds[group->first_entry];
    clear_map(session, flight, group);
    for (uint32_t i = 0; i < group->n_entries && session->async; i++)
        mp_pool_read_until(session->pool, &session->client, &holds[i],
                           session->benches[holds[i].shard].last);
    mp_pool_release(session->pool, holds, group->n_entries);
}

void mp_plan_drop(struct moepage_session *session, mp_flight *flight)
{
    for (uint32_t g = 0; g < flight->n_groups; g++)
        mp_plan_release(session, flight, g);
    flight->group = 0;
    flight->dropped = true;
}

/* Waits for the current group's experts; the time goes to the stalls. */
static moepage_status wait_for_group(struct moepage_session *session, const mp_flight *flight)
{
    const mp_group *group = &flight->groups[flight->group];
    moepage_session_stats *stats = &session->step_stats;
    uint64_t since_ns = 0;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < group->n_entries && !status; i++) {
        mp_hold *hold = &flight->holds[group->first_entry + i];
        if (hold->ready)
            continue;
        if (!since_ns)
            since_ns = mp_session_now_ns(session);
        status = mp_pool_wait(session->pool, hold, mp_session_reader(session, hold->shard));
        uint64_t now_ns = mp_session_now_ns(session);
        stats->stall_ns += now_ns - since_ns;
        *mp_session_stall_cause(stats, hold) += now_ns - since_ns;
        since_ns = now_ns;
    }
    return status;
}

moepage_status mp_plan_hand_over(struct moepage_session *session, const mp_flight *flight)
{
    moepage_status status = wait_for_group(session, flight);
    for (uint32_t d = 0; d < session->pool->n_shards && session->async && !status; d++) {
        mp_bench *bench = &session->benches[d];
        const mp_device_ops *ops = session->pool->shards[d].home->device->ops;
        status = ops->mark(bench->compute, &bench->last);
        if (!status)
            status = ops->follow(flight->native, bench->compute, bench->last);
    }
    return status;
}

/* ---- describing ---- */

/* Where an expert's tensors are in its version: in a slot's layout, or the parts of its image. */
static uint32_t find_tensors(const struct moepage_model *model, const mp_hold *hold, uint32_t layer,
                             uint32_t expert, const void **tensors)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    bool dense = hold->form == MOEPAGE_FORM_DENSE;
    if (!dense)
        mp_model_find_parts(model, layer, expert, hold->form, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++)
        tensors[t] = hold->address + (dense ? model->tensors[t].offset : parts[t].offset);
    switch (hold->form) {
    case MOEPAGE_FORM_INT8: return MOEPAGE_DTYPE_INT8;
    case MOEPAGE_FORM_INT4: return MOEPAGE_DTYPE_INT4;
    case MOEPAGE_FORM_INT2: return MOEPAGE_DTYPE_INT2;
    default: return model->tensors[0].dtype;
    }
}

static void fill_expert(struct moepage_session *session, mp_flight *flight, uint32_t entry,
                        moepage_plan_expert *out)
{
    const struct moepage_expert_pool *pool = session->pool;
    const struct moepage_model *model = pool->model;
    const mp_hold *hold = &flight->holds[entry];
    int32_t slot = hold->kind == MP_HOLD_LOW ? -1 : (int32_t)hold->slot;
    uint32_t n_tensors = model->info.expert_tensors;
    const void **tensors = &flight->plan_tensors[(uint64_t)entry * n_tensors];
    uint32_t expert = hold->key - flight->layer * pool->experts;
    uint32_t dtype = find_tensors(model, hold, flight->layer, expert, tensors);
    *out = (moepage_plan_expert){
        .expert = expert,
        .slot = slot,
        .device = hold->shard,
        .dtype = dtype,
        .first_row = flight->first_row[entry],
        .n_rows = flight->first_row[entry + 1] - flight->first_row[entry],
        .tensors = tensors,
    };
    flight->expert_map[expert] = slot;
}

void mp_plan_fill(struct moepage_session *session, mp_flight *flight, moepage_plan *plan)
{
    const mp_group *group = &flight->groups[flight->group];
    uint32_t first_row = flight->first_row[group->first_entry];
    for (uint32_t i = 0; i < group->n_entries; i++) {
        moepage_plan_expert *expert = &flight->plan_experts[group->first_entry + i];
        fill_expert(session, flight, group->first_entry + i, expert);
        expert->first_row -= first_row;
    }
    const mp_shard *only = session->pool->n_shards == 1 ? &session->pool->shards[0] : NULL;
    *plan = (moepage_plan){
        .struct_size = sizeof *plan,
        .layer = flight->layer,
        .group = flight->group,
        .n_groups = flight->n_groups,
        .n_experts = group->n_entries,
        .n_rows = flight->first_row[group->first_entry + group->n_entries] - first_row,
        .n_tokens = flight->by_tokens ? group->n_tokens : flight->n_tokens,
        .top_k = flight->top_k,
        .experts = &flight->plan_experts[group->first_entry],
        .rows = &flight->rows[first_row],
        .tokens = flight->by_tokens ? &flight->tokens[group->first_token] : NULL,
        .ids = flight->ids,
        .weights = flight->weights,
        .expert_map = flight->expert_map,
        .slot_base = only ? only->base : NULL,
        .slot_stride_bytes = only ? session->pool->slot_bytes : 0,
    };
}

moepage_status mp_session_next_group(struct moepage_session *session, uint32_t layer,
                                     moepage_plan *plan)
{
    mp_flight *flight = mp_session_flight(session, layer);
    if (!flight)
        return MOEPAGE_E_STATE;
    if (flight->group + 1 == flight->n_groups)
        return mp_fail(MOEPAGE_E_STATE, "layer %u: group %u was the last of %u", layer,
                       flight->group, flight->n_groups);
    moepage_status status = mp_plan_mark(session, flight);
    if (status)
        return status;
    mp_plan_release(session, flight, flight->group);
    flight->group++;
    flight->lies = false; /* whoever reads plans reads slots */
    status = mp_plan_hold(session, flight, flight->group);
    if (!status)
        status = mp_plan_hand_over(session, flight);
    moepage_plan own;
    if (!status) {
        mp_plan_fill(session, flight, &own);
        status = MP_CONFIG_WRITE(plan, own);
    }
    flight->dropped = status != MOEPAGE_OK;
    if (status) /* the next call tries the same group again */
        mp_plan_release(session, flight, flight->group--);
    return status;
}
