/* Miss curves against closed forms: bins, interpolation, decay, first sights. */
#include <math.h>
#include <stdlib.h>

#include "bank_model.h"
#include "planning/curve.h"
#include "testing.h"

static mp_curve curve_open(uint64_t most, uint32_t max_bins)
{
    mp_curve curve;
    double *bins = malloc(mp_curve_bins(most, max_bins) * sizeof *bins);
    assert_non_null(bins);
    mp_curve_init(&curve, bins, most, max_bins);
    return curve;
}

static void test_curve_has_bins_up_to_the_most(void **state)
{
    (void)state;
    static const struct {
        uint64_t most, width;
        uint32_t max_bins, n_bins;
    } cases[] = {
        {768, 1, 768, 768}, {768, 1, 1000, 768}, {769, 2, 768, 385},
        {10, 3, 4, 4},      {1, 1, 1, 1},        {1ull << 40, 1ull << 30, 1024, 1024},
        {7, 7, 1, 1},       {0, 1, 8, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mp_curve curve = curve_open(cases[i].most, cases[i].max_bins);
        assert_int_equal(mp_curve_bins(cases[i].most, cases[i].max_bins), curve.n_bins + 1);
        assert_int_equal(curve.n_bins, cases[i].n_bins);
        assert_int_equal(curve.width, cases[i].width);
        assert_true(mp_curve_misses(&curve, 0) == 0);
        free(curve.bins);
    }
}

static void test_curve_of_width_one_counts_distances_at_least(void **state)
{
    (void)state;
    uint64_t random = 7;
    uint64_t distances[500];
    mp_curve curve = curve_open(64, 64);
    for (int i = 0; i < 500; i++) {
        distances[i] = bank_below(&random, 100); /* some beyond the last bin */
        mp_curve_add(&curve, distances[i], 1);
    }
    for (uint64_t c = 0; c <= 64; c++) {
        double misses = 0;
        for (int i = 0; i < 500; i++)
            misses += distances[i] >= c;
        assert_true(mp_curve_misses(&curve, (double)c) == misses);
    }
    assert_true(mp_curve_misses(&curve, 1e9) == mp_curve_misses(&curve, 64));
    assert_true(mp_curve_misses(&curve, -3) == 500 && curve.warm == 500);
    free(curve.bins);
}

static void test_curve_is_linear_inside_a_bin(void **state)
{
    (void)state;
    mp_curve curve = curve_open(30, 3); /* bins of ten */
    mp_curve_add(&curve, 3, 8);
    mp_curve_add(&curve, 19, 4);
    mp_curve_add(&curve, 29, 2);
    mp_curve_add(&curve, 30, 1);
    mp_curve_add(&curve, UINT64_MAX - 1, 1);
    static const double known[][2] = {{0, 16}, {5, 12}, {10, 8}, {12.5, 7},
                                      {20, 4}, {25, 3}, {30, 2}, {99, 2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(mp_curve_misses(&curve, known[i][0]) == known[i][1]);
    free(curve.bins);
}

static void test_curve_keeps_first_sights_apart(void **state)
{
    (void)state;
    mp_curve curve = curve_open(8, 8);
    mp_curve_add_first(&curve, 2.5);
    assert_true(curve.first == 2.5 && curve.warm == 0 && curve.accesses == 2.5);
    mp_curve_add(&curve, 4, 1.5);
    assert_true(curve.first == 2.5 && curve.warm == 1.5 && curve.accesses == 4);
    assert_true(mp_curve_misses(&curve, 0) == 1.5 && mp_curve_misses(&curve, 4) == 1.5);
    assert_true(mp_curve_misses(&curve, 5) == 0);
    free(curve.bins);
}

/* A burst of 1 access per decay by f leaves 1 + f + ... + f^n = (1 - f^(n+1)) / (1 - f). */
static void test_curve_decays_geometrically(void **state)
{
    (void)state;
    mp_curve curve = curve_open(4, 4);
    const double factor = 0.9;
    for (int burst = 0; burst <= 40; burst++) {
        if (burst > 0)
            mp_curve_decay(&curve, factor);
        mp_curve_add(&curve, 2, 1);
        mp_curve_add_first(&curve, 3);
    }
    const double sum = (1 - pow(factor, 41)) / (1 - factor);
    assert_true(fabs(mp_curve_misses(&curve, 1) - sum) < 1e-12 * sum);
    assert_true(fabs(curve.warm - sum) < 1e-12 * sum);
    assert_true(fabs(curve.first - 3 * sum) < 1e-12 * sum);
    assert_true(curve.accesses == curve.warm + curve.first);
    mp_curve_decay(&curve, 1);
    assert_true(fabs(curve.warm - sum) < 1e-12 * sum);
    mp_curve_decay(&curve, 0);
    assert_true(curve.accesses == 0 && mp_curve_misses(&curve, 0) == 0);
    free(curve.bins);
}

static void test_curve_decays_to_nothing_and_not_to_subnormals(void **state)
{
    (void)state;
    mp_curve curve = curve_open(4, 4);
    mp_curve_add(&curve, 1, 1);
    mp_curve_add_first(&curve, 1);
    for (int i = 0; i < 1100; i++) {
        mp_curve_decay(&curve, 0.5);
        assert_true(curve.bins[1] == 0 || isnormal(curve.bins[1]));
        assert_true(curve.first == 0 || isnormal(curve.first));
    }
    assert_true(curve.accesses == 0);
    free(curve.bins);
}

/* Whatever was added with whatever weights, and however it was rounded. */
static void test_curve_never_increases_with_capacity(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        mp_curve curve = curve_open(1 + bank_below(&random, 300), 1 + bank_below(&random, 100));
        for (int i = 0; i < 2000; i++) {
            const double weight =
                ldexp(1 + bank_below(&random, 1000), (int)bank_below(&random, 40) - 20);
            const uint32_t least = seed % 2 ? 200 : 0; /* capacities that save nothing */
            mp_curve_add(&curve, least + bank_below(&random, 200), weight / 3);
            if (i % 50 == 0)
                mp_curve_decay(&curve, 0.97);
        }
        double before = mp_curve_misses(&curve, 0);
        assert_true(before == curve.warm);
        for (double c = 0.125; c < 410; c += 0.125) {
            const double now = mp_curve_misses(&curve, c);
            if (!(now <= before && now >= 0))
                fail_msg("seed %llu: %.17g misses at %g, %.17g before", (unsigned long long)seed,
                         now, c, before);
            before = now;
        }
        free(curve.bins);
    }
}

/* Sums that are kept are those that are computed, to the bit: after a decay, and after what is added then. */
static void test_curve_keeps_sums(void **state)
{
    (void)state;
    uint64_t random = 11;
    mp_curve plain = curve_open(300, 70), kept = curve_open(300, 70);
    double *sums = malloc((kept.n_bins + 1) * sizeof *sums);
    assert_non_null(sums);
    mp_curve_keep_sums(&kept, sums);
    for (int i = 0; i < 600; i++) {
        const double weight = (1 + bank_below(&random, 1000)) / 3.0;
        const uint64_t distance = bank_below(&random, 400);
        if (i % 3 == 0) {
            mp_curve_decay(&plain, 0.9);
            mp_curve_decay(&kept, 0.9);
        } else {
            mp_curve_add(&plain, distance, weight);
            mp_curve_add(&kept, distance, weight);
        }
        assert_true(kept.summed == (i % 3 == 0));
        assert_true(kept.warm == plain.warm);
        for (double c = 0; c < 310; c += 1.5)
            assert_true(mp_curve_misses(&kept, c) == mp_curve_misses(&plain, c));
    }
    free(plain.bins);
    free(kept.bins);
    free(sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve_has_bins_up_to_the_most),
        cmocka_unit_test(test_curve_of_width_one_counts_distances_at_least),
        cmocka_unit_test(test_curve_is_linear_inside_a_bin),
        cmocka_unit_test(test_curve_keeps_first_sights_apart),
        cmocka_unit_test(test_curve_decays_geometrically),
        cmocka_unit_test(test_curve_decays_to_nothing_and_not_to_subnormals),
        cmocka_unit_test(test_curve_never_increases_with_capacity),
        cmocka_unit_test(test_curve_keeps_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
