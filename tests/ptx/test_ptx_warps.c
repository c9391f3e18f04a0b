/* Memory, warps and blocks of the machine: loads and stores of every form, what lanes do together, and the
 * order in which a block's threads get on. */
#include <stdio.h>
#include <string.h>

#include "snippet.h"
#include "testing.h"

static void runs(snippet *s)
{
    snippet_run(s);
    if (s->found)
        fail_msg("%s: %s", ptx_finding_name(s->found), s->said);
}

static void gives(const char *body, uint64_t in, uint64_t want)
{
    snippet s = {.body = body};
    memset(snippet_out, 0, sizeof snippet_out);
    snippet_in[0] = snippet_in[8] = in;
    runs(&s);
    if (snippet_out[0] != want)
        fail_msg("%s of %#llx is %#llx, not %#llx", body, (unsigned long long)in,
                 (unsigned long long)snippet_out[0], (unsigned long long)want);
}

/* ---- Memory ---- */

static void test_ptx_loads_extend_to_their_register(void **state)
{
    (void)state;
    gives("ld.global.u8 %rs20, [%rd1]; cvt.u64.u16 %rd20, %rs20; st.global.u64 [%rd2], %rd20;",
          0xf0f1f2f3, 0xf3);
    gives("ld.global.nc.u8 %r20, [%rd1+1]; cvt.u64.u32 %rd20, %r20; st.global.u64 [%rd2], %rd20;",
          0xf0f1f2f3, 0xf2);
    gives("ld.global.s8 %r20, [%rd1]; cvt.u64.u32 %rd20, %r20; st.global.u64 [%rd2], %rd20;", 0xf3,
          0xfffffff3);
    gives("ld.global.u16 %rd20, [%rd1+2]; st.global.u64 [%rd2], %rd20;", 0xf0f1f2f3, 0xf0f1);
    gives("ld.u32 %rd20, [%rd1]; st.u64 [%rd2], %rd20;", 0x1122334455667788, 0x55667788);
    gives("ld.global.s32 %rd20, [%rd1]; st.global.u64 [%rd2], %rd20;", 0x80000000,
          0xffffffff80000000);
    gives("ld.relaxed.sys.s32 %r20, [%rd1+64]; st.global.u32 [%rd2], %r20;", 77, 77);
    gives("ld.acquire.sys.u32 %r20, [%rd1+68]; st.global.u32 [%rd2+4], %r20;", 77ull << 32,
          77ull << 32);
}

static void test_ptx_stores_cut_to_their_size(void **state)
{
    (void)state;
    gives("st.global.u8 [%rd2+1], %r10;", 0x11223344, 0x4400);
    gives("st.u16 [%rd2+6], %rs10;", 0x11223344, 0x3344ull << 48);
    gives("st.global.f32 [%rd2], %f10;", 0x3f800000, 0x3f800000);
    gives("st.release.sys.u32 [%rd2], %r10;", 5, 5);
    gives("st.relaxed.sys.u64 [%rd2], %rd10;", 1ull << 40, 1ull << 40);
    gives("add.s64 %rd20, %rd2, 8; st.global.u32 [%rd20+-4], %r10;", 9, 9ull << 32);
}

static void test_ptx_vectors_are_elements_in_order(void **state)
{
    (void)state;
    gives("ld.global.v2.u32 {%r20, %r21}, [%rd1]; st.global.v2.u32 [%rd2], {%r21, %r20};",
          0x0000000500000007, 0x0000000700000005);
    gives("st.shared.v4.u8 [mp_dynamic_shared+4], {%rs10, %rs11, %rs10, %rs11};"
          "mov.u32 %r20, mp_dynamic_shared; ld.shared.u32 %r21, [%r20+4]; st.global.u32 [%rd2], "
          "%r21;",
          0x0102, 0x00020002);
    static const char *const hints[] = {"nc.L1::no_allocate.L2::128B.", "L1::no_allocate.", "nc.",
                                        ""};
    for (uint32_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        char body[160];
        snippet s = {.body = body};
        snprintf(body, sizeof body,
                 "ld.global.%sv4.u32 {%%r20, %%r21, %%r22, %%r23}, [%%rd1];\n"
                 "st.global.v4.f32 [%%rd2], {%%r23, %%r22, %%r21, %%r20};",
                 hints[i]);
        snippet_in[0] = 0x0000000200000001;
        snippet_in[1] = 0x0000000400000003;
        runs(&s);
        assert_true(snippet_out[0] == 0x0000000300000004 && snippet_out[1] == 0x0000000100000002);
    }
}

