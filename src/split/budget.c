/* A budget that moves: what has to leave, in which order, and what comes back. */
#include "split/budget.h"

#include "base/status.h"
#include "planning/follow.h"

/* The pools' share under an aim. */
typedef struct budget_plan {
    bool experts, kv; /* that have to shrink */
    mp_extent extent;
    uint64_t blocks;
    uint64_t slots_less, blocks_less;
} budget_plan;

/* ---- what may leave ---- */

/* Slots above what an extent begins with that so many bytes are enough for. */
static uint64_t slots_in(const mp_pool_shape *shape, const mp_extent *extent, uint64_t bytes)
{
    uint64_t slots = bytes / shape->bundle->bytes * shape->bundle->n_slots;
    slots = slots > extent->first ? slots - extent->first : 0;
    return slots - slots % shape->step_slots;
}

static uint64_t experts_bytes(const mp_pool_shape *shape, const mp_extent *extent, uint64_t slots)
{
    return mp_pool_slots_bytes(shape, extent->first + slots);
}

/* The fewest slots that a budget leaves a pool: what sessions, pins and one layer need, or what there is. */
static uint64_t fewest_slots(const mp_pool_shape *shape, const mp_pool_survey *survey)
{
    uint64_t least = (uint64_t)survey->least * shape->step_slots;
    return least < survey->extent.slots ? least : survey->extent.slots;
}

static bool can_move(const struct moepage_expert_pool *experts)
{
    return experts && mp_pool_get_shape(experts).n_devices == 1;
}

/* Takes slots away as far as `bytes` ask for it. Returns what experts own then. */
static uint64_t plan_experts(struct moepage_expert_pool *experts, uint64_t bytes, uint64_t owned,
                             budget_plan *plan)
{
    const mp_pool_shape shape = mp_pool_get_shape(experts);
    const mp_pool_survey survey = mp_pool_look(experts);
    const mp_extent *now = &survey.extent;
    uint64_t slots = slots_in(&shape, now, bytes), fewest = fewest_slots(&shape, &survey);
    slots = slots > fewest ? slots : fewest;
    if (slots >= now->slots)
        return owned;
    plan->experts = true;
    plan->slots_less = now->slots - slots;
    plan->extent = mp_pool_extent(experts, now->compressed, (uint32_t)slots);
    return experts_bytes(&shape, now, slots);
}

/* The same with granules; live blocks stay. */
static moepage_status plan_kv(struct moepage_kv_pool *kv, uint64_t bytes, uint64_t *owned,
                              budget_plan *plan)
{
    const mp_kv_shape *shape = mp_kv_pool_shape(kv);
    if (*owned <= bytes)
        return MOEPAGE_OK;
    plan->kv = true;
    plan->blocks = bytes / shape->granule_bytes * shape->blocks_per_granule;
    plan->blocks_less = *owned / shape->granule_bytes * shape->blocks_per_granule - plan->blocks;
    return mp_kv_pool_check_resize(kv, plan->blocks ? plan->blocks : 1, owned);
}

static moepage_status refuse(struct moepage_device *home, uint64_t budget, uint64_t experts,
                             uint64_t kv)
{
    uint64_t arena = mp_arena_least(&home->arena, experts, kv);
    return mp_fail(home->experts && !can_move(home->experts) ? MOEPAGE_E_UNSUPPORTED
                                                             : MOEPAGE_E_BUDGET,
                   "a budget of %llu bytes: experts keep %llu bytes%s, KV %llu and the workspace "
                   "%llu, so that at least %llu are needed",
                   (unsigned long long)budget, (unsigned long long)experts,
                   !home->experts            ? ""
                   : can_move(home->experts) ? " at the fewest"
                                             : " because their pool has several devices",
                   (unsigned long long)kv, (unsigned long long)home->workspace.limit,
                   (unsigned long long)(arena + home->workspace.limit));
}

