/* Sizing working sets: by hand, and against trying every size in exact arithmetic. */
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "planning/rightsize.h"
#include "testing.h"

enum { MOST = 24, PARTS = 64 };

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Does a set of the m most used, and then unused ones, cover part / PARTS? All in whole numbers. */
static int covers(const uint32_t *sorted, uint64_t n, uint64_t m, uint64_t part)
{
    uint64_t choices = 0, once = 0, seen = 0, held = 0;
    for (uint64_t i = 0; i < n; i++) {
        choices += sorted[i];
        once += sorted[i] == 1;
        seen += sorted[i] > 0;
        held += i < m ? sorted[i] : 0;
    }
    uint64_t lost = n > seen ? once : 0;
    /* (1 - lost/choices) held/choices + lost/choices (m - seen)/(n - seen) >= part/PARTS */
    uint64_t known = (choices - lost) * held, extra = m > seen ? m - seen : 0;
    uint64_t spread = n > seen ? n - seen : 1;
    return (known * spread + lost * choices * extra) * PARTS >= part * choices * choices * spread;
}

static void test_rightsize_is_the_smallest_set_that_covers(void **state)
{
    (void)state;
    uint32_t rounds = getenv("MP_TEST_LONG") ? 200000 : 5000;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        uint64_t random = seed;
        uint32_t uses[MOST], sorted[MOST], n = 1 + bank_below(&random, MOST);
        uint32_t most = 1 + bank_below(&random, 12), part = 1 + bank_below(&random, PARTS - 1);
        uint64_t choices = 0;
        for (uint32_t i = 0; i < n; i++)
            choices += uses[i] = bank_below(&random, most + 1);
        memcpy(sorted, uses, sizeof uses);
        qsort(sorted, n, sizeof *sorted, descending);
        uint64_t m = 0;
        while (choices && !covers(sorted, n, m, part))
            m++;
        mp_working_set set;
        mp_rightsize(uses, n, (double)part / PARTS, &set);
        if (set.experts != m || set.choices != choices)
            fail_msg("seed %llu: %llu experts for %u/64, not %llu", (unsigned long long)seed,
                     (unsigned long long)set.experts, part, (unsigned long long)m);
    }
}

static void test_rightsize_counts_what_is_not_seen_yet(void **state)
{
    (void)state;
    /* 20 choices, two of them of experts used once: the chance of a new one is 1/10. The two most
     * used have 0.9 * 18/20 = 0.81, a third and a fourth 0.855 and 0.9, and the last two, which
     * nobody used, 0.05 each. */
    const uint32_t uses[] = {1, 0, 10, 8, 0, 1};
    const struct {
        double coverage;
        uint64_t experts;
    } cases[] = {{0, 0},    {0.01, 1}, {0.44, 1}, {0.46, 2}, {0.80, 2}, {0.82, 3},
                 {0.86, 4}, {0.91, 5}, {0.94, 5}, {0.96, 6}, {1, 6}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mp_working_set set;
        mp_rightsize(uses, 6, cases[i].coverage, &set);
        assert_int_equal(set.experts, cases[i].experts);
        assert_int_equal(set.choices, 20);
        assert_int_equal(set.seen, 4);
        assert_int_equal(set.singletons, 2);
        assert_float_equal(set.unseen, 0.1, 1e-12);
    }
}

static void test_rightsize_of_extremes(void **state)
{
    (void)state;
    const uint32_t none[3] = {0}, singles[4] = {1, 0, 1, 0}, all[] = {1, 1, 1},
                   large[] = {UINT32_MAX, UINT32_MAX, 1, UINT32_MAX};
    mp_working_set set;
    mp_rightsize(none, 3, 0.99, &set);
    assert_true(!set.experts && !set.choices && set.unseen == 0);
    mp_rightsize(singles, 4, 0.5, &set); /* all that is known is that it will be something new */
    assert_true(set.unseen == 1);
    assert_int_equal(set.experts, 3);
    mp_rightsize(all, 3, 1, &set); /* there is nothing new */
    assert_true(set.unseen == 0);
    assert_int_equal(set.experts, 3);
    mp_rightsize(large, 4, 0.99, &set);
    assert_int_equal(set.experts, 3);
    assert_int_equal(set.choices, 3ull * UINT32_MAX + 1);
    mp_rightsize(large, 4, 0.5, &set);
    assert_int_equal(set.experts, 2);
}

static void test_rightsize_per_layer_is_the_largest_layer(void **state)
{
    (void)state;
    const uint32_t uses[2][4] = {{97, 1, 1, 1}, {25, 25, 25, 25}};
    assert_int_equal(mp_rightsize_per_layer(uses[0], 1, 4, 0.9), 1);
    assert_int_equal(mp_rightsize_per_layer(uses[0], 2, 4, 0.9), 4);
    assert_int_equal(mp_rightsize_per_layer(uses[0], 2, 4, 0.7), 3);
    assert_int_equal(mp_rightsize_per_layer(uses[0], 0, 4, 0.7), 0);
}

static void test_rightsize_says_what_another_sample_finds(void **state)
{
    (void)state;
    const uint32_t uses[] = {5, 9, 5, 0, 5}, choices[] = {1, 10, 2, 7, 4}, none[5] = {0};
    const double held[] = {0, 10, 11, 13, 17, 24, 24};
    for (uint64_t cap = 0; cap < 5; cap++)
        assert_float_equal(mp_rightsize_covered(uses, choices, 5, cap), held[cap] / 24, 1e-12);
    assert_float_equal(mp_rightsize_covered(uses, choices, 5, 5), 1, 1e-12);
    assert_float_equal(mp_rightsize_covered(uses, choices, 5, 9), 1, 1e-12);
    assert_true(mp_rightsize_covered(uses, none, 5, 3) == 0);
}

static void test_rightsize_next_expert_precision_by_hand(void **state)
{
    (void)state;
    const uint32_t predicted[] = {4, 1, 7, 2}, routed[] = {2, 4, 9};
    mp_next_expert count = {0};
    assert_true(mp_next_expert_precision(&count) == 0);
    mp_next_expert_count(&count, predicted, 4, 3, routed, 3);
    assert_int_equal(count.predicted, 3);
    assert_int_equal(count.routed, 1);
    mp_next_expert_count(&count, predicted, 4, 8, routed, 3);
    assert_int_equal(count.predicted, 7);
    assert_int_equal(count.routed, 3);
    mp_next_expert_count(&count, predicted, 0, 8, routed, 3);
    assert_float_equal(mp_next_expert_precision(&count), 3 / 7.0, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rightsize_is_the_smallest_set_that_covers),
        cmocka_unit_test(test_rightsize_counts_what_is_not_seen_yet),
        cmocka_unit_test(test_rightsize_of_extremes),
        cmocka_unit_test(test_rightsize_per_layer_is_the_largest_layer),
        cmocka_unit_test(test_rightsize_says_what_another_sample_finds),
        cmocka_unit_test(test_rightsize_next_expert_precision_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
