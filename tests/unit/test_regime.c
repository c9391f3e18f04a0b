/* The choice of regime against costs worked out by hand and from the definition, under steady loads,
 * noise and shifts, and in a closed loop with a cache. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "planning/regime.h"
#include "testing.h"

/* ---- Stalls ---- */

static void test_regime_stalls_are_what_was_not_brought_in_time(void **state)
{
    (void)state;
    static const struct {
        mp_regime_ahead ahead;
        double computing, stalls;
    } cases[] = {
        {{.routed = 5, .again = 3, .before = 4}, 2, 3.5}, /* half of 4 in time, of use or not */
        {{.routed = 5, .again = 3, .before = 4}, 4, 2},   /* all of them */
        {{.routed = 5, .again = 3, .before = 4}, 100, 2}, /* the others are not foreseen */
        {{.routed = 5, .again = 3, .before = 4}, 0, 5},   /* nothing is */
        {{.routed = 5, .again = 3, .before = 4, .there = true}, 0, 2},
        {{.routed = 5, .again = 3, .before = 4, .rest = 6, .all = true}, 6, 2.5}, /* 6 of 12 */
        {{.routed = 5, .again = 3, .before = 4, .rest = 6, .all = true}, 12, 0},
        {{.routed = 5}, 100, 5}, /* the layer's first turn */
        {{.before = 4}, 0, 0},   /* all routed ones are kept */
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(fabs(mp_regime_streamed_stalls(&cases[i].ahead, cases[i].computing) -
                         cases[i].stalls) < 1e-12);
}

static void test_regime_calls_seven_eighths_dense(void **state)
{
    (void)state;
    assert_true(mp_regime_is_dense(7, 8) && mp_regime_is_dense(112, 128));
    assert_false(mp_regime_is_dense(6, 8) || mp_regime_is_dense(111, 128));
}

/* ---- Steady ---- */

static mp_regime_turn random_turn(uint64_t *random)
{
    return (mp_regime_turn){.stalls = bank_below(random, 100),
                            .other = bank_below(random, 100),
                            .computing = bank_below(random, 300),
                            .slots = 1 + bank_below(random, 3000)};
}

/* On the same turn again and again: a change when, and only when, what the other one saves beyond
 * the margin has added up to more than a change costs. */
static void test_regime_changes_when_the_regret_exceeds_the_price(void **state)
{
    (void)state;
    uint32_t changed = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_balance balance = {.now = bank_below(&random, 2)};
        mp_regime before = balance.now;
        mp_regime_defaults(&config);
        mp_regime_turn turn = random_turn(&random);
        double gain = turn.stalls - turn.other - config.margin * (turn.computing + turn.stalls);
        uint32_t due = gain > 0;
        for (double sum = gain; due > 0 && sum <= config.change * turn.slots; sum += gain)
            due++;
        for (uint32_t i = 1; i <= 4000 && i != due; i++)
            if (mp_regime_update(&balance, &config, &turn) != before)
                fail_msg("seed %llu: changed after %u turns, not %u", (unsigned long long)seed, i,
                         due);
        if (due == 0 || due > 4000)
            continue;
        if (mp_regime_update(&balance, &config, &turn) == before)
            fail_msg("seed %llu: not changed after %u turns", (unsigned long long)seed, due);
        assert_true(balance.regret == 0);
        changed++;
    }
    assert_in_range(changed, 1000, 2000);
}

/* What a choice loses against either regime alone: for each stay in the other one a change's price,
 * the turn that exceeded it, and the margin of the turns since the regret was last nothing. */
static void test_regime_never_loses_more_than_the_price_of_its_changes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_balance balance = {.regret = 0};
        double chosen = 0, forced[2] = {0}, largest = 0, margins = 0;
        double slots = 1 + bank_below(&random, 1000);
        uint32_t changes = 0, length = 1 + bank_below(&random, 40);
        mp_regime_defaults(&config);
        for (uint32_t i = 0; i < 3000; i++) {
            bool odd = i / length % 2;
            double costs[2] = {bank_below(&random, odd ? 40 : 90),
                               bank_below(&random, odd ? 90 : 40)};
            mp_regime_turn turn = {.stalls = costs[balance.now],
                                   .other = costs[!balance.now],
                                   .computing = bank_below(&random, 50),
                                   .slots = slots};
            chosen += turn.stalls;
            forced[0] += costs[0];
            forced[1] += costs[1];
            largest = fmax(largest, fabs(costs[0] - costs[1]));
            margins += config.margin * (turn.computing + turn.stalls);
            mp_regime before = balance.now;
            changes += mp_regime_update(&balance, &config, &turn) != before;
        }
        double lost = (changes / 2 + 1) * (config.change * slots + largest) + margins;
        if (chosen > fmin(forced[0], forced[1]) + lost)
            fail_msg("seed %llu: %g against %g and %g, %u changes", (unsigned long long)seed,
                     chosen, forced[0], forced[1], changes);
    }
}

