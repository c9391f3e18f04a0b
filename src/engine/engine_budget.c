/* Divides an engine's budget. Scratch and staging are the workspace; of the arena KV blocks come
 * first, and the expert slots get the rest, unless they were counted by the caller. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "engine/engine.h"

#define HOST_GRANULE 4096u
#define LEAST_WORKSPACE 4096u  /* 0 would mean the device's default */
#define GPU_GRANULE (2u << 20) /* a GPU maps memory in these; the rest of an arena is lost */

typedef unsigned long long number; /* for %llu */

/* The bytes that the parts take. */
typedef struct parts {
    uint64_t workspace; /* of all sessions, staging, and what the caller has asked for beside */
    uint64_t kv;
    uint64_t experts; /* of the arena, for the slots asked for or, with none, for the fewest */
} parts;

static uint64_t granule_of(const mp_engine_settings *s)
{
    return strncmp(s->device_name, "cuda:", 5) ? HOST_GRANULE : GPU_GRANULE;
}

static moepage_status overflows(void)
{
    return mp_fail(MOEPAGE_E_ARGUMENT, "the sizes asked for overflow 64 bits");
}

/* ---- Slots --------------------------------------------------------------------------------- */

/* Returns the fewest slots that a pool can have: one for each session, in every layer if layers
 * have slots of their own. */
static uint64_t least_slots(const moepage_model_info *model, const mp_engine_settings *s)
{
    return s->sessions *
           (s->experts.scope == MOEPAGE_SCOPE_LAYER ? (uint64_t)model->moe_layers : 1);
}

static moepage_status count_percent(const moepage_model_info *model, mp_engine_settings *s)
{
    const uint64_t all = (uint64_t)model->moe_layers * model->experts;
    const uint64_t least = least_slots(model, s);
    uint64_t slots = (uint64_t)(s->budget_percent * (double)all / 100);
    if (s->experts.scope == MOEPAGE_SCOPE_LAYER)
        slots -= slots % model->moe_layers;
    if (slots < least)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "budget %g %%: that is %llu of %llu experts, at least %llu %s needed",
                       s->budget_percent, (number)slots, (number)all, (number)least,
                       least == 1 ? "is" : "are");
    s->experts.slots = slots;
    return MOEPAGE_OK;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static moepage_status arena_for(const moepage_model *model, const mp_engine_settings *s,
                                uint64_t slots, uint64_t *bytes)
{
    moepage_expert_pool_config config = s->experts;
    config.slots = slots;
    return moepage_expert_pool_sizes(model, &config, 1, NULL, bytes);
}

static moepage_status measure_workspace(const moepage_model *model, const mp_engine_settings *s,
                                        uint64_t *out)
{
    uint64_t scratch, staging;
    moepage_status status = moepage_expert_pool_sizes(model, &s->experts, 1, &staging, NULL);
    if (!status)
        status = moepage_session_workspace(model, &s->session, &scratch);
    if (status)
        return status;
    if (__builtin_mul_overflow(scratch, (uint64_t)s->sessions, &scratch) ||
        __builtin_add_overflow(scratch, staging, out) ||
        __builtin_add_overflow(*out, s->extra_workspace_bytes, out))
        return overflows();
    if (!*out)
        *out = LEAST_WORKSPACE;
    return MOEPAGE_OK;
}

static moepage_status measure(const moepage_model *model, const moepage_model_info *info,
                              const mp_engine_settings *s, parts *out)
{
    /* A precision config sizes the pool by itself. */
    const uint64_t least = s->experts.precision ? 0 : least_slots(info, s);
    *out = (parts){0};
    moepage_status status = measure_workspace(model, s, &out->workspace);
    if (!status && s->has_kv && s->kv.blocks)
        status = moepage_kv_pool_sizes(&s->kv, &out->kv);
    if (!status)
        status = arena_for(model, s, s->experts.slots ? s->experts.slots : least, &out->experts);
    return status;
}

