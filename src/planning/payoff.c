/* Measures whether prefetching pays, in alternating turns of steps with and without it. */
#include "planning/payoff.h"

#include <math.h>

/* Weight of the newest step or turn in the smoothed values. */
#define NEWEST 0.125
/* Turns for which a layer is shut: the first time, and at most. */
#define FIRST_WAIT 32u
#define LONGEST_WAIT 4096u
/* Guesses, in smoothed experts, that must have been judged before a layer is shut. */
#define JUDGED 0.25

void mp_payoff_defaults(mp_payoff_config *config)
{
    *config = (mp_payoff_config){
        .warm_steps = 64,
        .settle_steps = 2,
        .probe_steps = 6,
        .hold_steps = 256,
        .listen_every = 8,
        .longest_off = 16384,
        .promise = 0.05,
        .margin = 0.005,
        .surrender = 0.1,
    };
}

static void enter(mp_payoff *payoff, mp_payoff_mode mode)
{
    payoff->mode = mode;
    payoff->steps = 0;
}

static void sample(mp_payoff_side *side, const mp_payoff_config *config, double cost)
{
    side->cost[side->n++ % config->probe_steps] = cost;
}

static double median(const mp_payoff_side *side, const mp_payoff_config *config)
{
    double sorted[MP_PAYOFF_SAMPLES];
    uint32_t n = side->n < config->probe_steps ? side->n : config->probe_steps;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > side->cost[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = side->cost[i];
    }
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void mp_payoff_init(mp_payoff *payoff, const mp_payoff_config *config)
{
    *payoff = (mp_payoff){.mode = MP_PAYOFF_OFF, .off_steps = config->warm_steps};
}

/* Returns how much of this step's stalls guesses could have avoided: at most the part that was
 * guessed right, and at most the bus's idle time, which useless transfers share in proportion. */
static double promise_of(const mp_payoff_step *step)
{
    if (step->stall_ns <= 0 || step->load_ns <= 0)
        return 0;
    double idle_ns = fmax(0, step->wall_ns - step->missed * step->load_ns);
    double named = (double)(step->avertable + step->vain);
    if (named == 0)
        return 0;
    double fetched = fmin(named, idle_ns / step->load_ns);
    double saved = fetched * (step->avertable / named) * step->load_ns;
    return fmin(1, saved / step->stall_ns);
}

static void win(mp_payoff *payoff, const mp_payoff_config *config)
{
    payoff->wins++;
    payoff->off_steps = config->hold_steps;
    enter(payoff, MP_PAYOFF_ON);
}

static void lose(mp_payoff *payoff, const mp_payoff_config *config)
{
    uint32_t longer = 2 * payoff->off_steps;
    if (longer < config->hold_steps)
        longer = config->hold_steps;
    payoff->losses++;
    payoff->off_steps = longer < config->longest_off ? longer : config->longest_off;
    enter(payoff, MP_PAYOFF_OFF);
}

/* Takes in a step without prefetching. The latest steps before a probe serve as its reference, so
 * the probe needs no off steps of its own. */
static void step_off(mp_payoff *payoff, const mp_payoff_config *config, double cost)
{
    if (payoff->steps > config->settle_steps)
        sample(&payoff->off, config, cost);
    if (payoff->steps >= payoff->off_steps && payoff->off.n >= config->probe_steps &&
        payoff->promised >= config->promise)
        enter(payoff, MP_PAYOFF_ON);
}

/* Takes in a step of a probe, which lasts as long as there is a reference to compare with. */
static void step_on(mp_payoff *payoff, const mp_payoff_config *config, double cost)
{
    if (payoff->steps <= config->settle_steps)
        return;
    if (payoff->off.n == 0) {
        if (payoff->steps >= config->hold_steps)
            enter(payoff, MP_PAYOFF_PROVING);
        return;
    }
    sample(&payoff->on, config, cost);
    payoff->off_cost = median(&payoff->off, config);
    payoff->on_cost = median(&payoff->on, config);
    bool hopeless =
        payoff->on.n >= 2 && payoff->on_cost > payoff->off_cost * (1 + config->surrender);
    if (!hopeless && payoff->on.n < config->probe_steps)
        return;
    if (!hopeless && payoff->on_cost < payoff->off_cost * (1 - config->margin))
        win(payoff, config);
    else
        lose(payoff, config);
    payoff->off.n = payoff->on.n = 0;
}

static void step_proving(mp_payoff *payoff, const mp_payoff_config *config, double cost)
{
    if (payoff->steps <= config->settle_steps)
        return;
    sample(&payoff->off, config, cost);
    if (payoff->off.n == config->probe_steps)
        enter(payoff, MP_PAYOFF_ON);
}

bool mp_payoff_update(mp_payoff *payoff, const mp_payoff_config *config, const mp_payoff_step *step)
{
    if (step->routed == 0 || !isfinite(step->wall_ns) || step->wall_ns < 0)
        return payoff->mode == MP_PAYOFF_ON;
    double cost = step->wall_ns / (double)step->routed;
    payoff->steps++;
    if (payoff->mode != MP_PAYOFF_ON && step->listened)
        payoff->promised += NEWEST * (promise_of(step) - payoff->promised);
    switch (payoff->mode) {
    case MP_PAYOFF_OFF: step_off(payoff, config, cost); break;
    case MP_PAYOFF_ON: step_on(payoff, config, cost); break;
    case MP_PAYOFF_PROVING: step_proving(payoff, config, cost); break;
    }
    return payoff->mode == MP_PAYOFF_ON;
}

bool mp_payoff_listens(const mp_payoff *payoff, const mp_payoff_config *config, uint64_t step)
{
    bool warm = payoff->wins + payoff->losses == 0 && payoff->steps < config->warm_steps;
    return payoff->mode != MP_PAYOFF_OFF || warm || step % config->listen_every == 0;
}

bool mp_payoff_turn(mp_payoff_layer *layer, uint32_t right, uint32_t wrong, double part)
{
    layer->right += NEWEST * (right - layer->right);
    layer->wrong += NEWEST * (wrong - layer->wrong);
    if (layer->off && layer->waits > 0) {
        layer->waits--;
        return false;
    }
    if (layer->off) { /* another chance; guesses made while shut count too */
        layer->off = layer->right < part * layer->wrong;
        layer->waits = layer->off ? layer->sat_out : 0;
        return !layer->off;
    }
    bool judged = layer->right + layer->wrong > JUDGED;
    if (judged && layer->right < part * layer->wrong) {
        layer->off = true;
        layer->backoffs++;
        layer->sat_out = layer->sat_out ? 2 * layer->sat_out : FIRST_WAIT;
        layer->sat_out = layer->sat_out < LONGEST_WAIT ? layer->sat_out : LONGEST_WAIT;
        layer->waits = layer->sat_out;
    }
    return !layer->off;
}

uint32_t mp_payoff_distance(double load_ns, double layer_ns, double missed, uint32_t most)
{
    if (!(load_ns > 0) || !(layer_ns > 0))
        return 1;
    double layers = ceil(load_ns * fmax(1, missed) / layer_ns);
    if (layers >= most)
        return most;
    return layers < 1 ? 1 : (uint32_t)layers;
}
