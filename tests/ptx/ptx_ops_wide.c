/* Instructions on double words, and between words and double words. */
#include <stdint.h>

#define U uint64_t
#define S int64_t
#define W uint32_t
#define BITS 64u

#include "ptx_ops_word.h"

PTX_MAP2(mul_wide_u, U, W, W, (U)a *b)
PTX_MAP2(mul_wide_s, U, int32_t, int32_t, (int64_t)a *b)
PTX_MAP3(mad_wide_u, U, W, W, U, (U)a *b + c)
PTX_MAP1(from_u32, U, W, a)
PTX_MAP1(from_s32, U, int32_t, (int64_t)a)
PTX_MAP1(from_u16, U, W, a & 0xffffu)
PTX_MAP1(to_u32, W, U, a)
PTX_MAP1(to_u16, W, U, a & 0xffffu)

/* From a window's address to a generic one; parameters have generic addresses from the start. */
PTX_MAP1(cvta_shared, U, U, a + PTX_SHARED_WINDOW)

/* From a generic address to one of global memory, which is the same, unless it is none. */
PTX_HANDLER(cvta_to_global)
{
    const U *x = PTX_REG(const U, 1);
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1 && x[lane] >= PTX_SHARED_WINDOW &&
            x[lane] < PTX_PARAM_BASE + (1 << 20))
            ptx_find(warp, lane, PTX_FOUND_BOUNDS, "%#llx is no address of global memory",
                     (unsigned long long)x[lane]);
    }
    mov(warp, insn);
}

const ptx_opcode ptx_ops_wide[] = {
    {"mov.b64", "x=x", mov, PTX_PLAIN},
    {"mov.u64", "x=x", mov, PTX_PLAIN},
    {"mov.s64", "x=x", mov, PTX_PLAIN},
    {"add.s64", "x=xx", add, PTX_PLAIN},
    {"add.u64", "x=xx", add, PTX_PLAIN},
    {"sub.s64", "x=xx", sub, PTX_PLAIN},
    {"sub.u64", "x=xx", sub, PTX_PLAIN},
    {"neg.s64", "x=x", neg, PTX_PLAIN},
    {"mul.lo.s64", "x=xx", mul_lo, PTX_PLAIN},
    {"mul.lo.u64", "x=xx", mul_lo, PTX_PLAIN},
    {"mad.lo.s64", "x=xxx", mad_lo, PTX_PLAIN},
    {"mul.wide.u32", "x=ww", mul_wide_u, PTX_PLAIN},
    {"mul.wide.s32", "x=ww", mul_wide_s, PTX_PLAIN},
    {"mad.wide.u32", "x=wwx", mad_wide_u, PTX_PLAIN},
    {"and.b64", "x=xx", and, PTX_PLAIN},
    {"or.b64", "x=xx", or, PTX_PLAIN},
    {"xor.b64", "x=xx", xor, PTX_PLAIN},
    {"not.b64", "x=x", not, PTX_PLAIN},
    {"shl.b64", "x=xw", shl, PTX_PLAIN},
    {"shr.u64", "x=xw", shr_u, PTX_PLAIN},
    {"shr.s64", "x=xw", shr_s, PTX_PLAIN},
    {"min.u64", "x=xx", min_u, PTX_PLAIN},
    {"max.u64", "x=xx", max_u, PTX_PLAIN},
    {"div.u64", "x=xx", div_u, PTX_PLAIN},
    {"rem.u64", "x=xx", rem_u, PTX_PLAIN},
    {"cvt.u64.u32", "x=w", from_u32, PTX_PLAIN},
    {"cvt.s64.s32", "x=w", from_s32, PTX_PLAIN},
    {"cvt.u64.u16", "x=h", from_u16, PTX_PLAIN},
    {"cvt.u32.u64", "w=x", to_u32, PTX_PLAIN},
    {"cvt.u16.u64", "h=x", to_u16, PTX_PLAIN},
    {"bfi.b64", "x=xxww", bfi, PTX_PLAIN},
    {"selp.b64", "x=xxp", selp, PTX_SELECT},
    {"selp.u64", "x=xxp", selp, PTX_SELECT},
    {"cvta.shared.u64", "x=x", cvta_shared, PTX_PLAIN},
    {"cvta.param.u64", "x=x", mov, PTX_PLAIN},
    {"cvta.to.global.u64", "x=x", cvta_to_global, PTX_PLAIN},
    {0},
};
