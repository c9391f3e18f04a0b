/* The online law on plants whose reuse is known: where it settles, how soon, and that it stays. */

#include <math.h>
#include <stdio.h>

#include "plant_rig.h"
#include "testing.h"

static plant the_plant;

static mp_mvwsa_config draw_config(double gate)
{
    mp_mvwsa_config config;
    mp_mvwsa_defaults(PLANT_EXPERTS, &config);
    config.gate = gate;
    config.rate_limit = 1 + rig_below(40);
    config.dead_zone = 1 + rig_below(6);
    config.grid = 1 + rig_below(64);
    config.patience = 1 + rig_below(4);
    config.decay = 0.9 * rig_unit();
    return config;
}

/* Bursts within which any way is gone: every step but the last two is as long as it may be. */
static uint32_t bursts_enough(const mp_mvwsa_config *config)
{
    return config->patience + (uint32_t)(PLANT_EXPERTS / config->rate_limit) + 3;
}

/* ---- Stationary plants ---- */

static void settle(plant *p)
{
    for (uint32_t i = bursts_enough(&p->mvwsa.config); i > 0; i--)
        plant_burst(p, 0);
}

static void expect_still(plant *p, uint32_t bursts)
{
    const uint32_t moves = p->moves;
    for (uint32_t i = 0; i < bursts; i++)
        plant_burst(p, 0);
    assert_int_equal(p->moves, moves);
}

static void converges(uint32_t seed, double gate)
{
    plant *p = &the_plant;
    rig_seed(seed);
    mp_mvwsa_config config = draw_config(gate);
    config.min_samples = 0; /* experts may have no warm reuse at all */
    plant_make(p, rig_below(RIG_SHAPES), rig_below(RIG_SHAPES), &config);
    plant_start(p, rig_below(140));
    const mp_split best = plant_best(p), start = p->now;
    const double cost = plant_cost(p, &best);
    settle(p);
    const double reached = plant_cost(p, &p->now);
    const bool there = plant_distance(&p->now, &best) < p->mvwsa.config.dead_zone ||
                       reached * (1 - gate) <= cost * (1 + 1e-9);
    if (!there || p->turns > 0 || reached > plant_cost(p, &start))
        fail_msg("seed %u: from %llu to %llu, best %llu; cost %g, best %g; %u turns", seed,
                 (unsigned long long)start.experts, (unsigned long long)p->now.experts,
                 (unsigned long long)best.experts, reached, cost, p->turns);
    expect_still(p, 40);
}

static void test_mvwsa_converges_from_any_start_and_stays(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < rig_rounds(100); seed++) {
        converges(seed, 0);
        converges(seed, 0.02);
    }
}

/* The last step is not left out because it is short: beyond it is a cliff. */
static void test_mvwsa_goes_all_the_way(void **state)
{
    (void)state;
    plant *p = &the_plant;
    for (uint32_t seed = 0; seed < rig_rounds(60); seed++) {
        rig_seed(seed);
        const mp_mvwsa_config config = draw_config(0);
        plant_make(p, RIG_LOOP, RIG_NEAR, &config);
        p->costs.expert_miss_ns = 100;
        plant_start(p, rig_below(140));
        const mp_split best = plant_best(p), start = p->now;
        settle(p);
        if (plant_distance(&start, &best) < p->mvwsa.config.dead_zone)
            assert_int_equal(p->now.experts, start.experts);
        else
            assert_int_equal(p->now.experts, best.experts);
    }
}