static void test_ptx_parameters_and_shared_memory_have_addresses(void **state)
{
    (void)state;
    gives("mov.b64 %rd20, snippet_param_1; ld.param.u64 %rd21, [%rd20+-8]; ld.global.u64 %rd22, "
          "[%rd21];\n"
          "st.global.u64 [%rd2], %rd22;",
          4711, 4711);
    gives("ld.param.v2.u32 {%r20, %r21}, [snippet_param_0]; cvt.u64.u32 %rd20, %r20; cvt.u64.u32 "
          "%rd21, %r21;\n"
          "shl.b64 %rd21, %rd21, 32; or.b64 %rd20, %rd20, %rd21; sub.s64 %rd20, %rd20, %rd1;\n"
          "st.global.u64 [%rd2], %rd20;",
          0, 0);
    /* Generic accesses reach parameters, and shared memory by its window. */
    gives("mov.b64 %rd20, snippet_param_1; cvta.param.u64 %rd20, %rd20; ld.u64 %rd21, [%rd20+-8]; "
          "ld.u64 %rd22, "
          "[%rd21];\n"
          "st.global.u64 [%rd2], %rd22;",
          4711, 4711);
    gives(
        "mov.u32 %r20, mp_dynamic_shared; cvt.u64.u32 %rd20, %r20; cvta.shared.u64 %rd20, %rd20;\n"
        "st.u32 [%rd20+8], %r10; ld.shared.u32 %r21, [mp_dynamic_shared+8]; st.global.u32 [%rd2], "
        "%r21;",
        1234, 1234);
}

static void test_ptx_atomics_give_what_was_there(void **state)
{
    (void)state;
    snippet s = {.body =
                     "mov.u32 %r20, 0; st.shared.u32 [mp_dynamic_shared], %r20; bar.sync 0;\n"
                     "mov.u32 %r21, mp_dynamic_shared; atom.shared.add.u32 %r22, [%r21], 1;\n"
                     "cvt.u64.u32 %rd20, %r22; st.global.u64 [%rd3], %rd20; bar.sync 0;\n"
                     "atom.shared.max.u32 %r22, [%r21], %r0; bar.sync 0;\n"
                     "add.s32 %r24, %r0, 3; atom.shared.min.u32 %r22, [%r21], %r24; bar.sync 0;\n"
                     "ld.shared.u32 %r23, [%r21]; cvt.u64.u32 %rd20, %r23; st.global.u64 "
                     "[%rd3+1024], %rd20;",
                 .threads = 96};
    uint64_t seen = 0;
    runs(&s);
    for (uint32_t i = 0; i < 96; i++) {
        seen += snippet_out[i];
        assert_int_equal(snippet_out[128 + i], 3);
    }
    assert_int_equal(seen, 95 * 96 / 2);
}

/* ---- Warps ---- */

static void test_ptx_shuffles_and_reductions_are_of_the_warp(void **state)
{
    (void)state;
    snippet s = {.body =
                     "mad.lo.s32 %r20, %r0, 7, 3;\n"
                     "shfl.sync.bfly.b32 %r21|%p1, %r20, 5, 31, -1;\n"
                     "redux.sync.min.u32 %r22, %r20, -1; redux.sync.max.u32 %r23, %r20, -1;\n"
                     "shl.b32 %r22, %r22, 8; shl.b32 %r23, %r23, 16; or.b32 %r22, %r22, %r23;\n"
                     "cvt.u64.u32 %rd20, %r22; cvt.u64.u32 %rd21, %r21; shl.b64 %rd21, %rd21, 32;\n"
                     "or.b64 %rd20, %rd20, %rd21; st.global.u64 [%rd3], %rd20;",
                 .threads = 32};
    runs(&s);
    for (uint64_t lane = 0; lane < 32; lane++)
        assert_true(snippet_out[lane] == (((lane ^ 5) * 7 + 3) << 32 | 220 << 16 | 3 << 8));
}

