/* Sampled reuse distances: at rate 1 those of the definition; below it what sampling may not get
 * wrong (the choice and number of sampled keys, circles, averages). How near whole curves come to
 * the exact ones is in tests/property/test_miss_curve.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "naive_stack.h"
#include "planning/reuse.h"
#include "planning/sampled.h"
#include "testing.h"

#define MAX_SET 64

static mp_sampled *sampled_open(uint32_t max_keys, double rate, uint64_t seed)
{
    const uint64_t bytes = mp_sampled_bytes(max_keys);
    assert_int_equal(bytes % 8, 0);
    void *state = malloc(bytes);
    assert_non_null(state);
    memset(state, 0xA5, bytes); /* init may assume nothing */
    return mp_sampled_init(state, max_keys, rate, seed);
}

/* Uses one key of size 1; true if it is sampled. */
static bool use_one(mp_sampled *sampled, uint64_t key, mp_sample *sample)
{
    const mp_sampled_use use = {.key = key, .size = 1};
    return mp_sampled_use_set(sampled, &use, 1, sample) == 1;
}

/* Keys as callers have them: small numbers, or a generation above an index. */
static uint64_t wide_key(uint64_t seed, uint32_t key)
{
    return seed % 2 ? key : (uint64_t)(key % 7) << 32 | key / 7;
}

static void draw_set(uint64_t *random, uint64_t seed, uint32_t keys, uint32_t n,
                     mp_sampled_use *set)
{
    const uint32_t drawn = n + bank_below(random, keys - n + 1); /* low keys more often */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j;
        do {
            set[i].key = wide_key(seed, bank_below(random, drawn));
            for (j = 0; j < i && set[j].key != set[i].key; j++)
                ;
        } while (j < i);
        set[i].size = seed % 4 < 2 ? 1 : 1 + bank_below(random, 1000);
    }
}

/* ---- Rate 1 ---- */

static void check_exact(uint64_t seed)
{
    uint64_t random = seed;
    const uint32_t keys = 16 + bank_below(&random, seed % 3 ? 40 : 300);
    const uint32_t most = keys < MAX_SET ? keys : MAX_SET;
    mp_sampled *sampled = sampled_open(keys, 1, seed);
    naive_stack naive = {0};
    for (uint32_t s = 0; s < 20 * keys; s++) {
        mp_sampled_use set[MAX_SET];
        mp_sample samples[MAX_SET];
        const uint32_t n = 1 + bank_below(&random, seed % 5 ? 4 : most);
        draw_set(&random, seed, keys, n, set);
        assert_int_equal(mp_sampled_use_set(sampled, set, n, samples), n);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t wanted = naive_stack_distance(&naive, set[i].key);
            if (samples[i].distance != wanted || samples[i].weight != set[i].size)
                fail_msg("seed %llu, set %u: distance %llu, not %llu; weight %g, not %u",
                         (unsigned long long)seed, s, (unsigned long long)samples[i].distance,
                         (unsigned long long)wanted, samples[i].weight, set[i].size);
        }
        for (uint32_t i = 0; i < n; i++)
            naive_stack_use(&naive, set[i].key, set[i].size);
        if (bank_below(&random, 4) == 0) {
            const uint64_t key = wide_key(seed, bank_below(&random, keys));
            mp_sampled_forget(sampled, key);
            naive_stack_forget(&naive, key);
        }
    }
    assert_true(mp_sampled_rate(sampled) == 1);
    free(sampled);
}

static void test_sampled_distances_at_rate_1_are_those_of_the_definition(void **state)
{
    (void)state;
    const uint64_t rounds = getenv("MP_TEST_LONG") ? 1000 : 100;
    for (uint64_t seed = 1; seed <= rounds; seed++)
        check_exact(seed);
}

static void test_sampled_sizes_of_any_width_add_up(void **state)
{
    (void)state;
    mp_sampled *sampled = sampled_open(16, 1, 1);
    mp_sampled_use set[16];
    mp_sample samples[16];
    for (uint32_t i = 0; i < 16; i++)
        set[i] = (mp_sampled_use){.key = UINT64_MAX - i, .size = UINT32_MAX};
    assert_int_equal(mp_sampled_use_set(sampled, set, 16, samples), 16);
    assert_int_equal(mp_sampled_use_set(sampled, set, 16, samples), 16);
    for (uint64_t i = 0; i < 16; i++)
        assert_true(samples[i].distance == (15 - i) * UINT32_MAX);
    free(sampled);
}

/* ---- Who is sampled ---- */

