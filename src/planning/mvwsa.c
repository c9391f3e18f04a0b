/* MV-WSA's online law: the predicted optimum, and whether and how far to move towards it now. */
#include "planning/mvwsa.h"

#include "planning/counts.h"

/* A gain below this fraction of the cost is a rounding error. */
#define ROUNDING 1e-9

void mp_mvwsa_defaults(uint64_t max_experts, mp_mvwsa_config *config)
{
    *config = (mp_mvwsa_config){
        .decay = 0.7,
        .gate = 0.02,
        .min_samples = 2.0 * (double)mp_most(max_experts, 32),
        .rate_limit = mp_most(max_experts / 4, 1),
        .dead_zone = mp_most(max_experts / 64, 1),
        .grid = 64,
        .patience = 2,
    };
}

void mp_mvwsa_init(mp_mvwsa *mvwsa, const mp_mvwsa_config *config)
{
    *mvwsa = (mp_mvwsa){.config = *config};
    mvwsa->config.rate_limit = mp_most(config->rate_limit, 1);
    mvwsa->config.dead_zone = mp_least(config->dead_zone, mvwsa->config.rate_limit);
}

static bool is_urgent(const mp_mvwsa_config *config, const mp_mvwsa_answer *answer)
{
    const double gain = answer->cost_now - answer->cost_best;
    return config->hurry > 0 && gain >= config->hurry * answer->cost_now;
}

static bool clears_gate(const mp_mvwsa_config *config, const mp_mvwsa_answer *answer)
{
    const double gain = answer->cost_now - answer->cost_best;
    const double gate = config->gate > ROUNDING ? config->gate : ROUNDING;
    return gain > 0 && gain >= gate * answer->cost_now;
}

/* Counts a burst that asks for more or fewer experts; returns true once enough bursts in a row have
 * asked for the same direction. */
static bool is_patient(mp_mvwsa *mvwsa, bool more)
{
    const int32_t enough =
        mvwsa->config.patience < INT32_MAX ? (int32_t)mvwsa->config.patience : INT32_MAX;
    int32_t same = more ? mvwsa->streak : -mvwsa->streak;
    same = same < 0 ? 1 : same + (same < enough);
    mvwsa->streak = more ? same : -same;
    return same >= enough;
}

/* Decides whether the target is worth moving to, and whether the samples support it. */
static mp_mvwsa_why judge(const mp_mvwsa_config *config, const mp_split_bounds *bounds,
                          const mp_split_objective *objective, const mp_split *now,
                          mp_mvwsa_answer *answer)
{
    if (!(objective->samples >= config->min_samples))
        return MP_MVWSA_COLD;
    objective->configure(objective->of, bounds, config->grid, &answer->target);
    answer->cost_best = objective->cost(objective->of, &answer->target);
    if (!clears_gate(config, answer))
        return MP_MVWSA_GATE;
    return mp_apart(now->experts, answer->target.experts) < mp_most(config->dead_zone, 1)
               ? MP_MVWSA_DEAD_ZONE
               : MP_MVWSA_MOVE;
}

/* Returns a step as long as the rate limit allows, or a little shorter if the remainder would fall
 * into the dead zone and never be covered: the optimum may lie at the edge of a cliff. */
static uint64_t step_of(const mp_mvwsa_config *config, uint64_t way)
{
    if (way <= config->rate_limit)
        return way;
    return mp_least(config->rate_limit, way - config->dead_zone);
}

static mp_split towards(const mp_mvwsa_config *config, const mp_split_bounds *bounds,
                        const mp_split *now, const mp_split *target)
{
    const uint64_t way = mp_apart(now->experts, target->experts), step = step_of(config, way);
    mp_split next = *target;
    if (step < way)
        mp_split_with_experts(bounds,
                              target->experts > now->experts ? now->experts + step
                                                             : now->experts - step,
                              &next);
    return next;
}

/* Leaves a split that violates the bounds, and resets the streak that was counted there. */
static mp_mvwsa_why leave(mp_mvwsa *mvwsa, const mp_split_bounds *bounds,
                          const mp_split_objective *objective, mp_mvwsa_answer *answer)
{
    mvwsa->streak = 0;
    if (!mp_split_with_experts(bounds, answer->next.experts, &answer->next))
        return MP_MVWSA_INFEASIBLE;
    objective->configure(objective->of, bounds, mvwsa->config.grid, &answer->target);
    answer->cost_best = objective->cost(objective->of, &answer->target);
    return MP_MVWSA_MOVE;
}

void mp_mvwsa_burst(mp_mvwsa *mvwsa, const mp_split_bounds *bounds,
                    const mp_split_objective *objective, const mp_split *now, mp_mvwsa_answer *out)
{
    const mp_mvwsa_config *config = &mvwsa->config;
    mp_mvwsa_answer answer = {.next = *now, .target = *now};
    answer.cost_now = answer.cost_best = objective->cost(objective->of, now);
    if (!mp_split_within(bounds, now)) {
        answer.why = leave(mvwsa, bounds, objective, &answer);
    } else {
        answer.why = judge(config, bounds, objective, now, &answer);
        if (answer.why != MP_MVWSA_MOVE)
            mvwsa->streak = 0;
        else if (!is_patient(mvwsa, answer.target.experts > now->experts) &&
                 !is_urgent(config, &answer))
            answer.why = MP_MVWSA_PATIENCE;
        else
            answer.next = towards(config, bounds, now, &answer.target);
    }
    *out = answer;
}
