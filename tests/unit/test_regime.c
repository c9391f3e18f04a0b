/* The choice of regime against costs written from the definition, under steady loads, noise and
 * shifts, and in a closed loop with a cache. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "planning/regime.h"
#include "testing.h"

#define PER_MILLE(random, low, high) ((low) + bank_below(random, (high) - (low) + 1))

static double cache_cost(const mp_regime_step *step)
{
    return step->missed * step->load_ns + step->compute_ns;
}

static double stream_cost(const mp_regime_step *step)
{
    return fmax((step->experts - step->kept) * step->load_ns, step->compute_ns);
}

static mp_regime_step random_step(uint64_t *random)
{
    uint32_t experts = 8 + bank_below(random, 250);
    uint32_t routed = 1 + bank_below(random, experts);
    return (mp_regime_step){
        .routed = routed,
        .experts = experts,
        .missed = bank_below(random, routed + 1),
        .kept = bank_below(random, experts + 1),
        .load_ns = 1 + bank_below(random, 100000),
        .compute_ns = 1 + bank_below(random, 4000000),
    };
}

/* ---- Steady ---- */

/* From caching, on the same step again and again: streams if that is better by the margin and the
 * union is large; decided when patience is over, and not again. */
static void test_regime_is_the_cheaper_one_on_a_steady_load(void **state)
{
    (void)state;
    uint32_t streamed = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_layer layer = {.seen = false};
        mp_regime_defaults(&config);
        config.patience = 1 + bank_below(&random, 12);
        mp_regime_step step = random_step(&random);
        bool streams = (double)step.routed / step.experts >= config.enter_union &&
                       stream_cost(&step) < cache_cost(&step) * (1 - config.margin);
        for (uint32_t i = 1; i <= config.patience + 50; i++) {
            bool expected = streams && i >= config.patience;
            if (mp_regime_update(&layer, &config, &step) !=
                (expected ? MP_REGIME_STREAM : MP_REGIME_CACHE))
                fail_msg("seed %llu, step %u", (unsigned long long)seed, i);
            if (layer.now == MP_REGIME_STREAM)
                step.missed = 0; /* all that is routed has been streamed in */
        }
        streamed += streams;
    }
    assert_in_range(streamed, 300, 2700);
}

/* Random shifts: what a layer ends up with is never worse than the other one by more than the
 * margin, except where a small union forbids to stream; and it settles once. */
static void test_regime_settles_after_every_shift(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_layer layer = {.seen = false};
        mp_regime_defaults(&config);
        double miss_part = 0;
        for (uint32_t shift = 0; shift < 12; shift++) {
            mp_regime_step step = random_step(&random);
            mp_regime before = layer.now;
            uint32_t changes = 0;
            for (uint32_t i = 0; i < 200; i++) {
                mp_regime_update(&layer, &config, &step);
                if (before == MP_REGIME_CACHE)
                    miss_part = layer.miss_part; /* what a cache would miss: as last seen */
                changes += layer.now != before;
                before = layer.now;
                if (i >= 100 && layer.streak)
                    fail_msg("seed %llu, shift %u: not settled", (unsigned long long)seed, shift);
            }
            double part = (double)step.routed / step.experts;
            if (layer.now == MP_REGIME_CACHE) {
                assert_true(part < config.enter_union + 1e-9 ||
                            stream_cost(&step) >= cache_cost(&step) * (1 - config.margin) * 0.999);
            } else {
                double cache = miss_part * step.routed * step.load_ns + step.compute_ns;
                assert_true(part >= config.leave_union - 1e-9);
                if (changes == 0)
                    assert_true(cache >= stream_cost(&step) * (1 - config.margin) * 0.999);
            }
            assert_true(changes <= 2);
        }
    }
}

/* ---- Hysteresis ---- */

static mp_regime_step dense_step(void)
{
    return (mp_regime_step){.routed = 120,
                            .experts = 128,
                            .missed = 90,
                            .kept = 40,
                            .load_ns = 10000,
                            .compute_ns = 500000};
}

static void test_regime_needs_patience_without_a_break(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    config.smoothing = 1;
    mp_regime_step dense = dense_step(), hit = dense;
    hit.missed = 0;
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 1; i < config.patience; i++)
            assert_int_equal(mp_regime_update(&layer, &config, &dense), MP_REGIME_CACHE);
        assert_int_equal(mp_regime_update(&layer, &config, &hit), MP_REGIME_CACHE);
    }
    for (uint32_t i = 1; i < config.patience; i++)
        assert_int_equal(mp_regime_update(&layer, &config, &dense), MP_REGIME_CACHE);
    assert_int_equal(mp_regime_update(&layer, &config, &dense), MP_REGIME_STREAM);
}

