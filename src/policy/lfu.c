/* LFU: evict the key used least often since it was inserted; among equals, the one whose last use
 * is longest ago. A count is 1 at insertion, grows by one per touch, never ages, and is forgotten
 * when the key leaves.
 *
 * One ring holds the resident keys in the order in which they would be evicted. Keys of one count
 * are neighbours, a run, ordered by last use, because every use moves a key to the end of a run:
 *
 *   sentinel <-> a:1 <-> b:1 <-> c:1 <-> d:4 <-> e:7 <-> f:7 <-> (sentinel)
 *               `------ run ------'     `run'   `--- run ---'
 *
 * A key knows its run, and a run its count and its last key. Touching b means: find the last key
 * of its run (c); the run behind it has count 2 or none has; join that run at its end, or become a
 * new run behind c. So all operations are O(1), and the victim is the first key that may be
 * evicted. No run is empty, so there are never more runs than keys. */
#include <assert.h>
#include <stddef.h>

#include "policy/policies.h"
#include "policy/ring.h"

#define NO_RUN UINT32_MAX

typedef struct lfu_run {
    uint64_t count;
    uint32_t last;      /* its last key */
    uint32_t next_free; /* while it is unused */
} lfu_run;

typedef struct lfu_state {
    uint32_t keys; /* also the sentinel's index */
    uint32_t free_run;
    lfu_run *runs;    /* [keys] */
    mp_link *links;   /* [keys + 1] */
    uint32_t *run_of; /* [keys + 1]; NO_RUN: not resident, or the sentinel */
} lfu_state;

static uint64_t lfu_state_bytes(uint32_t keys)
{
    uint64_t nodes = (uint64_t)keys + 1;
    uint64_t bytes = sizeof(lfu_state) + keys * (uint64_t)sizeof(lfu_run) +
                     nodes * (sizeof(mp_link) + sizeof(uint32_t));
    return (bytes + 7) & ~UINT64_C(7);
}

static void lfu_init(void *state, uint32_t keys)
{
    lfu_state *lfu = state;
    lfu->keys = keys;
    lfu->runs = (lfu_run *)(lfu + 1);
    lfu->links = (mp_link *)(lfu->runs + keys);
    lfu->run_of = (uint32_t *)(lfu->links + keys + 1);
    lfu->free_run = keys ? 0 : NO_RUN;
    for (uint32_t key = 0; key < keys; key++) {
        lfu->runs[key] = (lfu_run){.next_free = key + 1 < keys ? key + 1 : NO_RUN};
        lfu->run_of[key] = NO_RUN;
    }
    lfu->run_of[keys] = NO_RUN;
    mp_ring_reset(lfu->links, keys);
}

static bool is_resident(const lfu_state *lfu, uint32_t key)
{
    return key < lfu->keys && lfu->run_of[key] != NO_RUN;
}

/* `key` becomes the last of a run that is there. */
static void join_run(lfu_state *lfu, uint32_t run, uint32_t key)
{
    mp_ring_insert_after(lfu->links, lfu->runs[run].last, key);
    lfu->runs[run].last = key;
    lfu->run_of[key] = run;
}

/* `key` becomes a run of its own behind `at`. */
static void start_run(lfu_state *lfu, uint32_t at, uint64_t count, uint32_t key)
{
    uint32_t run = lfu->free_run;
    assert(run != NO_RUN);
    lfu->free_run = lfu->runs[run].next_free;
    lfu->runs[run] = (lfu_run){.count = count, .last = key, .next_free = NO_RUN};
    lfu->run_of[key] = run;
    mp_ring_insert_after(lfu->links, at, key);
}

/* Joins `run` if it has this count, or starts one behind `at`. */
static void place(lfu_state *lfu, uint32_t at, uint32_t run, uint64_t count, uint32_t key)
{
    if (run != NO_RUN && lfu->runs[run].count == count)
        join_run(lfu, run, key);
    else
        start_run(lfu, at, count, key);
}

/* Takes `key` out of its run and the ring; frees a run that this empties. */
static void leave_run(lfu_state *lfu, uint32_t key)
{
    uint32_t run = lfu->run_of[key], before = lfu->links[key].prev;
    if (lfu->runs[run].last == key) {
        if (lfu->run_of[before] == run) {
            lfu->runs[run].last = before;
        } else {
            lfu->runs[run].next_free = lfu->free_run;
            lfu->free_run = run;
        }
    }
    mp_ring_unlink(lfu->links, key);
    lfu->run_of[key] = NO_RUN;
}

static void lfu_insert(void *state, uint32_t key)
{
    lfu_state *lfu = state;
    assert(key < lfu->keys && !is_resident(lfu, key));
    place(lfu, lfu->keys, lfu->run_of[lfu->links[lfu->keys].next], 1, key);
}

static void lfu_touch(void *state, uint32_t key)
{
    lfu_state *lfu = state;
    assert(is_resident(lfu, key));
    const lfu_run *run = &lfu->runs[lfu->run_of[key]];
    uint64_t count = run->count + 1;
    uint32_t next_run = lfu->run_of[lfu->links[run->last].next];
    uint32_t at = run->last == key ? lfu->links[key].prev : run->last;
    leave_run(lfu, key);
    place(lfu, at, next_run, count, key);
}

static void lfu_remove(void *state, uint32_t key)
{
    lfu_state *lfu = state;
    assert(is_resident(lfu, key));
    leave_run(lfu, key);
}

static uint32_t lfu_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    const lfu_state *lfu = state;
    for (uint32_t key = lfu->links[lfu->keys].next; key != lfu->keys; key = lfu->links[key].next)
        if (may_evict(ctx, key))
            return key;
    return MP_NO_KEY;
}

const mp_policy mp_policy_lfu = {
    .name = "lfu",
    .state_bytes = lfu_state_bytes,
    .init = lfu_init,
    .insert = lfu_insert,
    .touch = lfu_touch,
    .remove = lfu_remove,
    .victim = lfu_victim,
};
