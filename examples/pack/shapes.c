/* The table of shapes, and config.json written from it. */
#include "pack/shapes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Architectures ----------------------------------------------------------------------- */

static const shape_family qwen3_moe = {.model_type = "qwen3_moe",
                                       .class_name = "Qwen3MoeForCausalLM",
                                       .experts_key = "num_experts",
                                       .width_key = "moe_intermediate_size",
                                       .router = "mlp.gate",
                                       .runs = true,
                                       .head_norm = true};
static const shape_family qwen2_moe = {.model_type = "qwen2_moe",
                                       .class_name = "Qwen2MoeForCausalLM",
                                       .experts_key = "num_experts",
                                       .width_key = "moe_intermediate_size",
                                       .router = "mlp.gate",
                                       .runs = true,
                                       .qkv_bias = true};
static const shape_family qwen3_next = {.model_type = "qwen3_next",
                                        .class_name = "Qwen3NextForCausalLM",
                                        .experts_key = "num_experts",
                                        .width_key = "moe_intermediate_size",
                                        .router = "mlp.gate"};
static const shape_family mixtral = {.model_type = "mixtral",
                                     .class_name = "MixtralForCausalLM",
                                     .experts_key = "num_local_experts",
                                     .width_key = "intermediate_size",
                                     .router = "block_sparse_moe.gate",
                                     .runs = true};
static const shape_family olmoe = {.model_type = "olmoe",
                                   .class_name = "OlmoeForCausalLM",
                                   .experts_key = "num_experts",
                                   .width_key = "intermediate_size",
                                   .router = "mlp.gate",
                                   .runs = true,
                                   .width_norm = true};
static const shape_family phimoe = {.model_type = "phimoe",
                                    .class_name = "PhiMoEForCausalLM",
                                    .experts_key = "num_local_experts",
                                    .width_key = "intermediate_size",
                                    .router = "block_sparse_moe.gate",
                                    .runs = true,
                                    .qkv_bias = true,
                                    .output_bias = true,
                                    .layer_norm = true};
static const shape_family deepseek_v2 = {.model_type = "deepseek_v2",
                                         .class_name = "DeepseekV2ForCausalLM",
                                         .experts_key = "n_routed_experts",
                                         .width_key = "moe_intermediate_size",
                                         .router = "mlp.gate"};
static const shape_family deepseek_v3 = {.model_type = "deepseek_v3",
                                         .class_name = "DeepseekV3ForCausalLM",
                                         .experts_key = "n_routed_experts",
                                         .width_key = "moe_intermediate_size",
                                         .router = "mlp.gate"};
static const shape_family minimax_m2 = {.model_type = "minimax_m2",
                                        .class_name = "MiniMaxM2ForCausalLM",
                                        .experts_key = "num_local_experts",
                                        .width_key = "intermediate_size",
                                        .router = "block_sparse_moe.gate"};
static const shape_family gpt_oss = {.model_type = "gpt_oss",
                                     .class_name = "GptOssForCausalLM",
                                     .experts_key = "num_local_experts",
                                     .width_key = "intermediate_size",
                                     .router = "mlp.router"};

/* ---- Models ------------------------------------------------------------------------------ */

#define QWEN3_MORE                                                                    \
    "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], " \
    "\"attention_bias\": false, \"rms_norm_eps\": 1e-06, \"use_sliding_window\": false"
#define QWEN3_THETA \
    ", \"rope_theta\": 1000000.0, \"bos_token_id\": 151643, \"eos_token_id\": 151645"
#define QWEN2_MORE                                                                     \
    "\"norm_topk_prob\": false, \"decoder_sparse_step\": 1, \"rms_norm_eps\": 1e-06, " \
    "\"rope_theta\": 1000000.0, \"use_sliding_window\": false, \"eos_token_id\": 151643"
#define MIXTRAL_MORE                                                                 \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"sliding_window\": null, " \
    "\"bos_token_id\": 1, \"eos_token_id\": 2"
