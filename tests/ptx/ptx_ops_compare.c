/* Comparisons, and what is done with predicates. An ordered comparison of floats is false with a NaN, one
 * that ends in u is true. */
#include "ptx_lanes.h"

#define SIX(suffix, type)               \
    PTX_SETP(eq_##suffix, type, a == b) \
    PTX_SETP(ne_##suffix, type, a != b) \
    PTX_SETP(lt_##suffix, type, a < b)  \
    PTX_SETP(le_##suffix, type, a <= b) \
    PTX_SETP(gt_##suffix, type, a > b)  \
    PTX_SETP(ge_##suffix, type, a >= b)
SIX(u32, uint32_t)
SIX(s32, int32_t)
SIX(u64, uint64_t)
SIX(s64, int64_t)
SIX(f32, float)
PTX_SETP(ltu_f32, float, !(a >= b))
PTX_SETP(leu_f32, float, !(a > b))
PTX_SETP(gtu_f32, float, !(a <= b))
PTX_SETP(geu_f32, float, !(a < b))
PTX_SETP(equ_f32, float, !(a < b || a > b))
PTX_SETP(ordered_ne_f32, float, a<b || a> b)
PTX_SETP(nan_f32, float, a != a || b != b)
PTX_SETP(num_f32, float, a == a && b == b)

/* Halves, of a word. */
#define HALF(x) ((int32_t)((uint32_t)(x) << 16) >> 16)
PTX_SETP(lt_s16, int32_t, HALF(a) < HALF(b))
PTX_SETP(le_s16, int32_t, HALF(a) <= HALF(b))
PTX_SETP(gt_s16, int32_t, HALF(a) > HALF(b))
PTX_SETP(ge_s16, int32_t, HALF(a) >= HALF(b))
#define LOW(x) ((x)&0xffffu)
PTX_SETP(eq_16, uint32_t, LOW(a) == LOW(b))
PTX_SETP(ne_16, uint32_t, LOW(a) != LOW(b))
PTX_SETP(lt_u16, uint32_t, LOW(a) < LOW(b))
PTX_SETP(le_u16, uint32_t, LOW(a) <= LOW(b))
PTX_SETP(gt_u16, uint32_t, LOW(a) > LOW(b))
PTX_SETP(ge_u16, uint32_t, LOW(a) >= LOW(b))

#define LOGIC(name, f)                                  \
    PTX_HANDLER(name)                                   \
    {                                                   \
        uint32_t *p = PTX_REG(uint32_t, 0);             \
        const uint32_t a = *PTX_REG(const uint32_t, 1); \
        const uint32_t b = *PTX_REG(const uint32_t, 2); \
        (void)b;                                        \
        *p = (*p & ~warp->active) | ((f)&warp->active); \
    }
LOGIC(and_pred, a &b)
LOGIC(or_pred, a | b)
LOGIC(xor_pred, a ^ b)
LOGIC(not_pred, ~a)
LOGIC(mov_pred, a)

#define ROW(op, type, letters, run)                       \
    {                                                     \
        "setp." op "." type, "p=" letters, run, PTX_PLAIN \
    }
#define SIX_ROWS(type, letters, s)                                          \
    ROW("eq", type, letters, eq_##s), ROW("ne", type, letters, ne_##s),     \
        ROW("lt", type, letters, lt_##s), ROW("le", type, letters, le_##s), \
        ROW("gt", type, letters, gt_##s), ROW("ge", type, letters, ge_##s)

const ptx_opcode ptx_ops_compare[] = {
    SIX_ROWS("u32", "ww", u32),
    SIX_ROWS("s32", "ww", s32),
    SIX_ROWS("u64", "xx", u64),
    SIX_ROWS("s64", "xx", s64),
    ROW("eq", "f32", "ww", eq_f32),
    ROW("ne", "f32", "ww", ordered_ne_f32),
    ROW("lt", "f32", "ww", lt_f32),
    ROW("le", "f32", "ww", le_f32),
    ROW("gt", "f32", "ww", gt_f32),
    ROW("ge", "f32", "ww", ge_f32),
    ROW("equ", "f32", "ww", equ_f32),
    ROW("neu", "f32", "ww", ne_f32),
    ROW("ltu", "f32", "ww", ltu_f32),
    ROW("leu", "f32", "ww", leu_f32),
    ROW("gtu", "f32", "ww", gtu_f32),
    ROW("geu", "f32", "ww", geu_f32),
    ROW("nan", "f32", "ww", nan_f32),
    ROW("num", "f32", "ww", num_f32),
    ROW("eq", "b32", "ww", eq_u32),
    ROW("ne", "b32", "ww", ne_u32),
    ROW("eq", "s16", "hh", eq_16),
    ROW("ne", "s16", "hh", ne_16),
    ROW("lt", "s16", "hh", lt_s16),
    ROW("le", "s16", "hh", le_s16),
    ROW("gt", "s16", "hh", gt_s16),
    ROW("ge", "s16", "hh", ge_s16),
    ROW("eq", "u16", "hh", eq_16),
    ROW("ne", "u16", "hh", ne_16),
    ROW("lt", "u16", "hh", lt_u16),
    ROW("le", "u16", "hh", le_u16),
    ROW("gt", "u16", "hh", gt_u16),
    ROW("ge", "u16", "hh", ge_u16),
    {"and.pred", "p=pp", and_pred, PTX_PLAIN},
    {"or.pred", "p=pp", or_pred, PTX_PLAIN},
    {"xor.pred", "p=pp", xor_pred, PTX_PLAIN},
    {"not.pred", "p=p", not_pred, PTX_PLAIN},
    {"mov.pred", "p=p", mov_pred, PTX_PLAIN},
    {0},
};
