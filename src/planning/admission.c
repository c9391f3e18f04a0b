/* The number of sequences that may run, by measured throughput. */
#include "planning/admission.h"

#include <math.h>
#include <string.h>

#define MARGIN 0.05     /* less is not worth a change */
#define GAIN 0.02       /* of a few more, to be kept */
#define LOSS 0.1        /* at which an attempt is given up at once, */
#define LOSS_STEPS 8.0  /* after so many steps */
#define HEAVY_LOSS 0.5  /* at which it is given up as soon as the rate is known */
#define LEAST_STEPS 3.0 /* that a level's rate is known by */
#define LONGEST_WAIT 32u
#define STALE 0.98 /* of a level that has not run, a burst later */
#define LONG_AGO 4u
#define HURRY 0.25     /* at which no burst's end is waited for, */
#define HURRY_STEPS 8u /* nor more steps than these */

void mp_admission_init(mp_admission *admission, double decay)
{
    memset(admission, 0, sizeof *admission);
    admission->decay = decay;
    admission->vain = admission->stride = 1;
}

static bool is_known(const mp_admission_level *level)
{
    return level->steps >= LEAST_STEPS && level->ns > 0;
}

static double rate(const mp_admission_level *level)
{
    return is_known(level) ? level->tokens / level->ns * 1e9 : 0;
}

double mp_admission_rate(const mp_admission *admission, uint32_t sequences)
{
    return rate(&admission->levels[mp_level_of(sequences)]);
}

/* Returns the fastest known level up to `most`; ties to the lower. 0 = none is known. */
static uint32_t fastest(const mp_admission *admission, uint32_t most)
{
    uint32_t found = 0;
    for (uint32_t l = 1; l <= most; l++)
        if (rate(&admission->levels[l]) > rate(&admission->levels[found]))
            found = l;
    return found;
}

static bool knows_any(const mp_admission *admission, uint32_t first, uint32_t last)
{
    for (uint32_t l = first; l <= last; l++)
        if (is_known(&admission->levels[l]))
            return true;
    return false;
}

/* ---- steps ---- */

/* An attempt at more, if one is under way, was in vain: the next one comes later. */
static void set_limit(mp_admission *admission, uint32_t limit)
{
    admission->limit = limit;
    if (!admission->tried)
        return;
    admission->tried = 0;
    admission->stride = 1;
    admission->wait = admission->vain;
    admission->vain = 2 * admission->vain < LONGEST_WAIT ? 2 * admission->vain : LONGEST_WAIT;
}

/* Leaves level `top` if fewer are known to be faster by `margin`, for the fastest, or might be, for half as many.
 * Returns true if that is where the limit is now. */
static bool leave(mp_admission *admission, uint32_t top, double margin)
{
    const mp_admission_level *at = &admission->levels[top];
    uint32_t best = fastest(admission, top), half = mp_level_most(top) / 2, to = 0;
    if (best < top && rate(&admission->levels[best]) > rate(at) * (1 + margin))
        to = mp_level_most(best);
    else if (at->stall_ns > at->ns / 2 && half && !knows_any(admission, 1, mp_level_of(half)))
        to = half;
    if (to && to != admission->limit)
        set_limit(admission, to);
    return to > 0;
}

/* Returns true if an attempt at so many is clearly slower than what was before. */
static bool is_lost(const mp_admission *admission, uint32_t sequences)
{
    const mp_admission_level *level = &admission->levels[mp_level_of(sequences)];
    const double before = mp_admission_rate(admission, admission->tried);
    if (!admission->tried || sequences <= admission->tried || !is_known(level))
        return false;
    return rate(level) < before * (level->steps < LOSS_STEPS ? 1 - HEAVY_LOSS : 1 - LOSS);
}

static void scale(mp_admission_level *level, double factor)
{
    level->steps *= factor;
    level->tokens *= factor;
    level->ns *= factor;
    level->stall_ns *= factor;
}

