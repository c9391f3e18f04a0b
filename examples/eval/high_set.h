/* high_set.h — high versions pinned to the same experts, to find out which are best kept (DynaExq
 * figure 3). The library gives high versions to hot experts; here the set determines which are
 * hot. */
#ifndef EVAL_HIGH_SET_H
#define EVAL_HIGH_SET_H

#include "common/host.h"

typedef struct high_set {
    uint32_t layers, experts, n; /* n high experts per layer */
    int32_t *order;              /* [layers][experts]; the first n are in the set */
} high_set;

/* Options for a pool that adapts slowly, towards the hottest experts over everything served; and
 * for one that keeps its first high versions. */
void high_set_slowly(options *opts);
void high_set_for_good(options *opts);

/* Reads the experts that are high now, followed by the others. */
int high_set_read(const host *h, high_set *out);

/* Shuffles the experts; a function of the seed. */
int high_set_shuffle(const host *h, uint64_t seed, high_set *out);

/* Makes the first experts of each layer high in a new pool, as many as it keeps. No step may be
 * open. */
int high_set_give(high_set *set, const host *h);

void high_set_free(high_set *set);

#endif