#define DEEPSEEK_MORE                                                              \
    "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, " \
    "\"v_head_dim\": 128, \"moe_layer_freq\": 1, \"rms_norm_eps\": 1e-06, "        \
    "\"rope_theta\": 10000, "
#define GPT_OSS_MORE                                                             \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 150000, \"sliding_window\": 128, " \
    "\"swiglu_limit\": 7.0, \"attention_bias\": true, \"eos_token_id\": 200002"

/* The numbers are those of config.json in the model repositories on huggingface.co that `source`
 * names; only `toy` has no repository. */
static const shape shapes[] = {
    {.name = "toy",
     .source = "no published model: a few MB, for trials",
     .family = &qwen3_moe,
     .layers = 4,
     .hidden = 128,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .intermediate = 256,
     .experts = 16,
     .top_k = 4,
     .expert_intermediate = 64,
     .vocabulary = 260,
     .max_positions = 1024,
     .more = QWEN3_MORE ", \"rope_theta\": 10000.0, \"eos_token_id\": 257"},
    {.name = "qwen3-30b-a3b",
     .source = "Qwen/Qwen3-30B-A3B",
     .family = &qwen3_moe,
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .intermediate = 6144,
     .experts = 128,
     .top_k = 8,
     .expert_intermediate = 768,
     .vocabulary = 151936,
     .max_positions = 40960,
     .more = QWEN3_MORE QWEN3_THETA},
    {.name = "qwen3-235b-a22b",
     .source = "Qwen/Qwen3-235B-A22B",
     .family = &qwen3_moe,
     .layers = 94,
     .hidden = 4096,
     .heads = 64,
     .kv_heads = 4,
     .head_dim = 128,
     .intermediate = 12288,
     .experts = 128,
     .top_k = 8,
     .expert_intermediate = 1536,
     .vocabulary = 151936,
     .max_positions = 40960,
     .more = QWEN3_MORE QWEN3_THETA},
    {.name = "qwen3-next-80b",
     .source = "Qwen/Qwen3-Next-80B-A3B-Instruct",
     .family = &qwen3_next,
     .layers = 48,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_dim = 256,
     .intermediate = 5120,
     .experts = 512,
     .top_k = 10,
     .expert_intermediate = 512,
     .shared_experts = 1,
     .shared_intermediate = 512,
     .vocabulary = 151936,
     .max_positions = 262144,
     .more = QWEN3_MORE ", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25, "
                        "\"full_attention_interval\": 4, \"linear_conv_kernel_dim\": 4, "
                        "\"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16, "
                        "\"linear_value_head_dim\": 128, \"linear_num_value_heads\": 32"},
    {.name = "qwen1.5-moe-a2.7b",
     .source = "Qwen/Qwen1.5-MoE-A2.7B",
     .family = &qwen2_moe,
     .layers = 24,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .intermediate = 5632,
     .experts = 60,
     .top_k = 4,
     .expert_intermediate = 1408,
     .shared_experts = 1,
     .shared_intermediate = 5632,
     .vocabulary = 151936,
     .max_positions = 8192,
     .more = QWEN2_MORE},
    {.name = "qwen2-57b-a14b",
     .source = "Qwen/Qwen2-57B-A14B",
     .family = &qwen2_moe,
     .layers = 28,
     .hidden = 3584,
     .heads = 28,
     .kv_heads = 4,
     .head_dim = 128,
     .intermediate = 18944,
     .experts = 64,
     .top_k = 8,
     .expert_intermediate = 2560,
     .shared_experts = 1,
     .shared_intermediate = 20480,
     .vocabulary = 151936,
     .max_positions = 131072,
     .more = QWEN2_MORE},
    {.name = "mixtral-8x7b",
     .source = "mistralai/Mixtral-8x7B-v0.1",
     .family = &mixtral,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_intermediate = 14336,
     .vocabulary = 32000,
     .max_positions = 32768,
     .more = MIXTRAL_MORE},
    {.name = "mixtral-8x22b",
     .source = "mistralai/Mixtral-8x22B-v0.1",
     .family = &mixtral,
     .layers = 56,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_intermediate = 16384,
     .vocabulary = 32000,
     .max_positions = 65536,
     .more = MIXTRAL_MORE},
    {.name = "olmoe-1b-7b",
     .source = "allenai/OLMoE-1B-7B-0924",
     .family = &olmoe,
     .layers = 16,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .experts = 64,
     .top_k = 8,
     .expert_intermediate = 1024,
     .vocabulary = 50304,
     .max_positions = 4096,
     .more = "\"norm_topk_prob\": false, \"attention_bias\": false, \"clip_qkv\": null, "
             "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"eos_token_id\": 50279"},
    /* Without its longrope factors; the context is that of its first training. */
    {.name = "phi-3.5-moe",
     .source = "microsoft/Phi-3.5-MoE-instruct, without longrope",
     .family = &phimoe,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 16,
     .top_k = 2,
     .expert_intermediate = 6400,
     .vocabulary = 32064,
     .max_positions = 4096,
     .more = "\"attention_bias\": true, \"lm_head_bias\": true, \"router_jitter_noise\": 0.01, "
             "\"input_jitter_noise\": 0.01, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "
             "\"eos_token_id\": 32000"},
    {.name = "deepseek-v2-lite",
     .source = "deepseek-ai/DeepSeek-V2-Lite",
     .family = &deepseek_v2,
     .layers = 27,
     .first_dense = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .intermediate = 10944,
     .experts = 64,
     .top_k = 6,
     .expert_intermediate = 1408,
     .shared_experts = 2,
     .vocabulary = 102400,
     .max_positions = 163840,
     .more = DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
                           "\"q_lora_rank\": null, \"norm_topk_prob\": false"},
    {.name = "deepseek-v2",
     .source = "deepseek-ai/DeepSeek-V2",
     .family = &deepseek_v2,
     .layers = 60,
     .first_dense = 1,
     .hidden = 5120,
     .heads = 128,
     .kv_heads = 128,
     .intermediate = 12288,
     .experts = 160,
     .top_k = 6,
     .expert_intermediate = 1536,
     .shared_experts = 2,
     .vocabulary = 102400,
     .max_positions = 163840,
     .more = DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
                           "\"q_lora_rank\": 1536, \"norm_topk_prob\": false"},
    {.name = "deepseek-v3",
     .source = "deepseek-ai/DeepSeek-V3",
     .family = &deepseek_v3,
     .layers = 61,
     .first_dense = 3,
     .hidden = 7168,
     .heads = 128,
     .kv_heads = 128,
     .intermediate = 18432,
     .experts = 256,
     .top_k = 8,
     .expert_intermediate = 2048,
     .shared_experts = 1,
     .vocabulary = 129280,
     .max_positions = 163840,
     .more = DEEPSEEK_MORE "\"n_shared_experts\": 1, \"first_k_dense_replace\": 3, "
                           "\"q_lora_rank\": 1536, \"norm_topk_prob\": true",
     .published = "FP8"},
    {.name = "moonlight-16b-a3b",
     .source = "moonshotai/Moonlight-16B-A3B, Kimi-VL-A3B's language model",
     .family = &deepseek_v3,
     .layers = 27,
     .first_dense = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .intermediate = 11264,
     .experts = 64,
     .top_k = 6,
     .expert_intermediate = 1408,
     .shared_experts = 2,
     .vocabulary = 163840,
     .max_positions = 8192,
     .more = DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
                           "\"q_lora_rank\": null, \"norm_topk_prob\": true"},
    {.name = "minimax-m2",
     .source = "MiniMaxAI/MiniMax-M2",
     .family = &minimax_m2,
     .layers = 62,
     .hidden = 3072,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 256,
     .top_k = 8,
     .expert_intermediate = 1536,
     .vocabulary = 200064,
     .max_positions = 196608,
     .more = "\"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rotary_dim\": 64, "
             "\"scoring_func\": \"sigmoid\", \"use_qk_norm\": true",
     .published = "FP8"},
    {.name = "gpt-oss-20b",
     .source = "openai/gpt-oss-20b",
     .family = &gpt_oss,
     .layers = 24,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .experts = 32,
     .top_k = 4,
     .expert_intermediate = 2880,
     .vocabulary = 201088,
     .max_positions = 131072,
     .more = GPT_OSS_MORE,
     .published = "MXFP4"},
    {.name = "gpt-oss-120b",
     .source = "openai/gpt-oss-120b",
     .family = &gpt_oss,
     .layers = 36,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .experts = 128,
     .top_k = 4,
     .expert_intermediate = 2880,
     .vocabulary = 201088,
     .max_positions = 131072,
     .more = GPT_OSS_MORE,
     .published = "MXFP4"},
};

