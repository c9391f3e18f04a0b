/* The laws of splits by hand: floors, bounds, the closed form and the baselines. */

#include "split_rig.h"
#include "testing.h"

#define HUGE_SIZE (UINT64_C(1) << 63)

/* 10 expert units and no KV, or 100 KV units and no experts. */
static const mp_split_bounds small = {.budget_bytes = 1000,
                                      .expert_bytes = 100,
                                      .kv_bytes = 10,
                                      .min_experts = 2,
                                      .max_experts = 8,
                                      .kv_floor = 15};

static void expect_with_experts(const mp_split_bounds *bounds, uint64_t asked, uint64_t experts,
                                uint64_t kv)
{
    mp_split split;
    assert_true(mp_split_with_experts(bounds, asked, &split));
    rig_expect_split(&split, experts, kv);
    rig_expect_iso_vram(bounds, &split);
}

/* ---- The floor ---- */

static void test_split_floor_gives_each_sequence_blocks_of_its_own(void **state)
{
    (void)state;
    assert_int_equal(mp_split_floor(1, 4096, 16, 1), 256);
    assert_int_equal(mp_split_floor(1, 4097, 16, 1), 257);
    assert_int_equal(mp_split_floor(1, 4095, 16, 1), 256);
    /* 3 * 17 tokens would fit into 4 blocks, but no block is shared. */
    assert_int_equal(mp_split_floor(3, 17, 16, 1), 6);
    assert_int_equal(mp_split_floor(3, 1, 16, 1), 3);
    assert_int_equal(mp_split_floor(5, 7, 1, 1), 35);
}

static void test_split_floor_fills_units_with_blocks_of_all_sequences(void **state)
{
    (void)state;
    assert_int_equal(mp_split_floor(3, 17, 16, 6), 1);
    assert_int_equal(mp_split_floor(3, 17, 16, 5), 2);
    assert_int_equal(mp_split_floor(3, 17, 16, 4), 2);
    assert_int_equal(mp_split_floor(3, 33, 16, 4), 3); /* 9 blocks; sequence by sequence it is 3 */
    assert_int_equal(mp_split_floor(4, 33, 16, 4), 3); /* 12 blocks; sequence by sequence, 4 */
    assert_int_equal(mp_split_floor(1, 1, UINT32_MAX, UINT32_MAX), 1);
}

static void test_split_floor_is_never_less_than_one_sequence(void **state)
{
    (void)state;
    assert_int_equal(mp_split_floor(0, 4096, 16, 1), 256);
    assert_int_equal(mp_split_floor(1, 4096, 16, 1), 256);
    assert_int_equal(mp_split_floor(2, 4096, 16, 1), 512);
    assert_int_equal(mp_split_floor(0, 0, 16, 4), 1);
    assert_int_equal(mp_split_floor(1, 0, 16, 1), 1);
    assert_int_equal(mp_split_floor(1000, 0, 16, 1), 1);
}

static void test_split_floor_does_not_wrap(void **state)
{
    (void)state;
    const uint64_t most = UINT64_MAX; /* 16 * 2^60 - 1 */
    assert_int_equal(mp_split_floor(1, most, 16, 1), UINT64_C(1) << 60);
    assert_int_equal(mp_split_floor(1, most - 14, 16, 1), UINT64_C(1) << 60);
    assert_int_equal(mp_split_floor(1, most - 15, 16, 1), (UINT64_C(1) << 60) - 1);
    assert_int_equal(mp_split_floor(15, most, 16, 1), UINT64_C(15) << 60);
    assert_int_equal(mp_split_floor(16, most, 16, 1), most);
    assert_int_equal(mp_split_floor(17, most, 16, 1), most);
    assert_int_equal(mp_split_floor(most, most, 1, 1), most);
    assert_int_equal(mp_split_floor(most, most, 1, 4), most);
    assert_int_equal(mp_split_floor(most, 1, 16, 1), most);
    assert_int_equal(mp_split_floor(most - 1, 1, 16, 4), UINT64_C(1) << 62);
    /* Modulo 2^64 these are of no and of two blocks. */
    assert_int_equal(mp_split_floor(HUGE_SIZE, 32, 16, 1), most);
    assert_int_equal(mp_split_floor(HUGE_SIZE + 1, 32, 16, 1), most);
}

