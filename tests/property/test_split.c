/* The configurator against every split there is, on random reuse of all shapes. */

#include <math.h>
#include <stdio.h>

#include "split_rig.h"
#include "testing.h"

typedef unsigned __int128 wide;

static rig_stream experts, kv;

static void test_split_cost_is_equation_4(void **state)
{
    (void)state;
    rig_seed(3);
    rig_stream_make(&experts, RIG_NOTHING, 10, 0, 64);
    rig_stream_make(&kv, RIG_NOTHING, 20, 0, 64);
    mp_curve_add(&experts.curve, 2, 5);
    mp_curve_add(&experts.curve, 7, 3);
    mp_curve_add_first(&experts.curve, 1000);
    mp_curve_add(&kv.curve, 12, 4);
    mp_split_costs costs = {&experts.curve, &kv.curve, 100, 10, 0};
    assert_true(mp_split_cost(&costs, &(mp_split){0, 0}) == 8 * 100 + 4 * 10);
    assert_true(mp_split_cost(&costs, &(mp_split){3, 12}) == 3 * 100 + 4 * 10);
    assert_true(mp_split_cost(&costs, &(mp_split){7, 13}) == 3 * 100);
    assert_true(mp_split_cost(&costs, &(mp_split){8, 13}) == 0);
    costs.kv = NULL;
    assert_true(mp_split_cost(&costs, &(mp_split){3, 0}) == 3 * 100);
}

typedef double (*cost_function)(const mp_split_costs *costs, const mp_split *split);

/* From the lists of distances: shares nothing with the curves. */
static double cost_by_hand(const mp_split_costs *costs, const mp_split *split)
{
    return costs->expert_miss_ns * rig_misses(&experts, split->experts) +
           (costs->kv ? costs->kv_miss_ns * rig_misses(&kv, split->kv) : 0);
}

static bool is_preferred(double ns, const mp_split *a, double best_ns, const mp_split *b)
{
    if (ns != best_ns)
        return ns < best_ns;
    return a->kv != b->kv ? a->kv > b->kv : a->experts > b->experts;
}

/* The best of all splits within the bounds; with `all` of every KV size, or else the most alone. */
static bool brute_force(const mp_split_bounds *b, const mp_split_costs *costs, cost_function cost,
                        bool all, mp_split *best)
{
    double best_ns = INFINITY;
    bool found = false;
    for (uint64_t c = b->min_experts; c <= b->max_experts; c++) {
        if ((wide)c * b->expert_bytes > b->budget_bytes)
            break;
        const uint64_t most = (b->budget_bytes - c * b->expert_bytes) / b->kv_bytes;
        for (uint64_t n = all ? b->kv_floor : most; n <= most; n++) {
            const mp_split split = {c, n};
            if (!rig_within(b, &split))
                continue;
            const double ns = cost(costs, &split);
            if (found && !is_preferred(ns, &split, best_ns, best))
                continue;
            *best = split;
            best_ns = ns;
            found = true;
        }
    }
    return found;
}

/* Bounds with about `units` of each side in the budget, of which streams reach about as far. */
static mp_split_bounds draw_working_bounds(uint32_t units)
{
    mp_split_bounds b = {.expert_bytes = 1 + rig_below(300), .kv_bytes = 1 + rig_below(300)};
    const uint64_t larger = b.expert_bytes > b.kv_bytes ? b.expert_bytes : b.kv_bytes;
    b.budget_bytes = larger * (1 + rig_below(units)) + rig_below((uint32_t)larger);
    b.min_experts = rig_below(4);
    b.max_experts = 1 + rig_below(rig_below(2) ? units / 2 + 1 : 2 * units);
    b.kv_floor = rig_below(4);
    return b;
}

static mp_split_costs draw_costs(uint32_t most, uint32_t accesses, uint32_t max_bins)
{
    rig_stream_make(&experts, rig_below(RIG_SHAPES), most, accesses, max_bins);
    rig_stream_make(&kv, rig_below(RIG_SHAPES), most, accesses, max_bins);
    return (mp_split_costs){&experts.curve, rig_below(8) ? &kv.curve : NULL, rig_below(5),
                            rig_below(5), 0};
}

