/* fast_args.h — experts of many rows by a library's matrix products: what its kernels are told, and
 * the scratch that all of it takes.
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

/* Rows of a chunk: with fewer, weights are loaded more often than the matrix units have time for;
 * with more, more rows are zeros. */
#define MP_FAST_ROWS 128u

/* From so many rows on an expert is the library's: half a chunk is what BROAD takes at once. */
#define MP_FAST_LEAST_ROWS (MP_EXPERTS_BROAD_ROWS + 1)

#define MP_FAST_CHUNKS 128u /* most of a batch */

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

/* ---- The host's side ---- */
#if !defined(__CUDACC_RTC__)

#define MP_FAST_ALIGN 256u

/* What a library wants for itself per stream, as recommended for compute capability 9.0. */
#define MP_FAST_LIBRARY_BYTES (32u << 20)

/* Most scratch of a batch, unless a single chunk takes more: enough chunks to fill a GPU. */
#define MP_FAST_BATCH_BYTES (64u << 20)

/* Whether experts of BF16 weights can be the library's: their rows may be read 16 bytes at a
 * time. */
static inline uint32_t mp_fast_serves(uint64_t hidden, uint64_t intermediate)
{
    const uint64_t most = 1u << 30; /* sizes are ints to the library */
    return hidden && intermediate && hidden % 8 == 0 && intermediate % 8 == 0 && hidden <= most &&
           intermediate <= most;
}

/* Of a chunk: its pointers, operands and results. A multiple of MP_FAST_ALIGN. */
static inline uint64_t mp_fast_chunk_bytes(uint64_t hidden, uint64_t intermediate)
{
    const uint64_t operands = hidden > intermediate ? hidden : intermediate;
    const uint64_t results = hidden > 2 * intermediate ? hidden : 2 * intermediate;
    return MP_FAST_ALIGN + MP_FAST_ROWS * (2 * operands + 4 * results);
}

/* Scratch for launches of at most `rows` rows; 0 when these can have no expert of many. */
static inline uint64_t mp_fast_scratch_bytes(uint64_t hidden, uint64_t intermediate, uint64_t rows)
{
    const uint64_t each = mp_fast_chunk_bytes(hidden, intermediate);
    const uint64_t least = MP_FAST_ROWS / 2; /* a chunk has more rows than that, on average too */
    uint64_t chunks = (rows + least - 1) / least;
    if (rows < MP_FAST_LEAST_ROWS)
        return 0;
    if (chunks > MP_FAST_BATCH_BYTES / each)
        chunks = MP_FAST_BATCH_BYTES / each ? MP_FAST_BATCH_BYTES / each : 1;
    if (chunks > MP_FAST_CHUNKS)
        chunks = MP_FAST_CHUNKS;
    return MP_FAST_ALIGN + MP_FAST_LIBRARY_BYTES + chunks * each;
}

/* Chunks of a batch that scratch of this size holds. */
static inline uint32_t mp_fast_capacity(uint64_t bytes, uint64_t hidden, uint64_t intermediate)
{
    const uint64_t fixed = MP_FAST_ALIGN + MP_FAST_LIBRARY_BYTES;
    const uint64_t n =
        bytes > fixed ? (bytes - fixed) / mp_fast_chunk_bytes(hidden, intermediate) : 0;
    return n < MP_FAST_CHUNKS ? (uint32_t)n : MP_FAST_CHUNKS;
}

#endif

#endif
