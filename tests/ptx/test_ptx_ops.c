/* Every instruction that the machine knows, on operands whose result was worked out by hand from the text of
 * the PTX ISA. */
#include <stdio.h>
#include <string.h>

#include "ptx_inside.h"
#include "snippet.h"
#include "testing.h"

/* The last line stores a double word, by the letter of the result's register. */
static const char *store_of(char letter)
{
    switch (letter) {
    case 'w': return "cvt.u64.u32 %rd30, %r20; st.global.u64 [%rd3], %rd30;";
    case 'f': return "mov.b32 %r20, %f20; cvt.u64.u32 %rd30, %r20; st.global.u64 [%rd3], %rd30;";
    case 'h': return "cvt.u64.u16 %rd30, %rs20; st.global.u64 [%rd3], %rd30;";
    case 'p': return "selp.u64 %rd30, 1, 0, %p1; st.global.u64 [%rd3], %rd30;";
    default: return "st.global.u64 [%rd3], %rd20;";
    }
}

typedef struct op_case {
    char result; /* w: %r20, f: %f20, h: %rs20, x: %rd20, p: %p1 */
    const char *text;
    uint64_t a, b, c, want;
} op_case;

static const op_case cases[] = {
    /* Words */
    {'w', "mov.b32 %r20, %r10;", 0xdeadbeef, 0, 0, 0xdeadbeef},
    {'w', "mov.u32 %r20, 77;", 0, 0, 0, 77},
    {'w', "mov.s32 %r20, -2;", 0, 0, 0, 0xfffffffe},
    {'f', "mov.f32 %f20, 0f3F800000;", 0, 0, 0, 0x3f800000},
    {'f', "mov.b32 %f20, %r10;", 0x40490fdb, 0, 0, 0x40490fdb},
    {'h', "mov.u16 %rs20, %rs10;", 0x12345678, 0, 0, 0x5678},
    {'h', "mov.b16 %rs20, 9;", 0, 0, 0, 9},
    {'w', "mov.b32 %r20, {%rs10, %rs11};", 0x1111, 0x2222, 0, 0x22221111},
    {'w', "add.s32 %r20, %r10, %r11;", 0xffffffff, 3, 0, 2},
    {'w', "add.u32 %r20, %r10, -1;", 0, 0, 0, 0xffffffff},
    {'w', "sub.s32 %r20, %r10, %r11;", 3, 5, 0, 0xfffffffe},
    {'w', "sub.u32 %r20, %r10, %r11;", 9, 5, 0, 4},
    {'w', "neg.s32 %r20, %r10;", 5, 0, 0, 0xfffffffb},
    {'w', "mul.lo.s32 %r20, %r10, %r11;", 0x10001, 0x10001, 0, 0x20001},
    {'w', "mul.lo.u32 %r20, %r10, %r11;", 7, 6, 0, 42},
    {'w', "mul.wide.u16 %r20, %rs10, %rs11;", 0xffff, 0xffff, 0, 0xfffe0001},
    {'w', "mad.lo.s32 %r20, %r10, %r11, %r12;", 3, 4, 5, 17},
    {'w', "mad.lo.u32 %r20, %r10, %r11, %r12;", 0x80000000, 2, 1, 1},
    {'w', "and.b32 %r20, %r10, %r11;", 0xff00ff00, 0x0ff00ff0, 0, 0x0f000f00},
    {'w', "or.b32 %r20, %r10, %r11;", 0xf0, 0x0f, 0, 0xff},
    {'w', "xor.b32 %r20, %r10, %r11;", 0xff, 0x0f, 0, 0xf0},
    {'w', "not.b32 %r20, %r10;", 0x0000ffff, 0, 0, 0xffff0000},
    {'h', "and.b16 %rs20, %rs10, %rs11;", 0xff0f, 0x0fff, 0, 0x0f0f},
    {'h', "or.b16 %rs20, %rs10, %rs11;", 0x100, 0x1, 0, 0x101},
    {'h', "xor.b16 %rs20, %rs10, %rs11;", 0xffff, 0x1, 0, 0xfffe},
    {'w', "shl.b32 %r20, %r10, %r11;", 3, 31, 0, 0x80000000},
    {'w', "shl.b32 %r20, %r10, %r11;", 3, 32, 0, 0},
    {'w', "shr.u32 %r20, %r10, %r11;", 0x80000000, 31, 0, 1},
    {'w', "shr.u32 %r20, %r10, %r11;", 0x80000000, 40, 0, 0},
    {'w', "shr.s32 %r20, %r10, %r11;", 0x80000000, 4, 0, 0xf8000000},
    {'w', "shr.s32 %r20, %r10, %r11;", 0x80000000, 99, 0, 0xffffffff},
    {'h', "shr.u16 %rs20, %rs10, %r11;", 0x8000, 15, 0, 1},
    {'w', "min.u32 %r20, %r10, %r11;", 0xffffffff, 1, 0, 1},
    {'w', "max.u32 %r20, %r10, %r11;", 0xffffffff, 1, 0, 0xffffffff},
    {'w', "min.s32 %r20, %r10, %r11;", 0xffffffff, 1, 0, 0xffffffff},
    {'w', "max.s32 %r20, %r10, %r11;", 0xffffffff, 1, 0, 1},
    {'w', "div.u32 %r20, %r10, %r11;", 0xffffffff, 10, 0, 429496729},
    {'w', "rem.u32 %r20, %r10, %r11;", 0xffffffff, 10, 0, 5},
    {'h', "cvt.u16.u32 %rs20, %r10;", 0x12345678, 0, 0, 0x5678},
    {'w', "cvt.u32.u16 %r20, %rs10;", 0xfffff, 0, 0, 0xffff},
    {'w', "shf.r.wrap.b32 %r20, %r10, %r11, %r12;", 0x11223344, 0xaabbccdd, 8, 0xdd112233},
    {'w', "shf.r.wrap.b32 %r20, %r10, %r11, %r12;", 0x11223344, 0xaabbccdd, 32, 0x11223344},
    {'w', "shf.l.wrap.b32 %r20, %r10, %r11, %r12;", 0x11223344, 0xaabbccdd, 8, 0xbbccdd11},
    {'w', "shf.l.wrap.b32 %r20, %r10, %r11, %r12;", 0x11223344, 0xaabbccdd, 32, 0xaabbccdd},
    {'w', "brev.b32 %r20, %r10;", 0x80000003, 0, 0, 0xc0000001},
    {'w', "clz.b32 %r20, %r10;", 0x00010000, 0, 0, 15},
    {'w', "clz.b32 %r20, %r10;", 0, 0, 0, 32},
    {'w', "popc.b32 %r20, %r10;", 0xf0f0f001, 0, 0, 13},
    {'w', "bfi.b32 %r20, %r10, %r11, 8, 4;", 0xab, 0xffffffff, 0, 0xfffffbff},
    {'w', "bfi.b32 %r20, %r10, %r11, 28, 8;", 0x15, 0, 0, 0x50000000},
    {'w', "bfi.b32 %r20, %r10, %r11, 32, 8;", 0xff, 0x7, 0, 0x7},
    {'w', "bfi.b32 %r20, %r10, %r11, 4, 0;", 0xff, 0x7, 0, 0x7},
    {'w', "bfe.u32 %r20, %r10, 8, 12;", 0x12345678, 0, 0, 0x456},
    {'w', "lop3.b32 %r20, %r10, %r11, %r12, 0xe4;", 0x12345678, 0x9abcdef0, 0xffff0000, 0x1234def0},
    {'w', "lop3.b32 %r20, %r10, %r11, %r12, 0x80;", 0xfc, 0x3f, 0x1c, 0x1c},
    {'w', "lop3.b32 %r20, %r10, %r11, %r12, 0x96;", 0xf0, 0xcc, 0xaa, 0x96},
    {'w', "lop3.b32 %r20, %r10, %r11, %r12, 0x01;", 0xfffffff0, 0xfffffffc, 0xfffffffe, 0x1},
    {'w', "prmt.b32 %r20, %r10, %r11, %r12;", 0x33221100, 0x77665544, 0x5410, 0x55441100},
    {'w', "prmt.b32 %r20, %r10, %r11, %r12;", 0x33221100, 0x77665544, 0x3322, 0x33332222},
    {'w', "prmt.b32 %r20, %r10, %r11, %r12;", 0x80221100, 0x77665544, 0x7b3b, 0x77ff80ff},
    {'w', "dp4a.u32.u32 %r20, %r10, %r11, %r12;", 0x01020304, 0xff020304, 100, 384},
    {'w', "dp2a.lo.u32.u32 %r20, %r10, %r11, %r12;", 0x00020003, 0xeeee0504, 7, 29},
    {'w', "setp.ne.u32 %p1, %r12, 0; selp.b32 %r20, %r10, %r11, %p1;", 5, 6, 1, 5},
    {'w', "setp.ne.u32 %p1, %r12, 0; selp.u32 %r20, %r10, %r11, %p1;", 5, 6, 0, 6},
    {'w', "setp.ne.u32 %p1, %r12, 0; selp.s32 %r20, %r10, -1, %p1;", 5, 6, 0, 0xffffffff},
    {'f', "setp.ne.u32 %p1, %r12, 0; selp.f32 %f20, %f10, %f11, %p1;", 0x7fc00001, 6, 1,
     0x7fc00001},
    {'h', "setp.ne.u32 %p1, %r12, 0; selp.u16 %rs20, %rs10, %rs11, %p1;", 5, 6, 0, 6},
    {'h', "setp.ne.u32 %p1, %r12, 0; selp.b16 %rs20, %rs10, %rs11, %p1;", 5, 6, 3, 5},
    /* Double words */
    {'x', "mov.b64 %rd20, %rd10;", 0x123456789abcdef0, 0, 0, 0x123456789abcdef0},
    {'x', "mov.u64 %rd20, 5;", 0, 0, 0, 5},
    {'x', "mov.s64 %rd20, -5;", 0, 0, 0, 0xfffffffffffffffb},
    {'x', "add.s64 %rd20, %rd10, %rd11;", 0xffffffff, 1, 0, 0x100000000},
    {'x', "add.u64 %rd20, %rd10, %rd11;", ~0ull, 2, 0, 1},
    {'x', "sub.s64 %rd20, %rd10, %rd11;", 0x100000000, 1, 0, 0xffffffff},
    {'x', "sub.u64 %rd20, %rd10, %rd11;", 1, 2, 0, ~0ull},
    {'x', "neg.s64 %rd20, %rd10;", 1, 0, 0, ~0ull},
    {'x', "mul.lo.s64 %rd20, %rd10, %rd11;", 0x100000001, 0x100000001, 0, 0x200000001},
    {'x', "mul.lo.u64 %rd20, %rd10, %rd11;", 1ull << 40, 3, 0, 3ull << 40},
    {'x', "mad.lo.s64 %rd20, %rd10, %rd11, %rd12;", 1ull << 33, 2, 7, (1ull << 34) + 7},
    {'x', "mul.wide.u32 %rd20, %r10, %r11;", 0xffffffff, 0xffffffff, 0, 0xfffffffe00000001},
    {'x', "mul.wide.s32 %rd20, %r10, %r11;", 0xffffffff, 5, 0, 0xfffffffffffffffb},
    {'x', "mad.wide.u32 %rd20, %r10, %r11, %rd12;", 0xffffffff, 2, 3, 0x200000001},
    {'x', "and.b64 %rd20, %rd10, %rd11;", 0xff00ff00ff00ff00, 0x0ff00ff00ff00ff0, 0,
     0x0f000f000f000f00},
    {'x', "or.b64 %rd20, %rd10, %rd11;", 1ull << 63, 1, 0, 0x8000000000000001},
    {'x', "xor.b64 %rd20, %rd10, %rd11;", ~0ull, 1, 0, 0xfffffffffffffffe},
    {'x', "not.b64 %rd20, %rd10;", 0, 0, 0, ~0ull},
    {'x', "shl.b64 %rd20, %rd10, %r11;", 1, 63, 0, 1ull << 63},
    {'x', "shl.b64 %rd20, %rd10, %r11;", 1, 64, 0, 0},
    {'x', "shr.u64 %rd20, %rd10, %r11;", 1ull << 63, 63, 0, 1},
    {'x', "shr.s64 %rd20, %rd10, %r11;", 1ull << 63, 70, 0, ~0ull},
    {'x', "min.u64 %rd20, %rd10, %rd11;", ~0ull, 4, 0, 4},
    {'x', "max.u64 %rd20, %rd10, %rd11;", ~0ull, 4, 0, ~0ull},
    {'x', "div.u64 %rd20, %rd10, %rd11;", 1ull << 40, 3, 0, 366503875925},
    {'x', "rem.u64 %rd20, %rd10, %rd11;", 1ull << 40, 3, 0, 1},
    {'x', "cvt.u64.u32 %rd20, %r10;", 0xffffffff80000000, 0, 0, 0x80000000},
    {'x', "cvt.s64.s32 %rd20, %r10;", 0x80000000, 0, 0, 0xffffffff80000000},
    {'x', "cvt.u64.u16 %rd20, %rs10;", 0x1ffff, 0, 0, 0xffff},
    {'w', "cvt.u32.u64 %r20, %rd10;", 0x1234567890, 0, 0, 0x34567890},
    {'h', "cvt.u16.u64 %rs20, %rd10;", 0x1234567890, 0, 0, 0x7890},
    {'x', "bfi.b64 %rd20, %rd10, %rd11, 32, 16;", 0xabcd1234, ~0ull, 0, 0xffff1234ffffffff},
    {'x', "setp.ne.u32 %p1, %r12, 0; selp.b64 %rd20, %rd10, %rd11, %p1;", 5, 6, 1, 5},
    {'x', "setp.ne.u32 %p1, %r12, 0; selp.u64 %rd20, %rd10, %rd11, %p1;", 5, 6, 0, 6},
    {'x',
     "cvta.shared.u64 %rd21, %rd10; cvta.shared.u64 %rd22, %rd11; sub.s64 %rd20, %rd22, %rd21;", 0,
     40, 0, 40},
    {'x', "cvta.param.u64 %rd21, %rd10; cvta.param.u64 %rd22, %rd11; sub.s64 %rd20, %rd22, %rd21;",
     0x1000, 0x1040, 0, 0x40},
    {'x', "cvta.to.global.u64 %rd20, %rd10;", 0x7f0012345678, 0, 0, 0x7f0012345678},
    {'x', "mov.u64 %rd20, %globaltimer;", 0, 0, 0, 123456789},
    /* Comparisons */
    {'p', "setp.eq.u32 %p1, %r10, %r11;", 4, 4, 0, 1},
    {'p', "setp.ne.u32 %p1, %r10, %r11;", 4, 4, 0, 0},
    {'p', "setp.lt.u32 %p1, %r10, %r11;", 1, 0xffffffff, 0, 1},
    {'p', "setp.le.u32 %p1, %r10, %r11;", 0xffffffff, 0xffffffff, 0, 1},
    {'p', "setp.gt.u32 %p1, %r10, %r11;", 1, 0xffffffff, 0, 0},
    {'p', "setp.ge.u32 %p1, %r10, %r11;", 0xffffffff, 1, 0, 1},
    {'p', "setp.eq.s32 %p1, %r10, -1;", 0xffffffff, 0, 0, 1},
    {'p', "setp.ne.s32 %p1, %r10, %r11;", 1, 2, 0, 1},
    {'p', "setp.lt.s32 %p1, %r10, %r11;", 0xffffffff, 1, 0, 1},
    {'p', "setp.le.s32 %p1, %r10, %r11;", 1, 0xffffffff, 0, 0},
    {'p', "setp.gt.s32 %p1, %r10, %r11;", 1, 0xffffffff, 0, 1},
    {'p', "setp.ge.s32 %p1, %r10, %r11;", 0x80000000, 0, 0, 0},
    {'p', "setp.eq.u64 %p1, %rd10, %rd11;", 1ull << 32, 0, 0, 0},
    {'p', "setp.ne.u64 %p1, %rd10, %rd11;", 1ull << 32, 0, 0, 1},
    {'p', "setp.lt.u64 %p1, %rd10, %rd11;", 1, ~0ull, 0, 1},
    {'p', "setp.le.u64 %p1, %rd10, %rd11;", ~0ull, 1, 0, 0},
    {'p', "setp.gt.u64 %p1, %rd10, %rd11;", ~0ull, 1, 0, 1},
    {'p', "setp.ge.u64 %p1, %rd10, %rd11;", 5, 5, 0, 1},
    {'p', "setp.eq.s64 %p1, %rd10, 0;", 0, 0, 0, 1},
    {'p', "setp.ne.s64 %p1, %rd10, %rd11;", 3, 3, 0, 0},
    {'p', "setp.lt.s64 %p1, %rd10, %rd11;", ~0ull, 1, 0, 1},
    {'p', "setp.le.s64 %p1, %rd10, %rd11;", 1, ~0ull, 0, 0},
    {'p', "setp.gt.s64 %p1, %rd10, %rd11;", ~0ull, 1, 0, 0},
    {'p', "setp.ge.s64 %p1, %rd10, %rd11;", 1, ~0ull, 0, 1},
    {'p', "setp.eq.f32 %p1, %f10, %f11;", 0, 0x80000000, 0, 1},
    {'p', "setp.eq.f32 %p1, %f10, %f11;", 0x7fc00000, 0x7fc00000, 0, 0},
    {'p', "setp.ne.f32 %p1, %f10, %f11;", 0x7fc00000, 0x3f800000, 0, 0},
    {'p', "setp.ne.f32 %p1, %f10, %f11;", 0x40000000, 0x3f800000, 0, 1},
    {'p', "setp.lt.f32 %p1, %f10, %f11;", 0xbf800000, 0x3f800000, 0, 1},
    {'p', "setp.le.f32 %p1, %f10, %f11;", 0x7fc00000, 0x3f800000, 0, 0},
    {'p', "setp.gt.f32 %p1, %f10, %f11;", 0x7f800000, 0x3f800000, 0, 1},
    {'p', "setp.ge.f32 %p1, %f10, %f11;", 0x3f800000, 0x3f800000, 0, 1},
    {'p', "setp.equ.f32 %p1, %f10, %f11;", 0x7fc00000, 0x3f800000, 0, 1},
    {'p', "setp.equ.f32 %p1, %f10, %f11;", 0x40000000, 0x3f800000, 0, 0},
    {'p', "setp.neu.f32 %p1, %f10, %f11;", 0x7fc00000, 0x3f800000, 0, 1},
    {'p', "setp.ltu.f32 %p1, %f10, %f11;", 0x7fc00000, 0x3f800000, 0, 1},
    {'p', "setp.ltu.f32 %p1, %f10, %f11;", 0x40000000, 0x3f800000, 0, 0},
    {'p', "setp.leu.f32 %p1, %f10, %f11;", 0x3f800000, 0x3f800000, 0, 1},
    {'p', "setp.gtu.f32 %p1, %f10, %f11;", 0x3f800000, 0x3f800000, 0, 0},
    {'p', "setp.geu.f32 %p1, %f10, %f11;", 0x3f800000, 0x7fc00000, 0, 1},
    {'p', "setp.nan.f32 %p1, %f10, %f11;", 0x3f800000, 0x7f800001, 0, 1},
    {'p', "setp.nan.f32 %p1, %f10, %f11;", 0x3f800000, 0x7f800000, 0, 0},
    {'p', "setp.num.f32 %p1, %f10, %f11;", 0x3f800000, 0x7f800000, 0, 1},
    {'p', "setp.eq.b32 %p1, %r10, %r11;", 7, 7, 0, 1},
    {'p', "setp.ne.b32 %p1, %r10, %r11;", 7, 7, 0, 0},
    {'p', "setp.eq.s16 %p1, %rs10, %rs11;", 0x10005, 5, 0, 1},
    {'p', "setp.ne.s16 %p1, %rs10, %rs11;", 0x10005, 5, 0, 0},
    {'p', "setp.lt.s16 %p1, %rs10, %rs11;", 0xffff, 1, 0, 1},
    {'p', "setp.le.s16 %p1, %rs10, %rs11;", 1, 0xffff, 0, 0},
    {'p', "setp.gt.s16 %p1, %rs10, -1;", 1, 0, 0, 1},
    {'p', "setp.ge.s16 %p1, %rs10, %rs11;", 0x8000, 0x7fff, 0, 0},
    {'p', "setp.eq.u16 %p1, %rs10, %rs11;", 5, 5, 0, 1},
    {'p', "setp.ne.u16 %p1, %rs10, %rs11;", 5, 5, 0, 0},
    {'p', "setp.lt.u16 %p1, %rs10, %rs11;", 1, 0xffff, 0, 1},
    {'p', "setp.le.u16 %p1, %rs10, %rs11;", 0xffff, 1, 0, 0},
    {'p', "setp.gt.u16 %p1, %rs10, %rs11;", 0x8000, 0x7fff, 0, 1},
    {'p', "setp.ge.u16 %p1, %rs10, %rs11;", 0x7fff, 0x8000, 0, 0},
    {'p', "setp.ne.u32 %p2, %r10, 0; setp.ne.u32 %p3, %r11, 0; and.pred %p1, %p2, %p3;", 1, 0, 0,
     0},
    {'p', "setp.ne.u32 %p2, %r10, 0; setp.ne.u32 %p3, %r11, 0; or.pred %p1, %p2, %p3;", 1, 0, 0, 1},
    {'p', "setp.ne.u32 %p2, %r10, 0; setp.ne.u32 %p3, %r11, 0; xor.pred %p1, %p2, %p3;", 1, 1, 0,
     0},
    {'p', "setp.ne.u32 %p2, %r10, 0; not.pred %p1, %p2;", 1, 0, 0, 0},
    {'p', "mov.pred %p1, 1;", 0, 0, 0, 1},
    {'p', "setp.ne.u32 %p2, %r10, 0; mov.pred %p1, %p2;", 0, 0, 0, 0},
    /* Floats. 1 + 2^-24 is half way, to even; 2^-149 is the least of all. */
    {'f', "add.f32 %f20, %f10, %f11;", 0x3f800000, 0x33800000, 0, 0x3f800000},
    {'f', "add.rn.f32 %f20, %f10, %f11;", 0x3f800001, 0x33800000, 0, 0x3f800002},
    {'f', "add.rn.f32 %f20, %f10, %f11;", 0x7f800000, 0xff800000, 0, 0x7fffffff},
    {'f', "add.rn.f32 %f20, %f10, %f11;", 0x00000001, 0x00000001, 0, 0x00000002},
    {'f', "sub.f32 %f20, %f10, %f11;", 0x3f800000, 0x3f800000, 0, 0},
    {'f', "sub.rn.f32 %f20, %f10, %f11;", 0xffc01234, 0x3f800000, 0, 0x7fffffff},
    {'f', "mul.f32 %f20, %f10, %f11;", 0x3f800001, 0x3f800001, 0, 0x3f800002},
    {'f', "mul.rn.f32 %f20, %f10, %f11;", 0x00800000, 0x3f000000, 0, 0x00400000},
    {'f', "fma.rn.f32 %f20, %f10, %f11, %f12;", 0x3f800001, 0x3f800001, 0xbf800002, 0x28800000},
    {'f', "fma.rn.f32 %f20, %f10, %f11, %f12;", 0x7f800000, 0, 0x3f800000, 0x7fffffff},
    {'f', "div.rn.f32 %f20, %f10, %f11;", 0x3f800000, 0x40400000, 0, 0x3eaaaaab},
    {'f', "div.rn.f32 %f20, %f10, %f11;", 0x3f800000, 0, 0, 0x7f800000},
    {'f', "neg.f32 %f20, %f10;", 0, 0, 0, 0x80000000},
    {'f', "abs.f32 %f20, %f10;", 0xc0000000, 0, 0, 0x40000000},
    {'f', "min.f32 %f20, %f10, %f11;", 0x7fc00000, 0x40000000, 0, 0x40000000},
    {'f', "max.f32 %f20, %f10, %f11;", 0x80000000, 0, 0, 0},
    {'w', "cvt.rzi.u32.f32 %r20, %f10;", 0x4f7fffff, 0, 0, 0xffffff00},
    {'w', "cvt.rzi.u32.f32 %r20, %f10;", 0xbf800000, 0, 0, 0},
    {'w', "cvt.rzi.u32.f32 %r20, %f10;", 0x7fc00000, 0, 0, 0},
    {'w', "cvt.rzi.u32.f32 %r20, %f10;", 0x7f800000, 0, 0, 0xffffffff},
    {'w', "cvt.rzi.s32.f32 %r20, %f10;", 0xc0300000, 0, 0, 0xfffffffe},
    {'f', "cvt.rn.f32.u32 %f20, %r10;", 0xffffffff, 0, 0, 0x4f800000},
    {'f', "cvt.rn.f32.s32 %f20, %r10;", 0xffffffff, 0, 0, 0xbf800000},
    {'f', "cvt.f32.f16 %f20, %rs10;", 0x3c01, 0, 0, 0x3f802000},
    {'f', "cvt.f32.f16 %f20, %rs10;", 0x8001, 0, 0, 0xb3800000},
    {'f', "cvt.f32.f16 %f20, %rs10;", 0xfc00, 0, 0, 0xff800000},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x477fefff, 0, 0, 0x7bff},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x477ff000, 0, 0, 0x7c00},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x33000000, 0, 0, 0},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0xb3000001, 0, 0, 0x8001},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x3f801000, 0, 0, 0x3c00},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x3f803000, 0, 0, 0x3c02},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0x387fffff, 0, 0, 0x0400},
    {'h', "cvt.rn.f16.f32 %rs20, %f10;", 0xffc00000, 0, 0, 0x7fff},
    {'h', "cvt.rn.bf16.f32 %rs20, %f10;", 0x3f808000, 0, 0, 0x3f80},
    {'h', "cvt.rn.bf16.f32 %rs20, %f10;", 0x3f818000, 0, 0, 0x3f82},
    {'h', "cvt.rn.bf16.f32 %rs20, %f10;", 0x7f7fffff, 0, 0, 0x7f80},
    {'h', "cvt.rn.bf16.f32 %rs20, %f10;", 0xff800001, 0, 0, 0x7fff},
    {'w', "cvt.rn.f16x2.f32 %r20, %f10, %f11;", 0x3f800000, 0xc0000000, 0, 0x3c00c000},
    {'w', "cvt.rn.bf16x2.f32 %r20, %f10, %f11;", 0x3f800000, 0xc0000000, 0, 0x3f80c000},
    {'w', "cvt.rn.f16x2.e4m3x2 %r20, %rs10;", 0x38b8, 0, 0, 0x3c00bc00},
    {'w', "cvt.rn.f16x2.e4m3x2 %r20, %rs10;", 0x017e, 0, 0, 0x18005f00},
    {'w', "cvt.rn.f16x2.e4m3x2 %r20, %rs10;", 0xff80, 0, 0, 0x7fff8000},
};

