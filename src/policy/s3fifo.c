/* S3-FIFO (Yang et al., SOSP 2023): three queues in the order of insertion.
 *
 *   small   10 % of the cache: new keys
 *   main    90 %: keys used more than once while in `small`, or inserted again soon after
 *   ghost   keys that left from `small`, not resident; as many as `main` has room for
 *
 * A use raises the key's count, at most to 3, and moves nothing. An inserted key goes to `main` if
 * it is in `ghost`, otherwise to `small`. To evict: if `small` has its share, its oldest key is
 * examined: used more than once, it moves to `main` with its count cleared, otherwise it is the
 * victim and becomes a ghost. If `small` is below its share, `main`'s oldest: a count above 0 is
 * lowered by one and the key begins anew as the newest, otherwise it is the victim.
 *
 * The size of the cache is the number of resident keys at that moment. Keys that may not be evicted
 * are skipped; if a queue has no others, the victim comes from the other queue. A use is O(1), and
 * no key is moved more often than it was used. */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "policy/policies.h"
#include "policy/ring.h"

#define SMALL_PARTS 10 /* its share is 1 / SMALL_PARTS */
#define MOST_USES 3

enum { NOWHERE, SMALL, MAIN, GHOST };

typedef struct s3_state {
    uint32_t keys;
    uint32_t sizes[4]; /* of the queues */
    uint32_t reserved;
    mp_link *links; /* [keys + 4]; the queues' sentinels are keys + SMALL ... */
    uint8_t *queue; /* [keys] the queue of each key */
    uint8_t *uses;  /* [keys] */
} s3_state;

static uint64_t s3_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    uint64_t bytes = sizeof(s3_state) + ((uint64_t)keys + 4) * sizeof(mp_link) + 2 * (uint64_t)keys;
    return (bytes + 7) & ~UINT64_C(7);
}

static void s3_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    s3_state *s3 = state;
    *s3 = (s3_state){.keys = keys, .links = (mp_link *)(s3 + 1)};
    s3->queue = (uint8_t *)(s3->links + keys + 4);
    s3->uses = s3->queue + keys;
    memset(s3->queue, NOWHERE, keys);
    for (uint32_t queue = SMALL; queue <= GHOST; queue++)
        mp_ring_reset(s3->links, keys + queue);
}

static bool is_resident(const s3_state *s3, uint32_t key)
{
    return key < s3->keys && (s3->queue[key] == SMALL || s3->queue[key] == MAIN);
}

static uint32_t residents(const s3_state *s3)
{
    return s3->sizes[SMALL] + s3->sizes[MAIN];
}

/* Moves `key` from its queue, if any, to the newest end of another. */
static void move(s3_state *s3, uint32_t key, uint8_t queue)
{
    if (s3->queue[key] != NOWHERE) {
        mp_ring_unlink(s3->links, key);
        s3->sizes[s3->queue[key]]--;
    }
    s3->queue[key] = queue;
    if (queue != NOWHERE) {
        mp_ring_append(s3->links, s3->keys + queue, key);
        s3->sizes[queue]++;
    }
}

static void s3_insert(void *state, uint32_t key)
{
    s3_state *s3 = state;
    assert(key < s3->keys && !is_resident(s3, key));
    move(s3, key, s3->queue[key] == GHOST ? MAIN : SMALL);
    s3->uses[key] = 0;
}

static void s3_touch(void *state, uint32_t key)
{
    s3_state *s3 = state;
    assert(is_resident(s3, key));
    s3->uses[key] += s3->uses[key] < MOST_USES;
}

static void s3_remove(void *state, uint32_t key)
{
    s3_state *s3 = state;
    assert(is_resident(s3, key));
    uint64_t ghosts = (uint64_t)residents(s3) * (SMALL_PARTS - 1) / SMALL_PARTS;
    move(s3, key, s3->queue[key] == SMALL ? GHOST : NOWHERE);
    while (s3->sizes[GHOST] > ghosts)
        move(s3, s3->links[s3->keys + GHOST].next, NOWHERE);
}

static bool small_has_its_share(const s3_state *s3)
{
    return s3->sizes[SMALL] > 0 && (uint64_t)s3->sizes[SMALL] * SMALL_PARTS >= residents(s3);
}

/* Looks for a victim until `small` is below its share, or through the whole queue. */
static uint32_t victim_of_small(s3_state *s3, bool to_the_end, mp_may_evict_fn may_evict, void *ctx)
{
    uint32_t end = s3->keys + SMALL, next;
    for (uint32_t key = s3->links[end].next; key != end; key = next) {
        next = s3->links[key].next;
        if (!to_the_end && !small_has_its_share(s3))
            break;
        if (!may_evict(ctx, key))
            continue;
        if (s3->uses[key] <= 1)
            return key;
        move(s3, key, MAIN);
        s3->uses[key] = 0;
    }
    return MP_NO_KEY;
}

static uint32_t victim_of_main(s3_state *s3, mp_may_evict_fn may_evict, void *ctx)
{
    uint32_t end = s3->keys + MAIN, next;
    for (uint32_t key = s3->links[end].next; key != end; key = next) {
        if (may_evict(ctx, key)) {
            if (s3->uses[key] == 0)
                return key;
            s3->uses[key]--;
            next = s3->links[key].next == end ? key : s3->links[key].next;
            move(s3, key, MAIN);
        } else {
            next = s3->links[key].next;
        }
    }
    return MP_NO_KEY;
}

static uint32_t s3_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    s3_state *s3 = state;
    uint32_t key = victim_of_small(s3, false, may_evict, ctx);
    if (key == MP_NO_KEY)
        key = victim_of_main(s3, may_evict, ctx);
    if (key == MP_NO_KEY)
        key = victim_of_small(s3, true, may_evict, ctx);
    return key != MP_NO_KEY ? key : victim_of_main(s3, may_evict, ctx);
}

const mp_policy mp_policy_s3fifo = {
    .name = "s3fifo",
    .state_bytes = s3_state_bytes,
    .init = s3_init,
    .insert = s3_insert,
    .touch = s3_touch,
    .remove = s3_remove,
    .victim = s3_victim,
};
