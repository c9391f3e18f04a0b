/* policies.h — the eviction policies there are, one line each. docs/adding-a-policy.md says how to
 * add one. */
#ifndef MP_POLICY_POLICIES_H
#define MP_POLICY_POLICIES_H

#include "policy/policy.h"

extern const mp_policy mp_policy_lru; /* least recently used */
extern const mp_policy mp_policy_lfu; /* least frequently used since insertion, no ageing */

#endif