/* ---- Bounds ---- */

static void test_split_feasible_needs_all_of_the_bytes(void **state)
{
    (void)state;
    mp_split_bounds b = small; /* least: 2 * 100 + 15 * 10 */
    b.budget_bytes = 350;
    assert_true(mp_split_feasible(&b));
    assert_true(mp_split_within(&b, &(mp_split){2, 15}));
    expect_with_experts(&b, 2, 2, 15);

    b.budget_bytes = 349;
    mp_split split;
    assert_false(mp_split_feasible(&b));
    assert_false(mp_split_within(&b, &(mp_split){2, 15}));
    assert_false(mp_split_with_experts(&b, 2, &split));

    b.budget_bytes = 149; /* not even the floor */
    assert_false(mp_split_feasible(&b));
    b.min_experts = 0;
    assert_false(mp_split_feasible(&b));
    b.budget_bytes = 150;
    assert_true(mp_split_feasible(&b));
    expect_with_experts(&b, 5, 0, 15);
}

static void test_split_feasible_refuses_more_experts_than_there_are(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    mp_split split;
    b.min_experts = b.max_experts;
    assert_true(mp_split_feasible(&b));
    expect_with_experts(&b, 3, 8, 20);
    b.min_experts++;
    assert_false(mp_split_feasible(&b));
    assert_false(mp_split_with_experts(&b, 9, &split));
    assert_false(mp_split_within(&b, &(mp_split){8, 15}));
    assert_false(mp_split_within(&b, &(mp_split){9, 0}));
}

static void test_split_within_is_to_the_edge_of_each_bound(void **state)
{
    (void)state;
    const mp_split_bounds *b = &small;
    assert_true(mp_split_within(b, &(mp_split){2, 80}));
    assert_false(mp_split_within(b, &(mp_split){2, 81}));
    assert_false(mp_split_within(b, &(mp_split){1, 80}));
    assert_true(mp_split_within(b, &(mp_split){2, 15}));
    assert_false(mp_split_within(b, &(mp_split){2, 14}));
    assert_true(mp_split_within(b, &(mp_split){8, 20}));
    assert_true(mp_split_within(b, &(mp_split){8, 15}));
    assert_false(mp_split_within(b, &(mp_split){8, 21}));
    assert_false(mp_split_within(b, &(mp_split){9, 10}));

    mp_split_bounds roomy = small;
    roomy.max_experts = 100;
    assert_true(mp_split_within(&roomy, &(mp_split){8, 15}));
    assert_false(mp_split_within(&roomy, &(mp_split){9, 15}));
    assert_false(mp_split_within(&roomy, &(mp_split){10, 0}));
}

/* Products of which the low 64 bits alone would fit. */
static void test_split_bounds_do_not_wrap(void **state)
{
    (void)state;
    mp_split_bounds b = {1000, HUGE_SIZE, 10, 2, UINT64_MAX, 1};
    assert_false(mp_split_feasible(&b));
    b.min_experts = 0;
    assert_false(mp_split_within(&b, &(mp_split){2, 100}));
    expect_with_experts(&b, 2, 0, 100);

    b = (mp_split_bounds){1000, 10, HUGE_SIZE, 1, UINT64_MAX, 2};
    assert_false(mp_split_feasible(&b));
    b.kv_floor = 0;
    assert_false(mp_split_within(&b, &(mp_split){10, 2}));
    expect_with_experts(&b, UINT64_MAX, 100, 0);

    b = (mp_split_bounds){UINT64_MAX, 1, 1, 1, UINT64_MAX, 1};
    expect_with_experts(&b, UINT64_MAX, UINT64_MAX - 1, 1);
    expect_with_experts(&b, 0, 1, UINT64_MAX - 1);
    b.kv_floor = UINT64_MAX; /* as of a floor that is more than there can be */
    assert_false(mp_split_feasible(&b));
}

