/* Instructions on words of 16 and 32 bits. A register of 16 bits is a word whose upper half is zero. */
#include <stdint.h>

#define U uint32_t
#define S int32_t
#define BITS 32u

#include "ptx_ops_word.h"

PTX_MAP2(pack, U, U, U, a | b << 16)
PTX_MAP2(mul_wide_u16, U, U, U, (a & 0xffffu) * (b & 0xffffu))
PTX_MAP2(min_s, S, S, S, a < b ? a : b)
PTX_MAP2(max_s, S, S, S, a > b ? a : b)
PTX_MAP1(low_half, U, U, a & 0xffffu)

/* shf.r.wrap d, a, b, c: b:a, of which a is the lower half, to the right by c modulo 32. */
PTX_MAP3(shf_r_wrap, U, U, U, U, (U)(((uint64_t)b << 32 | a) >> (c & 31)))
PTX_MAP3(shf_l_wrap, U, U, U, U, (U)(((uint64_t)b << 32 | a) << (c & 31) >> 32))

static U reverse(U a)
{
    a = (a >> 1 & 0x55555555u) | (a & 0x55555555u) << 1;
    a = (a >> 2 & 0x33333333u) | (a & 0x33333333u) << 2;
    a = (a >> 4 & 0x0f0f0f0fu) | (a & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(a);
}
PTX_MAP1(brev, U, U, reverse(a))
PTX_MAP1(clz, U, U, a ? (U)__builtin_clz(a) : 32u)
PTX_MAP1(popc, U, U, (U)__builtin_popcount(a))

/* bfe.u32 d, a, b, c: c bits from bit b on. */
PTX_HANDLER(bfe_u)
{
    U *d = PTX_REG(U, 0);
    const U *x = PTX_REG(const U, 1), *from = PTX_REG(const U, 2), *bits = PTX_REG(const U, 3);
    PTX_EACH(lane)
    {
        const U b = from[lane] & 0xff, n = bits[lane] & 0xff;
        const U ones = n > 31 ? ~0u : (1u << (n & 31)) - 1;
        const U value = b > 31 ? 0 : x[lane] >> (b & 31) & ones;
        d[lane] = PTX_RUNS(U, lane) ? value : d[lane];
    }
}

/* lop3: bit i of the result is the table's bit number a_i:b_i:c_i. */
PTX_HANDLER(lop3)
{
    U *d = PTX_REG(U, 0);
    const U *x = PTX_REG(const U, 1), *y = PTX_REG(const U, 2), *z = PTX_REG(const U, 3);
    const U table = *PTX_REG(const U, 4);
    PTX_EACH(lane)
    {
        U value = 0;
        for (U i = 0; i < 8; i++) {
            const U a = i & 4 ? x[lane] : ~x[lane], b = i & 2 ? y[lane] : ~y[lane];
            const U c = i & 1 ? z[lane] : ~z[lane];
            value |= a & b & c & (0u - (table >> i & 1));
        }
        d[lane] = PTX_RUNS(U, lane) ? value : d[lane];
    }
}

/* prmt d, a, b, c, the default mode: byte i of d is the byte of b:a that the low three bits of c's ith
 * nibble choose, or its sign eight times where the nibble's upper bit is set. */
static U permute(U a, U b, U c)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    U value = 0;
    for (U i = 0; i < 4; i++) {
        const U nibble = c >> 4 * i & 15, byte = (U)(bytes >> 8 * (nibble & 7)) & 0xff;
        value |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return value;
}
PTX_MAP3(prmt, U, U, U, U, permute(a, b, c))

static U dot4(U a, U b, U c)
{
    for (U i = 0; i < 32; i += 8)
        c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}
PTX_MAP3(dp4a_u, U, U, U, U, dot4(a, b, c))
/* dp2a.lo: a's halves by b's two lower bytes. */
PTX_MAP3(dp2a_lo_u, U, U, U, U, c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff))

