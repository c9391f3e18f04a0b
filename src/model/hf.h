/* hf.h — knowledge of Hugging Face architectures: the meaning of config keys, the layers with
 * routed experts, and the names and shapes of experts' tensors.
 *
 * An architecture is a row of a table (hf_architectures.c); the code that reads the table contains
 * no architecture's name. docs/checkpoints.md says how to add one. */
#ifndef MP_MODEL_HF_H
#define MP_MODEL_HF_H

#include <stdbool.h>

#include "model/checkpoint.h"
#include "model/hf_fp4.h"
#include "model/hf_w4.h"
#include "model/model.h"

/* A dimension in terms of the config. Block scales cover block_rows x block_columns weights. */
typedef enum mp_hf_dim {
    MP_DIM_NONE,
    MP_DIM_H,
    MP_DIM_I,
    MP_DIM_2I,
    MP_DIM_H_BLOCK_ROWS, /* ceil(H / block_rows) */
    MP_DIM_I_BLOCK_ROWS,
    MP_DIM_2I_BLOCK_ROWS,
    MP_DIM_H_BLOCK_COLUMNS, /* ceil(H / block_columns) */
    MP_DIM_I_BLOCK_COLUMNS,
    MP_DIM_H_MX_GROUPS, /* ceil(H / 32): MX formats share a scale among 32 values */
    MP_DIM_I_MX_GROUPS,
    MP_DIM_MXFP4_BYTES /* 16: 32 values of 4 bits */
} mp_hf_dim;

/* The condition under which a layout has a tensor. */
typedef enum mp_hf_when {
    MP_WHEN_ALWAYS,
    MP_WHEN_FP8 /* block scales: exactly if the first part's weights are FP8 */
} mp_hf_when;

/* A tensor from which a piece of the slot is computed. */
typedef struct mp_hf_stored {
    const char *suffix;               /* its name goes on with this */
    uint32_t dtype;                   /* required type; NONE = the first expert's type */
    mp_hf_dim dims[MOEPAGE_MAX_RANK]; /* without the stack's dimension */
} mp_hf_stored;

/* How pieces are computed (model/repack.h). */
typedef struct mp_hf_repack {
    const mp_repack_kind *kind;
    bool interleaved; /* gate's and up's rows take turns */
    uint32_t n_stored;
    mp_hf_stored stored[MP_REPACK_SOURCES];
} mp_hf_repack;

/* One tensor of an expert's slot, made of one named tensor of the checkpoint or of two, the second
 * after the first along the first dimension. In a name, {L} is the layer and {E} the expert. */
typedef struct mp_hf_part {
    uint32_t role;
    uint32_t
        dtype; /* required type, or that which is computed; NONE = that of the first expert's first
                     * stored tensor */
    mp_hf_when when;
    mp_hf_dim dims[MOEPAGE_MAX_RANK]; /* of each named tensor, without the stack's dimension */
    const char *names[2];
    const mp_hf_repack *repack; /* NULL: a named tensor is a piece as it is */
} mp_hf_part;

/* One way in which a checkpoint stores an architecture's experts. */
typedef struct mp_hf_layout {
    const char *router;      /* [E, H] */
    const char *router_bias; /* [E], or NULL; checked if present */
    const char *prefix;      /* every tensor with this prefix belongs to a routed expert */
    bool stacked;            /* a named tensor holds all experts along a first dimension E */
    uint32_t n_parts;
    mp_hf_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
} mp_hf_layout;

typedef enum mp_hf_rule {
    MP_RULE_EVERY_LAYER,
    MP_RULE_SPARSE_STEP, /* (layer + 1) % decoder_sparse_step == 0, not in mlp_only_layers */
    MP_RULE_FIRST_DENSE  /* layer >= first_k_dense_replace, layer % moe_layer_freq == 0 */
} mp_hf_rule;

#define MP_HF_MAX_LAYOUTS 3

typedef struct mp_hf_architecture {
    const char *model_type;
    mp_hf_rule rule;
    uint32_t first_dense;        /* for MP_RULE_FIRST_DENSE: default if the config has no value */
    const char *experts_keys[2]; /* the first key present is used */
    const char *intermediate_key;
    const char *shared_key;  /* NULL: no shared experts */
    uint32_t shared_default; /* default if the config has no value */
    bool shared_is_width;    /* shared_key is a width: one shared expert unless it is 0 */
    bool clamped;            /* silu in the config means SWIGLU_CLAMPED, with swiglu_limit */
    /* The first layout whose first tensor exists is used. */
    const mp_hf_layout *layouts[MP_HF_MAX_LAYOUTS];
} mp_hf_architecture;

/* Ends with an entry whose model_type is NULL. */
extern const mp_hf_architecture mp_hf_architectures[];

/* The contents of config.json as the library uses them. */
typedef struct mp_hf_config {
    const mp_hf_architecture *architecture;
    uint32_t layers;
    uint32_t moe_layers;
    int32_t *layer_of_moe; /* [moe_layers]; owned here until the model takes it */
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t shared;
    uint32_t vocabulary;
    uint32_t block_rows; /* of FP8 block scales */
    uint32_t block_columns;
    mp_hf_w4 w4;       /* of W4A16 weights */
    mp_fp4_layout fp4; /* of NVFP4 weights, and FP8 with one scale for a matrix */
    mp_activation activation;
} mp_hf_config;

/* Reads and checks config.json. Call mp_hf_config_free after success and after failure. */
moepage_status mp_hf_config_read(const mp_json *json, mp_hf_config *out);
void mp_hf_config_free(mp_hf_config *config);

/* Finds the layout in which the checkpoint stores the experts. */
moepage_status mp_hf_layout_find(const mp_hf_config *config, const mp_checkpoint *checkpoint,
                                 const mp_hf_layout **out);

/* Checks that every router exists, is [E, H] and finite: a NaN would route tokens arbitrarily. */
moepage_status mp_hf_routers_check(const mp_hf_config *config, const mp_hf_layout *layout,
                                   const mp_checkpoint *checkpoint);

/* Fills the model's tensors, pieces and sources from the checkpoint, and marks the routed tensors
 * there. The model's info must already hold the config's numbers. */
moepage_status mp_hf_experts_bind(const mp_hf_config *config, const mp_hf_layout *layout,
                                  mp_checkpoint *checkpoint, struct moepage_model *model);

/* A name pattern with its layer and expert filled in. */
typedef struct mp_hf_name {
    char text[128];
} mp_hf_name;

mp_hf_name mp_hf_name_of(const char *pattern, uint32_t layer, uint32_t expert);

/* Fails unless `tensor` has exactly this shape. */
moepage_status mp_hf_shape_check(const mp_tensor *tensor, const uint64_t *shape, uint32_t rank);

#endif
