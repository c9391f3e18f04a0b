/* payoff.h — does fetching ahead pay? (WiSP section 4: at low concurrency it mostly does not.)
 *
 * Two questions, in this order. Could it: from guesses that nobody acted on yet, how much of the
 * stalls would have been saved, given how long the bus stands idle? Only if that is worth something
 * is it tried. Does it: steps with and without are measured in turns, and whoever lost keeps out of
 * the way for a while, twice as long each time it loses again.
 *
 *        promising: probe            lost: wait 2x longer
 *   OFF --------------------> ON -------------------------> OFF
 *    ^                        |  won: stays on, and proves it again now and then
 *    |                        v
 *    +---- PROVING (off for a few steps, to compare) <------+
 *
 * The measure is the median time of a step per routed expert, so that batches that grow or shrink do
 * not decide it, nor one odd step. Pure: a few numbers per session. */
#ifndef MP_CONTROL_PAYOFF_H
#define MP_CONTROL_PAYOFF_H

#include <stdbool.h>
#include <stdint.h>

#define MP_PAYOFF_SAMPLES 8u

typedef enum mp_payoff_mode { MP_PAYOFF_OFF, MP_PAYOFF_ON, MP_PAYOFF_PROVING } mp_payoff_mode;

typedef struct mp_payoff_config {
    uint32_t warm_steps;   /* watched before anything is tried */
    uint32_t settle_steps; /* not measured after a change: what was fetched before has its effect */
    uint32_t probe_steps;  /* measured on each side, at most MP_PAYOFF_SAMPLES */
    uint32_t hold_steps;   /* on after a win before the next proof; off after the first loss */
    uint32_t listen_every; /* while off, one step in so many is followed: guessing costs time too */
    uint32_t longest_off;  /* the doubling stops here */
    double promise;        /* part of the stalls that must seem avoidable before a probe */
    double margin;         /* on must be better by this part to stay */
    double surrender;      /* a probe ends at once when it is worse by this part */
} mp_payoff_config;

/* What a step showed. */
typedef struct mp_payoff_step {
    uint64_t routed;    /* distinct experts, summed over layers; 0: the step says nothing */
    double stall_ns;    /* because of absent experts */
    double wall_ns;     /* of the step */
    bool listened;      /* guesses were made for this step: what they could have done is known */
    double load_ns;     /* to bring one expert; 0 = not known */
    uint64_t missed;    /* experts that had to be waited for */
    uint64_t avertable; /* absent experts that a guess in time had named */
    uint64_t vain;      /* absent experts that it had named and nobody used */
} mp_payoff_step;

/* The latest samples of one side. */
typedef struct mp_payoff_side {
    double cost[MP_PAYOFF_SAMPLES];
    uint32_t n; /* taken since it was cleared */
} mp_payoff_side;

typedef struct mp_payoff {
    mp_payoff_mode mode;
    uint32_t steps;     /* in this mode, of those that count */
    uint32_t off_steps; /* to stay off for */
    double promised;    /* smoothed part of the stalls that seems avoidable */
    mp_payoff_side off, on;
    double off_cost, on_cost; /* of the last finished measurement */
    uint64_t wins, losses;
} mp_payoff;

void mp_payoff_defaults(mp_payoff_config *config);
void mp_payoff_init(mp_payoff *payoff, const mp_payoff_config *config);
/* Takes a step in; is the next one to fetch ahead? */
bool mp_payoff_update(mp_payoff *payoff, const mp_payoff_config *config,
                      const mp_payoff_step *step);

/* Is the step with this number to be followed, so that guesses are made for it? */
bool mp_payoff_listens(const mp_payoff *payoff, const mp_payoff_config *config, uint64_t step);

/* One layer's guesses: fetching for it stops while too many are wrong, and tries again later. */
typedef struct mp_payoff_layer {
    double right; /* smoothed absent experts per turn that were guessed and routed */
    double wrong; /* and guessed in vain */
    uint32_t backoffs;
    uint32_t waits;   /* turns to sit out */
    uint32_t sat_out; /* the last time: doubles */
    bool off;
} mp_payoff_layer;

/* Takes a turn of the layer in: of the absent experts that had been named for it, how many it then
 * used. Returns whether the next turn is worth fetching for: as long as right >= part * wrong, where
 * `part` is what a useless transfer costs of what a useful one saves. */
bool mp_payoff_turn(mp_payoff_layer *layer, uint32_t right, uint32_t wrong, double part);

/* How many layers ahead to ask: as few as give a load time to land, for guesses get worse with
 * distance. `missed`: absent experts per layer. Between 1 and most. */
uint32_t mp_payoff_distance(double load_ns, double layer_ns, double missed, uint32_t most);

#endif
