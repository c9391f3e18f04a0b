/* host_fetch.h — what a tile of floats fetches to the caches while it multiplies.
 *
 * Weights come from memory once. Processors see ahead along a row, but not from row to row, and follow several
 * rows at once badly: so tiles name what comes next, in the order of the addresses where they can. Nothing here
 * reads memory: an address may lie behind the end of a matrix. */
#ifndef MP_DEVICE_HOST_FETCH_H
#define MP_DEVICE_HOST_FETCH_H

#include <stdint.h>

#define MP_FETCH_ROWS 6 /* of x: a tile's */

/* Per step of a tile, which is so many elements. */
typedef struct mp_fetch {
    const char *
        near; /* to the first level: as many bytes of each of four rows as the step reads; or NULL */
    uint64_t near_row;  /* from one of the four to the next */
    uint64_t near_step; /* from step to step */
    const char *far;    /* to the second: lines that follow each other */
    uint32_t far_lines;
    uint32_t n_x;
    const char *x
        [MP_FETCH_ROWS]; /* [n_x] to the second: rows of x, as many bytes as the step reads of one */
} mp_fetch;

#if defined(__clang__)
#define MP_FETCH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MP_FETCH_UNROLL _Pragma("GCC unroll 8")
#endif

/* What a part of a tile fetches: the share of weights [first, first + n) of four, in so many steps. */
__attribute__((always_inline)) static inline mp_fetch
mp_fetch_share(const mp_fetch *of, uint32_t first, uint32_t n, uint32_t steps)
{
    mp_fetch share = *of;
    const uint32_t begin = (of->far_lines * first + 3) / 4;
    if (share.near)
        share.near += first * share.near_row;
    share.far_lines = (of->far_lines * (first + n) + 3) / 4 - begin;
    if (share.far_lines)
        share.far += (uint64_t)begin * steps * 64;
    share.n_x = first ? 0 : share.n_x;
    return share;
}

/* Fetches what belongs to one step, which reads w_bytes of each of n rows of weights and x_bytes of one of x. */
__attribute__((always_inline)) static inline void mp_fetch_step(mp_fetch *f, uint32_t n,
                                                                uint32_t w_bytes, uint32_t x_bytes)
{
    if (f->near) {
        MP_FETCH_UNROLL
        for (uint32_t c = 0; c < n; c++)
            for (uint32_t line = 0; line < w_bytes; line += 64)
                __builtin_prefetch(f->near + c * f->near_row + line, 0, 3);
        f->near += f->near_step;
    }
    const uint32_t whole = n * w_bytes / 64;
    if (f->far_lines == whole) {
        MP_FETCH_UNROLL
        for (uint32_t i = 0; i < whole; i++)
            __builtin_prefetch(f->far + 64 * i, 0, 2);
        f->far += 64 * whole;
    } else {
        for (uint32_t i = 0; i < f->far_lines; i++, f->far += 64)
            __builtin_prefetch(f->far, 0, 2);
    }
    for (uint32_t r = 0; r < f->n_x; f->x[r++] += x_bytes)
        for (uint32_t line = 0; line < x_bytes; line += 64)
            __builtin_prefetch(f->x[r] + line, 0, 2);
}

#endif