static void test_split_of_units_of_no_bytes_none_fit(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    mp_split split;
    b.expert_bytes = 0;
    assert_false(mp_split_feasible(&b));
    b.min_experts = 0;
    assert_true(mp_split_with_experts(&b, 5, &split));
    rig_expect_split(&split, 0, 100);

    b = small;
    b.kv_bytes = 0;
    assert_false(mp_split_feasible(&b));
    b.kv_floor = 0;
    assert_true(mp_split_with_experts(&b, 5, &split));
    rig_expect_split(&split, 5, 0);
    assert_false(mp_split_within(&b, &(mp_split){5, 1}));
}

/* ---- With this many experts ---- */

static void test_split_with_experts_clamps_both_ways(void **state)
{
    (void)state;
    expect_with_experts(&small, 0, 2, 80);
    expect_with_experts(&small, 1, 2, 80);
    expect_with_experts(&small, 2, 2, 80);
    expect_with_experts(&small, 5, 5, 50);
    expect_with_experts(&small, 8, 8, 20); /* as many as there are */
    expect_with_experts(&small, 9, 8, 20);
    expect_with_experts(&small, UINT64_MAX, 8, 20);

    mp_split_bounds b = small;
    b.kv_floor = 45; /* 550 bytes are left: five, and 50 that KV gets */
    expect_with_experts(&b, 8, 5, 50);
    b.budget_bytes = 1009; /* less than one KV unit is of no use to anybody */
    expect_with_experts(&b, 8, 5, 50);
    b.budget_bytes = 1010;
    expect_with_experts(&b, 8, 5, 51);
}

static mp_split_bounds draw_bounds(void)
{
    mp_split_bounds b = {.expert_bytes = 1 + rig_draw_size(300) / 2,
                         .kv_bytes = 1 + rig_draw_size(300) / 2,
                         .min_experts = rig_draw_size(10),
                         .max_experts = rig_draw_size(100),
                         .kv_floor = rig_draw_size(20)};
    b.budget_bytes = rig_draw_size(20000);
    return b;
}

/* The split nearest to what was asked: itself, or at the bound that forbids it. */
static void test_split_with_experts_is_iso_memory_whatever_the_bounds(void **state)
{
    (void)state;
    uint32_t feasible = 0, clamped = 0;
    for (uint32_t seed = 0; seed < rig_rounds(20000); seed++) {
        rig_seed(seed);
        const mp_split_bounds b = draw_bounds();
        const uint64_t asked = rig_draw_size(120);
        const mp_split least = {b.min_experts, b.kv_floor};
        const bool expected = rig_within(&b, &least);
        mp_split split;
        if (mp_split_feasible(&b) != expected ||
            mp_split_with_experts(&b, asked, &split) != expected)
            fail_msg("seed %u: feasible is %d", seed, expected);
        if (!expected)
            continue;
        rig_expect_iso_vram(&b, &split);
        const mp_split one_more = {split.experts + 1, b.kv_floor};
        if (split.experts > asked ? split.experts != b.min_experts
                                  : split.experts < asked && rig_within(&b, &one_more))
            fail_msg("seed %u: %llu experts for %llu", seed, (unsigned long long)split.experts,
                     (unsigned long long)asked);
        feasible++;
        clamped += split.experts != asked;
    }
    assert_true(feasible > 3000 && clamped > 1000 && feasible - clamped > 1000);
}

static void test_split_within_is_the_definition(void **state)
{
    (void)state;
    uint32_t inside = 0;
    for (uint32_t seed = 0; seed < rig_rounds(20000); seed++) {
        rig_seed(seed);
        const mp_split_bounds b = draw_bounds();
        const mp_split split = {rig_draw_size(100), rig_draw_size(100)};
        const bool expected = rig_within(&b, &split);
        if (mp_split_within(&b, &split) != expected)
            fail_msg("seed %u: within is %d", seed, expected);
        inside += expected;
    }
    assert_true(inside > 1000);
}