const ptx_opcode ptx_ops_int[] = {
    {"mov.b32", "w=w", mov, PTX_PLAIN},
    {"mov.u32", "w=w", mov, PTX_PLAIN},
    {"mov.s32", "w=w", mov, PTX_PLAIN},
    {"mov.f32", "w=w", mov, PTX_PLAIN},
    {"mov.u16", "h=h", mov, PTX_PLAIN},
    {"mov.b16", "h=h", mov, PTX_PLAIN},
    {"mov.b32", "w=hh", pack, PTX_PLAIN},
    {"add.s32", "w=ww", add, PTX_PLAIN},
    {"add.u32", "w=ww", add, PTX_PLAIN},
    {"sub.s32", "w=ww", sub, PTX_PLAIN},
    {"sub.u32", "w=ww", sub, PTX_PLAIN},
    {"neg.s32", "w=w", neg, PTX_PLAIN},
    {"mul.lo.s32", "w=ww", mul_lo, PTX_PLAIN},
    {"mul.lo.u32", "w=ww", mul_lo, PTX_PLAIN},
    {"mul.wide.u16", "w=hh", mul_wide_u16, PTX_PLAIN},
    {"mad.lo.s32", "w=www", mad_lo, PTX_PLAIN},
    {"mad.lo.u32", "w=www", mad_lo, PTX_PLAIN},
    {"and.b32", "w=ww", and, PTX_PLAIN},
    {"or.b32", "w=ww", or, PTX_PLAIN},
    {"xor.b32", "w=ww", xor, PTX_PLAIN},
    {"not.b32", "w=w", not, PTX_PLAIN},
    {"and.b16", "h=hh", and, PTX_PLAIN},
    {"or.b16", "h=hh", or, PTX_PLAIN},
    {"xor.b16", "h=hh", xor, PTX_PLAIN},
    {"shl.b32", "w=ww", shl, PTX_PLAIN},
    {"shr.u32", "w=ww", shr_u, PTX_PLAIN},
    {"shr.s32", "w=ww", shr_s, PTX_PLAIN},
    {"shr.u16", "h=hw", shr_u, PTX_PLAIN},
    {"min.u32", "w=ww", min_u, PTX_PLAIN},
    {"max.u32", "w=ww", max_u, PTX_PLAIN},
    {"min.s32", "w=ww", min_s, PTX_PLAIN},
    {"max.s32", "w=ww", max_s, PTX_PLAIN},
    {"div.u32", "w=ww", div_u, PTX_PLAIN},
    {"rem.u32", "w=ww", rem_u, PTX_PLAIN},
    {"cvt.u16.u32", "h=w", low_half, PTX_PLAIN},
    {"cvt.u32.u16", "w=h", low_half, PTX_PLAIN},
    {"shf.r.wrap.b32", "w=www", shf_r_wrap, PTX_PLAIN},
    {"shf.l.wrap.b32", "w=www", shf_l_wrap, PTX_PLAIN},
    {"brev.b32", "w=w", brev, PTX_PLAIN},
    {"clz.b32", "w=w", clz, PTX_PLAIN},
    {"popc.b32", "w=w", popc, PTX_PLAIN},
    {"bfi.b32", "w=wwww", bfi, PTX_PLAIN},
    {"bfe.u32", "w=www", bfe_u, PTX_PLAIN},
    {"lop3.b32", "w=wwww", lop3, PTX_PLAIN},
    {"prmt.b32", "w=www", prmt, PTX_PLAIN},
    {"dp4a.u32.u32", "w=www", dp4a_u, PTX_PLAIN},
    {"dp2a.lo.u32.u32", "w=www", dp2a_lo_u, PTX_PLAIN},
    {"selp.b32", "w=wwp", selp, PTX_SELECT},
    {"selp.u32", "w=wwp", selp, PTX_SELECT},
    {"selp.s32", "w=wwp", selp, PTX_SELECT},
    {"selp.f32", "w=wwp", selp, PTX_SELECT},
    {"selp.u16", "h=hhp", selp, PTX_SELECT},
    {"selp.b16", "h=hhp", selp, PTX_SELECT},
    {0},
};
