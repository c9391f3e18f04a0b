/* random_blocks.h — blocks of random weights, in every block format. */
#ifndef RANDOM_BLOCKS_H
#define RANDOM_BLOCKS_H

#include <stdint.h>

/* Fills n_blocks blocks. Bits of weights and small scales are any; a block's own scales give weights
 * of 2^-9 to 2^2, of either sign where the format has signs. */
void random_blocks(uint32_t dtype, uint64_t n_blocks, void *out);

/* The same, with scales that may be anything: zero, denormal, infinite, NaN. */
void random_blocks_wild(uint32_t dtype, uint64_t n_blocks, void *out);

#endif
