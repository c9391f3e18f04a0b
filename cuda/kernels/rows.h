/* rows.h — rows gathered and scattered by index: a group of threads per row, vectors as wide as the
 * addresses allow. */
#ifndef MP_KERNELS_ROWS_H
#define MP_KERNELS_ROWS_H

#include "scalar.h"

#define MP_ROWS_THREADS 256
#define MP_ROWS_UNROLL 4u /* vectors of one thread whose loads are in flight together */

typedef struct mp_gpu_rows_args {
    const int32_t *index; /* [n] */
    const uint8_t *in;
    uint8_t *out;
    uint64_t in_stride; /* bytes */
    uint64_t out_stride;
    uint32_t n;
    uint32_t limit;   /* indices below it, not negative, are moved */
    uint32_t vectors; /* of a row */
    uint32_t width;   /* bytes of a vector: 16, 8, 4 or 2 */
    uint32_t team;    /* threads per row: a power of two, at most MP_ROWS_THREADS */
    uint32_t scatter; /* 1: the index is of the row written, else of the row read */
} mp_gpu_rows_args;

typedef struct mp_gpu_rows_shared {
    uint32_t none;
} mp_gpu_rows_shared;

typedef struct mp_gpu_rows_thread {
    uint32_t none;
} mp_gpu_rows_thread;

/* Moves a thread's vectors of a row, for one type of vector. */
#define MP_ROWS_MOVE(type)                                                        \
    {                                                                             \
        const type *from = (const type *)in;                                      \
        type *to = (type *)out;                                                   \
        uint32_t v = first;                                                       \
        for (; v + (MP_ROWS_UNROLL - 1) * team < n; v += MP_ROWS_UNROLL * team) { \
            type held[MP_ROWS_UNROLL];                                            \
            MP_SCALAR_UNROLL                                                      \
            for (uint32_t i = 0; i < MP_ROWS_UNROLL; i++)                         \
                held[i] = from[v + i * team];                                     \
            MP_SCALAR_UNROLL                                                      \
            for (uint32_t i = 0; i < MP_ROWS_UNROLL; i++)                         \
                to[v + i * team] = held[i];                                       \
        }                                                                         \
        for (; v < n; v += team)                                                  \
            to[v] = from[v];                                                      \
    }

/* One thread's vectors of a row: `first`, first + team ... below n. */
MP_GPU void mp_rows_move(const uint8_t *in, uint8_t *out, uint32_t width, uint32_t first,
                         uint32_t n, uint32_t team)
{
    if (width == 16)
        MP_ROWS_MOVE(mp_scalar_vector)
    else if (width == 8)
        MP_ROWS_MOVE(uint64_t)
    else if (width == 4)
        MP_ROWS_MOVE(uint32_t)
    else
        MP_ROWS_MOVE(uint16_t)
}

MP_GPU void mp_gpu_rows_block(MP_BLOCK_PARAMETERS(mp_gpu_rows_args, mp_gpu_rows_shared,
                                                  mp_gpu_rows_thread))
{
    const uint32_t teams = MP_ROWS_THREADS / args->team;
    (void)shared;
    for (uint64_t first = (uint64_t)block * teams; first < args->n;
         first += (uint64_t)n_blocks * teams) {
        MP_PHASE
            const uint64_t row = first + thread / args->team;
            if (row < args->n) {
                const int32_t index = args->index[row];
                const uint64_t from = args->scatter ? row : (uint64_t)index;
                const uint64_t to = args->scatter ? (uint64_t)index : row;
                if (index >= 0 && (uint32_t)index < args->limit)
                    mp_rows_move(args->in + from * args->in_stride,
                                 args->out + to * args->out_stride, args->width,
                                 thread % args->team, args->vectors, args->team);
            }
        MP_PHASE_END
    }
}

#define MP_ROWS_ENTRIES(X) \
    X(rows, mp_gpu_rows_args, mp_gpu_rows_shared, mp_gpu_rows_thread, MP_ROWS_THREADS, 4)

#endif