/* ---- The budget ---------------------------------------------------------------------------- */

/* Adds up the budget: an arena with this room for experts, and everything besides. */
static moepage_status add_up(const mp_engine_settings *s, const parts *p, uint64_t experts,
                             uint64_t *out)
{
    const uint64_t granule = granule_of(s);
    uint64_t arena;
    if (__builtin_add_overflow(experts, p->kv, &arena) ||
        __builtin_add_overflow(arena, s->extra_arena_bytes, &arena) ||
        __builtin_add_overflow(arena, granule - 1, &arena) ||
        __builtin_add_overflow(arena / granule * granule, p->workspace, out))
        return overflows();
    return MOEPAGE_OK;
}

static moepage_status check_budget(const mp_engine_settings *s, const parts *p)
{
    uint64_t needed;
    moepage_status status = add_up(s, p, p->experts, &needed);
    if (status || s->budget_bytes >= needed)
        return status;
    char kv[64] = "";
    if (p->kv)
        snprintf(kv, sizeof kv, ", its KV %llu", (number)p->kv);
    return mp_fail(MOEPAGE_E_BUDGET,
                   "budget %llu: workspaces take %llu bytes%s, and %s expert slots %llu: at least "
                   "%llu are needed",
                   (number)s->budget_bytes, (number)p->workspace, kv,
                   s->experts.slots ? "the" : "the fewest", (number)p->experts, (number)needed);
}

/* Caps the budget at what experts and KV blocks can ever use, since a device maps all
 * of its arena. */
static moepage_status cap(const moepage_model *model, const moepage_model_info *info,
                          const parts *p, mp_engine_settings *s)
{
    uint64_t experts, most;
    if (s->has_kv || s->experts.slots || s->experts.precision)
        return MOEPAGE_OK;
    moepage_status status =
        arena_for(model, s, (uint64_t)info->moe_layers * info->experts, &experts);
    if (!status)
        status = add_up(s, p, experts, &most);
    if (!status && s->device.budget_bytes > most)
        s->device.budget_bytes = most;
    return status;
}

/* Caps a budget that follows memory in the same way, as far as that is known. */
static moepage_status cap_auto(const moepage_model *model, const moepage_model_info *info,
                               const parts *p, mp_engine_settings *s)
{
    uint64_t experts = p->experts, most;
    if ((s->has_kv && !s->kv.blocks) || s->experts.precision)
        return MOEPAGE_OK;
    moepage_status status = MOEPAGE_OK;
    if (!s->experts.slots)
        status = arena_for(model, s, (uint64_t)info->moe_layers * info->experts, &experts);
    if (!status)
        status = add_up(s, p, experts, &most);
    if (!status && (!s->device.max_budget_bytes || s->device.max_budget_bytes > most))
        s->device.max_budget_bytes = most;
    return status;
}

moepage_status mp_engine_divide(const moepage_model *model, mp_engine_settings *s)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    parts p;
    moepage_status status = moepage_model_get_info(model, &info);
    if (!status && s->budget_percent > 0)
        status = count_percent(&info, s);
    if (!status && !s->budget_bytes && !s->experts.slots && !s->experts.precision)
        status = mp_fail(MOEPAGE_E_BUDGET, "no budget: say how many bytes the device may hold, or "
                                           "what part of the experts, such as budget=8G or "
                                           "budget=25%%");
    if (!status)
        status = measure(model, &info, s, &p);
    if (!status && s->budget_bytes)
        status = check_budget(s, &p);
    if (status)
        return status;
    s->device.workspace_bytes = p.workspace;
    if (!s->budget_bytes)
        return add_up(s, &p, p.experts, &s->device.budget_bytes);
    s->device.budget_bytes = s->budget_bytes;
    return s->budget_bytes == MOEPAGE_BUDGET_AUTO ? cap_auto(model, &info, &p, s)
                                                  : cap(model, &info, &p, s);
}