static void configure_equals_brute_force(uint32_t seed, uint32_t units, uint32_t max_bins,
                                         cost_function cost, bool all)
{
    rig_seed(seed);
    const mp_split_bounds b = draw_working_bounds(units);
    const mp_split_costs costs = draw_costs(1 + rig_below(units), 30 + rig_below(300), max_bins);
    const uint32_t grid = rig_below(3) ? 2 + rig_below(40) : rig_below(2);
    mp_split expected = {0}, split = {0};
    const bool feasible = brute_force(&b, &costs, cost, all, &expected);
    const bool found = mp_split_configure(&b, &costs, grid, &split);
    if (found != feasible || split.experts != expected.experts || split.kv != expected.kv)
        fail_msg("seed %u: %d, %llu experts and %llu KV; %d, %llu and %llu", seed, found,
                 (unsigned long long)split.experts, (unsigned long long)split.kv, feasible,
                 (unsigned long long)expected.experts, (unsigned long long)expected.kv);
}

static void test_split_configure_is_the_best_of_all_splits(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < rig_rounds(1500); seed++)
        configure_equals_brute_force(seed, 40, RIG_MOST, cost_by_hand, true);
}

/* Thousands of units, curves of wide bins: all of it without, and with rounding. */
static void test_split_configure_is_the_best_of_many_units(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < rig_rounds(100); seed++)
        configure_equals_brute_force(seed, 4000, 1 + rig_below(200), mp_split_cost, false);
}

/* The two modes are far apart, and in between the marginal value of experts is nothing: a search
 * that follows it stays where it is. */
static void test_split_configure_sees_over_a_gap(void **state)
{
    (void)state;
    rig_stream_make(&experts, RIG_NOTHING, 100, 0, 100);
    rig_stream_make(&kv, RIG_NOTHING, 1000, 0, 1000);
    mp_curve_add(&experts.curve, 4, 1000);
    mp_curve_add(&experts.curve, 71, 1000);
    for (uint32_t d = 0; d < 1000; d++)
        mp_curve_add(&kv.curve, d, 1);
    const mp_split_bounds b = {1000, 10, 1, 1, 100, 1};
    mp_split_costs costs = {&experts.curve, &kv.curve, 1, 1, 0};
    mp_split split;
    for (uint32_t grid = 0; grid < 120; grid++) {
        assert_true(mp_split_configure(&b, &costs, grid, &split));
        rig_expect_split(&split, 72, 280);
    }
    costs.kv_miss_ns = 2; /* 670 more KV misses are now worth more than the far mode */
    assert_true(mp_split_configure(&b, &costs, 8, &split));
    rig_expect_split(&split, 5, 950);
}

/* One split alone costs next to nothing, wherever it is, and the grid's best is at the far end. */
static void test_split_configure_finds_a_needle(void **state)
{
    (void)state;
    const mp_split_bounds b = {1000, 10, 10, 1, 99, 1};
    for (uint32_t needle = 2; needle < 99; needle++) {
        rig_stream_make(&experts, RIG_NOTHING, 100, 0, 100);
        rig_stream_make(&kv, RIG_NOTHING, 100, 0, 100);
        mp_curve_add(&experts.curve, needle - 1, 1000);
        mp_curve_add(&experts.curve, 98, 10);
        mp_curve_add(&kv.curve, 99 - needle, 1000);
        const mp_split_costs costs = {&experts.curve, &kv.curve, 1, 1, 0};
        for (uint32_t grid = 2; grid < 30; grid++) {
            mp_split split;
            assert_true(mp_split_configure(&b, &costs, grid, &split));
            rig_expect_split(&split, needle, 100 - needle);
        }
    }
}

static void test_split_configure_gives_kv_what_experts_cannot_use(void **state)
{
    (void)state;
    rig_stream_make(&experts, RIG_BEYOND, 4000, 100, 4000);
    rig_stream_make(&kv, RIG_NOTHING, 4000, 0, 4000);
    mp_split_bounds b = {1000, 10, 7, 2, 30, 5};
    const mp_split_costs costs = {&experts.curve, &kv.curve, 5, 5, 0};
    mp_split split;
    /* Misses whatever the split: all KV, and the bytes of no whole KV unit, 980 % 7, are idle. */
    assert_true(mp_split_configure(&b, &costs, 16, &split));
    rig_expect_split(&split, 2, 140);
    /* Every distance within reach of all experts: they get their maximum, KV the rest. */
    mp_curve_add(&experts.curve, 29, 1);
    assert_true(mp_split_configure(&b, &costs, 16, &split));
    rig_expect_split(&split, 30, 100);
    /* Without room for it, all the experts that the floor leaves room for, and then no more than
     * that: equals have more KV. */
    b.budget_bytes = 160;
    assert_true(mp_split_configure(&b, &costs, 16, &split));
    rig_expect_split(&split, 2, 20);
    for (uint32_t d = 0; d < 30; d++)
        mp_curve_add(&experts.curve, d, 1);
    assert_true(mp_split_configure(&b, &costs, 16, &split));
    rig_expect_split(&split, 12, 5);
}

