/* Each constant of the online law by hand: what it lets pass and what not. */

#include "plant_rig.h"
#include "testing.h"

static plant the_plant;

/* `mode`: the distance of all 1000 warm expert accesses. 10 KV accesses at each distance. With 50
 * experts there is room for 50 units of KV. Without `mode` + 1 experts it costs 1000 more. */
static void plant_cliff(plant *p, uint32_t mode, const mp_mvwsa_config *config)
{
    plant_make(p, RIG_NOTHING, RIG_NOTHING, config);
    p->bounds = (mp_split_bounds){1000, 10, 10, 1, 100, 1};
    p->costs.expert_miss_ns = p->costs.kv_miss_ns = 1;
    p->experts.weights[mode] = 1000;
    for (uint32_t d = 0; d < 100; d++)
        p->kv.weights[d] = 10;
    rig_stream_burst(&p->experts, 0);
    rig_stream_burst(&p->kv, 0);
}

static const mp_mvwsa_config eager = {.decay = 0,
                                      .gate = 0,
                                      .min_samples = 0,
                                      .rate_limit = 100,
                                      .dead_zone = 1,
                                      .grid = 8,
                                      .patience = 1};

/* Predicted with 50 experts: 1000 + 500; with 70: 700. */
static mp_mvwsa_why why_with(const mp_mvwsa_config *config)
{
    plant *p = &the_plant;
    plant_cliff(p, 69, config);
    p->now = (mp_split){50, 50};
    plant_burst(p, 0);
    return p->answer.why;
}

static void test_mvwsa_predicts_what_it_goes_to(void **state)
{
    (void)state;
    assert_int_equal(why_with(&eager), MP_MVWSA_MOVE);
    rig_expect_split(&the_plant.answer.target, 70, 30);
    assert_true(the_plant.answer.cost_now == 1500);
    assert_true(the_plant.answer.cost_best == 700);
    rig_expect_split(&the_plant.now, 70, 30);
    plant_burst(&the_plant, 0); /* no gain at all clears no gate, not even that of 0 */
    assert_int_equal(the_plant.answer.why, MP_MVWSA_GATE);
    assert_true(the_plant.answer.cost_now == 700 && the_plant.answer.cost_best == 700);
}

/* Where everything costs the same, KV would be preferred, but nothing is moved for that. */
static void test_mvwsa_does_not_move_for_nothing(void **state)
{
    (void)state;
    plant *p = &the_plant;
    plant_make(p, RIG_NOTHING, RIG_NOTHING, &eager);
    plant_start(p, 20);
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_GATE);
    assert_int_equal(p->answer.target.experts, p->bounds.min_experts);
}

static void test_mvwsa_gate_is_of_the_cost_now(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    config.gate = 800.0 / 1500 - 1e-6;
    assert_int_equal(why_with(&config), MP_MVWSA_MOVE);
    config.gate = 800.0 / 1500 + 1e-6;
    assert_int_equal(why_with(&config), MP_MVWSA_GATE);
}

static void test_mvwsa_waits_for_samples(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    config.min_samples = 1000;
    assert_int_equal(why_with(&config), MP_MVWSA_MOVE);
    config.min_samples = 1000.5;
    assert_int_equal(why_with(&config), MP_MVWSA_COLD);
    rig_expect_split(&the_plant.answer.target, 50, 50);
}

static void test_mvwsa_dead_zone_is_to_its_edge(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    config.dead_zone = 20;
    assert_int_equal(why_with(&config), MP_MVWSA_MOVE);
    config.dead_zone = 21;
    assert_int_equal(why_with(&config), MP_MVWSA_DEAD_ZONE);
}

static void test_mvwsa_rate_limit_is_of_every_step(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    plant *p = &the_plant;
    static const uint64_t up[] = {58, 66, 70, 70}, down[] = {72, 70, 70};
    config.rate_limit = 8;
    plant_cliff(p, 69, &config);
    p->now = (mp_split){50, 50};
    for (uint32_t i = 0; i < 4; i++) {
        plant_burst(p, 0);
        rig_expect_split(&p->now, up[i], 100 - up[i]);
    }
    p->now = (mp_split){80, 20};
    for (uint32_t i = 0; i < 3; i++) {
        plant_burst(p, 0);
        rig_expect_split(&p->now, down[i], 100 - down[i]);
    }
    /* Steps of 8 from 53 would end at 69, which the dead zone would not leave. */
    static const uint64_t all_the_way[] = {61, 67, 70};
    p->mvwsa.config.dead_zone = 3;
    p->now = (mp_split){53, 47};
    for (uint32_t i = 0; i < 3; i++) {
        plant_burst(p, 0);
        rig_expect_split(&p->now, all_the_way[i], 100 - all_the_way[i]);
    }
    config.rate_limit = 1; /* a dead zone is no wider than a step */
    config.dead_zone = 3;
    plant_cliff(p, 69, &config);
    p->now = (mp_split){66, 34};
    for (uint32_t i = 0; i < 4; i++)
        plant_burst(p, 0);
    rig_expect_split(&p->now, 70, 30);
}