static moepage_status plan_shrink(struct moepage_device *home, uint64_t budget, uint64_t limit,
                                  budget_plan *plan)
{
    mp_arena *arena = &home->arena;
    moepage_status status = MOEPAGE_OK;
    uint64_t experts = mp_arena_claimed(arena, MP_SIDE_EXPERTS);
    uint64_t kv = mp_arena_claimed(arena, MP_SIDE_KV);
    *plan = (budget_plan){0};
    if (mp_arena_fits(arena, limit, experts, kv))
        return MOEPAGE_OK;
    if (can_move(home->experts))
        experts = plan_experts(home->experts, mp_arena_most(arena, limit, MP_SIDE_EXPERTS, kv),
                               experts, plan);
    if (home->kv)
        status = plan_kv(home->kv, mp_arena_most(arena, limit, MP_SIDE_KV, experts), &kv, plan);
    if (!status && !mp_arena_fits(arena, limit, experts, kv))
        status = refuse(home, budget, experts, kv);
    return !status && plan->experts ? mp_pool_check_move(home->experts, &plan->extent) : status;
}

/* ---- growing ---- */

static void regrow_kv(struct moepage_device *home, void *stream)
{
    const mp_kv_shape *shape = mp_kv_pool_shape(home->kv);
    uint64_t now = mp_kv_pool_look(home->kv).blocks;
    uint64_t room = mp_arena_room(&home->arena, MP_SIDE_KV) * shape->blocks_per_granule;
    uint64_t to = now + home->owed_blocks < room ? now + home->owed_blocks : room;
    if (to > now && !mp_kv_pool_resize(home->kv, to, stream))
        home->owed_blocks -= to - now;
}

/* `fills`: not only what it is owed. */
static void regrow_experts(struct moepage_device *home, bool fills)
{
    const mp_pool_shape shape = mp_pool_get_shape(home->experts);
    const mp_extent now = mp_pool_get_extent(home->experts);
    uint64_t room = mp_arena_room_bytes(&home->arena, MP_SIDE_EXPERTS);
    uint64_t most = shape.keys - shape.keys % shape.step_slots;
    uint64_t to = slots_in(&shape, &now, room), owed = now.slots + home->owed_slots;
    to = (fills && shape.fills) || to < owed ? to : owed;
    to = to < most ? to : most;
    if (to <= now.slots)
        return;
    mp_extent extent = mp_pool_extent(home->experts, now.compressed, (uint32_t)to);
    if (!mp_pool_move(home->experts, &extent, false))
        home->owed_slots -= home->owed_slots < to - now.slots ? home->owed_slots : to - now.slots;
}

/* Gives pools back what they are owed, as far as there is room; the rest, too, if the budget has grown. */
static void give_back(struct moepage_device *home, void *stream, bool grown)
{
    if (home->kv && home->owed_blocks)
        regrow_kv(home, stream);
    if (can_move(home->experts))
        regrow_experts(home, grown);
}

/* Gives up an aim below the budget. */
static void abandon(struct moepage_device *home)
{
    uint64_t budget = home->ledger.limit;
    if (home->aim == budget)
        return;
    (void)mp_home_aim(home, budget);
    if (can_move(home->experts))
        mp_pool_stay(home->experts);
}

static moepage_status grow(struct moepage_device *home, uint64_t budget, void *stream)
{
    const bool grows = budget > home->ledger.limit;
    abandon(home);
    const moepage_status status = grows ? mp_home_grow(home, budget) : MOEPAGE_OK;
    if (!status)
        give_back(home, stream, grows);
    return status;
}

/* ---- shrinking ---- */

static moepage_status carry_out(struct moepage_device *home, const budget_plan *plan, void *stream)
{
    moepage_status status = MOEPAGE_OK;
    if (plan->experts) {
        status = mp_pool_move(home->experts, &plan->extent, false);
        home->owed_slots += status ? 0 : plan->slots_less;
    }
    if (!status && plan->kv) {
        status = mp_kv_pool_resize(home->kv, plan->blocks, stream);
        home->owed_blocks += status ? 0 : plan->blocks_less;
    }
    if (!status && !mp_home_settle(home))
        status = mp_fail(MOEPAGE_E_BUSY, "a pool on the device is being moved: try again");
    return status;
}

