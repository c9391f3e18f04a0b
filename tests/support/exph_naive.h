/* exph_naive.h — a reader of exponent-Huffman streams written from docs/format-exph.md alone, bit
 * by bit, with no regard for speed. It shares no code with the library. */
#ifndef EXPH_NAIVE_H
#define EXPH_NAIVE_H

#include <stdint.h>

typedef struct exph_naive_stats {
    uint64_t coded, constant, raw; /* chunks */
    uint64_t escapes;
    uint64_t code_bits;
    uint64_t coarse; /* tiles whose lanes are measured in units of more than a bit */
} exph_naive_stats;

/* Writes the n elements of `dtype` that the stream holds. NULL, or what in the stream is not as
 * specified: every byte has one right value or is under a checksum. `stats` may be NULL. */
const char *exph_naive_read(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n,
                            void *out, exph_naive_stats *stats);

/* What every decoder must make of these bytes, whatever they are. */
void exph_naive_decode(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n, void *out);

/* The parts of a stream all of whose chunks are coded, with the best code there is: header, tables,
 * escapes, code and rests, without padding between bits and rests. Worked out from the elements. */
uint64_t exph_naive_size(uint32_t dtype, const void *elements, uint64_t n);

/* The fewest bits that codes of 1 to 8 bits can spend on symbols that occur so often: the least
 * over all ways to choose lengths. counts[n], n <= 16. */
uint64_t exph_naive_fewest_bits(const uint64_t *counts, uint32_t n);

#endif
