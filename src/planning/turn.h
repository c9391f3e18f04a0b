/* turn.h — the mean number of jobs in the system, as a function of the split; by Little's law that is the mean turn
 * time in units of the time between arrivals. It is what a controller minimises that also decides how many run.
 *
 * Misses alone (eq. 4) do not tell what KV is worth to a queue: with more of it more sequences run at once, which
 * serves a heavy load sooner, and makes every step slower by the experts that are gone. So with c expert units and n of
 * KV, of which sequences use s with a standard deviation v, and the longest l:
 *
 *     n(r)   = max(l, r s + v sqrt(r))                       what r sequences have room in, but for one time in six
 *     R(n)   = the most r >= 1 with n(r) <= n                that run
 *     t(r)   = computing(r) + stall(r, c)                    a decode step with r sequences; where idle KV is lent, c
 *                                                            are the experts beside r s + v sqrt(r)
 *     p(r)   = (prefill + KV's misses) / tokens              prefill and recomputing, per decoded token: for r = 1 as it
 *                                                            is alone, else as it is beside decoding
 *     d(k)   = 1 / (t(r) / r + p(r)),  r = min(k, R)         tokens/s with k jobs in the system
 *     w(k)   = w(k - 1) * demand / d(k)                      a birth-death chain's weights
 *     f      = (1 + cv^2) / 2                                how long jobs wait that are less or more alike
 *     jobs   = sum (r + f (k - r)) w(k) / sum w(k)           of the R <= R(n) with the least
 *
 * A host may have targets: of the time to the first token, in the mean, and of the time between tokens, while as many
 * run as may. With o tokens decoded in a turn
 *
 *     ttft   = o (sum f (k - r) w(k) / sum w(k) / demand + p(R)) + m t(R), m steps that a prompt takes beside others
 *     tpot   = t(R) + (R - 1) p(R)
 *     cost   = jobs + MP_TURN_EXCESS max(0, ttft / its target - 1, tpot / its target - 1)
 *
 * R is the number of least cost, or a smaller one that costs 3 % more at most and serves 5 % less at most; none is
 * larger than that of the highest d. Beside the R(n) of the present split all numbers that have run are tried: usual
 * room is an estimate. The demand is what was decoded over the time it took, a burst counting as 32 times its steps' time
 * at most, so that a night is forgotten; but no more than 0.8 of what the present split serves. cv is the coefficient of
 * variation of a turn's work, from the tokens of turns that have ended, and o their mean; both count from the eighth turn
 * on. With R = 1 this is Pollaczek's and Khinchine's formula. Of turns that are alike fewer may so run than serve the
 * most: those that began are ready before others begin.
 *
 * computing and stalls are measured, for every r that has run. Prefill is what steps that are not decode alone take
 * beyond t(r), r sequences having decoded in them on average. Beside decoding a token of a prompt may cost more:
 * where both share a step's tokens, prompts take more steps. What a stall is elsewhere than at the split it was
 * measured at follows from the reuse distances in steps with r sequences, a curve for every r: with more experts
 * stalls shrink as misses do, with fewer each miss that is added costs what misses cost. So the policy and regime
 * that run are in the figures, and only differences are predicted. A number that has not run yet is taken to continue
 * the line of the two below it, unless that falls or there is but one, up to twice the most that have run, if these
 * filled the room that there was: once it runs it is measured. However much room there is, no more than that may run:
 * of three that come to a machine that has run one, two do for a burst first.
 *
 * Few steps may have been unlike others, as the first after a prompt are, and what R is kept from is not measured
 * again. So where R have run and the machine has been busy for four bursts, R + 1 run for one if they are known by fewer
 * than 64 steps: with a queue that does not end an error costs most, and an attempt least.
 *
 * turn.c counts; turn_cost.c predicts, and chooses.
 *
 * Pure: numbers in, numbers out, in memory of the caller's. */
#ifndef MP_PLANNING_TURN_H
#define MP_PLANNING_TURN_H

#include "planning/levels.h"
#include "planning/split_choice.h"

#define MP_TURN_BINS 256u /* of a level's curve, at most */
/* In the system at most; more are turned away, so that an overload has a finite cost. */
#define MP_TURN_JOBS 256u
/* Jobs that twice a target is worth: a tenth above it is as bad as the longest queue. */
#define MP_TURN_EXCESS (10.0 * MP_TURN_JOBS)

/* A step that has ended. */
typedef struct mp_turn_sample {
    uint32_t decodes; /* sequences that decoded */
    uint32_t prompts; /* tokens of prompts */
    bool alone;       /* it decoded, and did nothing else */
    uint64_t ended_ns;
    double busy_ns, stall_ns;
    uint64_t experts; /* units that the split had */
} mp_turn_sample;