static moepage_status shrink(struct moepage_device *home, uint64_t budget, void *stream)
{
    budget_plan plan;
    bool moved = home->aim != home->ledger.limit; /* an earlier aim may have left a fence */
    uint64_t limit = mp_home_aim(home, budget);
    moepage_status status = plan_shrink(home, budget, limit, &plan);
    if (moved && !plan.experts && can_move(home->experts))
        mp_pool_stay(home->experts);
    return status ? status : carry_out(home, &plan, stream);
}

/* ---- either ---- */

/* Any failure but BUSY gives an aim up, and pools what they are owed. */
static moepage_status move(struct moepage_device *home, uint64_t budget, void *stream)
{
    moepage_status status = mp_home_check_budget(home, budget);
    if (!status)
        status =
            budget < home->ledger.limit ? shrink(home, budget, stream) : grow(home, budget, stream);
    if (!status || status == MOEPAGE_E_BUSY)
        return status;
    const mp_kept_error kept = mp_error_keep();
    (void)grow(home, home->ledger.limit, stream);
    return mp_fail_kept(status, &kept);
}

/* The lock is held. */
static moepage_status set(struct moepage_device *home, uint64_t budget, void *stream)
{
    if (budget == home->ledger.limit && budget == home->aim)
        return MOEPAGE_OK;
    const moepage_status status = move(home, budget, stream);
    if (home->budget_watch)
        home->budget_watch->moved(home->budget_watch);
    return status;
}

moepage_status mp_budget_set(struct moepage_device *home, uint64_t bytes, void *stream)
{
    pthread_mutex_lock(&home->budget_lock);
    moepage_status status = set(home, bytes, stream);
    pthread_mutex_unlock(&home->budget_lock);
    return status;
}

/* ---- following memory ---- */

/* Returns the least budget that the pools could have now. */
static uint64_t least_budget(struct moepage_device *home)
{
    uint64_t experts = mp_arena_claimed(&home->arena, MP_SIDE_EXPERTS);
    uint64_t kv = mp_arena_claimed(&home->arena, MP_SIDE_KV);
    if (can_move(home->experts)) {
        const mp_pool_shape shape = mp_pool_get_shape(home->experts);
        const mp_pool_survey survey = mp_pool_look(home->experts);
        experts = experts_bytes(&shape, &survey.extent, fewest_slots(&shape, &survey));
    }
    if (home->kv) {
        const mp_kv_shape *shape = mp_kv_pool_shape(home->kv);
        uint64_t used = mp_kv_pool_look(home->kv).used;
        kv = mp_kv_shape_granules(shape, used ? used : 1) * shape->granule_bytes;
    }
    uint64_t arena = mp_arena_least(&home->arena, experts, kv);
    return (arena > home->arena.part ? arena : home->arena.part) + home->workspace.limit;
}

static moepage_status follow(struct moepage_device *home, uint64_t available, void *stream)
{
    uint64_t least = least_budget(home), most = home->max_budget;
    const mp_follow_input input = {
        .budget = home->aim,
        .held = mp_arena_backed(&home->arena) + home->workspace.used,
        .available = available,
        .reserve = home->reserve_bytes,
        .least = least < most ? least : most,
        .most = most,
    };
    return set(home, mp_follow_budget(&input), stream);
}

moepage_status mp_budget_follow(struct moepage_device *home, void *stream)
{
    const mp_device_ops *ops = home->device->ops;
    uint64_t available = 0;
    if (!ops->available)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %s: nobody can say how much memory is free there",
                       home->device->name);
    moepage_status status = ops->available(home->device, &available);
    if (status)
        return status;
    pthread_mutex_lock(&home->budget_lock);
    status = follow(home, available, stream);
    pthread_mutex_unlock(&home->budget_lock);
    return status;
}
