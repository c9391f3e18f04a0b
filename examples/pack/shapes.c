/* The table of shapes, and config.json written from it. */
#include "pack/shapes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Architectures ----------------------------------------------------------------------- */

/* clang-format off */

/* Model type, class, keys of config.json for the number of experts and for their width, router. */
static const shape_family
    qwen3_moe = {"qwen3_moe", "Qwen3MoeForCausalLM",
        "num_experts", "moe_intermediate_size", "mlp.gate", .runs = true, .head_norm = true},
    qwen2_moe = {"qwen2_moe", "Qwen2MoeForCausalLM",
        "num_experts", "moe_intermediate_size", "mlp.gate", .runs = true, .qkv_bias = true},
    qwen3_next = {"qwen3_next", "Qwen3NextForCausalLM",
        "num_experts", "moe_intermediate_size", "mlp.gate", .runs = false},
    mixtral = {"mixtral", "MixtralForCausalLM",
        "num_local_experts", "intermediate_size", "block_sparse_moe.gate", .runs = true},
    olmoe = {"olmoe", "OlmoeForCausalLM",
        "num_experts", "intermediate_size", "mlp.gate", .runs = true, .width_norm = true},
    phimoe = {"phimoe", "PhiMoEForCausalLM",
        "num_local_experts", "intermediate_size", "block_sparse_moe.gate",
        .runs = true, .qkv_bias = true, .output_bias = true, .layer_norm = true},
    deepseek_v2 = {"deepseek_v2", "DeepseekV2ForCausalLM",
        "n_routed_experts", "moe_intermediate_size", "mlp.gate", .runs = false},
    deepseek_v3 = {"deepseek_v3", "DeepseekV3ForCausalLM",
        "n_routed_experts", "moe_intermediate_size", "mlp.gate", .runs = false},
    minimax_m2 = {"minimax_m2", "MiniMaxM2ForCausalLM",
        "num_local_experts", "intermediate_size", "block_sparse_moe.gate", .runs = false},
    gpt_oss = {"gpt_oss", "GptOssForCausalLM",
        "num_local_experts", "intermediate_size", "mlp.router", .runs = false};

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

/* The numbers are those of config.json in the model repositories on huggingface.co that
 * `source` names; only `toy` is invented. A row has a model's name, source and family; its
 * numbers, in the order of `shape`; the rest of its config.json; and the type in which its
 * experts are published. */
