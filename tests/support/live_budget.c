/* A live world's budget: what it may become, and what must be so when it has moved or has not. */
#include <string.h>

#include "live_inside.h"

bool live_fits(const live_world *w, uint64_t arena_bytes, uint64_t experts, uint64_t kv)
{
    const uint64_t part = w->config.part_bytes, all = ARENA_BYTES;
    if (experts > all || kv > all - experts)
        return false;
    if (arena_bytes >= all)
        return true;
    uint64_t low = (experts + part - 1) / part, high = all / part - (kv + part - 1) / part;
    /* Of the parts that neither side touches, as many as are not paid for go. */
    uint64_t gone = all / part - arena_bytes / part;
    return low <= high && high - low >= gone;
}

/* The fewest slots that a smaller budget leaves: what sessions need and one for each of a token's
 * experts, beside those that are pinned, in each scope; no more than there are experts. */
static uint64_t fewest_slots(const live_world *w)
{
    const moepage_expert_pool *pool = w->rig.pool;
    const mp_shard *shard = &pool->cache->shards[0];
    uint32_t top_k = w->bank->shape.top_k, needed = live_needed(w, live_sessions(w)), pinned = 0;
    for (uint32_t i = 0; i < pool->cache->n_scopes; i++) {
        uint32_t n = atomic_load(&shard->scopes[i].pinned);
        pinned = n > pinned ? n : pinned;
    }
    uint64_t all = pool->keys / pool->step_slots,
             fewest = (needed > top_k ? needed : top_k) + pinned;
    uint64_t now = shard->all.end - shard->all.first;
    fewest = (fewest < all ? fewest : all) * pool->step_slots;
    return fewest < now ? fewest : now;
}

/* Is that less than what must stay? */
static bool is_too_little(const live_world *w, uint64_t arena_bytes)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    uint64_t slots = shard->all.first + fewest_slots(w), used = mp_kv_blocks_used(&w->kv->blocks);
    slots = (slots + w->rig.pool->bundle.n_slots - 1) / w->rig.pool->bundle.n_slots *
            w->rig.pool->bundle.n_slots;
    uint64_t granules = used ? (used + 2) / 3 : 1;
    return !live_fits(w, arena_bytes, mp_bundle_bytes(&w->rig.pool->bundle, slots),
                      granules * w->kv->shape.granule_bytes);
}

static bool check_info(live_world *w)
{
    moepage_device_info info = {.struct_size = sizeof info};
    MUST(w, !moepage_device_get_info(w->loose.home, &info));
    MUST(w, info.budget_bytes == w->budget.now + WORKSPACE_BYTES);
    MUST(w, info.budget_aim_bytes == w->budget.aim + WORKSPACE_BYTES);
    MUST(w, info.used_bytes <= info.peak_bytes && info.peak_bytes <= info.budget_bytes);
    MUST(w, info.max_budget_bytes == ARENA_BYTES + WORKSPACE_BYTES);
    uint64_t there = 0;
    for (uint32_t i = 0; i < LOOSE_PARTS; i++)
        there += w->loose.there[i] ? w->config.part_bytes : 0;
    MUST(w, info.arena_bytes == there && there <= w->budget.now);
    MUST(w, there + w->config.part_bytes > w->budget.now);
    return true;
}

bool live_budget_attempt(live_world *w, uint64_t arena_bytes, mp_stream *native)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    live_budget before = w->budget;
    uint64_t slots = shard->all.end - shard->all.first;
    uint64_t blocks = mp_kv_blocks_capacity(&w->kv->blocks);
    bool grows = arena_bytes > before.now, too_little = is_too_little(w, arena_bytes);
    w->loose.most = grows ? arena_bytes : before.now;
    bool refused = grows && live_below(w, 4) == 0;
    w->loose.refusals = refused;
    moepage_status status =
        moepage_device_set_budget(w->loose.home, arena_bytes + WORKSPACE_BYTES, native);
    refused = refused && !w->loose.refusals; /* it may have had to ask for nothing */
    w->loose.refusals = 0;
    MUST(w, !status || status == MOEPAGE_E_BUSY || status == MOEPAGE_E_BUDGET ||
                status == MOEPAGE_E_NO_MEMORY);
    MUST(w, status != MOEPAGE_E_NO_MEMORY || refused);
    MUST(w, grows || arena_bytes == before.now || (status == MOEPAGE_E_BUDGET) == too_little);
    MUST(w, status != MOEPAGE_E_BUSY || arena_bytes < before.now);
    w->budget.now = status ? before.now : arena_bytes;
    w->budget.aim = status == MOEPAGE_E_BUSY ? arena_bytes : w->budget.now;
    w->loose.most = w->budget.now;
    uint64_t slots_now = shard->all.end - shard->all.first;
    uint64_t blocks_now = mp_kv_blocks_capacity(&w->kv->blocks);
    /* A budget that has grown may leave a pool small whose part of the arena could not get memory. */
    MUST(w,
         !refused || status == MOEPAGE_E_NO_MEMORY || slots_now == slots || blocks_now == blocks);
    MUST(w, live_fits(w, w->budget.now, w->loose.home->arena.claimed[MP_SIDE_EXPERTS],
                      w->loose.home->arena.claimed[MP_SIDE_KV]));
    if (status == MOEPAGE_E_BUDGET || grows || arena_bytes == before.now)
        MUST(w, slots_now >= slots && blocks_now >= blocks);
    else
        MUST(w, slots_now <= slots && blocks_now <= blocks);
    w->counts.shrunk += !status && arena_bytes < before.now;
    w->counts.grown += !status && grows;
    w->counts.budget_waits += status == MOEPAGE_E_BUSY;
    w->counts.budget_refused += status == MOEPAGE_E_BUDGET;
    w->counts.memory_refused += status == MOEPAGE_E_NO_MEMORY;
    w->counts.slots_taken += slots > slots_now ? slots - slots_now : 0;
    w->counts.blocks_taken += blocks > blocks_now ? blocks - blocks_now : 0;
    return check_info(w);
}

bool live_budget_act(live_world *w, mp_stream *native)
{
    uint64_t to = w->budget.aim;
    if (!live_budget_waits(w) || live_below(w, 6) == 0) {
        uint32_t least = live_below(w, 8) ? 8192 : w->config.part_bytes;
        to = least + live_below(w, ARENA_BYTES - least + 1);
    }
    if (live_below(w, 12) == 0)
        to = w->budget.now; /* gives an aim up */
    return live_budget_attempt(w, to, native);
}
