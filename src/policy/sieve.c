/* SIEVE (Zhang et al., NSDI 2024): one queue in the order of insertion, one bit per key, one hand.
 *
 *   sentinel <-> oldest <-> ... <-> hand <-> ... <-> newest <-> (sentinel)
 *
 * A use sets the key's bit and moves nothing. To evict, the hand goes from where it is towards the
 * newest key, and from there on to the oldest: it clears the bits that it finds set, and the first
 * key whose bit is not set is the victim. The hand stays where it is, which separates the survivors
 * of a pass from new keys and distinguishes SIEVE from CLOCK.
 *
 * Keys that may not be evicted are skipped and keep their bits. A use is O(1); the hand
 * clears no more bits than uses have set. */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "policy/policies.h"
#include "policy/ring.h"

typedef struct sieve_state {
    uint32_t keys; /* also the sentinel's index */
    uint32_t resident;
    uint32_t hand; /* key under the hand; the sentinel stands for the oldest */
    uint32_t reserved;
    mp_link *links; /* [keys + 1]; next == MP_NO_KEY: not resident */
    uint8_t *used;  /* [keys] use bits */
} sieve_state;

static uint64_t sieve_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    uint64_t bytes = sizeof(sieve_state) + ((uint64_t)keys + 1) * sizeof(mp_link) + keys;
    return (bytes + 7) & ~UINT64_C(7);
}

static void sieve_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    sieve_state *sieve = state;
    *sieve = (sieve_state){.keys = keys, .hand = keys, .links = (mp_link *)(sieve + 1)};
    sieve->used = (uint8_t *)(sieve->links + keys + 1);
    memset(sieve->used, 0, keys);
    for (uint32_t key = 0; key < keys; key++)
        sieve->links[key] = (mp_link){MP_NO_KEY, MP_NO_KEY};
    mp_ring_reset(sieve->links, keys);
}

static bool is_resident(const sieve_state *sieve, uint32_t key)
{
    return key < sieve->keys && sieve->links[key].next != MP_NO_KEY;
}

static void sieve_insert(void *state, uint32_t key)
{
    sieve_state *sieve = state;
    assert(key < sieve->keys && !is_resident(sieve, key));
    mp_ring_append(sieve->links, sieve->keys, key);
    sieve->used[key] = 0;
    sieve->resident++;
}

static void sieve_touch(void *state, uint32_t key)
{
    sieve_state *sieve = state;
    assert(is_resident(sieve, key));
    sieve->used[key] = 1;
}

static void sieve_remove(void *state, uint32_t key)
{
    sieve_state *sieve = state;
    assert(is_resident(sieve, key));
    if (sieve->hand == key)
        sieve->hand = sieve->links[key].next;
    mp_ring_unlink(sieve->links, key);
    sieve->links[key].next = MP_NO_KEY;
    sieve->resident--;
}

static uint32_t sieve_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    sieve_state *sieve = state;
    uint32_t key = sieve->hand;
    /* Two rounds: the first may only clear bits. */
    for (uint64_t left = 2 * ((uint64_t)sieve->resident + 1); left > 0; left--) {
        if (key != sieve->keys && may_evict(ctx, key)) {
            if (!sieve->used[key]) {
                sieve->hand = key;
                return key;
            }
            sieve->used[key] = 0;
        }
        key = sieve->links[key].next;
    }
    return MP_NO_KEY;
}

const mp_policy mp_policy_sieve = {
    .name = "sieve",
    .state_bytes = sieve_state_bytes,
    .init = sieve_init,
    .insert = sieve_insert,
    .touch = sieve_touch,
    .remove = sieve_remove,
    .victim = sieve_victim,
};
