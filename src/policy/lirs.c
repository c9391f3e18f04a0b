/* LIRS (Jiang and Zhang, SIGMETRICS 2002): keys are ranked not by their last use but by how many
 * other keys were used between their last two uses, the inter-reference recency.
 *
 *   stack   keys by last use, the newest on top: all of low recency (LIR, resident), and those of
 *           high recency (HIR) used since the lowest LIR was, resident or not; the lowest is LIR
 *   queue   the resident HIR keys: 1 % of the cache, at least one
 *
 * An HIR key that is used while it is in the stack has a lower inter-reference recency than the
 * lowest LIR key can still get: the two exchange roles, and the former LIR key moves from the stack
 * to the end of the queue. An HIR key that is not in the stack goes on top of it and to the end of
 * the queue. The victim is the front of the queue; it stays in the stack, if it is there, as a
 * ghost. HIR keys at the bottom of the stack are dropped from it.
 *
 * Until the first eviction all keys are LIR. The size of the cache is the number of resident keys
 * at that moment. If the queue is empty, the lowest LIR keys move into it, as many as its share; if
 * it has no key that may be evicted, the lowest LIR key that may is the victim, and the key
 * inserted for it is HIR, so that the queue lends the room until the next promotion takes it back.
 *
 * Every use pushes one key, and only pushed keys are dropped: O(1) amortised. */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "policy/policies.h"
#include "policy/ring.h"

#define QUEUE_PARTS 100 /* the queue has one of them */

enum { ABSENT, LIR, HIR, IS_GHOST };

typedef struct lirs_state {
    uint32_t keys; /* also both sentinels' index */
    uint32_t lir;
    uint32_t hir;      /* resident */
    uint32_t filling;  /* nothing has left yet */
    mp_link *stack;    /* [keys + 1], from the bottom up */
    mp_link *queue;    /* [keys + 1] */
    uint8_t *kind;     /* [keys] */
    uint8_t *in_stack; /* [keys] */
} lirs_state;

static uint64_t lirs_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    uint64_t bytes =
        sizeof(lirs_state) + 2 * ((uint64_t)keys + 1) * sizeof(mp_link) + 2 * (uint64_t)keys;
    return (bytes + 7) & ~UINT64_C(7);
}

static void lirs_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    lirs_state *lirs = state;
    *lirs = (lirs_state){.keys = keys, .filling = 1, .stack = (mp_link *)(lirs + 1)};
    lirs->queue = lirs->stack + keys + 1;
    lirs->kind = (uint8_t *)(lirs->queue + keys + 1);
    lirs->in_stack = lirs->kind + keys;
    memset(lirs->kind, ABSENT, keys);
    memset(lirs->in_stack, 0, keys);
    mp_ring_reset(lirs->stack, keys);
    mp_ring_reset(lirs->queue, keys);
}

static bool is_resident(const lirs_state *lirs, uint32_t key)
{
    return key < lirs->keys && (lirs->kind[key] == LIR || lirs->kind[key] == HIR);
}

static uint32_t most_lir(const lirs_state *lirs)
{
    uint32_t resident = lirs->lir + lirs->hir;
    uint32_t share = resident / QUEUE_PARTS;
    return resident - (share > 1 ? share : 1);
}

static void leave_stack(lirs_state *lirs, uint32_t key)
{
    if (lirs->in_stack[key])
        mp_ring_unlink(lirs->stack, key);
    lirs->in_stack[key] = 0;
}

static void go_on_top(lirs_state *lirs, uint32_t key)
{
    leave_stack(lirs, key);
    mp_ring_append(lirs->stack, lirs->keys, key);
    lirs->in_stack[key] = 1;
}

static void enter_queue(lirs_state *lirs, uint32_t key)
{
    lirs->kind[key] = HIR;
    lirs->hir++;
    mp_ring_append(lirs->queue, lirs->keys, key);
}

static void leave_queue(lirs_state *lirs, uint32_t key)
{
    lirs->hir--;
    mp_ring_unlink(lirs->queue, key);
}

/* Drops the keys below the lowest LIR key. */
static void prune(lirs_state *lirs)
{
    uint32_t key;
    while ((key = lirs->stack[lirs->keys].next) != lirs->keys && lirs->kind[key] != LIR) {
        leave_stack(lirs, key);
        if (lirs->kind[key] == IS_GHOST)
            lirs->kind[key] = ABSENT;
    }
}

/* Moves the lowest LIR key to the end of the queue. */
static void demote(lirs_state *lirs)
{
    uint32_t key = lirs->stack[lirs->keys].next;
    assert(key != lirs->keys && lirs->kind[key] == LIR);
    leave_stack(lirs, key);
    lirs->lir--;
    enter_queue(lirs, key);
    prune(lirs);
}

/* Makes `key`, which is in no queue, LIR, and demotes the lowest LIR key in exchange. */
static void promote(lirs_state *lirs, uint32_t key)
{
    lirs->kind[key] = LIR;
    lirs->lir++;
    go_on_top(lirs, key);
    if (lirs->lir > 1 && lirs->lir > most_lir(lirs) && !lirs->filling)
        demote(lirs);
}

static void lirs_insert(void *state, uint32_t key)
{
    lirs_state *lirs = state;
    assert(key < lirs->keys && !is_resident(lirs, key));
    if (lirs->filling || lirs->lir == 0 || lirs->kind[key] == IS_GHOST) {
        promote(lirs, key);
    } else {
        enter_queue(lirs, key);
        go_on_top(lirs, key);
    }
}

static void lirs_touch(void *state, uint32_t key)
{
    lirs_state *lirs = state;
    assert(is_resident(lirs, key));
    if (lirs->kind[key] == LIR) {
        go_on_top(lirs, key);
        prune(lirs);
        return;
    }
    leave_queue(lirs, key);
    if (lirs->in_stack[key] || lirs->lir == 0) {
        promote(lirs, key);
    } else {
        enter_queue(lirs, key);
        go_on_top(lirs, key);
    }
}

static void lirs_remove(void *state, uint32_t key)
{
    lirs_state *lirs = state;
    assert(is_resident(lirs, key));
    lirs->filling = 0;
    if (lirs->kind[key] == HIR)
        leave_queue(lirs, key);
    else
        lirs->lir--;
    lirs->kind[key] = lirs->in_stack[key] ? IS_GHOST : ABSENT;
    prune(lirs);
}

static uint32_t lirs_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    lirs_state *lirs = state;
    uint32_t end = lirs->keys;
    if (lirs->hir == 0)
        while (lirs->lir > 0 && lirs->lir > most_lir(lirs))
            demote(lirs);
    for (uint32_t key = lirs->queue[end].next; key != end; key = lirs->queue[key].next)
        if (may_evict(ctx, key))
            return key;
    for (uint32_t key = lirs->stack[end].next; key != end; key = lirs->stack[key].next)
        if (lirs->kind[key] == LIR && may_evict(ctx, key))
            return key;
    return MP_NO_KEY;
}

const mp_policy mp_policy_lirs = {
    .name = "lirs",
    .state_bytes = lirs_state_bytes,
    .init = lirs_init,
    .insert = lirs_insert,
    .touch = lirs_touch,
    .remove = lirs_remove,
    .victim = lirs_victim,
};
