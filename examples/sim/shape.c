/* Computes the sizes of model shapes from their config.json. */
#include "sim/shape.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "pack/shapes.h"

#define DENSE_WEIGHT_BYTES 2u /* attention, routers and heads stay in BF16 */
#define KV_NUMBER_BYTES 2u

/* Returns a number of config.json; `otherwise` if it is absent. */
static uint64_t number(const json_t *config, const char *key, uint64_t otherwise)
{
    const json_t *value = json_object_get(config, key);
    return json_is_integer(value) ? (uint64_t)json_integer_value(value) : otherwise;
}

/* Computes multi-head latent attention, with keys and values absorbed into the projections: every
 * head attends to a token's one compressed vector. */
static void latent_attention(const shape *s, const json_t *config, sim_shape *out)
{
    uint64_t rank = number(config, "kv_lora_rank", 0), rope = number(config, "qk_rope_head_dim", 0);
    uint64_t plain = number(config, "qk_nope_head_dim", 0), value = number(config, "v_head_dim", 0);
    uint64_t query_rank = number(config, "q_lora_rank", 0), heads = s->heads / out->tp;
    uint64_t query = heads * (plain + rope);
    uint64_t down =
        (uint64_t)s->hidden * (rank + rope + query_rank); /* every rank has all of these */
    out->attention_params = down + (query_rank ? query_rank : s->hidden) * query +
                            rank * heads * (plain + value) + heads * value * s->hidden;
    out->kv_token_bytes = (uint32_t)((rank + rope) * KV_NUMBER_BYTES);
    out->context_flops = 2 * heads * (rank + rope) + 2 * heads * rank;
}

static void head_attention(const shape *s, const json_t *config, sim_shape *out)
{
    uint64_t dim = s->head_dim ? s->head_dim : s->hidden / s->heads;
    uint64_t heads = s->heads / out->tp;
    uint64_t kv_heads = s->kv_heads > out->tp ? s->kv_heads / out->tp : 1; /* else replicated */
    bool gated = out->attention_every > 1;                                 /* as in Qwen3-Next */
    out->attention_params = s->hidden * dim * (heads * (gated ? 3 : 2) + 2 * kv_heads);
    out->kv_token_bytes = (uint32_t)(2 * kv_heads * dim * KV_NUMBER_BYTES);
    out->context_flops = 4 * heads * dim;
    uint64_t keys =
        number(config, "linear_key_head_dim", 0) * number(config, "linear_num_key_heads", 0);
    uint64_t values =
        number(config, "linear_value_head_dim", 0) * number(config, "linear_num_value_heads", 0);
    out->linear_params = s->hidden * (2 * keys + 3 * values) / out->tp;
}

static void count_parameters(const shape *s, sim_shape *out)
{
    uint32_t with_kv = out->layers / out->attention_every;
    double per_rank = (double)out->attention_params * with_kv +
                      (double)out->linear_params * (out->layers - with_kv) +
                      (double)out->mlp_params * out->first_moe +
                      2.0 * (double)out->vocabulary_params;
    double shared = (double)(out->moe_params - (uint64_t)s->hidden * s->experts) * out->moe_layers;
    double routed = 3.0 * s->hidden * s->expert_intermediate * s->experts * out->moe_layers;
    out->parameters =
        (per_rank + shared) * out->tp + routed + (double)s->hidden * s->experts * out->moe_layers;
}

static void work_out(const shape *s, const json_t *config, sim_shape *out)
{
    uint32_t shared_width = s->shared_intermediate ? s->shared_intermediate
                                                   : s->shared_experts * s->expert_intermediate;
    out->first_moe = s->first_dense;
    out->moe_layers = s->layers - s->first_dense;
    out->attention_every = (uint32_t)number(config, "full_attention_interval", 1);
    out->expert_intermediate = s->expert_intermediate / out->tp;
    out->expert_bytes =
        3ull * s->hidden * out->expert_intermediate * (out->dtype == MOEPAGE_DTYPE_BF16 ? 2 : 1);
    out->moe_params = (uint64_t)s->hidden * s->experts + 3ull * s->hidden * shared_width / out->tp;
    out->mlp_params = 3ull * s->hidden * s->intermediate / out->tp;
    out->vocabulary_params = (uint64_t)s->hidden * s->vocabulary / out->tp;
    if (json_object_get(config, "kv_lora_rank"))
        latent_attention(s, config, out);
    else
        head_attention(s, config, out);
    count_parameters(s, out);
}

int sim_shape_find(const char *name, uint32_t tp, bool f8, sim_shape *out)
{
    const shape *s = shape_find(name);
    if (!s)
        return fail(RUN_REFUSED, "no model shape %s: moepage-pack --list-shapes prints them", name);
    if (!tp || s->heads % tp || s->expert_intermediate % tp)
        return fail(RUN_REFUSED,
                    "%s cannot be divided among %u ranks: %u heads, experts of width %u", s->name,
                    tp, s->heads, s->expert_intermediate);
    char *text = shape_config_json(s, s->layers);
    json_t *config = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    if (!config)
        return fail_memory();
    *out = (sim_shape){.layers = s->layers,
                       .experts = s->experts,
                       .top_k = s->top_k,
                       .hidden = s->hidden,
                       .dtype = f8 ? MOEPAGE_DTYPE_F8_E4M3 : MOEPAGE_DTYPE_BF16,
                       .tp = tp};
    snprintf(out->name, sizeof out->name, "%s", s->name);
    work_out(s, config, out);
    json_decref(config);
    return RUN_OK;
}

uint64_t sim_shape_kv_token_bytes(const sim_shape *s)
{
    return (uint64_t)s->kv_token_bytes * (s->layers / s->attention_every);
}

uint64_t sim_shape_layer_bytes(const sim_shape *s, uint32_t layer)
{
    uint64_t attention = sim_shape_keeps_kv(s, layer) ? s->attention_params : s->linear_params;
    uint64_t rest = layer < s->first_moe ? s->mlp_params : s->moe_params;
    return (attention + rest) * DENSE_WEIGHT_BYTES;
}

uint64_t sim_shape_dense_bytes(const sim_shape *s)
{
    uint64_t bytes = 2 * s->vocabulary_params * DENSE_WEIGHT_BYTES;
    for (uint32_t layer = 0; layer < s->layers; layer++)
        bytes += sim_shape_layer_bytes(s, layer);
    return bytes;
}

mp_phantom_shape sim_shape_phantom(const sim_shape *s, double exph_ratio)
{
    return (mp_phantom_shape){.name = s->name,
                              .layers = s->layers,
                              .moe_layers = s->moe_layers,
                              .experts = s->experts,
                              .top_k = s->top_k,
                              .hidden = s->hidden,
                              .expert_intermediate = s->expert_intermediate,
                              .dtype = s->dtype,
                              .exph_ratio = exph_ratio};
}
