/* Holding a group's experts, and describing them to callers with kernels of their own. */
#include "base/config.h"
#include "base/status.h"
#include "session/inside.h"

mp_flight *mp_session_flight(struct moepage_session *session, uint32_t layer)
{
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        if (session->flights[i].open && session->flights[i].layer == layer)
            return &session->flights[i];
    mp_error_set("layer %u is not open: route it first", layer);
    return NULL;
}

/* ---- holding ---- */

/* Returns true if a feature holds the group. */
static bool hold_by_feature(const struct moepage_session *session, mp_flight *flight,
                            const mp_group *group)
{
    const mp_feature_list *on = &session->on[MP_ON_HOLD];
    for (uint32_t i = 0; i < on->n; i++)
        if (on->at[i].hooks->hold(on->at[i].state, flight, group->first_entry, group->n_entries))
            return true;
    return false;
}

/* Marks absent experts that are to be computed in host memory: all, or those that an asynchronous device had better
 * not wait for. */
static void mark_in_place(struct moepage_session *session, const mp_flight *flight, mp_hold *holds,
                          uint32_t n)
{
    const mp_layout_operands *operands =
        mp_operands_of_layer(&session->operands, session->step.shape.model, flight->layer);
    for (uint32_t i = 0; i < n && !session->aside; i++)
        holds[i].may_run_in_place = true;
    if (session->aside)
        mp_aside_choose(session, flight, holds, n);
    mp_pool_mark_in_place(session->step.pool, holds, n, operands->pieces.supported,
                          !session->aside);
}

/* Holds the experts that are not resident. Its time counts as a stall: it waits for
 * nothing but slots. */
static moepage_status hold_rest(struct moepage_session *session, const mp_flight *flight,
                                mp_hold *holds, uint32_t n)
{
    moepage_session_stats *stats = &session->step.stats;
    uint64_t began_ns = mp_step_now_ns(&session->step);
    if (flight->in_place)
        mark_in_place(session, flight, holds, n);
    moepage_status status =
        mp_pool_hold_rest(session->step.pool, holds, n, mp_client_decodes(session->step.client));
    uint64_t took_ns = mp_step_now_ns(&session->step) - began_ns;
    stats->stall_ns += took_ns;
    stats->stall_slot_ns += took_ns;
    return status;
}

moepage_status mp_plan_hold(struct moepage_session *session, mp_flight *flight, uint32_t index)
{
    moepage_session_stats *stats = &session->step.stats;
    const mp_group *group = &flight->groups[index];
    mp_hold *holds = &flight->holds[group->first_entry];
    uint32_t n = group->n_entries;
    if (session->on[MP_ON_HOLD].n == 0 || !hold_by_feature(session, flight, group)) {
        uint32_t held = mp_client_hold_resident(session->step.client, holds, n);
        moepage_status status = held < n ? hold_rest(session, flight, holds, n) : MOEPAGE_OK;
        if (status)
            return status;
    }
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
    return MOEPAGE_OK;
}

static void clear_map(struct moepage_session *session, mp_flight *flight, const mp_group *group)
{
    for (uint32_t i = 0; i < group->n_entries; i++) {
        uint32_t key = flight->holds[group->first_entry + i].key;
        flight->expert_map[key % session->step.shape.experts] = -1;
    }
}

moepage_status mp_plan_mark(struct moepage_session *session, const mp_flight *flight)
{
    if (!session->step.async || !flight->planned)
        return MOEPAGE_OK;
    moepage_status status = mp_exchange_enter(session, flight->native);
    return status ? status : mp_exchange_mark(session);
}

void mp_plan_release(struct moepage_session *session, mp_flight *flight, uint32_t index)
{
    const mp_group *group = &flight->groups[index];
    mp_hold *holds = &flight->holds[group->first_entry];
    clear_map(session, flight, group);
    for (uint32_t i = 0; i < group->n_entries && session->step.async; i++)
        mp_pool_read_until(session->step.pool, session->step.client, &holds[i],
                           session->scratch[holds[i].shard].last);
    mp_pool_release(session->step.pool, holds, group->n_entries);
}

void mp_plan_drop(struct moepage_session *session, mp_flight *flight)
{
    for (uint32_t g = 0; g < flight->n_groups; g++)
        mp_plan_release(session, flight, g);
    flight->group = 0;
    flight->dropped = true;
}

/* ---- describing ---- */

