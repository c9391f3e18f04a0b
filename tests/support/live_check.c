/* What must hold of a live world's expert pool between any two actions, whatever is under way:
 * slots, map, scopes, policy, window and free stack say the same, and a slot behind the fence is
 * never handed out. */
#include "live_inside.h"
#include "policy/ring.h"

/* ---- slots ---- */

static bool is_one_of(const uint32_t *values, uint32_t n, uint32_t value)
{
    for (uint32_t i = 0; i < n; i++)
        if (values[i] == value)
            return true;
    return false;
}

/* Checks that a slot's expert is the one in the map, and is found only while it may be used. */
static bool check_slot(live_world *w, uint32_t slot, uint64_t word)
{
    const moepage_expert_pool *pool = w->rig.pool;
    const mp_shard *shard = &pool->cache->shards[0];
    const mp_slot *of = &shard->slots[slot];
    uint32_t state = MP_WORD_STATE(word), key = MP_WORD_KEY(word);
    bool there = state == MP_SLOT_LOADING || state == MP_SLOT_RESIDENT;
    MUST(w, slot >= shard->all.first && slot < shard->all.end);
    MUST(w, key < pool->keys && (atomic_load(&pool->cache->entry[key]) == slot) == there);
    MUST(w, there || MP_WORD_USERS(word) > 0);
    MUST(w, !of->ranked || (there && of->place == MP_PLACE_KEPT));
    MUST(w, !there || of->ranked == (of->place == MP_PLACE_KEPT));
    MUST(w, !of->scan || (there && of->place == MP_PLACE_KEPT));
    MUST(w, of->pins == 0 || (state == MP_SLOT_RESIDENT && MP_WORD_USERS(word) > 0));
    MUST(w, of->pins == 0 || of->place == MP_PLACE_KEPT);
    const mp_prefetcher *prefetcher = &pool->ahead->prefetchers[0];
    MUST(w, of->attended == is_one_of(prefetcher->active, prefetcher->n_active, slot));
    MUST(w, !of->attended || state == MP_SLOT_LOADING);
    return true;
}

/* Between two looks a slot that takes no more may only lose what it has. */
static bool check_fenced(live_world *w, uint32_t slot, uint64_t word)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    bool was_fenced = slot < w->open.first || slot >= w->open.end;
    if (was_fenced && (slot < shard->open.first || slot >= shard->open.end) && word != 0) {
        MUST(w, w->words[slot] != 0 && MP_WORD_KEY(word) == MP_WORD_KEY(w->words[slot]));
        MUST(w, shard->slots[slot].pins == 0 || w->pinned[slot]);
    }
    w->pinned[slot] = shard->slots[slot].pins > 0;
    w->words[slot] = word;
    return true;
}

static bool check_free(live_world *w, uint32_t n_free)
{
    const mp_bundle *bundle = &w->rig.pool->bundle;
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    uint32_t found = 0;
    for (uint32_t c = 0; c < bundle->n_classes; c++) {
        const mp_free_slots *free = &shard->free[c];
        for (uint32_t i = 0; i < free->n; i++) {
            uint32_t slot = free->slots[i];
            MUST(w, slot >= shard->open.first && slot < shard->open.end &&
                        atomic_load(&shard->words[slot]) == 0);
            MUST(w, !is_one_of(free->slots, i, slot) && mp_bundle_class_of(bundle, slot) == c);
        }
        found += free->n;
    }
    MUST(w, found == n_free);
    return true;
}

/* ---- sums ---- */

typedef struct tally {
    uint32_t used[LIVE_LAYERS], scans[LIVE_LAYERS], kept[LIVE_LAYERS];
    uint32_t transients[LIVE_LAYERS], places[3];
    uint32_t n_free, draining, mapped, pinned;
} tally;

static void count_slot(const live_world *w, uint32_t slot, uint64_t word, tally *sum)
{
    const moepage_expert_pool *pool = w->rig.pool;
    const mp_shard *shard = &pool->cache->shards[0];
    const mp_slot *of = &shard->slots[slot];
    uint32_t state = MP_WORD_STATE(word), layer = MP_WORD_KEY(word) / pool->experts;
    uint32_t scope = pool->cache->scope_of_layer[layer];
    bool there = state == MP_SLOT_LOADING || state == MP_SLOT_RESIDENT;
    sum->n_free += word == 0 && slot >= shard->open.first && slot < shard->open.end;
    sum->draining += state == MP_SLOT_DRAINING;
    sum->used[scope] += there || state == MP_SLOT_DRAINING;
    sum->mapped += there;
    if (!there)
        return;
    sum->pinned += of->pins > 0;
    sum->scans[scope] += of->scan;
    sum->places[of->place]++;
    sum->kept[layer] += of->place == MP_PLACE_KEPT;
    sum->transients[scope] += of->place != MP_PLACE_KEPT;
}

