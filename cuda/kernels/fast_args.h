/* fast_args.h — experts of many rows, computed by cuBLAS's matrix products: the arguments of the
 * kernels around those. device/fast_scratch.h says how much scratch they take.
 *
 * An expert's rows are cut into chunks of MP_FAST_ROWS, the last one filled up with zeros, so that
 * all chunks of all experts are products of one shape, in which only the pointers differ. A batch
 * of chunks is five steps on a stream:
 *
 *     fast_gather     operands[chunk] = its rows of x; the products' pointers
 *     product         gate's and up's sums of all chunks, FP32
 *     fast_swiglu     operands[chunk] = SwiGLU of these, BF16
 *     product         down's sums, FP32
 *     fast_scatter    partial[rows[..]] = these */
#ifndef MP_KERNELS_FAST_ARGS_H
#define MP_KERNELS_FAST_ARGS_H

#include "experts_args.h"

#include "device/fast_scratch.h"

#if MP_FAST_LEAST_ROWS != MP_EXPERTS_BROAD_ROWS + 1
#error "an expert is the library's from more rows on than BROAD takes at once"
#endif

typedef struct mp_fast_chunk {
    uint32_t expert; /* index into the table */
    uint32_t first;  /* row, of the expert's */
} mp_fast_chunk;

typedef struct mp_gpu_fast_args {
    const void *x;                /* [tokens][hidden] BF16 */
    const mp_gpu_expert *experts; /* device memory, like all of these */
    const uint32_t *rows;         /* token * top_k + k */
    float *partial;               /* [tokens * top_k][hidden] */
    const void **weights;         /* [3][n_chunks] of gate's, of up's and of down's products */
    const void **activations;     /* [3][n_chunks] */
    void **sums;                  /* [3][n_chunks] */
    void *operands;               /* [n_chunks][MP_FAST_ROWS][hidden], then [..][intermediate] */
    float *
        results; /* gate's [n_chunks][MP_FAST_ROWS][intermediate] and up's, then down's [..][hidden] */
    uint32_t n_chunks;
    uint32_t top_k;
    uint32_t hidden; /* multiples of 8, like all addresses of 16 bytes */
    uint32_t intermediate;
    mp_fast_chunk chunks[MP_FAST_CHUNKS];
} mp_gpu_fast_args;

#define MP_FAST_THREADS 256u
#define MP_FAST_SHARED 4u /* bytes of dynamic shared memory */

/* Columns of a row that a block takes at a time: elements of BF16 when gathering, else of FP32. */
#define MP_FAST_GATHER_COLUMNS (MP_FAST_THREADS * 8)
#define MP_FAST_COLUMNS (MP_FAST_THREADS * 4)

#endif
