/* shapes.h — the shapes of published Mixture-of-Experts models, for trials without their
 * weights. */
#ifndef EXAMPLE_SHAPES_H
#define EXAMPLE_SHAPES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Properties common to the models of one architecture. */
typedef struct shape_family {
    const char *model_type;
    const char *class_name;
    const char *experts_key; /* of config.json */
    const char *width_key;   /* the experts' I */
    const char *router;      /* part of a layer's tensor names */
    bool runs;               /* made whole, so that moepage-generate runs it */
    bool qkv_bias;
    bool output_bias; /* of attention and head */
    bool layer_norm;  /* with a shift; otherwise RMSNorm */
    bool head_norm;   /* of q and k, head by head */
    bool width_norm;  /* of q and k, all heads together */
} shape_family;

typedef struct shape {
    const char *name;
    const char *source; /* the repository with this config.json */
    const shape_family *family;
    uint32_t layers;
    uint32_t first_dense; /* layers without experts at the start */
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t intermediate; /* of dense layers */
    uint32_t experts;
    uint32_t top_k;
    uint32_t expert_intermediate;
    uint32_t shared_experts;
    uint32_t shared_intermediate; /* of all shared experts; made only for families that run */
    uint32_t vocabulary;
    uint32_t max_positions;
    const char *more;      /* the rest of config.json */
    const char *published; /* the experts' published type if it is not BF16; or NULL */
} shape;

/* Finds a shape by its name here or its repository's, ignoring case; NULL if there is none. */
const shape *shape_find(const char *name);

/* Prints one line per shape. */
void shape_list(FILE *out);

static inline uint64_t shape_expert_bytes(const shape *s)
{
    return 3ull * s->hidden * s->expert_intermediate * 2;
}

/* Returns a config.json with `layers` layers, to be freed; NULL when out of memory. */
char *shape_config_json(const shape *s, uint32_t layers);

#endif