uint32_t live_capacity(const moepage_expert_pool *pool, const mp_scope *scope, mp_span slots)
{
    uint32_t n = 0;
    for (uint32_t s = slots.first; s < slots.end; s++)
        n += mp_bundle_class_of(&pool->bundle, s) == scope->class;
    return pool->per_layer ? n / pool->bundle.classes[scope->class].layers : n;
}

static bool check_scopes(live_world *w, const tally *sum)
{
    const moepage_expert_pool *pool = w->rig.pool;
    const mp_shard *shard = &pool->cache->shards[0];
    for (uint32_t i = 0; i < pool->cache->n_scopes; i++) {
        const mp_scope *scope = &shard->scopes[i];
        uint32_t aim = atomic_load(&scope->aim), capacity = atomic_load(&scope->capacity);
        MUST(w, scope->used == sum->used[i] && scope->scans == sum->scans[i]);
        MUST(w, scope->transients == sum->transients[i]);
        MUST(w, capacity == live_capacity(pool, scope, shard->open));
        MUST(w, aim <= capacity && (pool->move.slots || aim == capacity));
        MUST(w, aim >= scope->members || atomic_load(&scope->pinned) <= aim);
    }
    for (uint32_t l = 0; l < pool->layers; l++)
        MUST(w, shard->kept[l] == sum->kept[l]);
    return true;
}

/* All in the ring stand at its place, and they are as many as do. */
static bool check_ring(live_world *w, uint32_t sentinel, uint32_t place, uint32_t n)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    uint32_t length = 0;
    for (uint32_t at = shard->window[sentinel].next; at != sentinel; at = shard->window[at].next) {
        MUST(w, ++length <= n && shard->slots[at].place == place);
        MUST(w, shard->window[shard->window[at].next].prev == at);
    }
    MUST(w, length == n);
    return true;
}

static bool check_map(live_world *w, const tally *sum)
{
    moepage_expert_pool *pool = w->rig.pool;
    uint32_t mapped = 0, apart = w->path.on ? w->path.aside.per_scope : 0, pinned = 0;
    for (uint32_t key = 0; key < pool->keys; key++)
        mapped += atomic_load(&pool->cache->entry[key]) != MP_NO_SLOT;
    MUST(w, mapped == sum->mapped && atomic_load(&pool->cache->n_draining) == sum->draining);
    for (uint32_t i = 0; i < pool->cache->n_scopes; i++)
        pinned += atomic_load(&pool->cache->shards[0].scopes[i].pinned) - apart;
    MUST(w, pinned == sum->pinned);
    MUST(w, atomic_load(&pool->cache->n_apart) == w->path.on);
    MUST(w, atomic_load(&pool->cache->n_clients) == live_sessions(w));
    moepage_residency residency = {.struct_size = sizeof residency};
    uint32_t layer = live_below(w, pool->layers), expert = live_below(w, pool->experts);
    MUST(w, !moepage_expert_pool_lookup(pool, layer, expert, &residency));
    MUST(w, residency.state <= MOEPAGE_EXPERT_RESIDENT);
    MUST(w, (residency.state == MOEPAGE_EXPERT_ABSENT) == (residency.slot < 0));
    return true;
}

/* The pool's layers stream as often as its sessions stream them. */
static bool check_streams(live_world *w)
{
    const moepage_expert_pool *pool = w->rig.pool;
    uint32_t streams[LIVE_LAYERS] = {0}, streamers = 0;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
        uint32_t n = 0;
        for (uint32_t l = 0; pool->cache->clients[c] && l < pool->layers; l++) {
            streams[l] += pool->cache->clients[c]->streams[l];
            n += pool->cache->clients[c]->streams[l];
        }
        streamers += n > 0;
        MUST(w, !pool->cache->clients[c] || pool->cache->clients[c]->n_streams == n);
    }
    MUST(w, atomic_load(&pool->cache->n_streamers) == streamers);
    for (uint32_t l = 0; l < pool->layers; l++)
        MUST(w, pool->cache->streams[l] == streams[l]);
    return true;
}

bool live_check(live_world *w)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    tally sum = {0};
    for (uint32_t s = 0; s < shard->max_slots; s++) {
        uint64_t word = atomic_load(&shard->words[s]);
        if (word != 0 && !check_slot(w, s, word))
            return false;
        if (!check_fenced(w, s, word))
            return false;
        count_slot(w, s, word, &sum);
    }
    w->open = shard->open;
    return check_free(w, sum.n_free) && check_scopes(w, &sum) && check_map(w, &sum) &&
           check_streams(w) &&
           check_ring(w, shard->max_slots, MP_PLACE_AHEAD, sum.places[MP_PLACE_AHEAD]) &&
           check_ring(w, shard->max_slots + 1, MP_PLACE_PAST, sum.places[MP_PLACE_PAST]);
}
