/* LRU: evict the key whose last use is longest ago.
 *
 * One ring of the resident keys around a sentinel, in the order of last use:
 *
 *   sentinel <-> oldest <-> ... <-> newest <-> (sentinel)
 *
 * insert and touch put the key at the newest end; the victim is the first key from the oldest
 * end that may be evicted. All operations are O(1), apart from the keys that `may_evict` refuses
 * on the way. */
#include <assert.h>
#include <stddef.h>

#include "policy/policies.h"
#include "policy/ring.h"

typedef struct lru_state {
    uint32_t keys; /* also the sentinel's index */
    uint32_t reserved;
    mp_link links[]; /* [keys + 1]; next == MP_NO_KEY: not resident */
} lru_state;

static uint64_t lru_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    return sizeof(lru_state) + ((uint64_t)keys + 1) * sizeof(mp_link);
}

static void lru_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    lru_state *lru = state;
    lru->keys = keys;
    lru->reserved = 0;
    for (uint32_t key = 0; key < keys; key++)
        lru->links[key] = (mp_link){MP_NO_KEY, MP_NO_KEY};
    mp_ring_reset(lru->links, keys);
}

static bool is_resident(const lru_state *lru, uint32_t key)
{
    return key < lru->keys && lru->links[key].next != MP_NO_KEY;
}

static void lru_insert(void *state, uint32_t key)
{
    lru_state *lru = state;
    assert(key < lru->keys && !is_resident(lru, key));
    mp_ring_append(lru->links, lru->keys, key);
}

static void lru_touch(void *state, uint32_t key)
{
    lru_state *lru = state;
    assert(is_resident(lru, key));
    mp_ring_unlink(lru->links, key);
    mp_ring_append(lru->links, lru->keys, key);
}

static void lru_remove(void *state, uint32_t key)
{
    lru_state *lru = state;
    assert(is_resident(lru, key));
    mp_ring_unlink(lru->links, key);
    lru->links[key].next = MP_NO_KEY;
}

static uint32_t lru_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    const lru_state *lru = state;
    for (uint32_t key = lru->links[lru->keys].next; key != lru->keys; key = lru->links[key].next)
        if (may_evict(ctx, key))
            return key;
    return MP_NO_KEY;
}

const mp_policy mp_policy_lru = {
    .name = "lru",
    .state_bytes = lru_state_bytes,
    .init = lru_init,
    .insert = lru_insert,
    .touch = lru_touch,
    .remove = lru_remove,
    .victim = lru_victim,
};
