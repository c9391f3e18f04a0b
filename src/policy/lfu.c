/* LFU: evict the key used least often since its insertion; among equals, the one whose last use is
 * longest ago. A count is 1 at insertion, grows by one per touch, never ages, and is discarded on
 * removal. counts.h keeps the keys in that order. */
#include <stddef.h>

#include "policy/counts.h"
#include "policy/policies.h"

static uint64_t lfu_state_bytes(uint32_t keys, uint32_t experts)
{
    (void)experts;
    return mp_counts_bytes(keys);
}

static void lfu_init(void *state, uint32_t keys, uint32_t experts)
{
    (void)experts;
    mp_counts_init(state, keys);
}

static void lfu_insert(void *state, uint32_t key)
{
    mp_counts_insert(state, key);
}

static void lfu_touch(void *state, uint32_t key)
{
    mp_counts_use(state, key);
}

static void lfu_remove(void *state, uint32_t key)
{
    mp_counts_remove(state, key);
}

static uint32_t lfu_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    return mp_counts_victim(state, may_evict, ctx);
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
