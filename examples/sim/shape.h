/* shape.h — a model as numbers: the sizes of its experts, its KV and the rest, and the bytes and
 * operations of a step.
 *
 * Shapes are those of pack/shapes.h, computed from their config.json. Omitted, because small:
 * norms, biases, rotary tables, multi-token-prediction layers, sliding windows (every attention
 * layer keeps and reads all tokens) and the constant state of linear attention. */
#ifndef SIM_SHAPE_H
#define SIM_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "simulated/phantom.h"

/* All figures are those of one rank: with tensor parallelism each rank has a slice of every expert,
 * of the attention heads and of the dense layers, and all of an MLA cache, which has no heads to
 * divide. */
typedef struct sim_shape {
    char name[64];
    uint32_t layers;
    uint32_t first_moe; /* layers before it have no experts */
    uint32_t moe_layers;
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t expert_intermediate;
    uint32_t dtype; /* MOEPAGE_DTYPE_* of the experts */
    uint32_t tp;
    uint32_t attention_every; /* every n-th layer has attention that keeps KV; 1 = all */
    uint32_t kv_token_bytes;  /* of one token in one such layer */
    uint64_t expert_bytes;
    uint64_t attention_params;  /* of such a layer */
    uint64_t linear_params;     /* of the other layers' attention */
    uint64_t moe_params;        /* router and shared experts of an MoE layer */
    uint64_t mlp_params;        /* of the FFN of a dense layer */
    uint64_t vocabulary_params; /* of the output head; the embedding table is equally large */
    uint64_t context_flops;     /* of one token's attention to one other token in one layer */
    double parameters;          /* of the whole model, all ranks */
} sim_shape;

/* Finds a shape by name and computes it for one of `tp` ranks. `f8`: experts of one byte per
 * weight, otherwise BF16, whatever their published type. RUN_REFUSED after a line on stderr. */
int sim_shape_find(const char *name, uint32_t tp, bool f8, sim_shape *out);

/* Returns true if transformer layer `layer` keeps KV. */
static inline bool sim_shape_keeps_kv(const sim_shape *s, uint32_t layer)
{
    return layer % s->attention_every == s->attention_every - 1;
}

/* Returns the KV bytes of one token over all layers. */
uint64_t sim_shape_kv_token_bytes(const sim_shape *shape);
/* Returns the bytes of all weights but the routed experts: always resident, outside the budget. */
uint64_t sim_shape_dense_bytes(const sim_shape *shape);
/* Returns the bytes of a layer's weights that every step reads, except the routed experts. */
uint64_t sim_shape_layer_bytes(const sim_shape *shape, uint32_t layer);

/* Returns the shape for the library. `exph_ratio`: size of compressed experts; 0 = no compressed
 * form. */
mp_phantom_shape sim_shape_phantom(const sim_shape *shape, double exph_ratio);

#endif