/* Steps of one level; level 0: all that are not decode alone, or name no sequences. Sums are decayed. */
typedef struct mp_turn_level {
    mp_curve curve; /* over expert units */
    double steps, decodes, busy_ns, stall_ns;
    double units;    /* expert units that the split had, summed over steps */
    double seen;     /* steps, forgotten only as those of a level that has not run are */
    uint32_t recent; /* steps of this burst */
} mp_turn_level;

/* Of steps of level 0, those in which nothing decoded. Decayed with them. */
typedef struct mp_turn_prefill {
    double steps, prompts, ns;
} mp_turn_prefill;

/* Turns that have ended: their tokens, and second moments. Sums are decayed from turn to turn. */
typedef struct mp_turn_work {
    double turns, prefilled, decoded;
    double prefilled_squares, decoded_squares, products;
} mp_turn_work;

typedef struct mp_turn {
    mp_turn_level levels[MP_LEVELS];
    mp_turn_work work;
    double decay;
    /* Decoded, of prompts, and the time in which they were; slowly decayed. */
    double tokens, prompt_tokens, elapsed_ns;
    double burst_tokens; /* decayed as KV's curve is, which is so after the decision */
    mp_turn_prefill prefill_alone;
    double prompts;          /* tokens of prompts in level 0's steps, decayed with them */
    double peak;             /* sequences at once, lately, */
    uint32_t recent_peak;    /* and in this burst */
    uint64_t began_ns;       /* the burst; 0: no step has been seen */
    uint64_t ended_ns;       /* the last step */
    uint32_t recent_tokens;  /* of this burst, decoded */
    uint64_t recent_prompts; /* and of prompts */
    double recent_ns;        /* in steps */
    uint32_t usual; /* sequences: at least half of the last burst's decode steps had as many */
    uint32_t busy_bursts; /* in a row, up to the last one */
} mp_turn;

/* What the costs depend on besides the split. */
typedef struct mp_turn_costs {
    const mp_turn *turn;
    const mp_split_costs *misses; /* KV's curve, and what misses cost */
    double sequence_units;        /* s: KV units of a running sequence, in the mean; 0: not known */
    double spread_units;          /* v: standard deviation */
    double longest_units;         /* l */
    double idle_units;            /* of sequences that do not run, in the mean */
    mp_split now;                 /* while all this was measured */
    const mp_split_bounds *lends; /* of a KV side whose idle units serve experts, or NULL */
    uint32_t limit;               /* sequences that admission lets run; 0: no limit */
    uint32_t target;         /* and those that should run, by what was expected last; likewise */
    double ttft_ns, tpot_ns; /* targets; 0: none */
} mp_turn_costs;

/* What is expected at a split. Times are 0 while they are not known. */
typedef struct mp_turn_outlook {
    /* The most that should run, if fewer than have room; else, or if nothing is known, 0. Where more than are measured
     * are good, it is twice those, and the times are still of those. */
    uint32_t running;
    double ttft_ns; /* in the mean */
    double tpot_ns; /* between tokens */
} mp_turn_outlook;

/* Returns the bins, and their sums, all levels' together, for `units` expert units. */
uint64_t mp_turn_bins(uint64_t units);
/* `decay`: weight of a burst's steps one burst later, 0..1; `bins`: mp_turn_bins doubles, the caller's. */
void mp_turn_init(mp_turn *turn, double *bins, uint64_t units, double decay);

/* Counts a warm use at a reuse distance, in a step with so many sequences decoding alone; 0: any other step. */
void mp_turn_use(mp_turn *turn, uint32_t sequences, uint64_t distance, double weight);
void mp_turn_step(mp_turn *turn, const mp_turn_sample *step);
/* Counts a sequence's turn that has ended, by its tokens. */
void mp_turn_end(mp_turn *turn, uint64_t prefilled, uint64_t decoded);
/* Ends a burst. `steps`: a burst's usual length. */
void mp_turn_burst(mp_turn *turn, uint32_t steps);

/* Returns the cost: the mean number of jobs in the system, at most MP_TURN_JOBS, and what targets add; 0 while no decode
 * steps are known. */
double mp_turn_cost(const mp_turn_costs *costs, const mp_split *split);
/* Looks at the present split. */
mp_turn_outlook mp_turn_look(const mp_turn_costs *costs);
/* Finds the split of least cost within the bounds, of a grid and of those at which one more sequence has room; among
 * equals the one with more experts. Returns false if no split is feasible. */
bool mp_turn_configure(const mp_turn_costs *costs, const mp_split_bounds *bounds, uint32_t grid,
                       mp_split *out);

/* Returns how many should run in the next burst where `running` should (0: as many as may): as many, or one more for an
 * attempt. */
uint32_t mp_turn_try(const mp_turn *turn, uint32_t running);

/* Returns that as an objective, without samples while no decode steps are known; `costs` must outlive it. */
mp_split_objective mp_turn_objective(const mp_turn_costs *costs);

#endif