/* WiSP, table 3: Qwen3-30B-A3B, 48 layers, in BF16. The budget is that of its row of 8 caps. */
static void test_split_with_experts_frees_kv_tokens_as_in_table_3(void **state)
{
    (void)state;
    const uint64_t expert_bytes = 3 * 2048 * 768 * 2;
    const uint64_t token_bytes = 98304, block_tokens = 16;
    const mp_split_bounds b = {.budget_bytes = 8 * 48 * expert_bytes + 375792 * token_bytes,
                               .expert_bytes = 48 * expert_bytes,
                               .kv_bytes = block_tokens * token_bytes,
                               .min_experts = 8,
                               .max_experts = 128,
                               .kv_floor = mp_split_floor(1, 4096, 16, 1)};
    const struct {
        uint64_t caps, tokens;
    } rows[] = {{8, 375792}, {16, 338928}, {32, 265200}};
    for (uint32_t i = 0; i < 3; i++)
        expect_with_experts(&b, rows[i].caps, rows[i].caps, rows[i].tokens / block_tokens);

    mp_split few, more;
    for (uint64_t caps = 8; caps + 8 <= 88; caps++) {
        assert_true(mp_split_with_experts(&b, caps, &few));
        assert_true(mp_split_with_experts(&b, caps + 8, &more));
        assert_int_equal((few.kv - more.kv) * block_tokens, 36864);
    }
    /* 89 caps would leave 2,544 tokens, less than one sequence: 88 leave 7,152. */
    expect_with_experts(&b, 128, 88, 447);
}

/* ---- The closed form ---- */

static void expect_resize(const mp_dual_resize *law, const mp_split_bounds *bounds, uint64_t peak,
                          mp_split now, uint64_t experts, uint64_t kv)
{
    mp_split out = {77, 88};
    assert_true(mp_split_dual_resize(law, bounds, peak, &now, &out));
    rig_expect_split(&out, experts, kv);
    rig_expect_iso_vram(bounds, &out);
}

static void expect_no_resize(const mp_dual_resize *law, const mp_split_bounds *bounds,
                             uint64_t peak, mp_split now)
{
    mp_split out = {77, 88};
    assert_false(mp_split_dual_resize(law, bounds, peak, &now, &out));
    rig_expect_split(&out, now.experts, now.kv);
}

static const mp_dual_resize plain = {.headroom = 0.25, .dead_zone = 1};

static void test_split_dual_resize_gives_kv_its_peak_and_experts_the_rest(void **state)
{
    (void)state;
    const mp_split now = {2, 80};
    /* n* = 40; c* = 600 / 100. */
    expect_resize(&plain, &small, 32, now, 6, 40);
    /* n* = 42 (41.25); c* = 580 / 100 rounded down, and KV gets what that leaves. */
    expect_resize(&plain, &small, 33, now, 5, 50);
    /* Less than its floor is not given to KV: n* = 15. */
    mp_split_bounds b = small;
    b.max_experts = 20;
    expect_resize(&plain, &b, 0, now, 8, 20);
    expect_resize(&plain, &b, 12, now, 8, 20);
    b.kv_floor = 21;
    expect_resize(&plain, &b, 12, now, 7, 30);
    /* To fewer experts as to more. */
    expect_resize(&plain, &small, 33, (mp_split){8, 20}, 5, 50);
}

/* With units of one byte c* = 100 - n*. */
static void test_split_dual_resize_rounds_headroom_up(void **state)
{
    (void)state;
    const mp_split_bounds b = {100, 1, 1, 1, 100, 1};
    const mp_split now = {1, 99};
    expect_resize(&plain, &b, 8, now, 90, 10);
    expect_resize(&plain, &b, 9, now, 88, 12); /* 11.25 */
    expect_resize(&plain, &b, 10, now, 87, 13);
    expect_resize(&plain, &b, 11, now, 86, 14); /* 13.75 */
    expect_resize(&plain, &b, 12, now, 85, 15);
    const mp_dual_resize none = {0, 1};
    expect_resize(&none, &b, 10, now, 90, 10);
    /* No double is a tenth, or 0.14: in doubles 1.1 times 50 is more than 55, and 0.14 times 50
     * more than 7. */
    const mp_dual_resize tenth = {0.1, 1}, odd = {0.14, 1};
    expect_resize(&tenth, &b, 50, now, 45, 55);
    expect_resize(&tenth, &b, 51, now, 43, 57); /* 56.1 */
    expect_resize(&odd, &b, 50, now, 43, 57);
    expect_resize(&odd, &b, 51, now, 41, 59); /* 58.14 */
    const mp_dual_resize twice = {1, 1};
    expect_resize(&twice, &b, 30, now, 40, 60);
}