static const shape shapes[] = {
    /*layers dense hidden heads   KV  dim  inner experts top  width shared  width   vocab  length */
    {"toy", "no published model: a few MB, for trials", &qwen3_moe,
         4,    0,   128,    4,   2,  32,   256,     16,  4,    64,     0,     0,    260,   1024,
     QWEN3_MORE ", \"rope_theta\": 10000.0, \"eos_token_id\": 257", NULL},
    {"qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", &qwen3_moe,
        48,    0,  2048,   32,   4, 128,  6144,    128,  8,   768,     0,     0, 151936,  40960,
     QWEN3_MORE QWEN3_THETA, NULL},
    {"qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", &qwen3_moe,
        94,    0,  4096,   64,   4, 128, 12288,    128,  8,  1536,     0,     0, 151936,  40960,
     QWEN3_MORE QWEN3_THETA, NULL},
    {"qwen3-next-80b", "Qwen/Qwen3-Next-80B-A3B-Instruct", &qwen3_next,
        48,    0,  2048,   16,   2, 256,  5120,    512, 10,   512,     1,   512, 151936, 262144,
     QWEN3_MORE ", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25, "
     "\"full_attention_interval\": 4, \"linear_conv_kernel_dim\": 4, "
     "\"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16, "
     "\"linear_value_head_dim\": 128, \"linear_num_value_heads\": 32",
     NULL},
    {"qwen1.5-moe-a2.7b", "Qwen/Qwen1.5-MoE-A2.7B", &qwen2_moe,
        24,    0,  2048,   16,  16, 128,  5632,     60,  4,  1408,     1,  5632, 151936,   8192,
     QWEN2_MORE, NULL},
    {"qwen2-57b-a14b", "Qwen/Qwen2-57B-A14B", &qwen2_moe,
        28,    0,  3584,   28,   4, 128, 18944,     64,  8,  2560,     1, 20480, 151936, 131072,
     QWEN2_MORE, NULL},
    {"mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", &mixtral,
        32,    0,  4096,   32,   8, 128,     0,      8,  2, 14336,     0,     0,  32000,  32768,
     MIXTRAL_MORE, NULL},
    {"mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", &mixtral,
        56,    0,  6144,   48,   8, 128,     0,      8,  2, 16384,     0,     0,  32000,  65536,
     MIXTRAL_MORE, NULL},
    {"olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924", &olmoe,
        16,    0,  2048,   16,  16, 128,     0,     64,  8,  1024,     0,     0,  50304,   4096,
     "\"norm_topk_prob\": false, \"attention_bias\": false, \"clip_qkv\": null, "
     "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"eos_token_id\": 50279",
     NULL},
    /* Its longrope factors are left out: the context is then that of its training. */
    {"phi-3.5-moe", "microsoft/Phi-3.5-MoE-instruct, without longrope", &phimoe,
        32,    0,  4096,   32,   8, 128,     0,     16,  2,  6400,     0,     0,  32064,   4096,
     "\"attention_bias\": true, \"lm_head_bias\": true, \"router_jitter_noise\": 0.01, "
     "\"input_jitter_noise\": 0.01, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "
     "\"eos_token_id\": 32000",
     NULL},
    {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", &deepseek_v2,
        27,    1,  2048,   16,  16,   0, 10944,     64,  6,  1408,     2,     0, 102400, 163840,
     DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": null, \"norm_topk_prob\": false",
     NULL},
    {"deepseek-v2", "deepseek-ai/DeepSeek-V2", &deepseek_v2,
        60,    1,  5120,  128, 128,   0, 12288,    160,  6,  1536,     2,     0, 102400, 163840,
     DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": 1536, \"norm_topk_prob\": false",
     NULL},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", &deepseek_v3,
        61,    3,  7168,  128, 128,   0, 18432,    256,  8,  2048,     1,     0, 129280, 163840,
     DEEPSEEK_MORE "\"n_shared_experts\": 1, \"first_k_dense_replace\": 3, "
     "\"q_lora_rank\": 1536, \"norm_topk_prob\": true",
     "FP8"},
    {"moonlight-16b-a3b", "moonshotai/Moonlight-16B-A3B, Kimi-VL-A3B's language model",
     &deepseek_v3,
        27,    1,  2048,   16,  16,   0, 11264,     64,  6,  1408,     2,     0, 163840,   8192,
     DEEPSEEK_MORE "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, "
     "\"q_lora_rank\": null, \"norm_topk_prob\": true",
     NULL},
    {"minimax-m2", "MiniMaxAI/MiniMax-M2", &minimax_m2,
        62,    0,  3072,   48,   8, 128,     0,    256,  8,  1536,     0,     0, 200064, 196608,
     "\"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rotary_dim\": 64, "
     "\"scoring_func\": \"sigmoid\", \"use_qk_norm\": true",
     "FP8"},
    {"gpt-oss-20b", "openai/gpt-oss-20b", &gpt_oss,
        24,    0,  2880,   64,   8,  64,     0,     32,  4,  2880,     0,     0, 201088, 131072,
     GPT_OSS_MORE, "MXFP4"},
    {"gpt-oss-120b", "openai/gpt-oss-120b", &gpt_oss,
        36,    0,  2880,   64,   8,  64,     0,    128,  4,  2880,     0,     0, 201088, 131072,
     GPT_OSS_MORE, "MXFP4"},
};

/* clang-format on */

/* Is `name` the name of the repository in `source`, its owner left out? */
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
