/* high_set.h — high versions that stay with the same experts, so that one can ask which ones are best
 * kept (DynaExq figure 3). The library gives them to what is hot: here that is what the set says. */
#ifndef EVAL_HIGH_SET_H
#define EVAL_HIGH_SET_H

#include "common/host.h"

typedef struct high_set {
    uint32_t layers, experts, n; /* n of each layer */
    int32_t *order;              /* [layers][experts], of which the first n are in the set */
} high_set;

/* How a pool is told to adapt slowly, towards the hottest experts of all that was served; and how it
 * is told to stay with the first ones that it has high versions of. */
void high_set_slowly(options *opts);
void high_set_for_good(options *opts);

/* The experts that are high now, then the others. */
int high_set_read(const host *h, high_set *out);

/* Any order, a function of the seed. */
int high_set_shuffle(const host *h, uint64_t seed, high_set *out);

/* A new pool makes the first of each layer high, as many as it keeps. Not with a step open. */
int high_set_give(high_set *set, const host *h);

void high_set_free(high_set *set);

#endif
