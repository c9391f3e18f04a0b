/* fp4_maker.h — small checkpoints of NVFP4 weights in the layouts of ModelOpt and compressed-tensors, and
 * ModelOpt's of FP8 with one scale for a matrix. */
#ifndef FP4_MAKER_H
#define FP4_MAKER_H

#include <stdbool.h>

#include "quantised.h"

enum { FP4_LAYERS = 2, FP4_EXPERTS = 2 };

typedef enum fp4_method { FP4_MODELOPT, FP4_PACKED, FP4_FP8 } fp4_method;

typedef struct fp4_case {
    fp4_method method;
    uint32_t hidden, intermediate;
    uint32_t layers; /* 0: FP4_LAYERS */
} fp4_case;

/* Makes a directory and, in memory, a qwen3_moe checkpoint of which the experts and q_proj are stored so. */
void fp4_maker_init(moe_maker *maker, const fp4_case *of);

/* Adds the parts of the matrix `name`, without ".weight". */
void fp4_add_matrix(maker_shard *shard, fp4_method method, const char *name, uint64_t rows,
                    uint64_t columns);

/* Makes a directory and, in memory, ModelOpt's of NVFP4 of which the experts of a layer are two stacks, gate_up_proj
 * [experts, 2 * intermediate, hidden] and down_proj. Even layers have a factor for each expert, odd ones share that of
 * the first. */
void fp4_stacks_init(moe_maker *maker, const quantised_sizes *sizes);
bool fp4_stacks_share(uint32_t layer);
/* The name by which an expert's matrix in stack 0 or 1 has its numbers; room for 128 bytes. */
void fp4_stacks_name(uint32_t layer, uint32_t expert, uint32_t stack, char *out);

/* The number by which the scales of a matrix are multiplied, or divided. */
float fp4_factor(fp4_method method, const char *name);

/* The dtype in which rows of so many columns are served, and their blocks; returns how many bytes. */
uint32_t fp4_dtype(uint64_t columns);
uint64_t fp4_blocks(fp4_method method, const char *name, uint64_t rows, uint64_t columns,
                    unsigned char *out);

#endif