static void test_sampled_takes_all_uses_of_a_key_or_none(void **state)
{
    (void)state;
    enum { KEYS = 5000 };
    for (uint64_t seed = 0; seed < 10; seed++) {
        mp_sampled *sampled = sampled_open(KEYS, 0.2, seed);
        static bool first[KEYS];
        uint32_t taken = 0;
        mp_sample sample;
        for (uint32_t key = 0; key < KEYS; key++)
            taken += first[key] = use_one(sampled, key, &sample);
        for (uint32_t key = 0; key < KEYS; key++)
            assert_int_equal(use_one(sampled, key, &sample), first[key]);
        /* Five standard deviations of a binomial. */
        assert_true(fabs(taken - 0.2 * KEYS) < 5 * sqrt(KEYS * 0.2 * 0.8));
        assert_true(fabs(mp_sampled_rate(sampled) - 0.2) < 1e-15);
        free(sampled);
    }
}

static void test_sampled_seeds_take_different_keys(void **state)
{
    (void)state;
    enum { KEYS = 4000 };
    mp_sampled *a = sampled_open(KEYS, 0.5, 1), *b = sampled_open(KEYS, 0.5, 2);
    uint32_t both = 0;
    mp_sample sample;
    for (uint32_t key = 0; key < KEYS; key++) {
        const bool in_a = use_one(a, key, &sample);
        both += use_one(b, key, &sample) && in_a;
    }
    assert_in_range(both, KEYS / 4 - 150, KEYS / 4 + 150);
    free(a);
    free(b);
}

static void test_sampled_rate_falls_so_that_max_keys_fit(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {16, 17, 100, 1000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const uint32_t max_keys = sizes[k], keys = 50 * max_keys;
        mp_sampled *sampled = sampled_open(max_keys, 1, k);
        mp_sample sample;
        double rate = 1;
        for (uint32_t key = 0; key < keys; key++) {
            use_one(sampled, key, &sample);
            assert_true(mp_sampled_rate(sampled) <= rate);
            rate = mp_sampled_rate(sampled);
            assert_true(key >= max_keys || rate == 1);
        }
        /* A second round shows which keys are tracked. */
        uint32_t tracked = 0;
        for (uint32_t key = 0; key < keys; key++)
            tracked += use_one(sampled, key, &sample) && sample.distance != UINT64_MAX;
        assert_true(tracked <= max_keys);
        assert_true(tracked > max_keys / 2);
        assert_true(mp_sampled_rate(sampled) == rate);
        assert_true(fabs(tracked - rate * keys) < 5 * sqrt(rate * keys));
        free(sampled);
    }
}

/* Keys that are forgotten make room: the threshold has no reason to fall. */
static void test_sampled_forgotten_keys_take_no_room(void **state)
{
    (void)state;
    enum { LIVE = 30 };
    mp_sampled *sampled = sampled_open(LIVE, 1, 3);
    mp_sample sample;
    for (uint64_t key = 0; key < 5000; key++) {
        if (key >= LIVE)
            mp_sampled_forget(sampled, key - LIVE);
        assert_true(use_one(sampled, key, &sample));
        assert_true(sample.distance == UINT64_MAX);
    }
    assert_true(mp_sampled_rate(sampled) == 1);
    free(sampled);
}

static void test_sampled_sets_may_be_larger_than_max_keys(void **state)
{
    (void)state;
    enum { SET = 200 };
    mp_sampled *sampled = sampled_open(16, 1, 5);
    mp_sampled_use set[SET];
    mp_sample samples[SET];
    for (uint32_t i = 0; i < SET; i++)
        set[i] = (mp_sampled_use){.key = i, .size = 1 + i % 3};
    assert_int_equal(mp_sampled_use_set(sampled, set, SET, samples), SET);
    for (int round = 0; round < 50; round++) {
        const uint32_t n = mp_sampled_use_set(sampled, set, SET, samples);
        assert_in_range(n, 1, 16);
    }
    free(sampled);
}

/* ---- What is measured of a sample ---- */

/* If every key between two uses of a key is used once, the distance is the units used, whatever the
 * sample. */
static void test_sampled_circles_are_measured_exactly(void **state)
{
    (void)state;
    enum { KEYS = 2000 };
    static const double rates[] = {0.01, 0.1, 0.5, 1};
    for (size_t r = 0; r < 4; r++) {
        mp_sampled *sampled = sampled_open(64 + KEYS, rates[r], r);
        uint64_t total = 0;
        uint32_t seen = 0;
        for (uint32_t key = 0; key < KEYS; key++)
            total += 1 + key % 5;
        for (uint32_t use = 0; use < 8 * KEYS; use++) {
            const mp_sampled_use one = {.key = use % KEYS, .size = 1 + use % KEYS % 5};
            mp_sample sample;
            if (mp_sampled_use_set(sampled, &one, 1, &sample) == 0)
                continue;
            assert_true(sample.distance == (use < KEYS ? UINT64_MAX : total - one.size));
            seen++;
        }
        assert_true(seen >= 8);
        free(sampled);
    }
}

/* In the first round the threshold falls again and again; uses by keys that were dropped then are
 * no longer the sample's in the second. */
