/* What the machine finds in a few wrong lines, and does not find in the right ones beside them. */
#include <stdio.h>
#include <string.h>

#include "snippet.h"
#include "testing.h"

#define PLACE "shl.b32 %r20, %r0, 2; mov.u32 %r21, mp_dynamic_shared; add.s32 %r22, %r21, %r20;\n"
#define PEER "xor.b32 %r23, %r0, 33; shl.b32 %r23, %r23, 2; add.s32 %r23, %r23, %r21;\n"
#define NEAR "xor.b32 %r23, %r0, 1; shl.b32 %r23, %r23, 2; add.s32 %r23, %r23, %r21;\n"
#define MMA                                                                                       \
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f20, %f21, %f22, %f23}, {%r10, %r10, " \
    "%r10, %r10}, "                                                                               \
    "{%r10, %r10}, {%f10, %f10, %f10, %f10};\n"

typedef struct finding_case {
    const char *body;
    uint32_t threads;
    ptx_finding want;
    const char *said;
} finding_case;

static const finding_case cases[] = {
    /* Lanes */
    {"shfl.sync.bfly.b32 %r20|%p1, %r0, 1, 31, -1;", 32, PTX_FOUND_NOTHING, ""},
    {"shfl.sync.up.b32 %r20|%p1, %r0, 1, 0, -1;", 32, PTX_FOUND_NOTHING, ""},
    {"shfl.sync.up.b32 %r20|%p1, %r0, 1, 0, -1;", 16, PTX_FOUND_LANES, "its mask is ffffffff"},
    {"shfl.sync.bfly.b32 %r20|%p1, %r0, 1, 31, 65535;", 32, PTX_FOUND_LANES,
     "its mask is 0000ffff"},
    {"shfl.sync.bfly.b32 %r20|%p1, %r0, 1, 31, -1;", 16, PTX_FOUND_LANES, "its mask is ffffffff"},
    {"setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $L_a;\nret;\n$L_a: redux.sync.min.u32 %r20, %r0, -1;", 32,
     PTX_FOUND_LANES, "of the lanes ffffffff only 0000ffff come"},
    {"setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $L_a;\nret;\n$L_a: redux.sync.min.u32 %r20, %r0, 65535;",
     32, PTX_FOUND_NOTHING, ""},
    {"setp.lt.u32 %p1, %r0, 16;\n@%p1 shfl.sync.bfly.b32 %r20|%p2, %r0, 16, 31, 65535;", 32,
     PTX_FOUND_UNDEFINED, "lane 16, which it shuffles from, is not there"},
    {"setp.ne.u32 %p1, %r0, 7;\n@%p1 bar.warp.sync -1;", 32, PTX_FOUND_LANES, "only ffffff7f come"},
    {MMA, 32, PTX_FOUND_NOTHING, ""},
    {"setp.ne.u32 %p1, %r0, 31;\n@%p1 " MMA, 32, PTX_FOUND_LANES, "only 7fffffff come"},
    {MMA, 16, PTX_FOUND_NOTHING, ""},
    /* Barriers */
    {"bar.sync 0;", 256, PTX_FOUND_NOTHING, ""},
    {"bar.sync 1;", 256, PTX_FOUND_BARRIER, "not known"},
    {"setp.lt.u32 %p1, %r0, 64;\n@%p1 ret;\nbar.sync 0;", 256, PTX_FOUND_BARRIER,
     "6 warps wait, 2 have exited"},
    {"setp.lt.u32 %p1, %r0, 64;\n@%p1 bar.sync 0;", 256, PTX_FOUND_BARRIER,
     "2 warps wait, 6 have exited"},
    {"setp.lt.u32 %p1, %r0, 8;\n@%p1 bar.sync 0;", 32, PTX_FOUND_LANES, "only 000000ff come"},
    /* Copies */
    {"mov.u32 %r20, mp_dynamic_shared; cp.async.cg.shared.global [%r20], [%rd1], 16, 16;\n"
     "ld.shared.u32 %r21, [%r20+12];",
     1, PTX_FOUND_PENDING, "byte 12 of shared memory waits"},
    {"mov.u32 %r20, mp_dynamic_shared; cp.async.cg.shared.global [%r20], [%rd1], 16, 16;\n"
     "st.shared.u8 [%r20+15], %r0; cp.async.wait_all;",
     1, PTX_FOUND_PENDING, "byte 15 of shared memory waits"},
    {"mov.u32 %r20, mp_dynamic_shared; cp.async.cg.shared.global [%r20], [%rd1], 16, 16;", 1,
     PTX_FOUND_PENDING, "not waited for"},
    {"shl.b32 %r20, %r0, 4; mov.u32 %r21, mp_dynamic_shared; add.s32 %r22, %r20, %r21;\n"
     "cp.async.cg.shared.global [%r22], [%rd1], 16, 16;\ncp.async.wait_all; bar.sync 0;\n"
     "ld.shared.u32 %r23, [%r21];",
     64, PTX_FOUND_NOTHING, ""},
    {"shl.b32 %r20, %r0, 4; mov.u32 %r21, mp_dynamic_shared; add.s32 %r22, %r20, %r21;\n"
     "cp.async.cg.shared.global [%r22], [%rd1], 16, 16;\nbar.sync 0; cp.async.wait_all;\n"
     "xor.b32 %r24, %r22, 16; ld.shared.u32 %r23, [%r24];",
     64, PTX_FOUND_RACE, "written by thread"},
    {"mov.u32 %r20, mp_dynamic_shared; cp.async.cg.shared.global [%r20], [%rd1], 16, 17;", 1,
     PTX_FOUND_BOUNDS, "a copy of 17 of 16"},
    /* Races */
    {PLACE PEER "st.shared.u32 [%r22], %r0; bar.sync 0; ld.shared.u32 %r24, [%r23];", 64,
     PTX_FOUND_NOTHING, ""},
    {PLACE PEER "st.shared.u32 [%r22], %r0; ld.shared.u32 %r24, [%r23];", 64, PTX_FOUND_RACE, ""},
    {PLACE PEER "ld.shared.u32 %r24, [%r23]; st.shared.u32 [%r22], %r0;", 64, PTX_FOUND_RACE, ""},
    {PLACE PEER "st.shared.u32 [%r22], %r0; bar.warp.sync -1; ld.shared.u32 %r24, [%r23];", 64,
     PTX_FOUND_RACE, ""},
    {PLACE NEAR "st.shared.u32 [%r22], %r0; bar.warp.sync -1; ld.shared.u32 %r24, [%r23];", 64,
     PTX_FOUND_NOTHING, ""},
    {PLACE NEAR "st.shared.u32 [%r22], %r0; ld.shared.u32 %r24, [%r23];", 64, PTX_FOUND_RACE,
     "written by thread"},
    {PLACE NEAR "ld.shared.u32 %r24, [%r23]; bar.warp.sync -1; st.shared.u32 [%r22], %r0;", 64,
     PTX_FOUND_NOTHING, ""},
    {"mov.u32 %r20, 1; st.shared.u32 [mp_dynamic_shared], %r20;", 64, PTX_FOUND_NOTHING, ""},
    {"st.shared.u32 [mp_dynamic_shared], %r0;", 64, PTX_FOUND_RACE, "byte 0 of shared memory"},
    {"mov.u32 %r20, mp_dynamic_shared; atom.shared.add.u32 %r21, [%r20], 1;\nld.shared.u32 %r22, "
     "[%r20];",
     64, PTX_FOUND_RACE, ""},
    {"ld.shared.u32 %r22, [mp_dynamic_shared]; setp.eq.s32 %p1, %r0, 5;\n@%p1 st.shared.u32 "
     "[mp_dynamic_shared], %r0;",
     32, PTX_FOUND_RACE, "read by others"},
    /* Constant loads */
    {"ld.global.nc.u32 %r20, [%rd2]; st.global.u32 [%rd2+4], %r20;", 1, PTX_FOUND_NOTHING, ""},
    {"ld.global.nc.u32 %r20, [%rd2]; st.global.u16 [%rd2+2], %r20;", 1, PTX_FOUND_NC,
     "is written, and read"},
    {"st.global.u64 [%rd2], %rd1; ld.global.nc.u8 %r20, [%rd2+7];", 1, PTX_FOUND_NC, ""},
    {"st.global.u64 [%rd2], %rd1; ld.global.u8 %r20, [%rd2+7];", 1, PTX_FOUND_NOTHING, ""},
    /* Accesses */
    {"ld.global.u32 %r20, [%rd1+2];", 1, PTX_FOUND_ALIGNMENT, "4 bytes"},
    {"ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd1+8];", 1, PTX_FOUND_ALIGNMENT, "16 bytes"},
    {"st.shared.u16 [mp_dynamic_shared+1], %r0;", 1, PTX_FOUND_ALIGNMENT, "2 bytes"},
    {"ld.param.u64 %rd20, [snippet_param_0+4];", 1, PTX_FOUND_ALIGNMENT, "8 bytes"},
    {"ld.global.u8 %r20, [%rd1+-1];", 1, PTX_FOUND_BOUNDS, "no memory of the kernel's"},
    {"ld.global.u8 %r20, [%rd2+16128];", 1, PTX_FOUND_BOUNDS, "no memory of the kernel's"},
    {"st.global.u64 [%rd2+16120], %rd1;", 1, PTX_FOUND_NOTHING, ""},
    {"mov.u64 %rd20, 0; st.global.u32 [%rd20], %r0;", 1, PTX_FOUND_BOUNDS, "0, which is no memory"},
    {"st.shared.u32 [mp_dynamic_shared+4096], %r0;", 1, PTX_FOUND_BOUNDS, "4 bytes at 4096"},
    {"mov.u32 %r20, mp_dynamic_shared; ld.shared.u32 %r21, [%r20+-4];", 1, PTX_FOUND_BOUNDS,
     "4 bytes at -4"},
    {"st.shared.u32 [mp_dynamic_shared+4092], %r0;", 1, PTX_FOUND_NOTHING, ""},
    {"ld.param.u64 %rd20, [snippet_param_1+16];", 1, PTX_FOUND_BOUNDS,
     "24 of 24 bytes of parameters"},
    {"mov.b64 %rd20, snippet_param_1; cvta.param.u64 %rd20, %rd20; ld.u64 %rd21, [%rd20+16];", 1,
     PTX_FOUND_BOUNDS, "24 of 24 bytes of parameters"},
    {"mov.b64 %rd20, snippet_param_1; cvta.param.u64 %rd20, %rd20; st.u64 [%rd20], %rd1;", 1,
     PTX_FOUND_BOUNDS, "no memory of the kernel's"},
    {"mov.u32 %r20, mp_dynamic_shared; cvt.u64.u32 %rd20, %r20; cvta.shared.u64 %rd20, %rd20;\n"
     "st.global.u32 [%rd20], %r0;",
     1, PTX_FOUND_BOUNDS, ""},
    {"mov.u32 %r20, mp_dynamic_shared; cvt.u64.u32 %rd20, %r20; cvta.shared.u64 %rd20, %rd20;\n"
     "cvta.to.global.u64 %rd20, %rd20;",
     1, PTX_FOUND_BOUNDS, "no address of global memory"},
    /* Registers that are not set */
    {"st.global.u32 [%rd2], %r40;", 1, PTX_FOUND_UNSET, "not written before"},
    {"add.s32 %r41, %r40, 1;", 1, PTX_FOUND_NOTHING, ""},
    {"add.s32 %r41, %r40, 1; mov.u32 %r42, %r41; st.global.u32 [%rd2], %r42;", 1, PTX_FOUND_UNSET,
     ""},
    {"setp.eq.s32 %p1, %r40, 0;\n@%p1 mov.u32 %r41, 1;", 1, PTX_FOUND_UNSET, ""},
    {"setp.eq.s32 %p1, %r0, 0; selp.b32 %r41, %r0, %r40, %p1; st.global.u32 [%rd2], %r41;", 1,
     PTX_FOUND_NOTHING, ""},
    {"setp.ne.s32 %p1, %r0, 0; selp.b32 %r41, %r0, %r40, %p1; st.global.u32 [%rd2], %r41;", 1,
     PTX_FOUND_UNSET, ""},
    {"setp.ne.s32 %p1, %r0, 3;\n@%p1 mov.u32 %r41, 1;\nst.global.u32 [%rd3], %r41;", 32,
     PTX_FOUND_UNSET, "thread 3"},
    {"sub.s32 %r41, %r0, %r0; div.u32 %r42, %r0, %r41;", 1, PTX_FOUND_NOTHING, ""},
    {"sub.s32 %r41, %r0, %r0; rem.u32 %r42, %r0, %r41; st.global.u32 [%rd2], %r42;", 1,
     PTX_FOUND_UNSET, ""},
    {"mov.u64 %rd20, 0; div.u64 %rd21, %rd1, %rd20; st.global.u64 [%rd2], %rd21;", 1,
     PTX_FOUND_UNSET, ""},
    {"shfl.sync.bfly.b32 %r20|%p1, %r40, 1, 31, -1;", 32, PTX_FOUND_UNSET, ""},
    /* Words that two sides use */
    {"ld.acquire.sys.u32 %r20, [%rd2]; ld.global.u32 %r21, [%rd2+4];", 1, PTX_FOUND_NOTHING, ""},
    {"ld.acquire.sys.u32 %r20, [%rd2]; ld.global.u32 %r21, [%rd2];", 1, PTX_FOUND_WEAK, "without"},
    {"st.global.u32 [%rd2], %r0; st.release.sys.u32 [%rd2], %r0;", 1, PTX_FOUND_WEAK, "without"},
    /* No end */
    {"$L_a: add.s32 %r40, %r0, 1;\nbra.uni $L_a;", 1, PTX_FOUND_ENDLESS, "no end after"},
};

static void test_ptx_finds_what_hardware_forgives(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            snippet s = {.body = cases[i].body, .threads = cases[i].threads, .seed = seed};
            snippet_run(&s);
            if (s.found != cases[i].want || !strstr(s.said, cases[i].said))
                fail_msg("%s\nis %s, not %s: %s", cases[i].body, ptx_finding_name(s.found),
                         ptx_finding_name(cases[i].want), s.said);
        }
    }
}

/* "alignment: snippet:40 st.global.u32, block 1, thread 3: ..." */
static void test_ptx_findings_say_where(void **state)
{
    (void)state;
    snippet s = {.body =
                     "mov.u32 %r20, %ctaid.x; setp.eq.s32 %p1, %r20, 1; setp.eq.s32 %p2, %r0, 3;\n"
                     "and.pred %p1, %p1, %p2;\n@%p1 st.global.u32 [%rd2+1], %r0;",
                 .threads = 64,
                 .blocks = 2};
    snippet_run(&s);
    assert_non_null(
        strstr(s.said, "alignment: snippet:36 st.global.u32, block 1, thread 3: 4 bytes at"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx_finds_what_hardware_forgives),
        cmocka_unit_test(test_ptx_findings_say_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
