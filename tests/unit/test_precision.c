/* Which experts get the high precision: the paper's equations by hand, and the choice against a
 * definition that sorts everything. */
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "planning/hotness.h"
#include "testing.h"

#define MOST 24u

/* ---- by hand ---- */

static void test_precision_hotness_is_the_moving_average_of_counts(void **state)
{
    (void)state;
    const mp_precision_law law = {.alpha = 0.75};
    double hotness[3] = {0, 8, 2};
    uint32_t counts[3] = {4, 0, 6};
    mp_precision_age(&law, hotness, counts, 3);
    assert_true(hotness[0] == 1.0); /* 0.75 * 0 + 0.25 * 4 */
    assert_true(hotness[1] == 6.0); /* 0.75 * 8 + 0.25 * 0 */
    assert_true(hotness[2] == 3.0); /* 0.75 * 2 + 0.25 * 6 */
    for (int e = 0; e < 3; e++)
        assert_int_equal(counts[e], 0);
    mp_precision_age(&law, hotness, counts, 3);
    assert_true(hotness[1] == 4.5);
}

static void test_precision_without_memory_hotness_is_the_count(void **state)
{
    (void)state;
    const mp_precision_law law = {.alpha = 0};
    double hotness[2] = {100, 100};
    uint32_t counts[2] = {7, 0};
    mp_precision_age(&law, hotness, counts, 2);
    assert_true(hotness[0] == 7 && hotness[1] == 0);
}

static void test_precision_a_place_is_taken_only_past_the_margin(void **state)
{
    (void)state;
    mp_precision_law law = {.margin = 0.1, .floor = 1};
    const bool high[4] = {true, false, true, false};
    uint32_t order[4];
    mp_precision_swap swaps[2];
    double even[4] = {10, 12, 20, 5}; /* 12 is not above 1.1 * 10 + 1 */
    assert_int_equal(mp_precision_select(&law, even, high, 4, 2, order, swaps), 0);
    even[1] = 12.5;
    assert_int_equal(mp_precision_select(&law, even, high, 4, 2, order, swaps), 1);
    assert_int_equal(swaps[0].in, 1);
    assert_int_equal(swaps[0].out, 0);
    law.floor = 2;
    assert_int_equal(mp_precision_select(&law, even, high, 4, 2, order, swaps), 0);
}

static void test_precision_free_places_are_filled_first_and_nobody_cold_gets_one(void **state)
{
    (void)state;
    const mp_precision_law law = {0};
    const bool high[5] = {true, false, false, false, false};
    const double hotness[5] = {1, 0, 3, 3, 0};
    uint32_t order[5];
    mp_precision_swap swaps[4];
    uint32_t n = mp_precision_select(&law, hotness, high, 5, 2, order, swaps);
    assert_int_equal(n, 2);
    assert_int_equal(swaps[0].in, 2); /* the lower of two that are as hot */
    assert_int_equal(swaps[0].out, UINT32_MAX);
    assert_int_equal(swaps[1].in, 3);
    assert_int_equal(swaps[1].out, 0);
    n = mp_precision_select(&law, hotness, high, 5, 4, order, swaps);
    assert_int_equal(n, 2); /* two places stay empty: nobody was ever selected */
}

/* ---- against a definition ---- */

/* The set after a decision, by its definition: walk through everything outside from the hottest
 * on, and each time look for the coldest that was inside from the start. */
static uint32_t define(const mp_precision_law *law, const double *hotness, const bool *high,
                       uint32_t experts, uint32_t n_hi, mp_precision_swap *out)
{
    uint32_t outside[MOST], inside[MOST], n_out = 0, n_in = 0, n = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t *list = high[e] ? inside : outside, *count = high[e] ? &n_in : &n_out, at = *count;
        while (at > 0 && (high[e] ? hotness[list[at - 1]] > hotness[e]
                                  : hotness[list[at - 1]] < hotness[e])) {
            list[at] = list[at - 1];
            at--;
        }
        list[at] = e;
        (*count)++;
    }
    uint32_t places = n_hi > n_in ? n_hi - n_in : 0;
    for (uint32_t i = 0; i < n_out && n < n_hi; i++) {
        bool empty = i < places;
        if (!empty && i - places >= n_in)
            break;
        uint32_t loser = empty ? UINT32_MAX : inside[i - places];
        double bar = law->floor + (empty ? 0 : hotness[loser] + law->margin * hotness[loser]);
        if (hotness[outside[i]] <= bar)
            break;
        out[n++] = (mp_precision_swap){.in = outside[i], .out = loser};
    }
    return n;
}

