/* Sizing working sets: by hand, and against trying every size in exact arithmetic. */
#include <math.h>
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

/* Draws from 1 / (i + 1) among the first `support` of `n`; returns each one's chance. */
static void draw(uint32_t support, uint32_t n, uint32_t draws, uint64_t *random, double *chances,
                 uint32_t *uses)
{
    double all = 0;
    for (uint32_t i = 0; i < support; i++)
        all += 1.0 / (i + 1);
    for (uint32_t i = 0; i < n; i++)
        chances[i] = i < support ? 1.0 / (i + 1) / all : 0;
    memset(uses, 0, n * sizeof *uses);
    while (draws--) {
        double at = (double)(bank_random(random) >> 11) / 0x1p53;
        uint32_t i = 0;
        while (i + 1 < support && (at -= chances[i]) >= 0)
            i++;
        uses[i]++;
    }
}

/* Against the chances that the draws had: neither the bound nor the set may fail in more than one round of 20. */
static void test_rightsize_surely_bounds_what_is_unseen(void **state)
{
    (void)state;
    enum { N = 96, ROUNDS = 300 };
    static const uint32_t supports[] = {24, 60, 96}, draws[] = {50, 500, 2500, 20000, 80000};
    for (size_t s = 0; s < sizeof supports / sizeof *supports; s++) {
        for (size_t d = 0; d < sizeof draws / sizeof *draws; d++) {
            uint32_t beyond = 0, uncovered = 0, sure = 0;
            for (uint64_t round = 1; round <= ROUNDS; round++) {
                uint64_t random = round * 7919;
                uint32_t uses[N];
                uint8_t marks[N] = {0};
                double chances[N], missing = 0, covered = 0;
                mp_working_set set;
                draw(supports[s], N, draws[d], &random, chances, uses);
                const bool is_sure = mp_rightsize_surely(uses, N, 0.9, &set);
                mp_rightsize_mark(uses, N, set.experts, marks);
                uint64_t distinct = 0, marked = 0;
                for (uint32_t i = 0; i < N; i++) {
                    distinct += uses[i] > 0;
                    marked += marks[i];
                    missing += uses[i] ? 0 : chances[i];
                    covered += marks[i] ? chances[i] : 0;
                }
                assert_int_equal(marked, is_sure ? set.experts : 0);
                assert_true(set.experts <= distinct && distinct <= supports[s]);
                sure += is_sure;
                beyond += missing > set.unseen;
                uncovered += is_sure && covered < 0.9;
            }
            assert_true(beyond * 20 <= ROUNDS && uncovered * 20 <= ROUNDS);
            assert_true(draws[d] >= 2151 || sure == 0); /* 0.1 = 4.637 / sqrt 2150.3 */
            assert_true(draws[d] < 20000 || sure == ROUNDS);
        }
    }
}

/* By trying every size. */
static void test_rightsize_surely_is_the_smallest_set_that_covers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed, m = 0;
        uint32_t uses[MOST], sorted[MOST], n = 2 + bank_below(&random, MOST - 1);
        double choices = 0, once = 0, held = 0, seen = 0,
               coverage = bank_below(&random, 100) / 100.0;
        for (uint32_t i = 0; i < n; i++) {
            uses[i] = bank_below(&random, 3) ? bank_below(&random, 60000) : bank_below(&random, 2);
            choices += uses[i];
            once += uses[i] == 1;
            seen += uses[i] > 0;
        }
        memcpy(sorted, uses, sizeof uses);
        qsort(sorted, n, sizeof *sorted, descending);
        const double unseen =
            (seen < n ? once / choices : 0) + (1 + sqrt(2)) * sqrt(log(40) / choices);
        while (m < n && (1 - unseen) * held / choices < coverage)
            held += sorted[m++];
        mp_working_set set;
        const bool sure = mp_rightsize_surely(uses, n, coverage, &set);
        if (!choices)
            assert_false(sure);
        else if (unseen < 1)
            assert_float_equal(set.unseen, unseen, 1e-8);
        if (choices && sure)
            assert_int_equal(set.experts, m);
        assert_int_equal(sure, choices && (1 - unseen) * held / choices >= coverage);
    }
}

static void test_rightsize_marks_the_most_used(void **state)
{
    (void)state;
    const uint32_t uses[] = {5, 9, 5, 0, 5, 0};
    static const uint8_t marked[][6] = {{0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0},
                                        {1, 1, 1, 0, 0, 0}, {1, 1, 1, 0, 1, 0}, {1, 1, 1, 0, 1, 0},
                                        {1, 1, 1, 0, 1, 0}, {1, 1, 1, 0, 1, 0}};
    for (uint64_t most = 0; most < 8; most++) {
        uint8_t marks[6] = {0};
        mp_rightsize_mark(uses, 6, most, marks);
        assert_memory_equal(marks, marked[most], 6);
    }
    assert_int_equal(mp_rightsize_seen(uses, 6, 9 / 24.0), 1);
    assert_int_equal(mp_rightsize_seen(uses, 6, 0.4), 2);
    assert_int_equal(mp_rightsize_seen(uses, 6, 1), 4);
    assert_int_equal(mp_rightsize_seen(uses, 6, 0), 0);
    assert_int_equal(mp_rightsize_seen(uses + 3, 1, 0.9), 0);
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
        cmocka_unit_test(test_rightsize_surely_bounds_what_is_unseen),
        cmocka_unit_test(test_rightsize_surely_is_the_smallest_set_that_covers),
        cmocka_unit_test(test_rightsize_marks_the_most_used),
        cmocka_unit_test(test_rightsize_per_layer_is_the_largest_layer),
        cmocka_unit_test(test_rightsize_says_what_another_sample_finds),
        cmocka_unit_test(test_rightsize_next_expert_precision_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