/* Returns true if `name` is the repository's name in `source` without its owner. */
static bool names_repository(const char *source, const char *name)
{
    const char *slash = strchr(source, '/');
    size_t length = strlen(name);
    return slash && !strncasecmp(slash + 1, name, length) &&
           (!slash[1 + length] || slash[1 + length] == ',');
}

const shape *shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcasecmp(shapes[i].name, name) || names_repository(shapes[i].source, name))
            return &shapes[i];
    return NULL;
}

void shape_list(FILE *out)
{
    fprintf(out, "shape              layers experts top-k hidden width  experts' GB  generates  "
                 "numbers from\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        double bytes =
            (double)shape_expert_bytes(s) * s->experts * (double)(s->layers - s->first_dense);
        fprintf(out,
                "%-18s %6" PRIu32 " %7" PRIu32 " %5" PRIu32 " %6" PRIu32 " %5" PRIu32
                "  %11.3f  %-9s  %s%s%s\n",
                s->name, s->layers, s->experts, s->top_k, s->hidden, s->expert_intermediate,
                bytes / 1e9, s->family->runs ? "yes" : "no", s->source,
                s->published ? "; published in " : "", s->published ? s->published : "");
    }
    fprintf(out, "\nEvery expert is made in BF16. Those that generate are whole models for "
                 "moepage-generate;\nthe others have their experts and routers only.\n");
}

