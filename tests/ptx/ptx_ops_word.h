/* ptx_ops_word.h — the instructions that words of 32 and of 64 bits have alike. Included once by a file that has
 * defined U and S, the unsigned and the signed word, and BITS, their width. */
#include "ptx_lanes.h"

PTX_MAP1(mov, U, U, a)
PTX_MAP2(add, U, U, U, a + b)
PTX_MAP2(sub, U, U, U, a - b)
PTX_MAP1(neg, U, U, 0u - a)
PTX_MAP2(mul_lo, U, U, U, a *b)
PTX_MAP3(mad_lo, U, U, U, U, a *b + c)
PTX_MAP2(and, U, U, U, a &b)
PTX_MAP2(or, U, U, U, a | b)
PTX_MAP2(xor, U, U, U, a ^ b)
PTX_MAP1(not, U, U, ~a)
/* Shifts by more than there are bits give what shifts one by one would. */
PTX_MAP2(shl, U, U, uint32_t, b > BITS - 1 ? 0 : a << (b & (BITS - 1)))
PTX_MAP2(shr_u, U, U, uint32_t, b > BITS - 1 ? 0 : a >> (b & (BITS - 1)))
PTX_MAP2(shr_s, S, S, uint32_t, a >> (b > BITS - 1 ? BITS - 1 : b))
PTX_MAP2(min_u, U, U, U, a < b ? a : b)
PTX_MAP2(max_u, U, U, U, a > b ? a : b)

/* A quotient by zero has no defined value. */
static void note_zeros(ptx_warp *warp, const U *by)
{
    for (uint32_t lane = 0; lane < PTX_LANES; lane++)
        warp->undefined |= (uint32_t)(by[lane] == 0) << lane;
}
PTX_MAP2(div_lanes, U, U, U, b ? a / b : (U)-1)
PTX_MAP2(rem_lanes, U, U, U, b ? a % b : a)
PTX_HANDLER(div_u)
{
    div_lanes(warp, insn);
    note_zeros(warp, PTX_REG(const U, 2));
}
PTX_HANDLER(rem_u)
{
    rem_lanes(warp, insn);
    note_zeros(warp, PTX_REG(const U, 2));
}

/* bfi d, a, b, c, e: `e` bits of a into b from bit c on; c and e are of 8 bits. */
PTX_HANDLER(bfi)
{
    U *d = PTX_REG(U, 0);
    const U *x = PTX_REG(const U, 1), *y = PTX_REG(const U, 2);
    const uint32_t *from = PTX_REG(const uint32_t, 3), *bits = PTX_REG(const uint32_t, 4);
    PTX_EACH(lane)
    {
        const uint32_t c = from[lane] & 0xff, n = bits[lane] & 0xff;
        const U ones = n > BITS - 1 ? (U)-1 : ((U)1 << (n & (BITS - 1))) - 1;
        const U mask = c > BITS - 1 ? 0 : ones << (c & (BITS - 1));
        const U value =
            (y[lane] & ~mask) | ((c > BITS - 1 ? 0 : x[lane] << (c & (BITS - 1))) & mask);
        d[lane] = PTX_RUNS(U, lane) ? value : d[lane];
    }
}

PTX_HANDLER(selp)
{
    U *d = PTX_REG(U, 0);
    const U *x = PTX_REG(const U, 1), *y = PTX_REG(const U, 2);
    const uint32_t p = *PTX_REG(const uint32_t, 3);
    PTX_EACH(lane)
    {
        const U value = p >> lane & 1 ? x[lane] : y[lane];
        d[lane] = PTX_RUNS(U, lane) ? value : d[lane];
    }
}
