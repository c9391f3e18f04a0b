/* Moving the boundary between experts and KV: first the side that shrinks, then the other. */
#include "split/split.h"

#include "base/status.h"
#include "kv/kv_loan.h"

/* ---- planning ---- */

/* What each side has now and is to have. A pool that does not move is NULL. */
typedef struct split_move {
    struct moepage_expert_pool *experts;
    struct moepage_kv_pool *kv;
    mp_extent extent, old_extent;
    uint64_t blocks, old_blocks;
    uint64_t from[MP_SIDES], to[MP_SIDES];
    void *stream;
    bool once;
} split_move;

static bool is_on_one_device(const struct moepage_expert_pool *pool)
{
    return mp_pool_get_shape(pool).n_devices == 1;
}

static moepage_status plan_experts(split_move *move, uint64_t slots)
{
    struct moepage_expert_pool *pool = move->experts;
    if (slots > UINT32_MAX)
        return mp_fail(MOEPAGE_E_BUDGET, "%llu slots are more than any pool can have",
                       (unsigned long long)slots);
    mp_extent now = mp_pool_get_extent(pool);
    mp_pool_shape shape = mp_pool_get_shape(pool);
    move->old_extent = mp_pool_extent(pool, now.compressed, now.slots);
    move->extent = mp_pool_extent(pool, move->old_extent.compressed, (uint32_t)slots);
    move->to[MP_SIDE_EXPERTS] =
        mp_pool_slots_bytes(&shape, (uint64_t)move->extent.first + move->extent.slots);
    return mp_pool_check_move(pool, &move->extent);
}

static moepage_status plan_kv(split_move *move, uint64_t blocks)
{
    struct moepage_kv_pool *pool = move->kv;
    move->old_blocks = mp_kv_pool_look(pool).blocks;
    move->blocks = blocks;
    return mp_kv_pool_check_resize(pool, blocks, &move->to[MP_SIDE_KV]);
}

static moepage_status check_together(const split_move *move, mp_arena *arena)
{
    uint64_t experts = move->to[MP_SIDE_EXPERTS], kv = move->to[MP_SIDE_KV];
    uint64_t limit = mp_arena_limit(arena);
    if (!mp_arena_fits(arena, limit, experts, kv))
        return mp_fail(MOEPAGE_E_BUDGET,
                       "experts would need %llu bytes and KV %llu, the arena has %llu",
                       (unsigned long long)experts, (unsigned long long)kv,
                       (unsigned long long)limit);
    return MOEPAGE_OK;
}

static moepage_status plan(split_move *move, uint64_t slots, uint64_t blocks)
{
    if (!move->experts && !move->kv)
        return mp_fail(MOEPAGE_E_ARGUMENT, "both pools are NULL");
    struct moepage_device *home =
        move->experts ? mp_pool_home(move->experts, 0) : mp_kv_pool_home(move->kv);
    if (move->experts && move->kv && mp_kv_pool_home(move->kv) != home)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the two pools live on different devices");
    for (int side = 0; side < MP_SIDES; side++)
        move->from[side] = move->to[side] = mp_arena_claimed(&home->arena, (mp_side)side);
    move->experts = slots ? move->experts : NULL;
    move->kv = blocks ? move->kv : NULL;
    moepage_status status = move->experts ? plan_experts(move, slots) : MOEPAGE_OK;
    if (!status && move->kv)
        status = plan_kv(move, blocks);
    return status ? status : check_together(move, &home->arena);
}

/* ---- moving ---- */

static moepage_status move_side(const split_move *move, mp_side side)
{
    if (side == MP_SIDE_EXPERTS)
        return move->experts ? mp_pool_move(move->experts, &move->extent, move->once) : MOEPAGE_OK;
    return move->kv ? mp_kv_pool_resize(move->kv, move->blocks, move->stream) : MOEPAGE_OK;
}

/* Undoes a side's move. It gets back what it has just given up, so nothing is in the way; where that had to
 * get memory again and cannot, or the budget shrinks, the side stays small. */
