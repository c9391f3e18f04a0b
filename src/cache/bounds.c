/* Bounds: how many slots each client may hold, which slots are pinned, and which come and go.
 *
 * A client sets `routing` before it reads how many slots it may count on, and a shrinking shard
 * stores its aim before it looks at the clients, both in sequentially consistent order. So either
 * the client sees the new aim, or the shard sees that the client is routing, and the move is
 * tried again later. */
#include "base/status.h"
#include "cache/inside.h"

/* ---- shares ---- */

void mp_client_begin_routing(mp_client *client)
{
    atomic_store(&client->routing, true);
}

void mp_client_reserve(mp_client *client, const uint32_t *reserved, uint32_t widest)
{
    const uint32_t n_classes = client->cache->setup.bundle->n_classes;
    for (uint32_t d = 0; d < client->cache->n_shards; d++)
        for (uint32_t c = 0; c < n_classes; c++)
            atomic_store_explicit(&client->reserved[d][c], reserved[d * n_classes + c],
                                  memory_order_release);
    atomic_store_explicit(&client->widest, widest, memory_order_release);
    atomic_store_explicit(&client->routing, false, memory_order_release);
}

/* Clients with slots set aside have no part in the rest. Without the lock, the answer may be off by
 * clients that are just joining or leaving. */
uint32_t mp_cache_sharers(const mp_cache *cache)
{
    uint32_t clients = atomic_load_explicit(&cache->n_clients, memory_order_relaxed);
    uint32_t apart = atomic_load_explicit(&cache->n_apart, memory_order_relaxed);
    return clients > apart ? clients - apart : 0;
}

uint32_t mp_cache_needed(const mp_cache *cache, uint32_t clients)
{
    uint32_t most = 1;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++)
        if (cache->clients[c] && cache->clients[c]->need > most)
            most = cache->clients[c]->need;
    return clients * most;
}

uint32_t mp_cache_share(const mp_cache *cache)
{
    uint32_t sum = 0, sharers = mp_cache_sharers(cache);
    for (uint32_t d = 0; d < cache->n_shards; d++)
        for (uint32_t i = 0; i < cache->n_scopes; i++)
            sum += atomic_load_explicit(&cache->shards[d].scopes[i].aim, memory_order_relaxed);
    return sharers ? sum / sharers : sum;
}

static uint32_t excess_of(uint32_t all, uint32_t taken)
{
    return all > taken ? all - taken : 0;
}

uint32_t mp_client_quota(const mp_client *client, uint32_t layer, uint32_t device, bool scan)
{
    const mp_cache *cache = client->cache;
    const mp_scope *scope =
        &cache->shards[device].scopes[cache->n_scopes == 1 ? 0 : cache->scope_of_layer[layer]];
    uint32_t aim =
        atomic_load(&scope->aim); /* in order with `routing`: see the head of this file */
    if (cache->setup.fixed || aim >= scope->members)
        return UINT32_MAX;
    uint32_t pinned = atomic_load_explicit(&scope->pinned, memory_order_relaxed);
    uint32_t clients = mp_cache_sharers(cache);
    clients = clients ? clients : 1;
    uint32_t share = excess_of(aim, pinned) / clients; /* pins may come and go meanwhile */
    if (scan && cache->scan_percent) {
        uint32_t limit = aim * cache->scan_percent / 100;
        share = limit < 1 ? 1 : limit < share ? limit : share;
    }
    uint32_t reserved = 0;
    if (!cache->setup.per_layer)
        reserved =
            atomic_load_explicit(&client->reserved[device][scope->class], memory_order_relaxed);
    uint32_t capacity = atomic_load_explicit(&scope->capacity, memory_order_relaxed);
    if (share > reserved || aim >= capacity)
        return excess_of(share, reserved);
    /* The shard is about to shrink, and the client already holds all of its future share or more.
     * As far as the old share still allows it, it may hold what it needs at once, so that it makes
     * progress while its holds decrease. */
    const uint32_t left = excess_of(excess_of(capacity, pinned) / clients, reserved);
    return left < client->need ? left : client->need;
}

moepage_status mp_cache_check_share(const mp_cache *cache, uint32_t n_clients)
{
    for (uint32_t d = 0; d < cache->n_shards && !cache->setup.fixed; d++) {
        for (uint32_t i = 0; i < cache->n_scopes; i++) {
            const mp_scope *scope = &cache->shards[d].scopes[i];
            uint32_t capacity = atomic_load(&scope->aim);
            uint32_t pinned = atomic_load(&scope->pinned);
            if (capacity < scope->members && capacity - pinned < n_clients)
                return mp_fail(MOEPAGE_E_BUDGET,
                               "%u sessions cannot share %u slots on device %u, %u "
                               "of them pinned: each needs at least one",
                               n_clients, capacity, d, pinned);
        }
    }
    return MOEPAGE_OK;
}

/* ---- slots set aside: to the other clients they look pinned ---- */

