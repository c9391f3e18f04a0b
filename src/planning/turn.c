/* Counting: steps by how many decode in them, prompts, and turns. */
#include "planning/turn.h"

#include <math.h>
#include <string.h>

#define TURN_SHARE 0.02 /* of a turn in the means over turns */
#define SLOW 0.95       /* a burst's weight in the demand one burst later: jobs last bursts */
#define STALE 0.99      /* of a level that has not run */
#define PEAK 0.98       /* of the most at once, a burst later */
#define LONGEST 32.0    /* times its steps' time a burst counts as, at most: a night is forgotten */
#define BUSY 0.95       /* of a burst's time in steps */
#define BUSY_BURSTS 4u  /* before an attempt */
#define KNOWN_STEPS 64  /* of a number that needs none */

uint64_t mp_turn_bins(uint64_t units)
{
    return 2ull * MP_LEVELS * mp_curve_bins(units, MP_TURN_BINS);
}

void mp_turn_init(mp_turn *turn, double *bins, uint64_t units, double decay)
{
    const uint32_t each = mp_curve_bins(units, MP_TURN_BINS);
    memset(turn, 0, sizeof *turn);
    turn->decay = decay;
    for (uint32_t l = 0; l < MP_LEVELS; l++) {
        double *own = bins + (size_t)2 * l * each;
        mp_curve_init(&turn->levels[l].curve, own, units, MP_TURN_BINS);
        mp_curve_keep_sums(&turn->levels[l].curve, own + each);
    }
}

void mp_turn_use(mp_turn *turn, uint32_t sequences, uint64_t distance, double weight)
{
    mp_curve_add(&turn->levels[mp_level_of(sequences)].curve, distance, weight);
}

static void see_prefill(mp_turn *turn, const mp_turn_sample *step)
{
    turn->prompts += step->prompts;
    turn->recent_prompts += step->prompts;
    if (step->decodes)
        return;
    turn->prefill_alone.steps += 1;
    turn->prefill_alone.prompts += step->prompts;
    turn->prefill_alone.ns += step->busy_ns + step->stall_ns;
}

void mp_turn_step(mp_turn *turn, const mp_turn_sample *step)
{
    mp_turn_level *level = &turn->levels[step->alone ? mp_level_of(step->decodes) : 0];
    const double ns = step->busy_ns + step->stall_ns;
    level->steps += 1;
    level->decodes += step->decodes;
    level->busy_ns += step->busy_ns;
    level->stall_ns += step->stall_ns;
    level->units += (double)step->experts;
    level->seen += 1;
    level->recent++;
    turn->recent_ns += ns;
    if (!step->alone)
        see_prefill(turn, step);
    turn->recent_tokens += step->decodes;
    if (step->decodes > turn->recent_peak)
        turn->recent_peak = step->decodes;
    if (step->ended_ns > turn->ended_ns) /* sessions' steps overlap */
        turn->ended_ns = step->ended_ns;
    if (!turn->began_ns) /* the first step of all: it began when it began */
        turn->began_ns = step->ended_ns > ns ? step->ended_ns - (uint64_t)ns : 1;
}

void mp_turn_end(mp_turn *turn, uint64_t prefilled, uint64_t decoded)
{
    mp_turn_work *work = &turn->work;
    const double x = (double)prefilled, y = (double)decoded, left = 1 - TURN_SHARE;
    work->turns = work->turns * left + 1;
    work->prefilled = work->prefilled * left + x;
    work->decoded = work->decoded * left + y;
    work->prefilled_squares = work->prefilled_squares * left + x * x;
    work->decoded_squares = work->decoded_squares * left + y * y;
    work->products = work->products * left + x * y;
}

/* Returns what is left of a level's counts: it forgets by what came in anew, so that what runs seldom is remembered
 * for longer. */
static double left(const mp_turn_level *level, double decay, uint32_t steps)
{
    const double bursts = (double)level->recent / steps;
    return fmin(STALE, pow(decay, bursts < 1 ? bursts : 1));
}

static void decay_level(mp_turn_level *level, double factor)
{
    mp_curve_decay(&level->curve, factor);
    level->steps *= factor;
    level->decodes *= factor;
    level->busy_ns *= factor;
    level->stall_ns *= factor;
    level->units *= factor;
    level->seen *= STALE;
    level->recent = 0;
}

static void decay_prefill(mp_turn *turn, double factor)
{
    turn->prompts *= factor;
    turn->prefill_alone.steps *= factor;
    turn->prefill_alone.prompts *= factor;
    turn->prefill_alone.ns *= factor;
}

static uint32_t usual_of(const mp_turn *turn)
{
    uint64_t all = 0, above = 0;
    uint32_t l = MP_LEVELS - 1;
    for (uint32_t i = 1; i < MP_LEVELS; i++)
        all += turn->levels[i].recent;
    if (!all)
        return 0;
    while ((above += turn->levels[l].recent) * 2 < all)
        l--;
    return mp_level_most(l);
}

static double lasted_ns(const mp_turn *turn)
{
    return turn->ended_ns > turn->began_ns ? (double)(turn->ended_ns - turn->began_ns) : 0;
}

void mp_turn_burst(mp_turn *turn, uint32_t steps)
{
    turn->usual = usual_of(turn);
    const bool busy = turn->recent_ns > 0 && turn->recent_ns >= BUSY * lasted_ns(turn);
    turn->busy_bursts = busy ? turn->busy_bursts + 1 : 0;
    decay_prefill(turn, left(&turn->levels[0], turn->decay, steps));
    turn->tokens = turn->tokens * SLOW + turn->recent_tokens;
    turn->prompt_tokens = turn->prompt_tokens * SLOW + (double)turn->recent_prompts;
    turn->burst_tokens = turn->burst_tokens * turn->decay + turn->recent_tokens;
    turn->elapsed_ns = turn->elapsed_ns * SLOW + fmin(lasted_ns(turn), LONGEST * turn->recent_ns);
    turn->began_ns = turn->ended_ns;
    turn->recent_ns = 0;
    turn->recent_tokens = 0;
    turn->recent_prompts = 0;
    turn->peak = fmax(turn->peak * PEAK, turn->recent_peak);
    turn->recent_peak = 0;
    for (uint32_t l = 0; l < MP_LEVELS; l++)
        decay_level(&turn->levels[l], left(&turn->levels[l], turn->decay, steps));
}

uint32_t mp_turn_try(const mp_turn *turn, uint32_t running)
{
    if (!running || turn->usual < running || turn->busy_bursts < BUSY_BURSTS)
        return running;
    return running + (turn->levels[mp_level_of(running + 1)].seen < KNOWN_STEPS);
}