static void move_back(const split_move *move, mp_side side)
{
    if (side == MP_SIDE_EXPERTS && move->experts)
        (void)mp_pool_move(move->experts, &move->old_extent, true);
    else if (side == MP_SIDE_KV && move->kv)
        (void)mp_kv_pool_resize(move->kv, move->old_blocks, move->stream);
}

/* The side that shrinks goes first, so that the two together never need more than the arena. The
 * second move can then fail only if another thread has moved a side meanwhile; or, if both shrink,
 * because KV is in use. */
static moepage_status carry_out(const split_move *move)
{
    mp_side first =
        move->to[MP_SIDE_EXPERTS] > move->from[MP_SIDE_EXPERTS] ? MP_SIDE_KV : MP_SIDE_EXPERTS;
    mp_side second = first == MP_SIDE_EXPERTS ? MP_SIDE_KV : MP_SIDE_EXPERTS;
    moepage_status status = move_side(move, first);
    if (status)
        return status;
    status = move_side(move, second);
    if (status)
        move_back(move, first);
    return status;
}

moepage_status mp_split_move(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                             uint64_t slots, uint64_t blocks, void *stream)
{
    split_move move = {.experts = experts, .kv = kv, .stream = stream};
    moepage_status status = plan(&move, slots, blocks);
    bool shrinks = !status && move.to[MP_SIDE_EXPERTS] < move.from[MP_SIDE_EXPERTS];
    /* An earlier attempt may have left a fence. */
    if (experts && is_on_one_device(experts) && !shrinks)
        mp_pool_stay(experts);
    return status ? status : carry_out(&move);
}

/* Returns true if a failure counts as a refused move. An invalid call or a failed
 * device does not. */
static bool is_refusal(moepage_status status)
{
    return status == MOEPAGE_E_BUDGET || status == MOEPAGE_E_BUSY;
}

moepage_status mp_split_once(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                             uint64_t slots, uint64_t blocks, void *stream)
{
    split_move move = {.experts = experts, .kv = kv, .stream = stream, .once = true};
    moepage_status status = plan(&move, slots, blocks);
    if (experts && is_on_one_device(experts)) /* an attempt at another move may have left a fence */
        mp_pool_stay(experts);
    return status ? status : carry_out(&move);
}

moepage_status mp_split_set(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                            uint64_t slots, uint64_t blocks, void *stream)
{
    moepage_status status = mp_split_once(experts, kv, slots, blocks, stream);
    if (!status && kv && blocks)
        mp_kv_pool_set_share(kv, blocks);
    if (experts && (!status || is_refusal(status)))
        mp_pool_count_resize(experts, !status);
    return status;
}

void mp_split_abandon(struct moepage_expert_pool *experts)
{
    mp_pool_stay(experts);
}

/* ---- compressed experts ---- */

static moepage_status check_room(struct moepage_expert_pool *pool, const mp_extent *to)
{
    uint64_t bundles = mp_arena_room(&mp_pool_home(pool, 0)->arena, MP_SIDE_EXPERTS);
    uint64_t room = bundles * mp_pool_get_shape(pool).bundle->n_slots;
    if ((uint64_t)to->first + to->slots <= room)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_BUDGET,
                   "%u slots above %u compressed experts per layer, which take %u: the arena has "
                   "room for %llu beside the KV side",
                   to->slots, to->compressed, to->first, (unsigned long long)room);
}

moepage_status mp_split_compress(struct moepage_expert_pool *experts, uint32_t per_layer,
                                 uint64_t slots)
{
    if (slots > UINT32_MAX)
        return mp_fail(MOEPAGE_E_BUDGET, "%llu slots are more than any pool can have",
                       (unsigned long long)slots);
    mp_extent to = mp_pool_extent(experts, per_layer, (uint32_t)slots);
    moepage_status status = mp_pool_check_move(experts, &to);
    if (!status)
        status = check_room(experts, &to);
    if (!status)
        return mp_pool_move(experts, &to, false);
    if (is_on_one_device(experts))
        mp_pool_stay(experts);
    return status;
}
