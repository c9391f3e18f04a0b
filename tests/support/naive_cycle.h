/* naive_cycle.h — the policy "cycle" written from the description at the head of its file: every
 * average, set and weight in an array of its own, one key at a time. */
#ifndef NAIVE_CYCLE_H
#define NAIVE_CYCLE_H

#include <stdbool.h>
#include <stdint.h>

#define NAIVE_CYCLE_KEYS 1024
#define NAIVE_CYCLE_WEIGHTS (768 * NAIVE_CYCLE_KEYS)
#define NAIVE_CYCLE_BACK 24 /* layers at most */
#define NAIVE_CYCLE_SET 32

typedef struct naive_set {
    uint32_t n;
    uint32_t experts[NAIVE_CYCLE_SET];
} naive_set;

/* What an estimate is made from. */
typedef struct naive_basis {
    float average[NAIVE_CYCLE_KEYS][5];
    float since[NAIVE_CYCLE_KEYS];
    float share[NAIVE_CYCLE_BACK];
    naive_set sets[NAIVE_CYCLE_BACK][NAIVE_CYCLE_BACK]; /* of a layer: its own, and those before */
} naive_basis;

typedef struct naive_cycle {
    uint32_t keys, experts, layers, reach, rows, resident, at;
    uint32_t visits[NAIVE_CYCLE_BACK];
    naive_set last[NAIVE_CYCLE_BACK];
    naive_basis now;
    float estimate[NAIVE_CYCLE_KEYS];
    float own[NAIVE_CYCLE_KEYS];
    float weight[NAIVE_CYCLE_BACK][8];  /* five averages, two terms, the constant */
    float of_sets[NAIVE_CYCLE_WEIGHTS]; /* [layer][back][expert then, of 256][expert] */
} naive_cycle;

void naive_cycle_open(naive_cycle *c, uint32_t keys, uint32_t experts);
void naive_cycle_route(naive_cycle *c, const uint32_t *set, uint32_t n);
/* The key that goes, of those that may; c->keys: none. `resident`: of all keys. */
uint32_t naive_cycle_victim(const naive_cycle *c, const bool *may_go);

#endif