/* In the whole warp, and in segments of 8 lanes. */
static void test_ptx_shuffles_upwards_keep_what_has_no_lane_below(void **state)
{
    (void)state;
    snippet s = {.body =
                     "mad.lo.s32 %r20, %r0, 7, 3;\n"
                     "shfl.sync.up.b32 %r21|%p1, %r20, 4, 0, -1;\n"
                     "shfl.sync.up.b32 %r22|%p2, %r20, 3, 6144, -1;\n"
                     "selp.b32 %r23, 1, 0, %p1; selp.b32 %r24, 2, 0, %p2;\n"
                     "or.b32 %r23, %r23, %r24; shl.b32 %r23, %r23, 16; or.b32 %r22, %r22, %r23;\n"
                     "cvt.u64.u32 %rd20, %r22; cvt.u64.u32 %rd21, %r21; shl.b64 %rd21, %rd21, 32;\n"
                     "or.b64 %rd20, %rd20, %rd21; st.global.u64 [%rd3], %rd20;",
                 .threads = 32};
    runs(&s);
    for (uint64_t lane = 0; lane < 32; lane++) {
        uint64_t whole = lane >= 4 ? lane - 4 : lane, part = lane % 8 >= 3 ? lane - 3 : lane;
        uint64_t inside = (lane >= 4) | (lane % 8 >= 3) << 1;
        assert_true(snippet_out[lane] == ((whole * 7 + 3) << 32 | inside << 16 | (part * 7 + 3)));
    }
}

/* Half a warp by itself, with its mask. */
static void test_ptx_part_of_a_warp_meets_by_its_mask(void **state)
{
    (void)state;
    snippet s = {
        .body = "setp.lt.u32 %p1, %r0, 16; mov.u32 %r22, 0;\n@%p1 bra $L_low;\nbra.uni $L_end;\n"
                "$L_low: redux.sync.max.u32 %r22, %r0, 65535;\nbar.warp.sync 65535;\n$L_end:\n"
                "bar.warp.sync -1; cvt.u64.u32 %rd20, %r22; st.global.u64 [%rd3], %rd20;",
        .threads = 32};
    runs(&s);
    for (uint32_t lane = 0; lane < 32; lane++)
        assert_int_equal(snippet_out[lane], lane < 16 ? 15 : 0);
}

/* D = A B + C of small whole numbers, placed by the ISA's description of fragments: lane = 4 group + in. */
static float a_of(int i, int k)
{
    return (float)((i * 5 + k * 3) % 11 - 5);
}

static float b_of(int k, int n)
{
    return (float)((k * 7 + n * 2) % 13 - 6);
}

/* C's first two elements of a lane are 0 and 1, the others 2 and 3. */
static float d_of(int i, int n)
{
    float sum = (float)((i < 8 ? 0 : 2) + n % 2);
    for (int k = 0; k < 16; k++)
        sum += a_of(i, k) * b_of(k, n);
    return sum;
}

static uint32_t pair(float first, float second)
{
    uint32_t low, high;
    memcpy(&low, &first, 4);
    memcpy(&high, &second, 4);
    return low >> 16 | (high & 0xffff0000u);
}

static void put_fragments(uint32_t *words, int g, int in)
{
    const float c[2] = {0, 1};
    const int k = 2 * in;
    words[0] = pair(a_of(g, k), a_of(g, k + 1));
    words[1] = pair(a_of(g + 8, k), a_of(g + 8, k + 1));
    words[2] = pair(a_of(g, k + 8), a_of(g, k + 9));
    words[3] = pair(a_of(g + 8, k + 8), a_of(g + 8, k + 9));
    words[4] = pair(b_of(k, g), b_of(k + 1, g));
    words[5] = pair(b_of(k + 8, g), b_of(k + 9, g));
    memcpy(&words[6], c, sizeof c);
}