static uint32_t share_of(const mp_cache *cache, const mp_client *client, uint32_t scope)
{
    uint32_t members = cache->shards[0].scopes[scope].members;
    uint32_t quota = mp_client_quota(client, scope, 0, false);
    return quota < members ? quota : members;
}

static void set_apart(mp_cache *cache, uint32_t slots, bool apart)
{
    for (uint32_t i = 0; i < cache->n_scopes; i++)
        atomic_fetch_add(&cache->shards[0].scopes[i].pinned, apart ? slots : -slots);
    atomic_fetch_add(&cache->n_apart, apart ? 1 : -1u);
}

moepage_status mp_cache_set_aside(mp_cache *cache, const mp_client *client, uint32_t asked,
                                  uint32_t least, uint32_t *out, uint32_t *out_per_scope)
{
    uint32_t per_scope = UINT32_MAX;
    for (uint32_t i = 0; i < cache->n_scopes; i++) {
        uint32_t share = share_of(cache, client, i);
        per_scope = share < per_scope ? share : per_scope;
    }
    uint32_t most = per_scope * cache->n_scopes; /* no more than the slots there are */
    uint32_t slots = asked ? asked : most;
    per_scope = slots < per_scope ? slots : per_scope;
    if (slots > most)
        return mp_fail(MOEPAGE_E_BUDGET, "%u slots: the session's share of the pool is %u", slots,
                       most);
    if (per_scope < least)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "a layer may need %u experts at once, but can have no more than %u slots: "
                       "give the pool or the path more slots, or the path fewer tokens",
                       least, per_scope);
    set_apart(cache, per_scope, true);
    *out = slots;
    *out_per_scope = per_scope;
    return MOEPAGE_OK;
}

void mp_cache_put_back(mp_cache *cache, uint32_t per_scope)
{
    set_apart(cache, per_scope, false);
}

/* ---- pins: one user and one place in the scope stand for all pins of an expert ---- */

bool mp_cache_pin_again(mp_cache *cache, uint32_t key)
{
    const mp_shard *shard = mp_cache_shard_of(cache, key);
    uint32_t index = atomic_load(&cache->entry[key]);
    if (index == MP_NO_SLOT || shard->slots[index].pins == 0)
        return false;
    shard->slots[index].pins++;
    return true;
}

moepage_status mp_cache_reserve_pin(mp_cache *cache, uint32_t key, uint32_t keep)
{
    mp_scope *scope = mp_shard_scope(mp_cache_shard_of(cache, key), key);
    uint32_t capacity = atomic_load(&scope->aim), pinned = atomic_load(&scope->pinned);
    uint32_t needed = mp_cache_needed(cache, atomic_load(&cache->n_clients));
    if (keep < needed)
        keep = needed;
    if (capacity < scope->members && pinned + 1 + keep > capacity)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%u experts are pinned; one more would leave fewer than %u "
                       "of %u slots to evict from",
                       pinned, keep, capacity);
    atomic_fetch_add(&scope->pinned, 1);
    return MOEPAGE_OK;
}

void mp_cache_unreserve_pin(mp_cache *cache, uint32_t key)
{
    atomic_fetch_sub(&mp_shard_scope(mp_cache_shard_of(cache, key), key)->pinned, 1);
}

bool mp_cache_pin_held(mp_cache *cache, const mp_hold *hold, bool *again)
{
    mp_shard *shard = &cache->shards[hold->shard];
    bool open = hold->slot >= shard->open.first && hold->slot < shard->open.end;
    bool there = atomic_load(&cache->entry[hold->key]) == hold->slot;
    if (there && !open && shard->slots[hold->slot].pins == 0) {
        mp_shard_drain(shard, hold->slot, hold->key);
        there = false;
    }
    *again = there && shard->slots[hold->slot].pins++ > 0;
    return there;
}

bool mp_cache_unpin(mp_cache *cache, uint32_t key)
{
    mp_shard *shard = mp_cache_shard_of(cache, key);
    uint32_t index = atomic_load(&cache->entry[key]);
    if (index == MP_NO_SLOT || shard->slots[index].pins == 0)
        return false;
    if (--shard->slots[index].pins == 0) {
        mp_cache_unreserve_pin(cache, key);
        atomic_fetch_sub(&shard->words[index], 1);
    }
    return true;
}

uint32_t mp_cache_most_pinned(const mp_cache *cache)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < cache->n_scopes; i++) {
        uint32_t here = atomic_load(&cache->shards[0].scopes[i].pinned);
        most = here > most ? here : most;
    }
    return most;
}

uint32_t mp_cache_pinned_end(const mp_cache *cache)
{
    const mp_shard *shard = &cache->shards[0];
    uint32_t end = mp_cache_most_pinned(cache) ? shard->all.end : shard->all.first;
    while (end > shard->all.first && !shard->slots[end - 1].pins)
        end--;
    return end - shard->all.first;
}

/* ---- slots that come and go ---- */

mp_span mp_shard_slots(const mp_shard *shard)
{
    return shard->all;
}

mp_span mp_shard_open_slots(const mp_shard *shard)
{
    return shard->open;
}