#define N_CASES (sizeof cases / sizeof *cases)

static void test_ptx_instructions_give_what_the_isa_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        char body[1024];
        snippet s = {.body = body, .now_ns = 123456789};
        snprintf(body, sizeof body, "%s\n%s", cases[i].text, store_of(cases[i].result));
        snippet_in[0] = cases[i].a;
        snippet_in[1] = cases[i].b;
        snippet_in[2] = cases[i].c;
        snippet_out[0] = 0x5555555555555555;
        snippet_run(&s);
        if (s.found || snippet_out[0] != cases[i].want)
            fail_msg("%s of %#llx, %#llx, %#llx is %#llx, not %#llx%s%s", cases[i].text,
                     (unsigned long long)cases[i].a, (unsigned long long)cases[i].b,
                     (unsigned long long)cases[i].c, (unsigned long long)snippet_out[0],
                     (unsigned long long)cases[i].want, s.found ? ": " : "", s.said);
    }
}

/* Lanes that do not run keep what they have: every case again, where only odd lanes run it. */
static void test_ptx_instructions_leave_lanes_that_do_not_run(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        char body[1024];
        snippet s = {.body = body, .threads = 32, .now_ns = 123456789};
        snprintf(
            body, sizeof body,
            "mov.u32 %%r20, 99; mov.b32 %%f20, %%r20; mov.u64 %%rd20, 99; mov.u16 %%rs20, 99;\n"
            "mov.pred %%p1, 1; and.b32 %%r40, %%r0, 1; setp.eq.s32 %%p9, %%r40, 0;\n@%%p9 bra "
            "$L_over;\n"
            "%s\n$L_over:\n%s",
            cases[i].text, store_of(cases[i].result));
        for (uint32_t lane = 0; lane < 32; lane++) {
            snippet_in[4 * lane] = cases[i].a;
            snippet_in[4 * lane + 1] = cases[i].b;
            snippet_in[4 * lane + 2] = cases[i].c;
        }
        snippet_run(&s);
        for (uint32_t lane = 0; lane < 32; lane++) {
            const uint64_t want = lane % 2 ? cases[i].want : cases[i].result == 'p' ? 1 : 99;
            if (s.found || snippet_out[lane] != want)
                fail_msg("%s, lane %u: %#llx, not %#llx%s", cases[i].text, lane,
                         (unsigned long long)snippet_out[lane], (unsigned long long)want, s.said);
        }
    }
}