static void test_precision_choices_match_their_definition(void **state)
{
    (void)state;
    uint32_t rounds = getenv("MP_TEST_LONG") ? 200000 : 20000;
    uint64_t random = 20240607;
    for (uint32_t round = 0; round < rounds; round++) {
        /* quarters, and margins of quarters: both sides of each comparison are exact */
        const mp_precision_law law = {.margin = (double)bank_below(&random, 4) / 4,
                                      .floor = (double)bank_below(&random, 3)};
        uint32_t experts = 1 + bank_below(&random, MOST);
        uint32_t n_hi = bank_below(&random, experts + 1), size = 0, order[MOST];
        double hotness[MOST];
        bool high[MOST], after[MOST];
        mp_precision_swap swaps[MOST], expected[MOST];
        for (uint32_t e = 0; e < experts; e++) {
            hotness[e] = (double)bank_below(&random, 40) / 4;
            high[e] = size < n_hi && bank_below(&random, 2);
            size += high[e];
        }
        uint32_t n = mp_precision_select(&law, hotness, high, experts, n_hi, order, swaps);
        uint32_t m = define(&law, hotness, high, experts, n_hi, expected);
        assert_int_equal(n, m);
        assert_memory_equal(swaps, expected, n * sizeof *swaps);
        memcpy(after, high, sizeof after);
        for (uint32_t i = 0; i < n; i++) {
            assert_false(after[swaps[i].in]);
            after[swaps[i].in] = true;
            size++;
            if (swaps[i].out == UINT32_MAX)
                continue;
            assert_true(after[swaps[i].out]);
            after[swaps[i].out] = false;
            size--;
        }
        assert_true(size <= n_hi);
    }
}

/* ---- what fits ---- */

static void test_precision_capacity_is_the_most_that_fits(void **state)
{
    (void)state;
    uint64_t random = 77;
    for (uint32_t round = 0; round < 5000; round++) {
        uint32_t layers = 1 + bank_below(&random, 6);
        uint32_t experts = 1 + bank_below(&random, 20);
        uint32_t spare = bank_below(&random, 4);
        uint64_t lo = 1 + bank_below(&random, 50);
        uint64_t hi = lo + 1 + bank_below(&random, 200);
        uint64_t bytes = bank_below(&random, 40000);
        bool always = bank_below(&random, 2);
        uint32_t most = UINT32_MAX;
        for (uint32_t n = 0; n <= experts; n++) {
            uint64_t low = always ? experts : experts - n + spare, used = 0;
            for (uint32_t l = 0; l < layers; l++)
                used += low * lo + n * hi;
            if (used <= bytes)
                most = n;
        }
        assert_int_equal(mp_precision_capacity(bytes, layers, experts, hi, lo, always, spare),
                         most);
    }
    /* Products past 64 bits */
    assert_int_equal(mp_precision_capacity(UINT64_MAX, 65536, 65536, UINT64_MAX / 2, UINT64_MAX / 4,
                                           true, 0),
                     UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precision_hotness_is_the_moving_average_of_counts),
        cmocka_unit_test(test_precision_without_memory_hotness_is_the_count),
        cmocka_unit_test(test_precision_a_place_is_taken_only_past_the_margin),
        cmocka_unit_test(test_precision_free_places_are_filled_first_and_nobody_cold_gets_one),
        cmocka_unit_test(test_precision_choices_match_their_definition),
        cmocka_unit_test(test_precision_capacity_is_the_most_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