/* weights[d] as those of misses that fall off as exp(-d / reach). */
static void make_smooth(rig_stream *stream, uint32_t most, double reach, double total)
{
    rig_stream_make(stream, RIG_NOTHING, most, 0, most);
    for (uint32_t d = 0; d < most; d++)
        stream->weights[d] = total * (exp(-(d / reach)) - exp(-((d + 1) / reach)));
    rig_stream_burst(stream, 0);
}

/* Equation 5: where both curves are smooth and convex, one more byte buys the same on
 * either side. */
static void test_split_configure_is_equimarginal_inside(void **state)
{
    (void)state;
    rig_seed(4);
    uint32_t inside = 0;
    for (uint32_t round = 0; round < 40; round++) {
        make_smooth(&experts, 3000, 200 + rig_below(1000), 1e6);
        make_smooth(&kv, 12000, 1000 + rig_below(3000), 1e6);
        const mp_split_bounds b = {12000 * 16, 64, 16, 8, 3000, 32};
        const mp_split_costs costs = {&experts.curve, &kv.curve, 1 + 9 * rig_unit(),
                                      1 + 9 * rig_unit(), 0};
        mp_split s;
        assert_true(mp_split_configure(&b, &costs, 64, &s));
        if (s.experts < 20 || s.experts > 2900 || s.kv < 50)
            continue;
        inside++;
        const double expert_value =
            costs.expert_miss_ns *
            (rig_misses(&experts, s.experts - 5) - rig_misses(&experts, s.experts + 5)) / (10 * 64);
        const double kv_value = costs.kv_miss_ns *
                                (rig_misses(&kv, s.kv - 20) - rig_misses(&kv, s.kv + 20)) /
                                (40 * 16);
        assert_true(fabs(expert_value / kv_value - 1) < 0.01);
    }
    assert_true(inside > 20);
}

/* A flat cost over 2^40 units: nothing can be ruled out, and yet it ends, within the bounds. */
static void test_split_configure_ends_whatever_the_sizes(void **state)
{
    (void)state;
    rig_stream_make(&experts, RIG_NOTHING, 1024, 0, 1);
    rig_stream_make(&kv, RIG_NOTHING, 1024, 0, 1);
    mp_curve_init(&experts.curve, experts.bins, UINT64_C(1) << 40, 1);
    mp_curve_init(&kv.curve, kv.bins, UINT64_C(1) << 40, 1);
    mp_curve_add(&experts.curve, 5, 100);
    mp_curve_add(&kv.curve, 5, 100);
    const mp_split_costs costs = {&experts.curve, &kv.curve, 1, 1, 0};
    mp_split_bounds b = {UINT64_C(1) << 40, 1, 1, 0, UINT64_MAX, 0};
    mp_split split;
    assert_true(mp_split_configure(&b, &costs, 64, &split));
    rig_expect_iso_vram(&b, &split);
    b = (mp_split_bounds){UINT64_MAX, UINT64_MAX, 1, 0, UINT64_MAX, 0};
    assert_true(mp_split_configure(&b, &costs, UINT32_MAX, &split));
    rig_expect_iso_vram(&b, &split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_cost_is_equation_4),
        cmocka_unit_test(test_split_configure_is_the_best_of_all_splits),
        cmocka_unit_test(test_split_configure_is_the_best_of_many_units),
        cmocka_unit_test(test_split_configure_sees_over_a_gap),
        cmocka_unit_test(test_split_configure_finds_a_needle),
        cmocka_unit_test(test_split_configure_gives_kv_what_experts_cannot_use),
        cmocka_unit_test(test_split_configure_is_equimarginal_inside),
        cmocka_unit_test(test_split_configure_ends_whatever_the_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
