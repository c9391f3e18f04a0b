/* config.h — config.json of every architecture that the examples can run, or the metadata of a GGUF
 * file, as one struct. */
#ifndef EXAMPLE_CONFIG_H
#define EXAMPLE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rope.h"
#include "moepage.h"

#define MAX_EOS 8

typedef enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD, /* each head by itself (Qwen3) */
    QK_NORM_WIDTH /* all heads together (OLMoE) */
} qk_norm;

typedef enum router_kind {
    ROUTER_SOFTMAX,     /* softmax over all experts, then top-k */
    ROUTER_SIGMOID,     /* each expert's own; a bias takes part in the choice alone */
    ROUTER_SPARSEMIXER, /* Phi-3.5-MoE: two rounds of masked argmax */
} router_kind;

/* The experts that each token takes beside those of its choice, as one MLP. */
typedef enum shared_kind {
    SHARED_NONE,
    SHARED_PLAIN,
    SHARED_GATED /* weighted by a sigmoid gate of its own (Qwen2-MoE) */
} shared_kind;

/* Multi-head latent attention (DeepSeek-V2): keys and values of all heads are projections of one vector
 * per token, which is cached in place of them, with one rotated key for all heads. */
typedef struct latent_config {
    uint32_t rank;   /* of that vector; 0 = the attention is of the usual kind */
    uint32_t q_rank; /* queries are a projection of a projection of this size; 0 = of one alone */
    uint32_t plain;  /* elements of a head's query that are not rotated */
    uint32_t turned; /* and that are */
    uint32_t value;  /* elements of a head's value */
} latent_config;

typedef struct model_config {
    const char *source; /* "config.json" or "the metadata" */
    bool gguf;          /* a GGUF file: tensors have its names */
    bool has_tokens;    /* the file has a tokenizer */
    uint32_t layers;
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads;  /* in the cache, as the two below */
    uint32_t head_dim;  /* of keys: latent.rank + latent.turned where there is such */
    uint32_t value_dim; /* of values: latent.rank, the first of a key, where there is such */
    latent_config latent;
    uint32_t vocabulary;
    uint32_t experts;
    uint32_t top_k;
    uint32_t dense_intermediate;  /* of layers without routed experts */
    uint32_t shared_intermediate; /* 0 = no shared expert */
    uint32_t groups;              /* of adjacent experts, which divide them evenly; 1 = none */
    uint32_t top_groups;          /* that a token's experts are chosen from */
    uint32_t max_positions;
    uint32_t block_rows, block_columns; /* of FP8 matrices' scales; 0 = config.json does not say */
    uint32_t *window;                   /* [layers] positions that a token sees, itself included */
    int32_t *moe_layer;                 /* [layers] index over MoE layers; -1 = dense MLP */
    float norm_eps;
    float clip_qkv;      /* 0 = off */
    float router_jitter; /* ROUTER_SPARSEMIXER: width of its mask */
    float router_scale;  /* of the weights of chosen experts */
    float score_scale;   /* of attention's scores */
    router_kind router;
    shared_kind shared;
    qk_norm qk_norm;
    bool layer_norm; /* LayerNorm with bias instead of RMSNorm */
    bool normalize_top_k;
    bool qkv_bias;
    bool output_bias;
    bool head_bias;
    bool router_bias;
    bool sinks;            /* attention has a score per head that no position has */
    const char *post_norm; /* what GGUF files call the norm behind the attention */
    bool tied_embeddings;
    uint32_t eos[MAX_EOS];
    uint32_t n_eos;
    rope rope;
} model_config;

/* Reads the open model's config. One line and RUN_REFUSED for a model that the examples cannot run.
 * *out is always safe to free. */
int config_read(const moepage_model *model, model_config *out);
void config_free(model_config *config);

/* Returns true if experts are chosen by their probabilities alone, and these are their weights, or shares
 * of their sum. */
bool config_weighs_by_softmax(const model_config *config);

/* Returns the elements of a token's queries as they are projected, and of its heads' values. */
uint32_t config_q_width(const model_config *config);
uint32_t config_o_width(const model_config *config);

/* Returns the elements of the longest row that a dense product takes. */
uint32_t config_widest(const model_config *config);

/* Returns true if `token` ends a sequence. */
bool config_is_eos(const model_config *config, uint32_t token);

#endif