static void test_sampled_circles_are_measured_across_a_falling_threshold(void **state)
{
    (void)state;
    enum { KEYS = 5000 };
    for (uint64_t seed = 0; seed < 10; seed++) {
        mp_sampled *sampled = sampled_open(250, 1, seed);
        double sum = 0;
        uint32_t n = 0;
        for (uint32_t use = 0; use < 2 * KEYS; use++) {
            mp_sample sample;
            if (!use_one(sampled, use % KEYS, &sample) || use < KEYS)
                continue;
            assert_true(sample.distance != UINT64_MAX);
            sum += (double)sample.distance;
            n++;
        }
        assert_true(n > 125);
        assert_true(fabs(sum / n / (KEYS - 1) - 1) < 0.05);
        free(sampled);
    }
}

typedef struct totals {
    double distance, uses; /* of samples that are no first sights, weighted */
    double weight, units;
} totals;

/* Keys with a few busy ones; their sizes fixed. */
static void add_stream(uint64_t seed, double rate, uint32_t max_keys, uint32_t sample_seed,
                       totals *sums)
{
    uint64_t random = seed;
    mp_sampled *sampled = sampled_open(max_keys, rate, sample_seed);
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t key = bank_below(&random, 1 + bank_below(&random, 400));
        const mp_sampled_use use = {.key = key, .size = 1 + key % 4};
        mp_sample sample;
        sums->units += use.size;
        if (mp_sampled_use_set(sampled, &use, 1, &sample) == 0)
            continue;
        sums->weight += sample.weight;
        if (sample.distance == UINT64_MAX)
            continue;
        sums->distance += sample.weight * (double)sample.distance;
        sums->uses += sample.weight;
    }
    free(sampled);
}

/* In any draw of the sample weights add up to the units used, and over many draws the mean distance
 * is the exact one. */
static void test_sampled_is_right_on_average(void **state)
{
    (void)state;
    static const struct {
        double rate;
        uint32_t max_keys;
    } cases[] = {{0.25, 500}, {1, 100}};
    totals exact = {0};
    add_stream(1, 1, 400, 0, &exact);
    assert_true(exact.weight == exact.units);
    const double mean = exact.distance / exact.uses;
    for (size_t k = 0; k < 2; k++) {
        totals sums = {0};
        for (uint32_t draw = 0; draw < 40; draw++) {
            totals one = {0};
            add_stream(1, cases[k].rate, cases[k].max_keys, draw, &one);
            assert_true(fabs(one.weight / one.units - 1) < 0.06);
            sums.distance += one.distance;
            sums.uses += one.uses;
            sums.weight += one.weight;
            sums.units += one.units;
        }
        print_message("mean distance %.1f, exactly %.1f; weights %.3f of the units\n",
                      sums.distance / sums.uses, mean, sums.weight / sums.units);
        assert_true(fabs(sums.distance / sums.uses / mean - 1) < 0.05);
        assert_true(fabs(sums.weight / sums.units - 1) < 0.03);
    }
}

/* Sequences that grow, end and are forgotten: weights still add up. */
static void test_sampled_weights_survive_keys_that_come_and_go(void **state)
{
    (void)state;
    double weight = 0, units = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint64_t random = seed, next = 64;
        uint64_t keys[64];
        uint32_t sizes[64];
        mp_sampled *sampled = sampled_open(32, 0.5, seed);
        for (uint32_t i = 0; i < 64; i++)
            keys[i] = i, sizes[i] = 1;
        for (uint32_t i = 0; i < 20000; i++) {
            const uint32_t k = bank_below(&random, 64);
            const mp_sampled_use use = {.key = keys[k], .size = sizes[k]++};
            mp_sample sample;
            units += use.size;
            if (mp_sampled_use_set(sampled, &use, 1, &sample)) {
                assert_true(sample.weight >= use.size && isfinite(sample.weight));
                weight += sample.weight;
            }
            if (sizes[k] > 60) {
                mp_sampled_forget(sampled, keys[k]);
                keys[k] = next++;
                sizes[k] = 1;
            }
        }
        for (uint32_t i = 0; i < 64; i++)
            mp_sampled_forget(sampled, keys[i]);
        free(sampled);
    }
    print_message("weights %.3f of the units\n", weight / units);
    assert_true(fabs(weight / units - 1) < 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampled_distances_at_rate_1_are_those_of_the_definition),
        cmocka_unit_test(test_sampled_sizes_of_any_width_add_up),
        cmocka_unit_test(test_sampled_takes_all_uses_of_a_key_or_none),
        cmocka_unit_test(test_sampled_seeds_take_different_keys),
        cmocka_unit_test(test_sampled_rate_falls_so_that_max_keys_fit),
        cmocka_unit_test(test_sampled_forgotten_keys_take_no_room),
        cmocka_unit_test(test_sampled_sets_may_be_larger_than_max_keys),
        cmocka_unit_test(test_sampled_circles_are_measured_exactly),
        cmocka_unit_test(test_sampled_circles_are_measured_across_a_falling_threshold),
        cmocka_unit_test(test_sampled_is_right_on_average),
        cmocka_unit_test(test_sampled_weights_survive_keys_that_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