static bool has_case(const char *opcode)
{
    char marked[PTX_NAME + 1];
    snprintf(marked, sizeof marked, "%s ", opcode);
    for (size_t i = 0; i < N_CASES; i++) {
        const char *at = strstr(cases[i].text, marked);
        if (at && (at == cases[i].text || at[-1] == ' '))
            return true;
    }
    return false;
}

static void test_ptx_instructions_all_have_a_case(void **state)
{
    static const ptx_opcode *const families[] = {ptx_ops_int, ptx_ops_wide, ptx_ops_compare,
                                                 ptx_ops_float};
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (const ptx_opcode *row = families[f]; row->name; row++) {
            if (!has_case(row->name))
                fail_msg("%s has no case", row->name);
        }
    }
}

static void test_ptx_refuses_what_it_does_not_know(void **state)
{
    static const char *const bad[][2] = {
        {"add.sat.s32 %r20, %r10, %r11;", "'add.sat.s32'"},
        {"ex2.approx.f32 %f20, %f10;", "'ex2.approx.f32'"},
        {"ld.volatile.global.u32 %r20, [%rd1];", "'ld.volatile.global.u32'"},
        {"ld.global.cg.u32 %r20, [%rd1];", "'ld.global.cg.u32'"},
        {"ld.relaxed.gpu.u32 %r20, [%rd1];", "'ld.relaxed.gpu.u32'"},
        {"st.global.v4.u64 [%rd1], {%rd1, %rd1, %rd1, %rd1};", "'st.global.v4.u64'"},
        {"add.s32 %r20, %r10;", "operands that are not known of 'add.s32'"},
        {"add.s32 %r20, %r10, %rd10;", "operands that are not known of 'add.s32'"},
        {"add.s32 %r20, %r10, %r99;", "operands that are not known of 'add.s32'"},
        {"add.s32 5, %r10, %r11;", "operands that are not known of 'add.s32'"},
        {"@%q1 add.s32 %r20, %r10, %r11;", "an unknown guard '%q1'"},
        {"bra $L_nowhere;", "'$L_nowhere'"},
        {".local .align 4 .b8 depot[16];", "'.local'"},
        {"{ .reg .b32 own; mov.u32 own, 1; } mov.u32 %r20, own;",
         "operands that are not known of 'mov.u32'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *said = snippet_refusal(bad[i][0]);
        if (!strstr(said, bad[i][1]) || !strstr(said, "line 34"))
            fail_msg("of %s it says: %s", bad[i][0], said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx_instructions_give_what_the_isa_says),
        cmocka_unit_test(test_ptx_instructions_leave_lanes_that_do_not_run),
        cmocka_unit_test(test_ptx_instructions_all_have_a_case),
        cmocka_unit_test(test_ptx_refuses_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