static void test_split_dual_resize_leaves_experts_their_least(void **state)
{
    (void)state;
    const mp_split now = {8, 20};
    expect_resize(&plain, &small, 64, now, 2, 80); /* n* = 80 is all that two leave */
    expect_resize(&plain, &small, 65, now, 2, 80); /* n* = 82 */
    expect_resize(&plain, &small, 80, now, 2, 80); /* n* = 100: the budget */
    expect_resize(&plain, &small, 81, now, 2, 80); /* more than that */
    expect_resize(&plain, &small, UINT64_MAX, now, 2, 80);
    const mp_dual_resize wild = {1e300, 1};
    expect_resize(&wild, &small, UINT64_MAX, now, 2, 80);
    expect_resize(&wild, &small, 1, now, 2, 80);
    const mp_dual_resize eight = {0x1p-61, 1}; /* more units: 2^64 + 7 */
    expect_resize(&eight, &small, UINT64_MAX, now, 2, 80);
    const mp_dual_resize none = {0, 1};
    expect_resize(&none, &small, UINT64_MAX, now, 2, 80);
    /* n* * s_k wraps to 0, and the experts are not given the budget for it. */
    mp_split_bounds b = small;
    b.kv_bytes = 8;
    expect_resize(&none, &b, UINT64_C(1) << 61, now, 2, 100);
}

/* With their least, KV has 30 units; it needs 31. */
static void test_split_dual_resize_refuses_what_takes_kv_below_its_floor(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    b.min_experts = 7;
    b.kv_floor = 31;
    expect_no_resize(&plain, &b, 0, (mp_split){8, 20});
    expect_no_resize(&plain, &b, 50, (mp_split){8, 20});
    expect_no_resize(&plain, &b, 50, (mp_split){0, 0});
    b.kv_floor = 30;
    expect_resize(&plain, &b, 50, (mp_split){8, 20}, 7, 30);
}

static void test_split_dual_resize_gives_kv_what_all_experts_leave(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    b.max_experts = 4;
    /* n* = 20 leaves room for 8 experts, of which there are 4: KV gets 600 bytes, not 200. */
    expect_resize(&plain, &b, 16, (mp_split){2, 80}, 4, 60);
    b.kv_bytes = 11;
    expect_resize(&plain, &b, 16, (mp_split){2, 70}, 4, 54);
}

static void test_split_dual_resize_dead_zone_is_to_its_edge(void **state)
{
    (void)state;
    mp_dual_resize law = {.headroom = 0, .dead_zone = 3};
    const mp_split_bounds *b = &small; /* a peak of 50: to (5, 50) */
    expect_resize(&law, b, 50, (mp_split){2, 80}, 5, 50);
    expect_no_resize(&law, b, 50, (mp_split){3, 70});
    expect_no_resize(&law, b, 50, (mp_split){5, 50});
    expect_no_resize(&law, b, 50, (mp_split){7, 30});
    expect_resize(&law, b, 50, (mp_split){8, 20}, 5, 50);
    law.dead_zone = 4;
    expect_no_resize(&law, b, 50, (mp_split){2, 80});
    expect_no_resize(&law, b, 50, (mp_split){8, 20});
    law.dead_zone = 1;
    expect_resize(&law, b, 50, (mp_split){4, 60}, 5, 50);
    expect_no_resize(&law, b, 50, (mp_split){5, 50});
    law.dead_zone = 0; /* a move of nothing is none */
    expect_resize(&law, b, 50, (mp_split){6, 40}, 5, 50);
    expect_no_resize(&law, b, 50, (mp_split){5, 50});
}