/* ---- config.json ------------------------------------------------------------------------- */

static void write_config(FILE *out, const shape *s, uint32_t layers)
{
    const shape_family *f = s->family;
    fprintf(out,
            "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"torch_dtype\": \"bfloat16\", "
            "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, ",
            f->class_name, f->model_type);
    fprintf(out,
            "\"hidden_size\": %" PRIu32 ", \"num_hidden_layers\": %" PRIu32
            ", \"num_attention_heads\": %" PRIu32 ", \"num_key_value_heads\": %" PRIu32 ", ",
            s->hidden, layers, s->heads, s->kv_heads);
    if (s->head_dim && s->head_dim != s->hidden / s->heads)
        fprintf(out, "\"head_dim\": %" PRIu32 ", ", s->head_dim);
    if (s->intermediate)
        fprintf(out, "\"intermediate_size\": %" PRIu32 ", ", s->intermediate);
    fprintf(out, "\"%s\": %" PRIu32 ", \"num_experts_per_tok\": %" PRIu32 ", \"%s\": %" PRIu32 ", ",
            f->experts_key, s->experts, s->top_k, f->width_key, s->expert_intermediate);
    if (s->shared_intermediate)
        fprintf(out, "\"shared_expert_intermediate_size\": %" PRIu32 ", ", s->shared_intermediate);
    fprintf(out, "\"vocab_size\": %" PRIu32 ", \"max_position_embeddings\": %" PRIu32 ", %s}\n",
            s->vocabulary, s->max_positions, s->more);
}

char *shape_config_json(const shape *s, uint32_t layers)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return NULL;
    write_config(out, s, layers);
    if (!fclose(out))
        return text;
    free(text);
    return NULL;
}
