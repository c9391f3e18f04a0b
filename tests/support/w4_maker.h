/* w4_maker.h — small checkpoints of 4-bit weights in the layouts of GPTQ, AWQ and compressed-tensors. A matrix has
 * the same integers, scales and zero-points in every layout. */
#ifndef W4_MAKER_H
#define W4_MAKER_H

#include "quantised.h"

enum { W4_LAYERS = 2, W4_EXPERTS = 2, W4_HIDDEN = 256, W4_INTERMEDIATE = 128 };

typedef enum w4_method { W4_GPTQ, W4_GPTQ_V2, W4_AWQ, W4_PACKED } w4_method;

typedef struct w4_case {
    w4_method method;
    uint32_t group; /* 0: one group of all columns */
    bool bf16;      /* scales; else F16 */
    bool symmetric; /* all zero-points are 8, and PACKED stores none */
    bool unlisted;  /* no g_idx, where there could be one */
    bool reordered; /* columns of a group are not next to each other */
} w4_case;

/* Makes a directory and, in memory, a qwen3_moe checkpoint of which the experts and q_proj are in 4 bits; of the
 * sizes above, or of others. */
void w4_maker_init(moe_maker *maker, const w4_case *of);
void w4_maker_init_sized(moe_maker *maker, const w4_case *of, const quantised_sizes *sizes);

/* What a matrix consists of. */
uint32_t w4_integer(const char *name, uint64_t row, uint64_t column);
uint32_t w4_zero(const w4_case *of, const char *name, uint64_t row, uint64_t group);
uint16_t w4_scale(const w4_case *of, const char *name, uint64_t row, uint64_t group);

/* Adds the parts of the matrix `name`, without ".weight"; `as` is a w4_case. */
void w4_add_matrix(maker_shard *shard, const void *as, const char *name, uint64_t rows,
                   uint64_t columns);

/* The dtype in which rows of so many columns are served, and their blocks; returns how many bytes. */
uint32_t w4_dtype(const w4_case *of, uint64_t columns);
uint64_t w4_blocks(const w4_case *of, const char *name, uint64_t rows, uint64_t columns,
                   unsigned char *out);

/* The same of reordered columns, which are served as floats. */
uint64_t w4_values(const w4_case *of, const char *name, uint64_t rows, uint64_t columns,
                   unsigned char *out);

#endif
