/* payoff.h — decides whether prefetching pays (WiSP section 4: at low concurrency it mostly does
 * not).
 *
 * Two questions, in this order. Could it: from guesses not yet acted on, how much of the stalls
 * would have been avoided in the bus's idle time? Prefetching is tried only if that is enough. Does
 * it: steps with and without are measured in turns, and the losing mode is suspended for a while,
 * twice as long each time it loses again.
 *
 *        promising: probe            lost: wait 2x longer
 *   OFF --------------------> ON -------------------------> OFF
 *    ^                        |  won: stays on, and is measured again now and then
 *    |                        v
 *    +---- PROVING (off for a few steps, to compare) <------+
 *
 * The measure is the median time of a step per routed expert, so that neither changing batch sizes
 * nor a single odd step decide it. Pure: a few numbers per session. */
#ifndef MP_PLANNING_PAYOFF_H
#define MP_PLANNING_PAYOFF_H

#include <stdbool.h>
#include <stdint.h>

#define MP_PAYOFF_SAMPLES 8u

typedef enum mp_payoff_mode { MP_PAYOFF_OFF, MP_PAYOFF_ON, MP_PAYOFF_PROVING } mp_payoff_mode;

typedef struct mp_payoff_config {
    uint32_t warm_steps;   /* steps watched before the first probe */
    uint32_t settle_steps; /* not measured after a change, while its effects settle */
    uint32_t probe_steps;  /* steps measured on each side, at most MP_PAYOFF_SAMPLES */
    uint32_t hold_steps;   /* on after a win until the next proof; off after the first loss */
    uint32_t listen_every; /* while off, one step in so many is followed: guessing costs time too */
    uint32_t longest_off;  /* upper limit of the doubling */
    double promise;        /* fraction of the stalls that must seem avoidable before a probe */
    double margin;         /* fraction by which on must be better to stay on */
    double surrender;      /* fraction worse at which a probe ends at once */
} mp_payoff_config;

/* The observations of one step. */
typedef struct mp_payoff_step {
    uint64_t routed;    /* distinct experts, summed over layers; 0: the step is not usable */
    double stall_ns;    /* waiting for absent experts */
    double wall_ns;     /* duration of the step */
    bool listened;      /* guesses were made for this step, so their potential is known */
    double load_ns;     /* to load one expert; 0 = unknown */
    uint64_t missed;    /* experts whose load had to be waited for */
    uint64_t avertable; /* absent experts named by a guess in time */
    uint64_t vain;      /* absent experts named by a guess but not used */
} mp_payoff_step;

/* The latest samples of one side. */
typedef struct mp_payoff_side {
    double cost[MP_PAYOFF_SAMPLES];
    uint32_t n; /* taken since the side was cleared */
} mp_payoff_side;

typedef struct mp_payoff {
    mp_payoff_mode mode;
    uint32_t steps;     /* usable steps in this mode */
    uint32_t off_steps; /* steps to stay off */
    double promised;    /* smoothed fraction of the stalls that seems avoidable */
    mp_payoff_side off, on;
    double off_cost, on_cost; /* of the last completed measurement */
    uint64_t wins, losses;
} mp_payoff;

void mp_payoff_defaults(mp_payoff_config *config);
void mp_payoff_init(mp_payoff *payoff, const mp_payoff_config *config);
/* Takes a step in; returns true if the next one is to prefetch. */
bool mp_payoff_update(mp_payoff *payoff, const mp_payoff_config *config,
                      const mp_payoff_step *step);

/* Returns true if the step with this number is to be followed, with guesses made for it. */
bool mp_payoff_listens(const mp_payoff *payoff, const mp_payoff_config *config, uint64_t step);

/* One layer's guesses: prefetching for it stops while too many are wrong, and is retried later. */
typedef struct mp_payoff_layer {
    double right; /* smoothed absent experts per turn that were guessed and used */
    double wrong; /* and those guessed but not used */
    uint32_t backoffs;
    uint32_t waits;   /* turns left to sit out */
    uint32_t sat_out; /* turns sat out the last time; doubles */
    bool off;
} mp_payoff_layer;

/* Takes in a turn of the layer: how many of the absent experts named for it were then used
 * (`right`) or not (`wrong`). Returns true if the next turn is worth prefetching for, that is as
 * long as right >= part * wrong, where `part` is the cost of a useless transfer relative to the
 * saving of a useful one. */
bool mp_payoff_turn(mp_payoff_layer *layer, uint32_t right, uint32_t wrong, double part);

/* Returns how many layers ahead to guess: as few as let a load land in time, since guesses get
 * worse with distance. `missed`: absent experts per layer. Between 1 and most. */
uint32_t mp_payoff_distance(double load_ns, double layer_ns, double missed, uint32_t most);

#endif