static void test_ptx_matrix_products_place_fragments_as_the_isa_says(void **state)
{
    snippet s = {.body = "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd4];\n"
                         "ld.global.v4.u32 {%r24, %r25, %r30, %r31}, [%rd4+16];\n"
                         "mov.b32 %f20, %r30; mov.b32 %f21, %r31;\n"
                         "mov.f32 %f22, 0f40000000; mov.f32 %f23, 0f40400000;\n"
                         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                         "{%f24, %f25, %f26, %f27}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, "
                         "{%f20, %f21, %f22, %f23};\n"
                         "mul.wide.u32 %rd20, %r0, 16; add.s64 %rd20, %rd20, %rd2;\n"
                         "st.global.v4.f32 [%rd20], {%f24, %f25, %f26, %f27};",
                 .threads = 32};
    (void)state;
    for (int lane = 0; lane < 32; lane++)
        put_fragments((uint32_t *)&snippet_in[4 * lane], lane / 4, lane % 4);
    runs(&s);
    for (int lane = 0; lane < 32; lane++) {
        const float *d = (const float *)&snippet_out[2 * lane];
        const int g = lane / 4, n = 2 * (lane % 4);
        assert_true(d[0] == d_of(g, n) && d[1] == d_of(g, n + 1));
        assert_true(d[2] == d_of(g + 8, n) && d[3] == d_of(g + 8, n + 1));
    }
}

static void test_ptx_lanes_part_and_meet_again(void **state)
{
    (void)state;
    /* Each lane goes round as often as its number says; then all are needed. */
    snippet s = {
        .body = "mov.u32 %r20, 0; mov.u32 %r21, 0;\n$L_again:\nsetp.ge.u32 %p1, %r20, %r0;\n"
                "@%p1 bra $L_out;\nadd.s32 %r21, %r21, %r20; add.s32 %r20, %r20, 1;\nbra.uni "
                "$L_again;\n"
                "$L_out: redux.sync.max.u32 %r22, %r21, -1;\nshl.b32 %r22, %r22, 16;\n"
                "or.b32 %r21, %r21, %r22; cvt.u64.u32 %rd20, %r21; st.global.u64 [%rd3], %rd20;",
        .threads = 32};
    runs(&s);
    for (uint32_t n = 0; n < 32; n++)
        assert_int_equal(snippet_out[n], n * (n - 1) / 2 * (n > 0) | 31 * 30 / 2 << 16);
}

static void test_ptx_guards_choose_lanes(void **state)
{
    (void)state;
    snippet s = {.body = "and.b32 %r20, %r0, 1; setp.eq.s32 %p1, %r20, 1; mov.u64 %rd20, 1;\n"
                         "@%p1 add.s64 %rd20, %rd20, 10;\n@!%p1 add.s64 %rd20, %rd20, 20;\n"
                         "{ .reg .pred p; setp.lt.u32 p, %r0, 4; @p add.s64 %rd20, %rd20, 100; }\n"
                         "st.global.u64 [%rd3], %rd20;\n@%p1 ret;\nmov.u64 %rd20, 7; st.global.u64 "
                         "[%rd3], %rd20;",
                 .threads = 32};
    runs(&s);
    for (uint32_t n = 0; n < 32; n++)
        assert_int_equal(snippet_out[n], n % 2 ? 11 + (n < 4 ? 100 : 0) : 7);
}

/* ---- Blocks ---- */

static void test_ptx_barriers_hold_all_warps(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        snippet s = {
            .body =
                "shl.b32 %r20, %r0, 2; mov.u32 %r21, mp_dynamic_shared; add.s32 %r22, %r21, %r20;\n"
                "st.shared.u32 [%r22], %r0; bar.sync 0;\n"
                "sub.s32 %r23, 255, %r0; shl.b32 %r23, %r23, 2; add.s32 %r23, %r23, %r21;\n"
                "ld.shared.u32 %r24, [%r23]; cvt.u64.u32 %rd20, %r24; st.global.u64 [%rd3], %rd20;",
            .threads = 256,
            .seed = seed};
        runs(&s);
        for (uint32_t n = 0; n < 256; n++)
            assert_int_equal(snippet_out[n], 255 - n);
    }
}

static void test_ptx_special_registers_say_where_a_thread_is(void **state)
{
    (void)state;
    snippet s = {.body = "mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ntid.x; mov.u32 %r22, %nctaid.x;\n"
                         "mad.lo.s32 %r23, %r20, %r21, %r0; mul.wide.u32 %rd20, %r23, 8; add.s64 "
                         "%rd20, %rd20, %rd2;\n"
                         "mad.lo.s32 %r23, %r22, 1000, %r23; cvt.u64.u32 %rd21, %r23; "
                         "st.global.u64 [%rd20], %rd21;",
                 .threads = 40,
                 .blocks = 3};
    runs(&s);
    for (uint32_t n = 0; n < 120; n++)
        assert_int_equal(snippet_out[n], 3000 + n);
}