/* Finds an expert's tensors in an image that is not dense; returns their dtype. */
static uint32_t find_parts(const mp_step_view *step, const mp_hold *hold, uint32_t layer,
                           const void **tensors)
{
    const struct moepage_model *model = step->shape.model;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, layer, hold->key - layer * step->shape.experts, hold->form, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++)
        tensors[t] = hold->address + parts[t].offset;
    switch (hold->form) {
    case MOEPAGE_FORM_INT8: return MOEPAGE_DTYPE_INT8;
    case MOEPAGE_FORM_INT4: return MOEPAGE_DTYPE_INT4;
    case MOEPAGE_FORM_INT2: return MOEPAGE_DTYPE_INT2;
    default: return step->layouts[layer]->tensors[0].dtype;
    }
}

/* Describes the current group's experts; first_row counts from the group's. */
static void describe_experts(const mp_step_view *step, mp_flight *flight, const mp_group *group)
{
    const struct moepage_model *model = step->shape.model;
    const mp_layout *layout = step->layouts[flight->layer];
    const bool alike = step->shape.bundle->n_slots == 1; /* slots are numbered one by one */
    const uint32_t n_tensors = model->info.expert_tensors;
    const uint32_t group_row = flight->first_row[group->first_entry];
    for (uint32_t e = group->first_entry; e < group->first_entry + group->n_entries; e++) {
        const mp_hold *hold = &flight->holds[e];
        const void **tensors = &flight->plan_tensors[(uint64_t)e * n_tensors];
        uint32_t expert = hold->key - flight->layer * step->shape.experts;
        uint32_t dtype = layout->tensors[0].dtype;
        int32_t slot = hold->kind == MP_HOLD_LOW ? -1
                       : alike                   ? (int32_t)hold->slot
                                                 : mp_bundle_number(step->shape.bundle, hold->slot);
        if (hold->form != MOEPAGE_FORM_DENSE)
            dtype = find_parts(step, hold, flight->layer, tensors);
        for (uint32_t t = 0; t < n_tensors && hold->form == MOEPAGE_FORM_DENSE; t++)
            tensors[t] = hold->address + layout->tensors[t].offset;
        flight->plan_experts[e] = (moepage_plan_expert){
            .expert = expert,
            .slot = slot,
            .device = hold->shard,
            .dtype = dtype,
            .first_row = flight->first_row[e] - group_row,
            .n_rows = flight->first_row[e + 1] - flight->first_row[e],
            .tensors = tensors,
        };
        flight->expert_map[expert] = slot;
    }
}

/* ---- handing over ---- */

moepage_status mp_plan_wait(struct moepage_session *session, mp_hold *holds, uint32_t n,
                            uint64_t *since_ns)
{
    const mp_step_view *step = &session->step;
    moepage_session_stats *stats = &session->step.stats;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < n && !status; i++) {
        mp_hold *hold = &holds[i];
        if (hold->ready)
            continue;
        status = mp_pool_wait(step->pool, hold,
                              step->async ? session->scratch[hold->shard].compute : NULL);
        uint64_t now_ns = mp_step_now_ns(step);
        uint64_t *cause = hold->cold                   ? &stats->stall_cold_ns
                          : hold->kind == MP_HOLD_LATE ? &stats->stall_late_ns
                                                       : &stats->stall_load_ns;
        *cause += now_ns - *since_ns;
        stats->stall_ns += now_ns - *since_ns;
        *since_ns = now_ns;
    }
    return status;
}

moepage_status mp_plan_hand_over(struct moepage_session *session, mp_flight *flight,
                                 moepage_plan *plan)
{
    const mp_step_view *step = &session->step;
    const mp_group *group = &flight->groups[flight->group];
    mp_hold *holds = &flight->holds[group->first_entry];
    bool ready = true;
    for (uint32_t i = 0; i < group->n_entries; i++)
        ready = ready && holds[i].ready;
    moepage_status status = MOEPAGE_OK;
    if (!ready) {
        uint64_t since_ns = mp_step_now_ns(step);
        status = mp_plan_wait(session, holds, group->n_entries, &since_ns);
    }
    if (!status && step->async)
        status = mp_exchange_follow(session, flight->native);
    if (status)
        return status;
    const uint32_t first_row = flight->first_row[group->first_entry];
    describe_experts(step, flight, group);
    const moepage_plan own = {
        .struct_size = sizeof own,
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
        .slot_base = step->shape.slots,
        .slot_stride_bytes = step->shape.slots ? step->shape.slot_stride : 0,
    };
    return MP_CONFIG_WRITE(plan, own);
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
    flight->in_place = false; /* readers of plans read slots */
    status = mp_plan_hold(session, flight, flight->group);
    if (!status)
        status = mp_plan_hand_over(session, flight, plan);
    flight->dropped = status != MOEPAGE_OK;
    if (status) /* the next call tries the same group again */
        mp_plan_release(session, flight, flight->group--);
    return status;
}
