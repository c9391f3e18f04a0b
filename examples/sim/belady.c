/* A heap of resident keys with the latest next use on top. */
#include "sim/belady.h"

#include <assert.h>
#include <stdlib.h>

#include "common/fail.h"

#define OUTSIDE UINT32_MAX

typedef struct belady_state {
    uint32_t keys;
    uint32_t resident;
    uint32_t *heap; /* [keys] of keys */
    uint32_t *at;   /* [keys] position of each in the heap, or OUTSIDE */
    uint32_t *next; /* [keys] next use */
} belady_state;

static uint64_t belady_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    return (sizeof(belady_state) + 3 * (uint64_t)keys * sizeof(uint32_t) + 7) & ~UINT64_C(7);
}

static void belady_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    belady_state *b = state;
    *b = (belady_state){.keys = keys, .heap = (uint32_t *)(b + 1)};
    b->at = b->heap + keys;
    b->next = b->at + keys;
    for (uint32_t key = 0; key < keys; key++) {
        b->at[key] = OUTSIDE;
        b->next[key] = SIM_NEVER;
    }
}

static void put(belady_state *b, uint32_t at, uint32_t key)
{
    b->heap[at] = key;
    b->at[key] = at;
}

/* Moves a key up or down to its place by next use. */
static void settle(belady_state *b, uint32_t key)
{
    uint32_t at = b->at[key];
    while (at > 0 && b->next[b->heap[(at - 1) / 2]] < b->next[key]) {
        put(b, at, b->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < b->resident && b->next[b->heap[child + 1]] > b->next[b->heap[child]])
            child++;
        if (child >= b->resident || b->next[b->heap[child]] <= b->next[key])
            break;
        put(b, at, b->heap[child]);
        at = child;
    }
    put(b, at, key);
}

void sim_belady_expect(void *state, uint32_t key, uint32_t next_use)
{
    belady_state *b = state;
    b->next[key] = next_use;
    if (b->at[key] != OUTSIDE)
        settle(b, key);
}

static void belady_insert(void *state, uint32_t key)
{
    belady_state *b = state;
    assert(key < b->keys && b->at[key] == OUTSIDE);
    put(b, b->resident++, key);
    settle(b, key);
}

static void belady_touch(void *state, uint32_t key)
{
    (void)state;
    (void)key;
}

static void belady_remove(void *state, uint32_t key)
{
    belady_state *b = state;
    uint32_t at = b->at[key], last = b->heap[--b->resident];
    b->at[key] = OUTSIDE;
    if (last == key)
        return;
    put(b, at, last);
    settle(b, last);
}

/* Returns the top, or the next key that may be evicted: only members of the current set may not,
 * and their next use is now. */
static uint32_t belady_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    const belady_state *b = state;
    if (b->resident && may_evict(ctx, b->heap[0]))
        return b->heap[0];
    uint32_t best = MP_NO_KEY;
    for (uint32_t i = 0; i < b->resident; i++)
        if ((best == MP_NO_KEY || b->next[b->heap[i]] > b->next[best]) &&
            may_evict(ctx, b->heap[i]))
            best = b->heap[i];
    return best;
}

const mp_policy sim_belady = {
    .name = "belady",
    .state_bytes = belady_state_bytes,
    .init = belady_init,
    .insert = belady_insert,
    .touch = belady_touch,
    .remove = belady_remove,
    .victim = belady_victim,
};

uint32_t *sim_next_uses(const sim_trace *trace)
{
    const sim_source *source = &trace->source;
    uint64_t accesses = trace->rows * source->layers * source->top_k;
    uint32_t keys = source->layers * source->experts;
    if (accesses >= SIM_NEVER) {
        fail(RUN_REFUSED, "%s: too long for belady, which takes up to 2^32 uses", source->name);
        return NULL;
    }
    uint32_t *next = malloc(accesses * sizeof *next);
    uint32_t *seen = malloc(keys * sizeof *seen);
    if (!next || !seen) {
        fail_memory();
        free(next);
        free(seen);
        return NULL;
    }
    for (uint32_t key = 0; key < keys; key++)
        seen[key] = SIM_NEVER;
    for (uint64_t i = accesses; i-- > 0;) {
        uint32_t layer = (uint32_t)(i / source->top_k % source->layers);
        uint32_t key = layer * source->experts + trace->ids[i];
        next[i] = seen[key];
        seen[key] = (uint32_t)i;
    }
    free(seen);
    return next;
}
