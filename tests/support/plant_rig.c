/* A plant under the online law, and what every answer of that has to be. */
#include "plant_rig.h"

#include "testing.h"

uint64_t plant_distance(const mp_split *a, const mp_split *b)
{
    return a->experts > b->experts ? a->experts - b->experts : b->experts - a->experts;
}

void plant_make(plant *p, rig_shape experts, rig_shape kv, const mp_mvwsa_config *config)
{
    rig_stream_make(&p->experts, experts, PLANT_EXPERTS, 5000, PLANT_EXPERTS);
    rig_stream_make(&p->kv, kv, PLANT_KV, 5000, PLANT_KV);
    p->bounds = (mp_split_bounds){.expert_bytes = 80, .kv_bytes = 40, .min_experts = 8};
    p->bounds.budget_bytes = (UINT64_C(10240) >> rig_below(3)) + rig_below(80);
    p->bounds.max_experts = PLANT_EXPERTS;
    p->bounds.kv_floor = rig_below(15);
    p->costs =
        (mp_split_costs){&p->experts.curve, &p->kv.curve, 1 + rig_below(9), 1 + rig_below(9), 0};
    mp_mvwsa_init(&p->mvwsa, config);
    p->moves = p->turns = 0;
    p->last_direction = 0;
}

void plant_start(plant *p, uint64_t experts)
{
    assert_true(mp_split_with_experts(&p->bounds, experts, &p->now));
}

/* What every answer has to be. */
static void expect_lawful(const plant *p, const mp_split *before)
{
    const mp_mvwsa_answer *a = &p->answer;
    if (a->why != MP_MVWSA_MOVE) {
        rig_expect_split(&a->next, before->experts, before->kv);
        return;
    }
    rig_expect_iso_vram(&p->bounds, &a->next);
    rig_expect_iso_vram(&p->bounds, &a->target);
    if (!rig_within(&p->bounds, before))
        return;
    const uint64_t way = plant_distance(before, &a->target);
    const uint64_t step = plant_distance(before, &a->next);
    assert_true(way >= p->mvwsa.config.dead_zone && way > 0);
    assert_true(step > 0 && step <= p->mvwsa.config.rate_limit);
    assert_int_equal(step + plant_distance(&a->next, &a->target), way);
}

void plant_burst(plant *p, double noise)
{
    const mp_split before = p->now;
    const mp_split_objective objective = mp_split_misses(&p->costs);
    mp_mvwsa_burst(&p->mvwsa, &p->bounds, &objective, &p->now, &p->answer);
    expect_lawful(p, &before);
    p->now = p->answer.next;
    mp_curve_decay(&p->experts.curve, p->mvwsa.config.decay);
    mp_curve_decay(&p->kv.curve, p->mvwsa.config.decay);
    rig_stream_burst(&p->experts, noise);
    rig_stream_burst(&p->kv, noise);
    if (p->answer.why != MP_MVWSA_MOVE)
        return;
    const int direction = p->now.experts > before.experts ? 1 : -1;
    p->moves++;
    p->turns += direction == -p->last_direction;
    p->last_direction = direction;
}

double plant_cost(const plant *p, const mp_split *split)
{
    return p->costs.expert_miss_ns * rig_misses(&p->experts, split->experts) +
           p->costs.kv_miss_ns * rig_misses(&p->kv, split->kv);
}

mp_split plant_best(const plant *p)
{
    mp_split best = {0}, split;
    for (uint64_t c = p->bounds.min_experts; c <= p->bounds.max_experts; c++) {
        if (!mp_split_with_experts(&p->bounds, c, &split) || split.experts != c)
            break;
        if (c == p->bounds.min_experts || plant_cost(p, &split) < plant_cost(p, &best))
            best = split;
    }
    return best;
}
