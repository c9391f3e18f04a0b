/* plant_rig.h — something to control: a pair of pools whose reuse is the same in each burst, but
 * for noise, and the online law at its end. */
#ifndef PLANT_RIG_H
#define PLANT_RIG_H

#include "planning/mvwsa.h"
#include "split_rig.h"

typedef struct plant {
    rig_stream experts, kv;
    mp_split_bounds bounds;
    mp_split_costs costs;
    mp_mvwsa mvwsa;
    mp_split now;
    /* What it did: */
    uint32_t moves, turns; /* a turn: a move against the one before */
    int last_direction;
    mp_mvwsa_answer answer;
} plant;

/* In expert units. */
uint64_t plant_distance(const mp_split *a, const mp_split *b);

/* Streams of these shapes, up to so many units. The budget has room for as many of either side, or
 * for half or a quarter of that. */
#define PLANT_EXPERTS 128u
#define PLANT_KV 256u
void plant_make(plant *p, rig_shape experts, rig_shape kv, const mp_mvwsa_config *config);
/* The split with so many experts, or the nearest. */
void plant_start(plant *p, uint64_t experts);

/* The controller at the end of a burst, whose answer has to be lawful, whatever it is; then the
 * next burst, each count times 1 +- noise. */
void plant_burst(plant *p, double noise);

/* Of one burst's misses at a split, from the definition; and the split where that is least. */
double plant_cost(const plant *p, const mp_split *split);
mp_split plant_best(const plant *p);

#endif