static void test_split_dual_resize_leaves_what_violates_the_bounds(void **state)
{
    (void)state;
    const mp_dual_resize law = {.headroom = 0, .dead_zone = UINT64_MAX};
    mp_split_bounds b = small;
    expect_no_resize(&law, &b, 50, (mp_split){6, 40});
    b.kv_floor = 40;
    expect_no_resize(&law, &b, 50, (mp_split){6, 40});
    b.kv_floor = 41; /* it has risen */
    expect_resize(&law, &b, 50, (mp_split){6, 40}, 5, 50);
    expect_resize(&law, &b, 0, (mp_split){6, 40}, 5, 50);

    expect_resize(&law, &small, 50, (mp_split){6, 41}, 5, 50); /* over the budget */
    expect_resize(&law, &small, 50, (mp_split){5, 51}, 5, 50); /* by KV alone */
    expect_resize(&law, &small, 50, (mp_split){1, 50}, 5, 50);
    b = small;
    b.max_experts = 5;
    expect_resize(&law, &b, 50, (mp_split){6, 40}, 5, 50);
}

static void test_split_dual_resize_may_write_over_the_split_now(void **state)
{
    (void)state;
    mp_split split = {2, 80};
    assert_true(mp_split_dual_resize(&plain, &small, 32, &split, &split));
    rig_expect_split(&split, 6, 40);
    assert_false(mp_split_dual_resize(&plain, &small, 32, &split, &split));
    rig_expect_split(&split, 6, 40);
}

/* ---- Baselines ---- */

static void expect_fixed(const mp_split_bounds *bounds, double fraction, uint64_t experts,
                         uint64_t kv)
{
    mp_split split;
    assert_true(mp_split_fixed(bounds, fraction, &split));
    rig_expect_split(&split, experts, kv);
    rig_expect_iso_vram(bounds, &split);
}

static void test_split_fixed_is_a_fraction_of_the_bytes(void **state)
{
    (void)state;
    expect_fixed(&small, 0.5, 5, 50);
    expect_fixed(&small, 0.75, 7, 30); /* 750 bytes are no 8 units */
    /* Half of the bytes: neither half of the units nor half of the experts. */
    mp_split_bounds b = {1000, 30, 7, 1, 100, 1};
    expect_fixed(&b, 0.5, 16, 74);
    b.budget_bytes = 959;
    expect_fixed(&b, 0.5, 15, 72); /* 479.5 bytes */
    b.budget_bytes = 960;
    expect_fixed(&b, 0.5, 16, 68);
    /* Of all the bytes there can be, which no double holds. */
    b = (mp_split_bounds){UINT64_MAX, UINT64_C(1) << 32, 1, 0, UINT64_MAX, 0};
    expect_fixed(&b, 0.5, UINT64_C(1) << 31, HUGE_SIZE - 1);
    expect_fixed(&b, 1, UINT32_MAX, UINT32_MAX);
}

static void test_split_fixed_stays_within_the_bounds(void **state)
{
    (void)state;
    expect_fixed(&small, 0, 2, 80);
    expect_fixed(&small, 0.1, 2, 80);
    expect_fixed(&small, 1, 8, 20);
    mp_split_bounds b = small;
    b.kv_floor = 45;
    expect_fixed(&b, 1, 5, 50);

    mp_split split;
    b.kv_floor = 80;
    expect_fixed(&b, 0.5, 2, 80);
    b.kv_floor = 81;
    for (uint32_t tenths = 0; tenths <= 10; tenths++)
        assert_false(mp_split_fixed(&b, tenths / 10.0, &split));
    b = small;
    b.min_experts = 9;
    assert_false(mp_split_fixed(&b, 0.5, &split));
}

static void expect_flux(const mp_split_bounds *bounds, uint64_t working_set, uint64_t experts,
                        uint64_t kv)
{
    mp_split split = {77, 88};
    mp_split_flux(bounds, working_set, &split);
    rig_expect_split(&split, experts, kv);
}

static void test_split_flux_is_blind_to_kv(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    expect_flux(&b, 5, 5, 50);
    expect_flux(&b, 0, 2, 80);
    expect_flux(&b, 8, 8, 20);
    expect_flux(&b, 9, 8, 20);
    for (b.kv_floor = 0; b.kv_floor < 200; b.kv_floor++)
        expect_flux(&b, 5, 5, 50);
    expect_flux(&b, UINT64_MAX, 8, 20);
}

