/* Rates against sorted windows, and against stalls and shifts. */

#include <math.h>
#include <stdlib.h>

#include "bank_model.h"
#include "planning/rate.h"
#include "testing.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double naive_median(const double *values, uint32_t n)
{
    double sorted[MP_RATE_WINDOW];
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = values[i];
    qsort(sorted, n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void expect_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fabs(expected))
        fail_msg("%.17g, expected %.17g", got, expected);
}

static void test_rate_knows_nothing_before_the_first_sample(void **state)
{
    (void)state;
    mp_rate rate = {.count = 0};
    expect_near(mp_rate_ns(&rate, 12.5), 12.5);
    assert_true(mp_rate_spread(&rate) == 0);
    assert_int_equal(mp_rate_per_s(&rate), 0);
    mp_rate_add(&rate, 0, 100);
    mp_rate_add(&rate, -4, 100);
    mp_rate_add(&rate, 100, 0);
    mp_rate_add(&rate, 100, -1);
    mp_rate_add(&rate, -4, -100);
    mp_rate_add(&rate, NAN, 100);
    mp_rate_add(&rate, 100, NAN);
    mp_rate_add(&rate, 100, INFINITY);
    mp_rate_add(&rate, INFINITY, 100);
    assert_int_equal(rate.count, 0);
    expect_near(mp_rate_ns(&rate, 7), 7);
}

static void test_rate_is_the_median_per_unit_by_hand(void **state)
{
    (void)state;
    mp_rate rate = {.count = 0};
    mp_rate_add(&rate, 1000, 40); /* 0.04 ns a byte: 25 GB/s */
    expect_near(mp_rate_ns(&rate, 1), 0.04);
    assert_int_equal(mp_rate_per_s(&rate), 25000000000);
    mp_rate_add(&rate, 500, 30); /* 0.06 */
    expect_near(mp_rate_ns(&rate, 1), 0.05);
    assert_int_equal(mp_rate_per_s(&rate), 20000000000);
    mp_rate_add(&rate, 10, 1); /* 0.1 */
    expect_near(mp_rate_ns(&rate, 1), 0.06);
    /* |0.04 - 0.06|, 0, |0.1 - 0.06| */
    expect_near(mp_rate_spread(&rate), 0.02);
    mp_rate slow = {.count = 0}, fast = {.count = 0};
    mp_rate_add(&slow, 3, 2e9); /* one and a half a second */
    assert_int_equal(mp_rate_per_s(&slow), 2);
    mp_rate_add(&fast, 1e30, 1);
    assert_true(mp_rate_per_s(&fast) == UINT64_MAX);
}

static void test_rate_is_that_of_its_window_sorted(void **state)
{
    (void)state;
    double ever[400];
    mp_rate rate = {.count = 0};
    uint64_t random = 17;
    for (uint32_t i = 0; i < 400; i++) {
        double units = 1 + bank_below(&random, 50), ns = 1 + bank_below(&random, 10000);
        ever[i] = ns / units;
        mp_rate_add(&rate, units, ns);
        uint32_t n = i + 1 < MP_RATE_WINDOW ? i + 1 : MP_RATE_WINDOW;
        const double *window = &ever[i + 1 - n];
        double middle = naive_median(window, n), apart[MP_RATE_WINDOW];
        for (uint32_t k = 0; k < n; k++)
            apart[k] = fabs(window[k] - middle);
        expect_near(mp_rate_ns(&rate, 0), middle);
        expect_near(mp_rate_spread(&rate), naive_median(apart, n));
        assert_int_equal(mp_rate_per_s(&rate), llround(1e9 / mp_rate_ns(&rate, 0)));
    }
}

static void test_rate_is_not_moved_by_stalls(void **state)
{
    (void)state;
    mp_rate rate = {.count = 0};
    uint64_t random = 5;
    for (uint32_t i = 0; i < 500; i++) {
        bool stalled = i % 7 == 0 || i % 5 == 0; /* about a third, by up to a thousand times */
        double ns = 99 + bank_below(&random, 3);
        mp_rate_add(&rate, 1, stalled ? ns * (2 + bank_below(&random, 999)) : ns);
        if (i > MP_RATE_WINDOW)
            assert_true(mp_rate_ns(&rate, 0) >= 99 && mp_rate_ns(&rate, 0) <= 101 &&
                        mp_rate_spread(&rate) <= 2);
    }
}

static void test_rate_follows_a_shift_when_half_its_window_is_new(void **state)
{
    (void)state;
    mp_rate rate = {.count = 0};
    for (uint32_t i = 0; i < 100; i++)
        mp_rate_add(&rate, 1, 10);
    for (uint32_t i = 0; i < MP_RATE_WINDOW; i++) {
        mp_rate_add(&rate, 1, 30);
        expect_near(mp_rate_ns(&rate, 0), i < MP_RATE_WINDOW / 2 ? 10 : 30);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_knows_nothing_before_the_first_sample),
        cmocka_unit_test(test_rate_is_the_median_per_unit_by_hand),
        cmocka_unit_test(test_rate_is_that_of_its_window_sorted),
        cmocka_unit_test(test_rate_is_not_moved_by_stalls),
        cmocka_unit_test(test_rate_follows_a_shift_when_half_its_window_is_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
