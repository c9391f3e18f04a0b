/* Does fetching ahead pay: the decision, in worlds whose costs are known. */
#include <math.h>

#include "planning/calibration.h"
#include "planning/payoff.h"
#include "testing.h"

/* A world in which a step takes `off` or `on` per routed expert. */
typedef struct world {
    mp_payoff_config config;
    mp_payoff payoff;
    bool now;
    uint64_t steps_on;
    double spent;
} world;

static void open_world(world *w)
{
    *w = (world){0};
    mp_payoff_defaults(&w->config);
    mp_payoff_init(&w->payoff, &w->config);
}

/* 8 experts of 64 are missed; `right` of the guesses would have spared one of them each. */
static void run(world *w, uint32_t steps, double off, double on, uint64_t right, uint64_t vain)
{
    for (uint32_t i = 0; i < steps; i++) {
        double wall = 64 * (w->now ? on : off);
        mp_payoff_step step = {.routed = 64,
                               .listened = true,
                               .stall_ns = wall / 2,
                               .wall_ns = wall,
                               .load_ns = wall / 32,
                               .missed = 8,
                               .avertable = right,
                               .vain = vain};
        w->steps_on += w->now;
        w->spent += wall;
        w->now = mp_payoff_update(&w->payoff, &w->config, &step);
    }
}

static void test_payoff_tries_nothing_without_a_promise(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    run(&w, 5000, 100, 50, 0, 40);
    assert_int_equal(w.steps_on, 0);
    open_world(&w);
    run(&w, 5000, 100, 50, 0, 0);
    assert_int_equal(w.steps_on, 0);
}

/* The guesses are all right, but the bus has no time for one more load. */
static void test_payoff_tries_nothing_on_a_bus_that_is_full(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    for (uint32_t i = 0; i < 1000; i++) {
        mp_payoff_step step = {.routed = 64,
                               .listened = true,
                               .stall_ns = 900,
                               .wall_ns = 1000,
                               .load_ns = 125,
                               .missed = 8,
                               .avertable = 8};
        assert_false(mp_payoff_update(&w.payoff, &w.config, &step));
    }
}

static void test_payoff_stays_on_where_it_pays(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    run(&w, 4000, 100, 80, 6, 2);
    assert_true(w.steps_on > 3500);
    assert_true(w.payoff.losses == 0 && w.payoff.wins >= 2);
}

/* However bad it is, and however long the run, 2 % is the most that trying costs. */
static void test_payoff_costs_little_where_it_does_not(void **state)
{
    (void)state;
    const double worse[] = {1.0, 1.02, 1.1, 1.5, 1.0 / 0.98};
    for (uint32_t i = 0; i < sizeof worse / sizeof *worse; i++)
        for (uint32_t steps = 32; steps <= 16384; steps *= 2) {
            world w;
            open_world(&w);
            run(&w, steps, 100, 100 * worse[i], 8, 0);
            assert_true(w.spent <= steps * 6400.0 / 0.98);
        }
}

static void test_payoff_waits_twice_as_long_after_each_loss(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    uint64_t lost = 0, last = 0, gap = 0;
    for (uint64_t step = 0; step < 20000; step++) {
        run(&w, 1, 100, 130, 8, 0);
        if (w.payoff.losses == lost)
            continue;
        lost = w.payoff.losses;
        if (lost > 2 && gap < w.config.longest_off / 2)
            assert_true(step - last > gap + gap / 2);
        gap = step - last;
        last = step;
    }
    assert_true(lost >= 4);
}

/* Off, one step in a few is followed, and the others say nothing of what guesses could do. */
static void test_payoff_listens_now_and_then_while_off(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    uint32_t heard = 0;
    for (uint64_t i = 0; i < 1064; i++) {
        bool listened = mp_payoff_listens(&w.payoff, &w.config, i);
        mp_payoff_step step = {
            .routed = 64, .wall_ns = 6400, .stall_ns = 3200, .load_ns = 200, .missed = 8};
        step.listened = listened;
        step.avertable = listened ? 8 : 0;
        heard += listened;
        assert_true(i >= w.config.warm_steps || listened);
        if (mp_payoff_update(&w.payoff, &w.config, &step))
            break;
    }
    assert_int_equal(w.payoff.mode, MP_PAYOFF_ON); /* it was promised something, however seldom */
    assert_true(mp_payoff_listens(&w.payoff, &w.config, 1));
    open_world(&w);
    heard = 0;
    for (uint64_t i = 0; i < 1064; i++) {
        mp_payoff_step step = {.routed = 64, .wall_ns = 6400};
        step.listened = mp_payoff_listens(&w.payoff, &w.config, i);
        heard += step.listened;
        mp_payoff_update(&w.payoff, &w.config, &step);
    }
    assert_in_range(heard, 64 + 1000 / 8 - 1, 64 + 1000 / 8 + 1);
}