static void test_split_flux_may_give_kv_nothing(void **state)
{
    (void)state;
    mp_split_bounds b = small;
    b.max_experts = 100;
    expect_flux(&b, 9, 9, 10); /* below the floor of 15 */
    expect_flux(&b, 10, 10, 0);
    expect_flux(&b, 50, 10, 0);
    b.budget_bytes = 1009;
    expect_flux(&b, 50, 10, 0);
    b.budget_bytes = 150; /* not even their least */
    expect_flux(&b, 50, 1, 5);
    b.budget_bytes = 0;
    expect_flux(&b, 50, 0, 0);
    b = (mp_split_bounds){1000, HUGE_SIZE, 10, 2, UINT64_MAX, 1};
    expect_flux(&b, 2, 0, 100);
}

/* A cycle of 100 units: all of it misses below, nothing from there on; with a tenth of headroom only
 * from 110 on. */
static void test_split_headroom_lets_a_cycle_grow(void **state)
{
    (void)state;
    static double bins[256];
    mp_curve kv, experts;
    mp_curve_init(&kv, bins, 200, 255);
    mp_curve_add(&kv, 99, 50);
    static double none[16];
    mp_curve_init(&experts, none, 10, 15);
    mp_split_costs costs = {.experts = &experts, .kv = &kv, .kv_miss_ns = 2};
    assert_true(mp_split_cost(&costs, &(mp_split){.kv = 99}) == 100);
    assert_true(mp_split_cost(&costs, &(mp_split){.kv = 100}) == 0);
    costs.kv_headroom = 0.1;
    assert_true(mp_split_cost(&costs, &(mp_split){.kv = 109}) == 100);
    assert_true(mp_split_cost(&costs, &(mp_split){.kv = 111}) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_floor_gives_each_sequence_blocks_of_its_own),
        cmocka_unit_test(test_split_floor_fills_units_with_blocks_of_all_sequences),
        cmocka_unit_test(test_split_floor_is_never_less_than_one_sequence),
        cmocka_unit_test(test_split_floor_does_not_wrap),
        cmocka_unit_test(test_split_feasible_needs_all_of_the_bytes),
        cmocka_unit_test(test_split_feasible_refuses_more_experts_than_there_are),
        cmocka_unit_test(test_split_within_is_to_the_edge_of_each_bound),
        cmocka_unit_test(test_split_bounds_do_not_wrap),
        cmocka_unit_test(test_split_of_units_of_no_bytes_none_fit),
        cmocka_unit_test(test_split_with_experts_clamps_both_ways),
        cmocka_unit_test(test_split_with_experts_is_iso_memory_whatever_the_bounds),
        cmocka_unit_test(test_split_within_is_the_definition),
        cmocka_unit_test(test_split_with_experts_frees_kv_tokens_as_in_table_3),
        cmocka_unit_test(test_split_dual_resize_gives_kv_its_peak_and_experts_the_rest),
        cmocka_unit_test(test_split_dual_resize_rounds_headroom_up),
        cmocka_unit_test(test_split_dual_resize_leaves_experts_their_least),
        cmocka_unit_test(test_split_dual_resize_refuses_what_takes_kv_below_its_floor),
        cmocka_unit_test(test_split_dual_resize_gives_kv_what_all_experts_leave),
        cmocka_unit_test(test_split_dual_resize_dead_zone_is_to_its_edge),
        cmocka_unit_test(test_split_dual_resize_leaves_what_violates_the_bounds),
        cmocka_unit_test(test_split_dual_resize_may_write_over_the_split_now),
        cmocka_unit_test(test_split_fixed_is_a_fraction_of_the_bytes),
        cmocka_unit_test(test_split_fixed_stays_within_the_bounds),
        cmocka_unit_test(test_split_flux_is_blind_to_kv),
        cmocka_unit_test(test_split_flux_may_give_kv_nothing),
        cmocka_unit_test(test_split_headroom_lets_a_cycle_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