/* The newest step counts a quarter, and after a change patience begins anew. */
static void test_regime_averages_and_begins_anew_after_a_change(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    config.smoothing = 0.25;
    mp_regime_step step = dense_step();
    mp_regime_update(&layer, &config, &step);
    step = (mp_regime_step){.routed = 64,
                            .experts = 128,
                            .missed = 16,
                            .kept = 40,
                            .load_ns = 20000,
                            .compute_ns = 100000};
    mp_regime_update(&layer, &config, &step);
    assert_true(fabs(layer.union_part - (0.75 * 120 / 128 + 0.25 * 64 / 128)) < 1e-12);
    assert_true(fabs(layer.miss_part - (0.75 * 90 / 120 + 0.25 * 16 / 64)) < 1e-12);
    assert_true(fabs(layer.load_ns - 12500) < 1e-6 && fabs(layer.compute_ns - 400000) < 1e-6);
    config.smoothing = 1;
    step = dense_step();
    for (uint32_t i = 0; i < config.patience && layer.now == MP_REGIME_CACHE; i++)
        mp_regime_update(&layer, &config, &step);
    assert_int_equal(layer.now, MP_REGIME_STREAM);
    step.routed = 20;
    step.missed = 0;
    for (uint32_t i = 1; i < config.patience; i++)
        assert_int_equal(mp_regime_update(&layer, &config, &step), MP_REGIME_STREAM);
    assert_int_equal(mp_regime_update(&layer, &config, &step), MP_REGIME_CACHE);
}

/* 60 of 120 misses cost 0.6 + 0.2 ms: against streaming at 0.88 ms, less by less than a tenth, and
 * against 0.9 ms by more. */
static void test_regime_goes_back_for_a_margin_only(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    config.smoothing = 1;
    mp_regime_step step = dense_step();
    step.missed = 60;
    step.compute_ns = 600000;
    for (uint32_t i = 0; i < config.patience; i++)
        mp_regime_update(&layer, &config, &step);
    assert_int_equal(layer.now, MP_REGIME_STREAM);
    step.compute_ns = 200000;
    step.missed = 0;
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(mp_regime_update(&layer, &config, &step), MP_REGIME_STREAM);
    step.kept = 38;
    for (uint32_t i = 0; i < config.patience; i++)
        mp_regime_update(&layer, &config, &step);
    assert_int_equal(layer.now, MP_REGIME_CACHE);
}

static void test_regime_starts_and_stops_at_different_unions(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    assert_true(config.leave_union < config.enter_union);
    mp_regime_step step = dense_step();
    uint32_t enter = (uint32_t)ceil(config.enter_union * step.experts);
    uint32_t leave = (uint32_t)floor(config.leave_union * step.experts);
    step.missed = step.routed = enter - 1; /* all miss */
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(mp_regime_update(&layer, &config, &step), MP_REGIME_CACHE);
    step.missed = step.routed = enter + 1;
    for (uint32_t i = 0; i < 100; i++)
        mp_regime_update(&layer, &config, &step);
    assert_int_equal(layer.now, MP_REGIME_STREAM);
    step.load_ns = 2000; /* streaming keeps up with computing, so that the union alone decides */
    step.missed = 0;
    step.routed = leave + 2;
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(mp_regime_update(&layer, &config, &step), MP_REGIME_STREAM);
    step.routed = leave - 2;
    for (uint32_t i = 0; i < 100; i++)
        mp_regime_update(&layer, &config, &step);
    assert_int_equal(layer.now, MP_REGIME_CACHE);
}

/* Whatever lies at the thresholds, noise of a fifth in everything changes a layer at most once. */
static void test_regime_does_not_flap_under_noise(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_layer layer = {.seen = false};
        mp_regime_defaults(&config);
        uint32_t experts = 128, changes = 0;
        uint32_t routed = 60 + bank_below(&random, 60), missed = bank_below(&random, routed);
        double load = 10000, compute = load * (1 + bank_below(&random, 150));
        mp_regime before = MP_REGIME_CACHE;
        for (uint32_t i = 0; i < 5000; i++) {
            mp_regime_step step = {
                .routed = routed * PER_MILLE(&random, 950, 1050) / 1000,
                .experts = experts,
                .missed = missed * PER_MILLE(&random, 800, 1200) / 1000,
                .kept = 40,
                .load_ns = load * PER_MILLE(&random, 800, 1200) / 1000,
                .compute_ns = compute * PER_MILLE(&random, 800, 1200) / 1000,
            };
            if (step.missed > step.routed)
                step.missed = step.routed;
            mp_regime_update(&layer, &config, &step);
            changes += layer.now != before;
            before = layer.now;
        }
        if (changes > 1)
            fail_msg("seed %llu: %u changes", (unsigned long long)seed, changes);
    }
}