static void test_payoff_follows_a_world_that_changes(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    run(&w, 2000, 100, 80, 8, 0);
    assert_true(w.now || w.payoff.mode == MP_PAYOFF_PROVING);
    run(&w, 600, 100, 120, 8, 0);
    assert_int_equal(w.payoff.mode, MP_PAYOFF_OFF);
    uint64_t before = w.steps_on;
    run(&w, 3000, 100, 80, 8, 0);
    assert_true(w.steps_on - before > 1500);
}

static void test_payoff_ignores_steps_that_say_nothing(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    run(&w, 2000, 100, 80, 8, 0);
    mp_payoff before = w.payoff;
    mp_payoff_step nothing = {.wall_ns = 1e9};
    mp_payoff_update(&w.payoff, &w.config, &nothing);
    nothing = (mp_payoff_step){.routed = 4, .wall_ns = NAN};
    mp_payoff_update(&w.payoff, &w.config, &nothing);
    assert_memory_equal(&before, &w.payoff, sizeof before);
}

/* ---- layers ---- */

static void test_payoff_shuts_a_layer_whose_guesses_are_vain(void **state)
{
    (void)state;
    mp_payoff_layer layer = {0};
    uint32_t turns = 0;
    while (mp_payoff_turn(&layer, 0, 4, 0.5))
        assert_true(++turns < 8);
    assert_int_equal(layer.backoffs, 1);
    uint32_t first = 0;
    while (!mp_payoff_turn(&layer, 4, 0, 0.5))
        first++;
    assert_true(first >= 31); /* it sat out its turns, then its new guesses opened it */
    for (uint32_t i = 0; i < 100; i++)
        assert_true(mp_payoff_turn(&layer, 3, 1, 0.5));
    assert_int_equal(layer.backoffs, 1);
}

static void test_payoff_lets_a_layer_be_that_is_half_right(void **state)
{
    (void)state;
    mp_payoff_layer layer = {0};
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(mp_payoff_turn(&layer, 2, 3, 0.5));
    mp_payoff_layer quiet = {0};
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(mp_payoff_turn(&quiet, 0, 0, 0.5));
}

static void test_payoff_looks_as_far_as_a_load_takes(void **state)
{
    (void)state;
    assert_int_equal(mp_payoff_distance(100, 100, 1, 6), 1);
    assert_int_equal(mp_payoff_distance(101, 100, 1, 6), 2);
    assert_int_equal(mp_payoff_distance(100, 100, 2.5, 6), 3);
    assert_int_equal(mp_payoff_distance(100, 100, 0.1, 6), 1);
    assert_int_equal(mp_payoff_distance(1e9, 100, 1, 6), 6);
    assert_int_equal(mp_payoff_distance(0, 100, 1, 6), 1);
    assert_int_equal(mp_payoff_distance(100, 0, 1, 6), 1);
}

/* ---- calibration ---- */

static void test_calibration_finds_what_a_p_is_worth(void **state)
{
    (void)state;
    mp_calibration calibration = {0};
    assert_true(fabsf(mp_calibration_chance(&calibration, 0.5f) - 0.5f) < 1e-6f);
    for (uint32_t i = 0; i < 5000; i++) { /* 0.9 comes true once in ten times, 0.05 always */
        mp_calibration_learn(&calibration, 0.9f, i % 10 == 0);
        mp_calibration_learn(&calibration, 0.05f, true);
    }
    assert_true(fabsf(mp_calibration_chance(&calibration, 0.9f) - 0.1f) < 0.03f);
    assert_true(mp_calibration_chance(&calibration, 0.05f) > 0.95f);
    for (uint32_t i = 0; i < 5000; i++)
        mp_calibration_learn(&calibration, 0.9f, true);
    assert_true(mp_calibration_chance(&calibration, 0.9f) > 0.9f); /* it forgets */
    const float odd[] = {0, -1, 2, NAN};
    for (uint32_t i = 0; i < 4; i++) {
        mp_calibration_learn(&calibration, odd[i], true);
        float chance = mp_calibration_chance(&calibration, odd[i]);
        assert_true(chance >= 0 && chance <= 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_payoff_tries_nothing_without_a_promise),
        cmocka_unit_test(test_payoff_tries_nothing_on_a_bus_that_is_full),
        cmocka_unit_test(test_payoff_stays_on_where_it_pays),
        cmocka_unit_test(test_payoff_costs_little_where_it_does_not),
        cmocka_unit_test(test_payoff_waits_twice_as_long_after_each_loss),
        cmocka_unit_test(test_payoff_listens_now_and_then_while_off),
        cmocka_unit_test(test_payoff_follows_a_world_that_changes),
        cmocka_unit_test(test_payoff_ignores_steps_that_say_nothing),
        cmocka_unit_test(test_payoff_shuts_a_layer_whose_guesses_are_vain),
        cmocka_unit_test(test_payoff_lets_a_layer_be_that_is_half_right),
        cmocka_unit_test(test_payoff_looks_as_far_as_a_load_takes),
        cmocka_unit_test(test_calibration_finds_what_a_p_is_worth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