uint32_t mp_scope_capacity_in(const mp_shard *shard, const mp_scope *scope, mp_span slots)
{
    const mp_bundle *bundle = shard->cache->setup.bundle;
    const mp_slot_class *class = &bundle->classes[scope->class];
    uint32_t sharers = shard->cache->setup.per_layer ? class->layers : 1;
    if (slots.end <= slots.first)
        return 0;
    return (slots.end - slots.first) / bundle->n_slots * class->slots / sharers;
}

moepage_status mp_shard_check_capacity(const mp_shard *shard, mp_span slots, uint32_t asked)
{
    uint32_t clients = mp_cache_sharers(shard->cache), n_scopes = shard->cache->n_scopes;
    uint32_t needed = mp_cache_needed(shard->cache, clients);
    for (uint32_t i = 0; i < n_scopes; i++) {
        uint32_t pinned = atomic_load(&shard->scopes[i].pinned);
        uint32_t capacity = mp_scope_capacity_in(shard, &shard->scopes[i], slots);
        uint32_t now = mp_scope_capacity_in(shard, &shard->scopes[i], shard->all);
        bool takes = capacity < now; /* what there is may be less than is needed, and may grow */
        if (capacity < shard->scopes[i].members && capacity < (takes ? needed : clients) + pinned)
            return mp_fail(
                MOEPAGE_E_BUDGET,
                "%u slots are too few for %u sessions, which need %u, and %u pins (%u of "
                "them are there before and after: a smaller step leaves more)",
                asked, clients, needed, pinned,
                slots.end > slots.first ? slots.end - slots.first : 0);
    }
    return MOEPAGE_OK;
}

void mp_shard_set_aim(mp_shard *shard, mp_span slots)
{
    for (uint32_t i = 0; i < shard->cache->n_scopes; i++)
        atomic_store(&shard->scopes[i].aim, mp_scope_capacity_in(shard, &shard->scopes[i], slots));
}

static void set_capacity(mp_shard *shard, mp_span slots)
{
    for (uint32_t i = 0; i < shard->cache->n_scopes; i++)
        atomic_store(&shard->scopes[i].capacity,
                     mp_scope_capacity_in(shard, &shard->scopes[i], slots));
}

/* Finds the most slots of one scope that a client's open layers count on: all together where layers share
 * their slots; else a client has no layer twice, and its widest may be any. False if that cannot be
 * known now. */
static bool find_widest(const mp_cache *cache, const mp_scope *scope, uint32_t *out)
{
    *out = 0;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
        mp_client *client = cache->clients[c];
        if (!client)
            continue;
        if (atomic_load(&client->routing))
            return false;
        uint32_t reserved = cache->setup.per_layer
                                ? atomic_load(&client->widest)
                                : atomic_load(&client->reserved[0][scope->class]);
        *out = reserved > *out ? reserved : *out;
    }
    return true;
}

moepage_status mp_shard_check_promises(const mp_shard *shard, mp_span slots)
{
    const mp_cache *cache = shard->cache;
    uint32_t clients = mp_cache_sharers(cache), widest;
    for (uint32_t i = 0; i < cache->n_scopes; i++) {
        const mp_scope *scope = &shard->scopes[i];
        uint32_t capacity = mp_scope_capacity_in(shard, scope, slots);
        if (capacity >= scope->members || clients == 0)
            continue;
        if (!find_widest(cache, scope, &widest))
            return mp_fail(MOEPAGE_E_BUSY, "a session is just opening a layer");
        uint32_t share = (capacity - atomic_load(&scope->pinned)) / clients;
        if (widest > share)
            return mp_fail(MOEPAGE_E_BUSY,
                           "a session counts on %u slots for layers in open plans, but its share "
                           "of %u slots will be %u",
                           widest, capacity, share);
    }
    return MOEPAGE_OK;
}

void mp_shard_fence(mp_shard *shard, mp_span open)
{
    shard->open = open;
    set_capacity(shard, open);
    mp_shard_restack(shard);
}

moepage_status mp_shard_shrink_scopes(mp_shard *shard)
{
    uint32_t over = MP_NO_SLOT;
    for (uint32_t i = 0; i < shard->cache->n_scopes; i++) {
        mp_scope *scope = &shard->scopes[i];
        uint32_t capacity = atomic_load(&scope->capacity);
        while (scope->used > capacity && mp_shard_evict(shard, scope, MP_FOR_DECODE, false))
            ;
        over = scope->used > capacity ? i : over;
    }
    if (over == MP_NO_SLOT)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_BUSY, "layer %u has more experts loading than its share of slots",
                   over);
}

void mp_shard_set_slots(mp_shard *shard, mp_span slots)
{
    shard->all = slots;
    mp_shard_set_aim(shard, slots);
    mp_shard_fence(shard, slots);
}

bool mp_cache_any_draining(const mp_cache *cache)
{
    return atomic_load(&cache->n_draining) > 0;
}

bool mp_cache_is_draining(const mp_cache *cache, const mp_hold *hold)
{
    return mp_shard_view(&cache->shards[hold->shard], hold->slot).state == MP_SLOT_DRAINING;
}
