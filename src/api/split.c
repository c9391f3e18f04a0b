/* Entry point that moves the boundary between experts and KV. */
#include "base/status.h"
#include "memory/expert_pool.h"
#include "memory/kv_pool.h"

/* A side's bytes before and after. */
typedef struct mp_side_move {
    uint64_t from;
    uint64_t to;
} mp_side_move;

static moepage_status plan_experts(moepage_expert_pool *pool, uint64_t slots, mp_side_move *move)
{
    const mp_shard *shard = &pool->shards[0];
    move->from = move->to = mp_arena_claimed(&shard->home->arena, MP_SIDE_EXPERTS);
    if (!slots)
        return MOEPAGE_OK;
    move->to = slots * pool->slot_bytes;
    return mp_pool_check_resize(pool, slots);
}

static moepage_status plan_kv(moepage_kv_pool *pool, uint64_t blocks, mp_side_move *move)
{
    move->from = move->to = mp_arena_claimed(&pool->home->arena, MP_SIDE_KV);
    return blocks ? mp_kv_pool_check_resize(pool, blocks, &move->to) : MOEPAGE_OK;
}

static moepage_status check_together(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                     const mp_side_move *expert_move, const mp_side_move *kv_move)
{
    struct moepage_device *home = experts ? experts->shards[0].home : kv->home;
    if (experts && kv && kv->home != home)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the two pools live on different devices");
    uint64_t kv_bytes = kv ? kv_move->to : mp_arena_claimed(&home->arena, MP_SIDE_KV);
    uint64_t expert_bytes =
        experts ? expert_move->to : mp_arena_claimed(&home->arena, MP_SIDE_EXPERTS);
    if (expert_bytes > home->arena.bytes || kv_bytes > home->arena.bytes - expert_bytes)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "experts would need %llu bytes and KV %llu, the arena has "
                       "%llu",
                       (unsigned long long)expert_bytes, (unsigned long long)kv_bytes,
                       (unsigned long long)home->arena.bytes);
    return MOEPAGE_OK;
}

/* Whoever shrinks goes first, so that the two never need more than the arena together. Once it
 * has, growing cannot be refused: the room was checked and nothing is allocated. */
static moepage_status act(moepage_expert_pool *experts, moepage_kv_pool *kv, uint64_t slots,
                          uint64_t blocks, void *stream, bool experts_first)
{
    moepage_status status = MOEPAGE_OK;
    for (int turn = 0; turn < 2 && !status; turn++) {
        bool experts_turn = experts_first == (turn == 0);
        if (experts_turn && experts && slots)
            status = mp_pool_resize(experts, slots);
        else if (!experts_turn && kv && blocks)
            status = mp_kv_pool_resize(kv, blocks, stream);
    }
    return status;
}

moepage_status moepage_split_set(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                 uint64_t expert_slots, uint64_t kv_blocks, void *stream)
{
    if (!experts && !kv)
        return mp_fail(MOEPAGE_E_ARGUMENT, "both pools are NULL");
    mp_side_move expert_move = {0}, kv_move = {0};
    moepage_status status = experts ? mp_handle_check(experts, MP_KIND_EXPERTS) : MOEPAGE_OK;
    if (!status && kv)
        status = mp_handle_check(kv, MP_KIND_KV);
    if (!status && experts)
        status = plan_experts(experts, expert_slots, &expert_move);
    if (!status && kv)
        status = plan_kv(kv, kv_blocks, &kv_move);
    if (!status)
        status = check_together(experts, kv, &expert_move, &kv_move);
    if (status)
        return status;
    return act(experts, kv, expert_slots, kv_blocks, stream, expert_move.to <= expert_move.from);
}
