/* belady.h — MIN (Belady 1966): evict the key whose next use is farthest away. No policy that must
 * load every used key can have fewer misses one by one, so it is the bound shown beside others. It
 * needs the future, so it is not a policy of the library. */
#ifndef SIM_BELADY_H
#define SIM_BELADY_H

#include "policy/policy.h"
#include "sim/routes.h"

#define SIM_NEVER UINT32_MAX

extern const mp_policy sim_belady;

/* Sets the key's next use; call it before each insert and touch of the key. */
void sim_belady_expect(void *state, uint32_t key, uint32_t next_use);

/* Returns for every access of the trace, in the file's order, the number of its key's next access,
 * or SIM_NEVER. The order also holds for sets: the order of keys within a set does not change the
 * misses. Free the array; NULL after a line on stderr. */
uint32_t *sim_next_uses(const sim_trace *trace);

#endif
