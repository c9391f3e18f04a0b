/* admission.h — how many sequences should run at once: working-set admission (WiSP §1, §2.1; Denning's load
 * control) by measured throughput.
 *
 * Of decode steps with r sequences the controller keeps the tokens and the time. A number is forgotten by
 * what comes in anew of it, slowly if it does not run; after a few bursts without it is measured afresh.
 * X(r), tokens per second, is unimodal under paging: it rises while experts are shared, and falls when the sets of
 * all that run no longer fit. Among loads that can be served at all, the limit that maximises X makes the mean time
 * in the system least, whatever the arrivals: a birth-death chain whose rates are X(min(n, R)) is nowhere slower
 * than with another limit R.
 *
 * At the end of each burst:
 *   a lower number is known to be clearly faster              -> that is the limit
 *   steps stall for more than half of their time, and nothing
 *   is known of half as many                                  -> half as many, to learn
 *   the limit holds most of the time, and is the best known   -> what is known to be faster, else one more, is tried;
 *                                                                as long as that is faster twice as many more, in vain
 *                                                                less and less often
 * The first two do not wait for a burst's end where the difference is large, and an attempt that is clearly slower
 * ends at once, since in a thrash a burst takes minutes. From any number r of sequences the rate is near the best one
 * log2(r) + 6 bursts after a thrash begins, the ends of those that run too many included (test_admission).
 *
 * Pure: numbers in, a limit out. */
#ifndef MP_PLANNING_ADMISSION_H
#define MP_PLANNING_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "planning/levels.h"

/* Decode steps of one level. */
typedef struct mp_admission_level {
    double steps, tokens, ns, stall_ns; /* decayed */
    double recent_ns;                   /* of this burst */
    uint32_t recent_steps;
    uint32_t absent; /* bursts since it ran */
} mp_admission_level;

typedef struct mp_admission {
    mp_admission_level levels[MP_LEVELS];
    double decay;
    uint32_t limit;  /* 0: none yet */
    uint32_t tried;  /* the limit before the last attempt at more; 0: none is under way */
    uint32_t stride; /* of the next attempt */
    uint32_t wait;   /* bursts until the next attempt */
    uint32_t vain;   /* the wait after the next vain one */
} mp_admission;

/* `decay`: weight of a burst one burst later, 0..1. */
void mp_admission_init(mp_admission *admission, double decay);

/* Counts a decode step of `sequences` >= 1, one token each; may give an attempt up. */
void mp_admission_step(mp_admission *admission, uint32_t sequences, uint64_t wall_ns,
                       uint64_t stall_ns);

/* Ends a burst, and decides. */
void mp_admission_burst(mp_admission *admission);

/* Returns measured tokens per second with so many sequences; 0 = not known. */
double mp_admission_rate(const mp_admission *admission, uint32_t sequences);

#endif
