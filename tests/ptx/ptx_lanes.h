/* ptx_lanes.h — how a handler is written: an expression for one lane, that the compiler makes a loop of
 * vectors over all 32 of. Lanes that do not run keep what they have. */
#ifndef PTX_LANES_H
#define PTX_LANES_H

#include "ptx_inside.h"

/* An operand is the result's register or apart from it: lanes never depend on each other. */
#if defined(__clang__)
#define PTX_APART
#else
#define PTX_APART _Pragma("GCC ivdep")
#endif
#define PTX_EACH(lane) PTX_APART for (uint32_t lane = 0; lane < PTX_LANES; lane++)
#define PTX_REG(type, n) ((type *)(warp->registers + insn->at[n]))
#define PTX_RUNS(type, lane) (sizeof(type) == 8 ? warp->wide[lane] != 0 : warp->narrow[lane] != 0)
#define PTX_HANDLER(name) static void name(ptx_warp *warp, const ptx_insn *insn)

/* D d = f(a), f(a, b), f(a, b, c), of operands of the types that are given. */
#define PTX_MAP1(name, D, A, f)                            \
    PTX_HANDLER(name)                                      \
    {                                                      \
        D *d = PTX_REG(D, 0);                              \
        const A *x = PTX_REG(const A, 1);                  \
        PTX_EACH(lane)                                     \
        {                                                  \
            const A a = x[lane];                           \
            const D value = (D)(f);                        \
            d[lane] = PTX_RUNS(D, lane) ? value : d[lane]; \
        }                                                  \
    }
#define PTX_MAP2(name, D, A, B, f)                         \
    PTX_HANDLER(name)                                      \
    {                                                      \
        D *d = PTX_REG(D, 0);                              \
        const A *x = PTX_REG(const A, 1);                  \
        const B *y = PTX_REG(const B, 2);                  \
        PTX_EACH(lane)                                     \
        {                                                  \
            const A a = x[lane];                           \
            const B b = y[lane];                           \
            const D value = (D)(f);                        \
            d[lane] = PTX_RUNS(D, lane) ? value : d[lane]; \
        }                                                  \
    }
#define PTX_MAP3(name, D, A, B, C, f)                      \
    PTX_HANDLER(name)                                      \
    {                                                      \
        D *d = PTX_REG(D, 0);                              \
        const A *x = PTX_REG(const A, 1);                  \
        const B *y = PTX_REG(const B, 2);                  \
        const C *z = PTX_REG(const C, 3);                  \
        PTX_EACH(lane)                                     \
        {                                                  \
            const A a = x[lane];                           \
            const B b = y[lane];                           \
            const C c = z[lane];                           \
            const D value = (D)(f);                        \
            d[lane] = PTX_RUNS(D, lane) ? value : d[lane]; \
        }                                                  \
    }
/* A predicate: a word of 32 lanes. */
#define PTX_SETP(name, A, f)                                        \
    PTX_HANDLER(name)                                               \
    {                                                               \
        uint32_t *p = PTX_REG(uint32_t, 0), set = 0;                \
        const A *x = PTX_REG(const A, 1), *y = PTX_REG(const A, 2); \
        PTX_EACH(lane)                                              \
        {                                                           \
            const A a = x[lane], b = y[lane];                       \
            set |= (uint32_t)((f) != 0) << lane;                    \
        }                                                           \
        *p = (*p & ~warp->active) | (set & warp->active);           \
    }

#endif
