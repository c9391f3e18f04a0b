/* counts.h — resident keys ordered by their number of uses, for policies that count.
 *
 * One ring holds the keys in eviction order. Keys of equal count are adjacent and form a run,
 * ordered by last use, because every use moves a key to the end of a run:
 *
 *   sentinel <-> a:1 <-> b:1 <-> c:1 <-> d:4 <-> e:7 <-> f:7 <-> (sentinel)
 *               `------ run ------'     `run'   `--- run ---'
 *
 * A key knows its run, and a run its count and its last key. Using b means: find the last key of
 * its run (c); if the next run has count 2, join its end; otherwise no run has, and b becomes a new
 * run behind c. So all operations are O(1) except halving, which is O(residents), and the victim is
 * the first key that may be evicted. No run is empty, so there are never more runs than keys. */
#ifndef MP_POLICY_COUNTS_H
#define MP_POLICY_COUNTS_H

#include "policy/policy.h"

typedef struct mp_counts mp_counts;

uint64_t mp_counts_bytes(uint32_t keys); /* a multiple of 8 */
void mp_counts_init(mp_counts *counts, uint32_t keys);

void mp_counts_insert(mp_counts *counts, uint32_t key); /* the key's count starts at 1 */
void mp_counts_use(mp_counts *counts, uint32_t key);    /* adds 1 to the key's count */
void mp_counts_remove(mp_counts *counts, uint32_t key);

/* Halves every count, rounding up. The order stays: among keys that become equal, those with the
 * lower count before are evicted first. */
void mp_counts_halve(mp_counts *counts);

uint32_t mp_counts_resident(const mp_counts *counts);
uint32_t mp_counts_victim(const mp_counts *counts, mp_may_evict_fn may_evict, void *ctx);

#endif
