/* A cache without slots: residency in one array, order in the policy's state. */
#include "policy/shadow.h"

#include <string.h>

struct mp_shadow {
    const mp_policy *policy;
    uint32_t resident;
    uint32_t set;    /* number of the set that is being served, from 1 on */
    uint32_t *is_of; /* [keys] the last set that used the key */
    bool *is_there;  /* [keys] */
    void *state;     /* the policy's */
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

uint64_t mp_shadow_bytes(const mp_policy *policy, uint32_t keys, uint32_t experts)
{
    return round_up(sizeof(mp_shadow)) + round_up(keys * sizeof(uint32_t)) +
           round_up(keys * sizeof(bool)) + policy->state_bytes(keys, experts);
}

mp_shadow *mp_shadow_init(void *state, const mp_policy *policy, uint32_t keys, uint32_t experts)
{
    unsigned char *at = (unsigned char *)state + round_up(sizeof(mp_shadow));
    mp_shadow *shadow = state;
    *shadow = (mp_shadow){.policy = policy};
    shadow->is_of = (uint32_t *)at;
    at += round_up(keys * sizeof(uint32_t));
    shadow->is_there = (bool *)at;
    shadow->state = at + round_up(keys * sizeof(bool));
    memset(shadow->is_of, 0, keys * sizeof *shadow->is_of);
    memset(shadow->is_there, 0, keys * sizeof *shadow->is_there);
    policy->init(shadow->state, keys, experts);
    return shadow;
}

/* No member of the set makes room for another. */
static bool may_go(void *ctx, uint32_t key)
{
    const mp_shadow *shadow = ctx;
    return shadow->is_of[key] != shadow->set;
}

/* Evicts until n more keys have room, or nothing may go. */
static void make_room(mp_shadow *shadow, uint32_t n, uint32_t slots)
{
    while (shadow->resident + n > slots) {
        uint32_t victim = shadow->policy->victim(shadow->state, may_go, shadow);
        if (victim == MP_NO_KEY)
            return;
        shadow->policy->remove(shadow->state, victim);
        shadow->is_there[victim] = false;
        shadow->resident--;
    }
}

uint32_t mp_shadow_serve(mp_shadow *shadow, const uint32_t *keys, uint32_t n, uint32_t slots)
{
    const mp_policy *policy = shadow->policy;
    uint32_t missed = 0;
    if (n == 0)
        return 0;
    if (policy->route)
        policy->route(shadow->state, keys, n);
    shadow->set++;
    for (uint32_t i = 0; i < n; i++) {
        shadow->is_of[keys[i]] = shadow->set;
        missed += !shadow->is_there[keys[i]];
    }
    make_room(shadow, missed, slots);
    for (uint32_t i = 0; i < n; i++) {
        if (shadow->is_there[keys[i]]) {
            policy->touch(shadow->state, keys[i]);
        } else if (shadow->resident < slots) {
            policy->insert(shadow->state, keys[i]);
            shadow->is_there[keys[i]] = true;
            shadow->resident++;
        }
    }
    return missed;
}