static void test_ptx_copies_arrive_when_they_are_waited_for(void **state)
{
    (void)state;
    gives("mov.u32 %r20, mp_dynamic_shared; mov.u32 %r21, 12;\n"
          "cp.async.cg.shared.global [%r20], [%rd1], 16, %r21;\ncp.async.wait_all;\n"
          "ld.shared.u64 %rd20, [%r20]; ld.shared.u32 %r22, [%r20+12]; cvt.u64.u32 %rd21, %r22;\n"
          "add.s64 %rd20, %rd20, %rd21; st.global.u64 [%rd2], %rd20;",
          0x1234567890, 0x1234567890);
}

/* ---- The host's view ---- */

static uint64_t seen_words[64];
static uint32_t n_seen;

static void look(void *user)
{
    (void)user;
    seen_words[n_seen++ % 64] = __atomic_load_n(&snippet_out[1], __ATOMIC_ACQUIRE)
                                    ? __atomic_load_n(&snippet_out[0], __ATOMIC_ACQUIRE)
                                    : UINT64_MAX;
}

/* The host sees the flag, snippet_out[1], and looks at the message, snippet_out[0], over several seeds. */
static bool message_is_late(const char *body)
{
    bool late = false;
    for (uint64_t seed = 0; seed < 64; seed++) {
        snippet s = {.body = body, .seed = seed, .host_looks = true, .pause = look};
        memset(snippet_out, 0, sizeof snippet_out);
        n_seen = 0;
        snippet_in[0] = 42;
        runs(&s);
        for (uint32_t i = 0; i < n_seen; i++)
            late |= seen_words[i] == 0;
        assert_int_equal(snippet_out[0], 42);
    }
    return late;
}

static void test_ptx_stores_are_late_unless_something_orders_them(void **state)
{
    (void)state;
    assert_true(message_is_late(
        "mov.u64 %rd20, 1; st.relaxed.sys.u64 [%rd2], %rd10;\n"
        "st.relaxed.sys.u64 [%rd2+8], %rd20; nanosleep.u32 100; nanosleep.u32 100;"));
    assert_false(message_is_late("mov.u64 %rd20, 1; st.relaxed.sys.u64 [%rd2], %rd10; membar.sys;\n"
                                 "st.relaxed.sys.u64 [%rd2+8], %rd20; nanosleep.u32 100;"));
    assert_false(message_is_late("mov.u32 %r20, 1; st.global.u64 [%rd2], %rd10;\n"
                                 "st.release.sys.u32 [%rd2+8], %r20; nanosleep.u32 100;"));
    assert_false(
        message_is_late("mov.u64 %rd20, 1; st.global.u64 [%rd2], %rd10; fence.acq_rel.sys;\n"
                        "fence.sc.sys; st.relaxed.sys.u64 [%rd2+8], %rd20; nanosleep.u32 100;"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx_loads_extend_to_their_register),
        cmocka_unit_test(test_ptx_stores_cut_to_their_size),
        cmocka_unit_test(test_ptx_vectors_are_elements_in_order),
        cmocka_unit_test(test_ptx_parameters_and_shared_memory_have_addresses),
        cmocka_unit_test(test_ptx_atomics_give_what_was_there),
        cmocka_unit_test(test_ptx_shuffles_and_reductions_are_of_the_warp),
        cmocka_unit_test(test_ptx_shuffles_upwards_keep_what_has_no_lane_below),
        cmocka_unit_test(test_ptx_part_of_a_warp_meets_by_its_mask),
        cmocka_unit_test(test_ptx_matrix_products_place_fragments_as_the_isa_says),
        cmocka_unit_test(test_ptx_lanes_part_and_meet_again),
        cmocka_unit_test(test_ptx_guards_choose_lanes),
        cmocka_unit_test(test_ptx_barriers_hold_all_warps),
        cmocka_unit_test(test_ptx_special_registers_say_where_a_thread_is),
        cmocka_unit_test(test_ptx_copies_arrive_when_they_are_waited_for),
        cmocka_unit_test(test_ptx_stores_are_late_unless_something_orders_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