static void test_mvwsa_never_moves_to_a_higher_cost(void **state)
{
    (void)state;
    plant *p = &the_plant;
    for (uint32_t seed = 0; seed < rig_rounds(60); seed++) {
        rig_seed(seed);
        const mp_mvwsa_config config = draw_config(0.01);
        plant_make(p, RIG_NOTHING, RIG_NOTHING, &config);
        /* Convex on either side: no hump lies between a split and a better one. */
        const double reach = 10 + rig_below(60), kv_reach = 12 + rig_below(125);
        for (uint32_t d = 0; d <= PLANT_KV; d++) {
            p->kv.weights[d] = 1000 * exp(-(d / kv_reach));
            if (d <= PLANT_EXPERTS)
                p->experts.weights[d] = 3000 * exp(-(d / reach));
        }
        rig_stream_burst(&p->experts, 0);
        rig_stream_burst(&p->kv, 0);
        plant_start(p, rig_below(140));
        double before = plant_cost(p, &p->now);
        for (uint32_t i = 0; i < bursts_enough(&config); i++) {
            plant_burst(p, 0);
            const double after = plant_cost(p, &p->now);
            assert_true(after <= before);
            before = after;
        }
        assert_int_equal(p->turns, 0);
    }
}

/* ---- Shifts ---- */

static void test_mvwsa_follows_a_shift(void **state)
{
    (void)state;
    plant *p = &the_plant;
    uint32_t shifted = 0;
    for (uint32_t seed = 0; seed < rig_rounds(60); seed++) {
        rig_seed(seed);
        mp_mvwsa_config config = draw_config(0.02);
        config.decay = 0.7;
        plant_make(p, RIG_NEAR, RIG_BIMODAL, &config);
        plant_start(p, rig_below(140));
        settle(p);
        /* Other reuse, put into the curves that still remember the old one: after 30 bursts to one
         * part in 40,000. */
        static rig_stream old_experts, old_kv;
        old_experts = p->experts;
        old_kv = p->kv;
        rig_stream_make(&p->experts, RIG_BIMODAL, PLANT_EXPERTS, 5000, PLANT_EXPERTS);
        rig_stream_make(&p->kv, RIG_NEAR, PLANT_KV, 5000, PLANT_KV);
        for (uint32_t d = 0; d <= PLANT_KV; d++) {
            p->kv.bins[d] = old_kv.bins[d];
            if (d <= PLANT_EXPERTS)
                p->experts.bins[d] = old_experts.bins[d];
        }
        p->experts.curve.warm = old_experts.curve.warm;
        p->kv.curve.warm = old_kv.curve.warm;
        const mp_split best = plant_best(p);
        shifted += plant_cost(p, &p->now) > 1.1 * plant_cost(p, &best);
        for (uint32_t i = 0; i < 30 + bursts_enough(&config); i++)
            plant_burst(p, 0);
        assert_true(plant_distance(&p->now, &best) < p->mvwsa.config.dead_zone ||
                    plant_cost(p, &p->now) * (1 - 0.021) <= plant_cost(p, &best));
        expect_still(p, 40);
    }
    assert_true(shifted > 20);
}

/* Bounds that change from burst to burst: every answer is lawful, and none is a split that was
 * forbidden when it was given. */
static void test_mvwsa_is_within_the_bounds_whatever_happens(void **state)
{
    (void)state;
    plant *p = &the_plant;
    uint32_t moves = 0, infeasible = 0;
    for (uint32_t seed = 0; seed < rig_rounds(100); seed++) {
        rig_seed(seed);
        const mp_mvwsa_config config = draw_config(0.02);
        plant_make(p, rig_below(RIG_SHAPES), rig_below(RIG_SHAPES), &config);
        plant_start(p, rig_below(140));
        for (uint32_t i = 0; i < 60; i++) {
            if (rig_below(3) == 0)
                p->bounds.kv_floor = rig_below(rig_below(4) ? 50 : 280);
            if (rig_below(8) == 0)
                p->bounds.budget_bytes = 2000 + rig_below(10000);
            if (rig_below(8) == 0)
                p->bounds.min_experts = rig_below(rig_below(8) ? 20 : 140);
            plant_burst(p, 0.3);
            mp_split any;
            const bool feasible = mp_split_with_experts(&p->bounds, 0, &any);
            assert_int_equal(feasible, p->answer.why != MP_MVWSA_INFEASIBLE);
            assert_int_equal(feasible, rig_within(&p->bounds, &p->now));
            infeasible += !feasible;
        }
        moves += p->moves;
    }
    assert_true(moves > 500 && infeasible > 50);
}

/* ---- Noise ---- */

