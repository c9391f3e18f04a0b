/* What serving measures and how requests are made to fit, against sums done another way. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/sampler.h"
#include "serve/arms.h"
#include "serve/arrivals.h"
#include "serve/times.h"
#include "testing.h"

static uint64_t random_state = 7;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

/* The least of the values that at least `part` of them do not exceed. */
static double searched(const double *values, size_t n, double part)
{
    double best = INFINITY;
    for (size_t i = 0; i < n; i++) {
        size_t below = 0;
        for (size_t k = 0; k < n; k++)
            below += values[k] <= values[i];
        if ((double)below >= part * (double)n && values[i] < best)
            best = values[i];
    }
    return best;
}

static void test_times_are_ranked(void **state)
{
    (void)state;
    for (size_t n = 1; n < 130; n += 1 + n / 9) {
        double values[130], copy[130], sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += values[i] = draw(40);
        memcpy(copy, values, sizeof copy);
        spread s = spread_of(copy, n);
        assert_int_equal(s.n, n);
        assert_true(fabs(s.mean - sum / (double)n) < 1e-9);
        assert_true(s.p50 == searched(values, n, 0.5));
        assert_true(s.p90 == searched(values, n, 0.9));
        assert_true(s.p99 == searched(values, n, 0.99));
    }
    assert_true(spread_of(NULL, 0).p99 == 0);
}

static void test_times_count_from_arrivals(void **state)
{
    (void)state;
    const uint64_t ms = 1000000;
    const request_times requests[] = {
        {.arrival_ns = 10 * ms, .first_ns = 15 * ms, .last_ns = 35 * ms, .tokens = 5, .done = true},
        {.arrival_ns = 20 * ms, .first_ns = 90 * ms, .last_ns = 90 * ms, .tokens = 1, .done = true},
        {.arrival_ns = 30 * ms, .first_ns = 31 * ms, .last_ns = 99 * ms, .tokens = 9}};
    gap_list gaps = {0};
    times t;
    assert_true(gaps_add(&gaps, 3 * ms) && gaps_add(&gaps, 4 * ms));
    assert_true(times_sum(requests, 3, &gaps, &t));
    assert_int_equal(t.ttft.n, 2); /* the third is not done */
    assert_true(t.ttft.p50 == 5 && t.ttft.p99 == 70);
    assert_int_equal(t.tpot.n, 1); /* one token has nothing after it */
    assert_true(t.tpot.p99 == 5);
    assert_true(t.turn.p50 == 25 && t.turn.p99 == 70);
    assert_true(t.gap.p50 == 3 && t.gap.p99 == 4);
    free(gaps.ms);
}

static void test_arrivals_fit_the_model(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        uint32_t asked = 1 + draw(5000), answer = 1 + draw(2000), most = 2 + draw(1200);
        double scale = draw(100) / 50.0;
        uint32_t p = asked, o = answer;
        arrivals_fit(&p, &o, scale, most);
        assert_true(p >= 1 && o >= 1 && p + o <= most);
        double wanted_p = fmax(1, round(asked * scale)), wanted_o = fmax(1, round(answer * scale));
        if (wanted_p + wanted_o <= most) {
            assert_true(p == wanted_p && o == wanted_o);
        } else {
            assert_int_equal(p + o, most);
            assert_true(p == wanted_p || o == 1); /* the answer gives way first */
        }
    }
}

static void test_arrivals_come_at_their_rate(void **state)
{
    (void)state;
    enum { N = 20000 };
    sampler_state random = sampler_seed(3, 0);
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        double s = (double)arrivals_gap_ns(sampler_random(&random), 4) / 1e9;
        sum += s;
        squares += s * s;
    }
    double mean = sum / N;
    assert_true(fabs(mean - 0.25) < 0.01);
    /* an exponential distribution's deviation is its mean */
    assert_true(fabs(sqrt(squares / N - mean * mean) - mean) < 0.01);
    assert_true(arrivals_gap_ns(0, 1) > 0 && arrivals_gap_ns(UINT64_MAX, 1) == 0);
}

static void test_arms_are_read(void **state)
{
    (void)state;
    const flag self = {.name = "--split"};
    arm_list list;
    assert_int_equal(arms_read(&self, "50-50,fixed:70,mv-wsa", &list), RUN_OK);
    assert_int_equal(list.n, 3);
    assert_int_equal(list.arms[0].percent, 50);
    assert_int_equal(list.arms[1].kind, ARM_FIXED);
    assert_int_equal(list.arms[1].percent, 70);
    assert_string_equal(list.arms[1].name, "fixed:70");
    assert_int_equal(list.arms[2].kind, ARM_MV_WSA);
    static const char *const bad[] = {
        "",
        ",",
        "mv-wsa,",
        "mv_wsa",
        "fixed:0",
        "fixed:100",
        "fixed:5x",
        "flux,flux",
        "fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,fixed:6,fixed:7,fixed:8,flux",
        "a-name-that-is-longer-than-any-arm-has"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(arms_read(&self, bad[i], &list), RUN_REFUSED);
    assert_int_equal(list.n, 3); /* as it was */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_are_ranked),
        cmocka_unit_test(test_times_count_from_arrivals),
        cmocka_unit_test(test_arrivals_fit_the_model),
        cmocka_unit_test(test_arrivals_come_at_their_rate),
        cmocka_unit_test(test_arms_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