/* What a level was long ago counts no more once it runs again. */
static void renew(mp_admission_level *level)
{
    if (level->absent >= LONG_AGO)
        scale(level, 0);
    level->absent = 0;
}

void mp_admission_step(mp_admission *admission, uint32_t sequences, uint64_t wall_ns,
                       uint64_t stall_ns)
{
    mp_admission_level *level = &admission->levels[mp_level_of(sequences)];
    renew(level);
    level->steps += 1;
    level->tokens += sequences;
    level->ns += (double)wall_ns;
    level->stall_ns += (double)(stall_ns < wall_ns ? stall_ns : wall_ns);
    level->recent_ns += (double)wall_ns;
    level->recent_steps++;
    if (is_lost(admission, sequences))
        set_limit(admission, admission->tried);
    else if (level->recent_steps % HURRY_STEPS == 0)
        (void)leave(admission, mp_level_of(sequences), HURRY);
}

/* ---- a burst's end ---- */

/* Returns the level at which most of the burst's time was spent; 0 = nothing decoded. */
static uint32_t busiest(const mp_admission *admission)
{
    uint32_t found = 0;
    for (uint32_t l = 1; l < MP_LEVELS; l++)
        if (admission->levels[l].recent_ns > admission->levels[found].recent_ns)
            found = l;
    return found;
}

/* Returns true if the limit, and not the load, decided how many ran for most of the burst. */
static bool holds(const mp_admission *admission)
{
    double at = 0, all = 0;
    for (uint32_t l = 1; l < MP_LEVELS; l++) {
        all += admission->levels[l].recent_ns;
        at += l >= mp_level_of(admission->limit) ? admission->levels[l].recent_ns : 0;
    }
    return at > all / 2;
}

/* Up to the end of a level, since numbers of one level cannot be told apart. */
static void try_more(mp_admission *admission)
{
    if (admission->wait) {
        admission->wait--;
        return;
    }
    const uint32_t level = mp_level_of(admission->limit), best = fastest(admission, MP_LEVELS - 1);
    const bool known = best > level && rate(&admission->levels[best]) >
                                           rate(&admission->levels[level]) * (1 + MARGIN);
    admission->tried = admission->limit;
    admission->limit =
        mp_level_most(known ? best : mp_level_of(admission->limit + admission->stride));
}

/* Judges an attempt at more once it has run. */
static void judge(mp_admission *admission)
{
    double before = mp_admission_rate(admission, admission->tried);
    double now = mp_admission_rate(admission, admission->limit);
    if (now == 0)
        return;        /* the load has not come to it yet */
    if (before == 0) { /* it came so late that nothing is left to compare with */
        admission->tried = 0;
        return;
    }
    if (now > before * (1 + GAIN)) {
        admission->vain = 1;
        admission->wait = 0;
        admission->tried = 0;
        admission->stride *= 2;
        return;
    }
    set_limit(admission, admission->tried);
}

static void decide(mp_admission *admission)
{
    uint32_t top = busiest(admission);
    if (!top || !is_known(&admission->levels[top]) || leave(admission, top, MARGIN))
        return;
    if (admission->tried)
        judge(admission);
    else if (admission->limit && holds(admission))
        try_more(admission);
}

/* Forgets by what came in anew, so that what runs seldom is remembered for longer. */
void mp_admission_burst(mp_admission *admission)
{
    double steps = 0;
    decide(admission);
    for (uint32_t l = 0; l < MP_LEVELS; l++)
        steps += admission->levels[l].recent_steps;
    for (uint32_t l = 0; l < MP_LEVELS && steps > 0; l++) {
        mp_admission_level *level = &admission->levels[l];
        scale(level, fmin(STALE, pow(admission->decay, level->recent_steps / steps)));
        level->absent += level->recent_steps == 0;
        level->recent_ns = level->recent_steps = 0;
    }
}