static void test_regime_is_not_moved_by_steps_of_nothing(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    mp_regime_step none = dense_step(), endless = dense_step(), dense = dense_step();
    none.routed = none.missed = 0;
    endless.load_ns = INFINITY;
    mp_regime_update(&layer, &config, &none);
    mp_regime_update(&layer, &config, &endless);
    assert_false(layer.seen);
    for (uint32_t i = 1; i <= config.patience; i++) {
        mp_regime_update(&layer, &config, &dense);
        mp_regime_layer kept = layer;
        mp_regime_update(&layer, &config, &none);
        mp_regime_update(&layer, &config, &endless);
        assert_memory_equal(&kept, &layer, sizeof kept);
    }
    assert_int_equal(layer.now, MP_REGIME_STREAM);
}

/* ---- A closed loop ---- */

#define LOOP_EXPERTS 64u

/* One layer: with an LRU cache, or some experts kept and the others streamed each step. */
typedef struct loop {
    uint32_t order[LOOP_EXPERTS]; /* by recency, the newest first */
    uint32_t capacity, held;
    double load_ns, compute_ns;
} loop;

static bool touch(loop *l, uint32_t expert)
{
    uint32_t at = 0;
    while (at < l->held && l->order[at] != expert)
        at++;
    bool hit = at < l->held;
    if (!hit && l->held < l->capacity)
        l->held++;
    if (at >= l->held)
        at = l->held - 1;
    memmove(&l->order[1], &l->order[0], at * sizeof *l->order);
    l->order[0] = expert;
    return hit;
}

/* A step of `tokens` tokens, each with two experts out of the first `width` ones. */
static mp_regime_step loop_step(loop *l, uint64_t *random, uint32_t tokens, uint32_t width,
                                mp_regime regime, double *cost)
{
    mp_regime_step step = {.experts = LOOP_EXPERTS,
                           .kept = l->capacity,
                           .load_ns = l->load_ns,
                           .compute_ns = l->compute_ns};
    bool routed[LOOP_EXPERTS] = {false};
    for (uint32_t i = 0; i < 2 * tokens; i++)
        routed[bank_below(random, width)] = true;
    for (uint32_t e = 0; e < LOOP_EXPERTS; e++) {
        if (!routed[e])
            continue;
        step.routed++;
        if (regime == MP_REGIME_CACHE)
            step.missed += !touch(l, e);
    }
    if (regime == MP_REGIME_STREAM)
        l->held = 0;
    *cost = regime == MP_REGIME_CACHE ? cache_cost(&step) : stream_cost(&step);
    return step;
}

/* Narrow and wide batches by turns; `forced` < 0: by the rule. */
static double run_loop(uint64_t seed, int forced, uint32_t *changes)
{
    uint64_t random = seed;
    mp_regime_config config;
    mp_regime_layer layer = {.seen = false};
    mp_regime_defaults(&config);
    loop l = {.capacity = 24, .load_ns = 1000, .compute_ns = 30000};
    mp_regime regime = forced < 0 ? MP_REGIME_CACHE : (mp_regime)forced;
    double total = 0, cost;
    for (uint32_t i = 0; i < 3000; i++) {
        bool wide = i / 500 % 2;
        mp_regime_step step =
            loop_step(&l, &random, wide ? 200 : 4, wide ? LOOP_EXPERTS : 20, regime, &cost);
        total += cost;
        mp_regime next = mp_regime_update(&layer, &config, &step);
        if (forced < 0) {
            *changes += next != regime;
            regime = next;
        }
    }
    return total;
}

static void test_regime_beats_either_alone_where_loads_alternate(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint32_t changes = 0;
        double cache = run_loop(seed, MP_REGIME_CACHE, NULL);
        double stream = run_loop(seed, MP_REGIME_STREAM, NULL);
        double chosen = run_loop(seed, -1, &changes);
        assert_true(chosen < 0.9 * fmin(cache, stream));
        assert_int_equal(changes, 5); /* six stretches of 500 steps */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regime_is_the_cheaper_one_on_a_steady_load),
        cmocka_unit_test(test_regime_settles_after_every_shift),
        cmocka_unit_test(test_regime_needs_patience_without_a_break),
        cmocka_unit_test(test_regime_averages_and_begins_anew_after_a_change),
        cmocka_unit_test(test_regime_goes_back_for_a_margin_only),
        cmocka_unit_test(test_regime_starts_and_stops_at_different_unions),
        cmocka_unit_test(test_regime_does_not_flap_under_noise),
        cmocka_unit_test(test_regime_is_not_moved_by_steps_of_nothing),
        cmocka_unit_test(test_regime_beats_either_alone_where_loads_alternate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
