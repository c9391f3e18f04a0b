/* belady.h — MIN (Belady 1966): evict the key whose next use is farthest away. No policy that has
 * to bring in what is used can miss less often one by one, so it is the bound that others are shown
 * with. It knows the future, so it is no policy of the library's. */
#ifndef SIM_BELADY_H
#define SIM_BELADY_H

#include "policy/policy.h"
#include "sim/routes.h"

#define SIM_NEVER UINT32_MAX

extern const mp_policy sim_belady;

/* Before each insert and touch of the key: when it will be used next. */
void sim_belady_expect(void *state, uint32_t key, uint32_t next_use);

/* For every access of the trace, in the file's order: the number of its key's next access, or
 * SIM_NEVER. That orders whole sets too: which of two keys of one set comes first in it makes no
 * difference to the misses. To be freed; NULL after a line on stderr. */
uint32_t *sim_next_uses(const sim_trace *trace);

#endif
