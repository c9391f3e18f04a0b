/* LFU with ageing: like LFU, but frequent use long ago does not protect a key for ever.
 *
 * Ageing: after AGE_USES uses per resident key (an insertion is a use), all counts are halved,
 * rounding up. A key used at a constant rate so keeps a count of about two periods' uses; the count
 * of an unused one is back to 1 after log2(count) periods. Keys that become equal keep their order,
 * and a use puts a key behind all others of its count.
 *
 * Halving costs one step per resident key, hence O(1) per use. */
#include <stddef.h>

#include "policy/counts.h"
#include "policy/policies.h"

#define AGE_USES 2

typedef struct aged_state {
    uint64_t uses; /* since the last halving */
} aged_state;

static mp_counts *counts_of(void *state)
{
    return (mp_counts *)((aged_state *)state + 1);
}

static uint64_t aged_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    return sizeof(aged_state) + mp_counts_bytes(keys);
}

static void aged_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    *(aged_state *)state = (aged_state){0};
    mp_counts_init(counts_of(state), keys);
}

static void grow_older(void *state)
{
    aged_state *aged = state;
    if (++aged->uses < (uint64_t)AGE_USES * mp_counts_resident(counts_of(state)))
        return;
    mp_counts_halve(counts_of(state));
    aged->uses = 0;
}

static void aged_insert(void *state, uint32_t key)
{
    mp_counts_insert(counts_of(state), key);
    grow_older(state);
}

static void aged_touch(void *state, uint32_t key)
{
    mp_counts_use(counts_of(state), key);
    grow_older(state);
}

static void aged_remove(void *state, uint32_t key)
{
    mp_counts_remove(counts_of(state), key);
}

static uint32_t aged_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    return mp_counts_victim(counts_of(state), may_evict, ctx);
}

const mp_policy mp_policy_lfu_aged = {
    .name = "lfu-aged",
    .state_bytes = aged_state_bytes,
    .init = aged_init,
    .insert = aged_insert,
    .touch = aged_touch,
    .remove = aged_remove,
    .victim = aged_victim,
};
