/* The table of eviction policies by name. */
#include "policy/policy.h"

#include <stddef.h>
#include <string.h>

#include "policy/policies.h"

static const mp_policy *const policies[] = {
    &mp_policy_lru, /* the first is the default */
    &mp_policy_lfu,  &mp_policy_lfu_aged, &mp_policy_sieve, &mp_policy_s3fifo,
    &mp_policy_lirs, &mp_policy_finemoe,  &mp_policy_cycle,
};

const mp_policy *mp_policy_find(const char *name)
{
    if (!name)
        return policies[0];
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

const char *mp_policy_name(uint32_t index)
{
    return index < sizeof policies / sizeof *policies ? policies[index]->name : NULL;
}
