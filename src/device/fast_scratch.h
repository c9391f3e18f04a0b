/* fast_scratch.h — the scratch that MATH_BF16_FAST needs for cuBLAS's products of experts with many
 * rows (mp_kernel_experts_args.scratch). A session's workspace includes it before any device is
 * open, so that the figures are the same on every CUDA device.
 *
 * Plain C, included by kernels too: a runtime compiler gets the constants alone. */
#ifndef MP_DEVICE_FAST_SCRATCH_H
#define MP_DEVICE_FAST_SCRATCH_H

#if !defined(__CUDACC_RTC__)
#include <stdint.h>
#endif

/* Rows of a chunk: with fewer, weights are loaded more often than the matrix units have time for;
 * with more, more rows are zeros. */
#define MP_FAST_ROWS 128u

/* From so many rows on an expert is the library's: more than half a chunk, and more than a block of
 * the other kernels takes at once. */
#define MP_FAST_LEAST_ROWS 65u

#define MP_FAST_CHUNKS 128u /* the most in a batch */

#if !defined(__CUDACC_RTC__)

#define MP_FAST_ALIGN 256u

/* What a library wants for itself per stream, as recommended for compute capability 9.0. */
#define MP_FAST_LIBRARY_BYTES (32u << 20)

/* Most scratch of a batch, unless a single chunk takes more: enough chunks to fill a GPU. */
#define MP_FAST_BATCH_BYTES (64u << 20)

/* Returns 1 if cuBLAS can run experts of BF16 weights: it may read their rows 16 bytes
 * at a time. */
static inline uint32_t mp_fast_serves(uint64_t hidden, uint64_t intermediate)
{
    const uint64_t most = 1u << 30; /* sizes are ints to the library */
    return hidden && intermediate && hidden % 8 == 0 && intermediate % 8 == 0 && hidden <= most &&
           intermediate <= most;
}

/* Returns the bytes of a chunk's pointers, operands and results, a multiple of MP_FAST_ALIGN. */
static inline uint64_t mp_fast_chunk_bytes(uint64_t hidden, uint64_t intermediate)
{
    const uint64_t operands = hidden > intermediate ? hidden : intermediate;
    const uint64_t results = hidden > 2 * intermediate ? hidden : 2 * intermediate;
    return MP_FAST_ALIGN + MP_FAST_ROWS * (2 * operands + 4 * results);
}

/* Scratch for launches of at most `rows` rows; 0 where BF16_FAST is no more than BF16: for sizes that
 * it does not serve, and for fewer rows than an expert of its own has. */
static inline uint64_t mp_fast_scratch_bytes(uint64_t hidden, uint64_t intermediate, uint64_t rows)
{
    if (!mp_fast_serves(hidden, intermediate) || rows < MP_FAST_LEAST_ROWS)
        return 0;
    const uint64_t each = mp_fast_chunk_bytes(hidden, intermediate);
    const uint64_t least = MP_FAST_ROWS / 2; /* a chunk has more rows than that, on average too */
    uint64_t chunks = (rows + least - 1) / least;
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
