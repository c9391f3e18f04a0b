/* counts.h — resident keys in the order of how often each was used, for policies that count.
 *
 * One ring holds the keys in the order in which they would be evicted. Keys of one count are
 * neighbours, a run, ordered by last use, because every use moves a key to the end of a run:
 *
 *   sentinel <-> a:1 <-> b:1 <-> c:1 <-> d:4 <-> e:7 <-> f:7 <-> (sentinel)
 *               `------ run ------'     `run'   `--- run ---'
 *
 * A key knows its run, and a run its count and its last key. Using b means: find the last key of
 * its run (c); the run behind it has count 2 or none has; join that run at its end, or become a new
 * run behind c. So all operations are O(1) but for halving, which is O(residents), and the victim
 * is the first key that may be evicted. No run is empty, so there are never more runs than keys. */
#ifndef MP_POLICY_COUNTS_H
#define MP_POLICY_COUNTS_H

#include "policy/policy.h"

typedef struct mp_counts mp_counts;

uint64_t mp_counts_bytes(uint32_t keys); /* a multiple of 8 */
void mp_counts_init(mp_counts *counts, uint32_t keys);

void mp_counts_insert(mp_counts *counts, uint32_t key); /* counts 1 from now on */
void mp_counts_use(mp_counts *counts, uint32_t key);    /* one more */
void mp_counts_remove(mp_counts *counts, uint32_t key);

/* Every count c becomes ceil(c / 2). The order stays: of keys that have become equal, those go
 * first that did before. */
void mp_counts_halve(mp_counts *counts);

uint32_t mp_counts_resident(const mp_counts *counts);
uint32_t mp_counts_victim(const mp_counts *counts, mp_may_evict_fn may_evict, void *ctx);

#endif
