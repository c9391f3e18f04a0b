/* pace.h — what a decode step computes and uses, by the number of its tokens.
 *
 * A step with few sequences computes faster than one with many, and uses fewer experts. So the measurements are kept
 * apart by tokens: one, two and so on up to eight, and above in two groups to each doubling. Each group has the
 * medians of its own last steps, and so follows contexts as they grow. A line through all of them would be wrong
 * where computing is bound by memory, for it rises with the experts in use, steeply first and then hardly; and
 * nothing has to be foretold: asked for is the batch that runs now, which has been measured. Steps with tokens of
 * prompts are kept apart, and stand in for a burst that has no others.
 *
 * The steps of one burst may be of several groups; the answers are their means, weighted by steps.
 *
 * Pure: numbers in, numbers out. */
#ifndef MP_PLANNING_PACE_H
#define MP_PLANNING_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "planning/rate.h"

#define MP_PACE_GROUPS 40u /* 0: steps with prompts; above, up to 2^19 tokens and more */

typedef struct mp_pace_group {
    mp_rate layer_ns; /* busy time per layer */
    mp_rate routed;   /* distinct experts per layer */
    uint32_t steps;   /* in the burst */
} mp_pace_group;

/* Zeroed: nothing is known. */
typedef struct mp_pace {
    mp_pace_group groups[MP_PACE_GROUPS];
    bool ended; /* the burst whose steps are counted */
} mp_pace;

/* Counts a step that routed in `layers` layers, `routed` experts in all, and took busy_ns without its stalls.
 * `tokens`: of a step of decode alone; 0 for one with prompts. A step without layers is none. */
void mp_pace_add(mp_pace *pace, uint32_t tokens, uint32_t layers, uint64_t routed, double busy_ns);
/* Ends a burst. Its answers hold until the next one has a step. */
void mp_pace_end_burst(mp_pace *pace);

/* Returns the time that a layer of a decode step of this burst computes for, without stalls; 0 = not known. */
double mp_pace_layer_ns(const mp_pace *pace);
/* Returns the distinct experts that it uses; 0 = not known. */
double mp_pace_routed(const mp_pace *pace);

#endif