static void test_mvwsa_patience_counts_bursts_in_a_row(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    plant *p = &the_plant;
    config.patience = 3;
    config.rate_limit = 5;
    plant_cliff(p, 69, &config);
    p->now = (mp_split){50, 50};
    static const uint64_t expected[] = {50, 50, 55, 60, 65, 70};
    for (uint32_t i = 0; i < 6; i++) {
        plant_burst(p, 0);
        assert_int_equal(p->answer.why, i < 2 ? MP_MVWSA_PATIENCE : MP_MVWSA_MOVE);
        rig_expect_split(&p->now, expected[i], 100 - expected[i]);
    }
    /* Now fewer, twice, more, fewer: none three times in a row; then the third. */
    static const uint64_t starts[] = {90, 90, 50, 90, 90, 90};
    for (uint32_t i = 0; i < 6; i++) {
        p->now = (mp_split){starts[i], 100 - starts[i]};
        plant_burst(p, 0);
        assert_int_equal(p->answer.why, i < 5 ? MP_MVWSA_PATIENCE : MP_MVWSA_MOVE);
    }
    /* Nor is it in a row with a burst between that asks for nothing. */
    plant_cliff(p, 69, &config);
    static const uint64_t with_rest[] = {90, 90, 70, 90, 90, 90};
    for (uint32_t i = 0; i < 6; i++) {
        p->now = (mp_split){with_rest[i], 100 - with_rest[i]};
        plant_burst(p, 0);
        assert_int_equal(p->answer.why, i == 2  ? MP_MVWSA_GATE
                                        : i < 5 ? MP_MVWSA_PATIENCE
                                                : MP_MVWSA_MOVE);
    }
    /* Nor with a move that the bounds made. */
    plant_cliff(p, 69, &config);
    for (uint32_t i = 0; i < 6; i++) {
        p->now = (mp_split){90, i == 2 ? 11 : 10};
        plant_burst(p, 0);
        assert_int_equal(p->answer.why, i == 2 || i == 5 ? MP_MVWSA_MOVE : MP_MVWSA_PATIENCE);
    }
    p->mvwsa.config.patience = UINT32_MAX; /* however long, the count does not run over */
    p->now = (mp_split){90, 10};
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_PATIENCE);
    p->mvwsa.streak = -(INT32_MAX - 1);
    for (uint32_t i = 0; i < 3; i++) {
        p->now = (mp_split){90, 10};
        plant_burst(p, 0);
        assert_int_equal(p->answer.why, MP_MVWSA_MOVE);
    }
}

static void test_mvwsa_takes_no_limits_of_nothing(void **state)
{
    (void)state;
    mp_mvwsa_config config = eager;
    config.rate_limit = config.patience = config.grid = 0;
    config.dead_zone = 0;
    assert_int_equal(why_with(&config), MP_MVWSA_MOVE);
    rig_expect_split(&the_plant.now, 51, 49);
    for (uint64_t most = 0; most < 20000; most = 2 * most + 1) {
        mp_mvwsa_defaults(most, &config);
        assert_true(config.decay > 0 && config.decay < 1 && config.gate > 0 && config.gate < 0.1);
        assert_true(config.min_samples > 0 && config.rate_limit >= 1 && config.grid >= 2);
        assert_true(config.dead_zone >= 1 && config.dead_zone <= config.rate_limit);
        assert_true(config.patience >= 1);
    }
}

static void test_mvwsa_leaves_what_a_risen_floor_forbids_at_once(void **state)
{
    (void)state;
    plant *p = &the_plant;
    rig_seed(6);
    const mp_mvwsa_config config = {.decay = 0.5,
                                    .gate = 0.9,
                                    .min_samples = 1e9,
                                    .rate_limit = 1,
                                    .dead_zone = 50,
                                    .grid = 8,
                                    .patience = 9};
    plant_make(p, RIG_NOTHING, RIG_NOTHING, &config);
    p->bounds = (mp_split_bounds){1000, 10, 7, 4, 128, 20};
    p->now = (mp_split){80, 28};
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_COLD);
    p->bounds.kv_floor = 100; /* 700 bytes; 30 experts are left */
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_MOVE);
    rig_expect_split(&p->now, 30, 100);
    p->bounds.kv_floor = 138; /* 966 bytes, not one layer's top-k is left */
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_INFEASIBLE);
    rig_expect_split(&p->now, 30, 100);
    rig_expect_split(&p->answer.target, 30, 100);
    p->bounds.kv_floor = 137;
    plant_burst(p, 0);
    rig_expect_split(&p->now, 4, 137);
    p->bounds.budget_bytes = 2000; /* room: nothing is forbidden, so nothing hurries */
    plant_burst(p, 0);
    assert_int_equal(p->answer.why, MP_MVWSA_COLD);
    rig_expect_split(&p->now, 4, 137);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mvwsa_predicts_what_it_goes_to),
        cmocka_unit_test(test_mvwsa_does_not_move_for_nothing),
        cmocka_unit_test(test_mvwsa_gate_is_of_the_cost_now),
        cmocka_unit_test(test_mvwsa_waits_for_samples),
        cmocka_unit_test(test_mvwsa_dead_zone_is_to_its_edge),
        cmocka_unit_test(test_mvwsa_rate_limit_is_of_every_step),
        cmocka_unit_test(test_mvwsa_patience_counts_bursts_in_a_row),
        cmocka_unit_test(test_mvwsa_takes_no_limits_of_nothing),
        cmocka_unit_test(test_mvwsa_leaves_what_a_risen_floor_forbids_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