typedef struct unrest {
    uint32_t moves, most_moves, turns; /* once 30 bursts have been */
    double worst;                      /* cost at the end, to that of the best split */
} unrest;

/* 200 bursts of each of `seeds` convex plants, each count of each burst times 1 +- noise. */
static unrest unrest_in_noise(uint32_t seeds, double noise, double gate, uint32_t patience)
{
    plant *p = &the_plant;
    unrest u = {0};
    for (uint32_t seed = 0; seed < seeds; seed++) {
        rig_seed(seed);
        mp_mvwsa_config config;
        mp_mvwsa_defaults(PLANT_EXPERTS, &config);
        config.gate = gate;
        config.patience = patience;
        plant_make(p, RIG_NEAR, seed % 2 ? RIG_NEAR : RIG_EVEN, &config);
        plant_start(p, rig_below(140));
        for (uint32_t i = 0; i < 30; i++)
            plant_burst(p, noise);
        const uint32_t moves = p->moves, turns = p->turns;
        for (uint32_t i = 0; i < 200; i++)
            plant_burst(p, noise);
        const mp_split best = plant_best(p);
        u.moves += p->moves - moves;
        u.turns += p->turns - turns;
        u.most_moves = (uint32_t)fmax(u.most_moves, p->moves - moves);
        u.worst = fmax(u.worst, plant_cost(p, &p->now) / plant_cost(p, &best));
    }
    return u;
}

/* Quarters up or down do not move it again, but for one that had not quite arrived; halves, once in
 * thousands of bursts. Without gate and patience it would go after each of them. */
static void test_mvwsa_does_not_flap_in_noise(void **state)
{
    (void)state;
    mp_mvwsa_config config;
    mp_mvwsa_defaults(PLANT_EXPERTS, &config);
    const uint32_t seeds = rig_rounds(30);
    const unrest quarter = unrest_in_noise(seeds, 0.25, config.gate, config.patience);
    assert_true(quarter.turns == 0 && quarter.most_moves <= 1 && quarter.worst < 1.03);
    const unrest half = unrest_in_noise(seeds, 0.5, config.gate, config.patience);
    assert_true(half.moves <= 2 + seeds / 10 && half.most_moves <= 3 && half.worst < 1.03);
    const unrest eager = unrest_in_noise(30, 0.5, 0, 1);
    assert_true(eager.moves > 300 && eager.turns > 200);
}

/* ---- First sights ---- */

/* App. B: first sights are the same at every split. */
static void test_mvwsa_compulsory_misses_have_no_influence(void **state)
{
    (void)state;
    plant *p = &the_plant;
    static mp_mvwsa_answer without[40];
    for (uint32_t seed = 0; seed < rig_rounds(20); seed++) {
        for (uint32_t with = 0; with < 2; with++) {
            rig_seed(seed);
            const mp_mvwsa_config config = draw_config(0.02);
            plant_make(p, rig_below(RIG_SHAPES), rig_below(RIG_SHAPES), &config);
            plant_start(p, rig_below(140));
            for (uint32_t i = 0; i < 40; i++) {
                mp_curve_add_first(&p->experts.curve, with * 1e7);
                mp_curve_add_first(&p->kv.curve, with * 3e8);
                plant_burst(p, 0.1);
                if (!with)
                    without[i] = p->answer;
                assert_int_equal(p->answer.why, without[i].why);
                assert_true(p->answer.cost_now == without[i].cost_now);
                assert_true(p->answer.cost_best == without[i].cost_best);
                rig_expect_split(&p->answer.next, without[i].next.experts, without[i].next.kv);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mvwsa_converges_from_any_start_and_stays),
        cmocka_unit_test(test_mvwsa_goes_all_the_way),
        cmocka_unit_test(test_mvwsa_never_moves_to_a_higher_cost),
        cmocka_unit_test(test_mvwsa_follows_a_shift),
        cmocka_unit_test(test_mvwsa_is_within_the_bounds_whatever_happens),
        cmocka_unit_test(test_mvwsa_does_not_flap_in_noise),
        cmocka_unit_test(test_mvwsa_compulsory_misses_have_no_influence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