static void test_regime_leaves_what_is_as_good_but_for_the_margin(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_defaults(&config);
    for (uint32_t now = 0; now < 2; now++) {
        mp_regime_balance balance = {.now = now};
        mp_regime_turn turn = {.stalls = 20, .computing = 80, .slots = 40};
        turn.other = 20 - 100 * config.margin * 0.99;
        for (uint32_t i = 0; i < 100000; i++)
            assert_int_equal(mp_regime_update(&balance, &config, &turn), now);
        turn.other = 20 - 100 * config.margin * 1.01;
        uint32_t i = 0;
        while (mp_regime_update(&balance, &config, &turn) == now && i < 1000)
            i++;
        assert_in_range(i, 490, 510); /* 10 loads, at 0.02 a turn */
    }
}

/* The two are equal, but for noise. */
static void test_regime_does_not_flap_under_noise(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t random = seed;
        mp_regime_config config;
        mp_regime_balance balance = {.regret = 0};
        uint32_t changes = 0;
        mp_regime_defaults(&config);
        for (uint32_t i = 0; i < 5000; i++) {
            mp_regime before = balance.now;
            mp_regime_turn turn = {.stalls = 16 + bank_below(&random, 9),
                                   .other = 16 + bank_below(&random, 9),
                                   .computing = 50,
                                   .slots = 100};
            changes += mp_regime_update(&balance, &config, &turn) != before;
        }
        if (changes > 25)
            fail_msg("seed %llu: %u changes", (unsigned long long)seed, changes);
    }
}

static void test_regime_is_not_moved_by_turns_without_costs(void **state)
{
    (void)state;
    mp_regime_config config;
    mp_regime_balance balance = {.regret = 3};
    mp_regime_turn endless = {.stalls = 9, .computing = INFINITY, .slots = 4}, lost = {.slots = 4};
    lost.other = NAN;
    mp_regime_defaults(&config);
    assert_int_equal(mp_regime_update(&balance, &config, &endless), MP_REGIME_CACHE);
    assert_int_equal(mp_regime_update(&balance, &config, &lost), MP_REGIME_CACHE);
    assert_true(balance.regret == 3);
}

/* ---- A closed loop ---- */

#define LOOP_EXPERTS 64u

/* One layer: with an LRU cache, or with some experts kept and the others streamed each turn. */
typedef struct loop {
    uint32_t order[LOOP_EXPERTS]; /* by recency, the newest first */
    uint32_t capacity, held;
    bool last[LOOP_EXPERTS]; /* used by the last turn */
    double computing;
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

/* A turn of `tokens` tokens, each with two experts out of the first `width` ones: its stalls under
 * either regime. Streaming keeps the last `capacity` experts. */
static void loop_turn(loop *l, uint64_t *random, uint32_t tokens, uint32_t width, double *costs)
{
    bool routed[LOOP_EXPERTS] = {false};
    mp_regime_ahead ahead = {.routed = 0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2 * tokens; i++)
        routed[bank_below(random, width)] = true;
    costs[MP_REGIME_CACHE] = 0;
    for (uint32_t e = 0; e < LOOP_EXPERTS; e++) {
        bool passes = e < LOOP_EXPERTS - l->capacity;
        if (routed[e])
            costs[MP_REGIME_CACHE] += !touch(l, e);
        n += routed[e];
        ahead.routed += routed[e] && passes;
        ahead.again += routed[e] && l->last[e] && passes;
        ahead.before += l->last[e] && passes;
        ahead.rest += !routed[e] && !l->last[e] && passes;
        l->last[e] = routed[e];
    }
    ahead.all = mp_regime_is_dense(n, LOOP_EXPERTS);
    costs[MP_REGIME_STREAM] = mp_regime_streamed_stalls(&ahead, l->computing);
}

/* Narrow and wide batches by turns; `forced` < 0: by the rule. */
static double run_loop(uint64_t seed, int forced, uint32_t *changes)
{
    uint64_t random = seed;
    mp_regime_config config;
    mp_regime_balance balance = {.regret = 0};
    mp_regime_defaults(&config);
    loop l = {.capacity = 24, .computing = 30};
    double total = 0, costs[2];
    for (uint32_t i = 0; i < 3000; i++) {
        bool wide = i / 500 % 2;
        loop_turn(&l, &random, wide ? 200 : 4, wide ? LOOP_EXPERTS : 20, costs);
        mp_regime now = forced < 0 ? balance.now : (mp_regime)forced;
        mp_regime_turn turn = {.stalls = costs[now],
                               .other = costs[!now],
                               .computing = l.computing,
                               .slots = l.capacity};
        total += costs[now] + l.computing;
        if (forced < 0)
            *changes += mp_regime_update(&balance, &config, &turn) != now;
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
        assert_true(chosen < 0.95 * fmin(cache, stream));
        assert_int_equal(changes, 5); /* six stretches of 500 turns */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regime_stalls_are_what_was_not_brought_in_time),
        cmocka_unit_test(test_regime_calls_seven_eighths_dense),
        cmocka_unit_test(test_regime_changes_when_the_regret_exceeds_the_price),
        cmocka_unit_test(test_regime_never_loses_more_than_the_price_of_its_changes),
        cmocka_unit_test(test_regime_leaves_what_is_as_good_but_for_the_margin),
        cmocka_unit_test(test_regime_does_not_flap_under_noise),
        cmocka_unit_test(test_regime_is_not_moved_by_turns_without_costs),
        cmocka_unit_test(test_regime_beats_either_alone_where_loads_alternate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
