/* What decode steps compute and use by the number of their tokens, against lists of all samples. */
#include <math.h>
#include <stdlib.h>

#include "bank_model.h"
#include "planning/pace.h"
#include "testing.h"

static void expect(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fabs(expected))
        fail_msg("%.12g, expected %.12g", got, expected);
}

static void add(mp_pace *pace, uint32_t n, uint32_t tokens, double layer_ns, uint64_t routed)
{
    for (uint32_t i = 0; i < n; i++)
        mp_pace_add(pace, tokens, 4, 4 * routed, 4 * layer_ns);
}

static void test_pace_knows_nothing_before_a_step(void **state)
{
    (void)state;
    mp_pace pace = {0};
    mp_pace_add(&pace, 3, 0, 0, 100); /* routed nowhere */
    assert_true(mp_pace_layer_ns(&pace) == 0 && mp_pace_routed(&pace) == 0);
    mp_pace_end_burst(&pace);
    assert_true(mp_pace_layer_ns(&pace) == 0);
}

/* One sequence after thirty-two: the first step of the batch that was seen before has its time. */
static void test_pace_is_that_of_the_batch_that_runs_now(void **state)
{
    (void)state;
    mp_pace pace = {0};
    add(&pace, 40, 1, 100, 8);
    mp_pace_end_burst(&pace);
    add(&pace, 40, 32, 900, 60);
    expect(mp_pace_layer_ns(&pace), 900);
    expect(mp_pace_routed(&pace), 60);
    mp_pace_end_burst(&pace);
    expect(mp_pace_layer_ns(&pace), 900); /* until the next one has a step */
    add(&pace, 1, 1, 100, 8);
    expect(mp_pace_layer_ns(&pace), 100);
    expect(mp_pace_routed(&pace), 8);
    add(&pace, 3, 32, 900, 60); /* both, weighted by steps */
    expect(mp_pace_layer_ns(&pace), (100 + 3 * 900) / 4.0);
    expect(mp_pace_routed(&pace), (8 + 3 * 60) / 4.0);
}

static void test_pace_keeps_prompts_apart(void **state)
{
    (void)state;
    mp_pace pace = {0};
    add(&pace, 5, 0, 5000, 64);
    expect(mp_pace_layer_ns(&pace), 5000); /* better than nothing */
    add(&pace, 1, 2, 200, 12);
    expect(mp_pace_layer_ns(&pace), 200);
    expect(mp_pace_routed(&pace), 12);
}

/* Contexts grow: within half a window the answer has followed. */
static void test_pace_follows_contexts(void **state)
{
    (void)state;
    mp_pace pace = {0};
    add(&pace, 100, 4, 300, 20);
    add(&pace, MP_RATE_WINDOW / 2 + 1, 4, 450, 20);
    expect(mp_pace_layer_ns(&pace), 450);
}

/* ---- against lists ---- */

enum { MOST_STEPS = 400 };

typedef struct sample {
    uint32_t group;
    double layer_ns, routed;
    bool now; /* in the burst whose steps are counted */
} sample;

/* The ranges by hand: one to eight alone, then halves of each doubling. */
static uint32_t naive_group(uint32_t tokens)
{
    uint32_t group = 9, first = 9, half = 4;
    if (tokens <= 8)
        return tokens;
    for (uint32_t last = 11;; group++) { /* 9..11, 12..15, 16..23, 24..31, 32..47 ... */
        if (tokens >= first && tokens <= last)
            return group;
        if (group % 2 == 0)
            half *= 2;
        first = last + 1;
        last += half;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the group's last samples. */
static double naive_median(const sample *samples, uint32_t n, uint32_t group, bool routed)
{
    double values[MP_RATE_WINDOW];
    uint32_t kept = 0;
    for (uint32_t i = n; i-- > 0 && kept < MP_RATE_WINDOW;)
        if (samples[i].group == group)
            values[kept++] = routed ? samples[i].routed : samples[i].layer_ns;
    qsort(values, kept, sizeof *values, ascending);
    return kept % 2 ? values[kept / 2] : (values[kept / 2 - 1] + values[kept / 2]) / 2;
}

static double naive(const sample *samples, uint32_t n, bool routed)
{
    double sum[2] = {0};
    uint32_t count[2] = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (!samples[i].now)
            continue;
        bool decode = samples[i].group > 0;
        sum[decode] += naive_median(samples, n, samples[i].group, routed);
        count[decode]++;
    }
    bool of = count[1] > 0;
    return count[of] ? sum[of] / count[of] : 0;
}

static void test_pace_is_the_mean_of_medians(void **state)
{
    (void)state;
    static sample samples[MOST_STEPS];
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        mp_pace pace = {0};
        uint32_t n = 0;
        while (n < MOST_STEPS) {
            uint32_t steps = 1 + bank_below(&random, 40), most = 1u << bank_below(&random, 13);
            mp_pace_end_burst(&pace);
            for (uint32_t i = 0; i < n; i++)
                samples[i].now = false;
            for (uint32_t i = 0; i < steps && n < MOST_STEPS; i++) {
                uint32_t tokens = bank_below(&random, most + 1);
                uint32_t layers = 1 + bank_below(&random, 50);
                uint64_t routed = layers * (1 + bank_below(&random, 60));
                double busy = 1 + bank_below(&random, 1000000);
                samples[n++] =
                    (sample){naive_group(tokens), busy / layers, (double)routed / layers, true};
                mp_pace_add(&pace, tokens, layers, routed, busy);
                expect(mp_pace_layer_ns(&pace), naive(samples, n, false));
                expect(mp_pace_routed(&pace), naive(samples, n, true));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace_knows_nothing_before_a_step),
        cmocka_unit_test(test_pace_is_that_of_the_batch_that_runs_now),
        cmocka_unit_test(test_pace_keeps_prompts_apart),
        cmocka_unit_test(test_pace_follows_contexts),
        cmocka_unit_test(test_pace_is_the_mean_of_medians),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
