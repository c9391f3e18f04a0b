/* Seeds of the targets that read checkpoints: safetensors, config and index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "corpus.h"
#include "moe_maker.h"

typedef struct seed {
    const char *name, *text;
} seed;

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char *nested(size_t depth)
{
    char *text = malloc(depth + 1);
    if (!text)
        exit(1);
    memset(text, '[', depth);
    text[depth] = 0;
    return text;
}

/* ---- safetensors ------------------------------------------------------------------------- */

static void write_file(const char *name, uint64_t claimed, const char *header, size_t data_bytes)
{
    corpus_bytes file = {0};
    corpus_add_uint(&file, claimed, 8);
    corpus_add_text(&file, "%s", header);
    for (size_t i = 0; i < data_bytes; i++)
        corpus_add_uint(&file, 0x11, 1);
    corpus_finish(&file, "safetensors", name);
}

#define TENSOR(name, dtype, shape, span) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" span "]}"

/* Each with 16 bytes of data. */
static const seed headers[] = {
    {"one-tensor", "{" TENSOR("a", "F32", "2,2", "0,16") "}"},
    {"two-tensors", "{" TENSOR("b", "U8", "8", "8,16") "," TENSOR("a", "U8", "8", "0,8") "}"},
    {"scalars", "{" TENSOR("a", "F64", "", "0,8") "," TENSOR("b", "F64", "", "8,16") "}"},
    {"zero-size", "{" TENSOR("a", "U8", "16", "0,16") "," TENSOR("z", "F32", "0,9", "16,16") "}"},
    {"rank-6", "{" TENSOR("a", "U8", "1,2,2,2,2,1", "0,16") "}"},
    {"half-bytes", "{" TENSOR("a", "F4", "32", "0,16") "}"},
    {"half-bytes-odd", "{" TENSOR("a", "F4", "31", "0,16") "}"},
    {"metadata", "{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", "U8", "16", "0,16") "}"},
    {"metadata-number", "{\"__metadata__\":{\"k\":1}," TENSOR("a", "U8", "16", "0,16") "}"},
    {"metadata-array", "{\"__metadata__\":[]," TENSOR("a", "U8", "16", "0,16") "}"},
    {"overlap", "{" TENSOR("a", "U8", "10", "0,10") "," TENSOR("b", "U8", "8", "8,16") "}"},
    {"overlap-same", "{" TENSOR("a", "U8", "16", "0,16") "," TENSOR("b", "U8", "16", "0,16") "}"},
    {"hole", "{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "8", "8,16") "}"},
    {"data-left-over", "{" TENSOR("a", "U8", "8", "0,8") "}"},
    {"past-the-end", "{" TENSOR("a", "U8", "17", "0,17") "}"},
    {"backwards", "{" TENSOR("a", "U8", "16", "16,0") "}"},
    {"negative-offset", "{" TENSOR("a", "U8", "17", "-1,16") "}"},
    {"negative-end", "{" TENSOR("a", "U8", "16", "0,-16") "}"},
    {"negative-shape", "{" TENSOR("a", "U8", "-4,-4", "0,16") "}"},
    {"shape-wraps", "{" TENSOR("a", "U8", "4294967296,4294967297,16", "0,16") "}"},
    {"shape-wraps-to-16", "{" TENSOR("a", "U8", "16,1152921504606846977", "0,16") "}"},
    {"bits-wrap", "{" TENSOR("a", "F64", "288230376151711746", "0,16") "}"},
    {"shape-of-2-63", "{" TENSOR("a", "U8", "9223372036854775808", "0,16") "}"},
    {"offset-of-2-64", "{" TENSOR("a", "U8", "16", "0,18446744073709551632") "}"},
    {"offset-real", "{" TENSOR("a", "U8", "16", "0,1.6e1") "}"},
    {"offsets-three", "{" TENSOR("a", "U8", "16", "0,16,16") "}"},
    {"shape-text", "{" TENSOR("a", "U8", "\"16\"", "0,16") "}"},
    {"no-dtype", "{\"a\":{\"shape\":[16],\"data_offsets\":[0,16]}}"},
    {"no-shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,16]}}"},
    {"no-offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[16]}}"},
    {"dtype-unknown", "{" TENSOR("a", "U9", "16", "0,16") "}"},
    {"tensor-null", "{\"a\":null}"},
    {"same-name-twice", "{" TENSOR("a", "U8", "8", "0,8") "," TENSOR("a", "U8", "8", "8,16") "}"},
    {"same-name-escaped",
     "{" TENSOR("a", "U8", "8", "0,8") "," TENSOR("\\u0061", "U8", "8", "8,16") "}"},
    {"name-with-nul", "{" TENSOR("a\\u0000b", "U8", "16", "0,16") "}"},
    {"name-not-utf-8", "{" TENSOR("\xc0\xaf", "U8", "16", "0,16") "}"},
    {"no-tensors", "{}"},
    {"header-unclosed", "{" TENSOR("a", "U8", "16", "0,16")},
    {"header-array", "[]"},
};

static void make_lengths(void)
{
    const char *header = headers[0].text;
    uint64_t n = strlen(header);
    write_file("length-0", 0, header, 16);
    write_file("length-1", 1, header, 16);
    write_file("length-short", n - 1, header, 16);
    write_file("length-takes-data", n + 16, header, 16);
    write_file("length-past-the-end", n + 17, header, 16);
    write_file("length-of-2-63", UINT64_C(1) << 63, header, 16);
    write_file("length-of-2-64-less-8", UINT64_MAX - 7, header, 16);
    write_file("length-of-2-64-less-1", UINT64_MAX, header, 16);
    corpus_write("safetensors", "empty", "", 0);
    corpus_write("safetensors", "seven-bytes", "\x02\0\0\0\0\0\0", 7);
    char *deep = nested(3000);
    corpus_bytes text = {0};
    corpus_add_text(&text, "{\"a\":%s", deep);
    corpus_add_uint(&text, 0, 1);
    write_file("nested", text.n - 1, (char *)text.at, 0);
    free(text.at);
    free(deep);
}

static void make_whole(moe_maker *maker, const char *name)
{
    size_t n;
    maker_write_shard(&maker->shard, maker->dir, name);
    unsigned char *bytes = maker_read(maker->dir, name, &n);
    corpus_write("safetensors", name, bytes, n);
    free(bytes);
}

static void make_safetensors(moe_maker *maker)
{
    for (size_t i = 0; i < COUNT(headers); i++)
        write_file(headers[i].name, strlen(headers[i].text), headers[i].text, 16);
    make_lengths();
    make_whole(maker, "model");
    maker->shard.padding = 1;
    make_whole(maker, "model-askew");
    maker->shard.padding = 0;
    const uint64_t turned[] = {MOE_HIDDEN, MOE_INTERMEDIATE};
    maker_reshape(maker_find(&maker->shard, "model.layers.1.mlp.experts.3.up_proj.weight"), "BF16",
                  2, turned);
    make_whole(maker, "model-expert-turned");
    maker_remove(&maker->shard, "model.layers.1.mlp.experts.3.up_proj.weight");
    make_whole(maker, "model-expert-missing");
}

/* ---- config.json ------------------------------------------------------------------------- */

#define SIZES                                                                                \
    "\"num_hidden_layers\":2,\"num_experts_per_tok\":2,\"hidden_size\":8,\"vocab_size\":16," \
    "\"hidden_act\":\"silu\""
#define QWEN SIZES ",\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":4,"

static const seed configs[] = {
    {"qwen3_moe", "{" QWEN "\"num_experts\":4}"},
    {"qwen2_moe", "{" SIZES ",\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":4,"
                  "\"num_experts\":4,\"shared_expert_intermediate_size\":0}"},
    {"olmoe", "{" SIZES ",\"model_type\":\"olmoe\",\"intermediate_size\":4,\"num_experts\":4}"},
    {"mixtral", "{" SIZES ",\"model_type\":\"mixtral\",\"intermediate_size\":4,"
                "\"num_local_experts\":4}"},
    {"phimoe", "{" SIZES ",\"model_type\":\"phimoe\",\"intermediate_size\":4,"
               "\"num_local_experts\":4}"},
    {"deepseek_v2", "{" SIZES ",\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":4,"
                    "\"n_routed_experts\":4,\"first_k_dense_replace\":0,\"moe_layer_freq\":1,"
                    "\"n_shared_experts\":2}"},
    {"deepseek_v3", "{" SIZES ",\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":4,"
                    "\"n_routed_experts\":4,\"first_k_dense_replace\":1,\"quantization_config\":"
                    "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}"},
    {"minimax_m2", "{" SIZES ",\"model_type\":\"minimax_m2\",\"intermediate_size\":4,"
                   "\"num_local_experts\":4}"},
    {"gpt_oss", "{" SIZES ",\"model_type\":\"gpt_oss\",\"intermediate_size\":4,"
                "\"num_local_experts\":4,\"quantization_config\":{\"quant_method\":\"mxfp4\"}}"},
    {"one-moe-layer", "{" QWEN "\"num_experts\":4,\"mlp_only_layers\":[0]}"},
    {"no-moe-layer", "{" QWEN "\"num_experts\":4,\"mlp_only_layers\":[0,1]}"},
    {"mlp-only-past-the-end", "{" QWEN "\"num_experts\":4,\"mlp_only_layers\":[2]}"},
    {"mlp-only-negative", "{" QWEN "\"num_experts\":4,\"mlp_only_layers\":[-1]}"},
    {"mlp-only-nested", "{" QWEN "\"num_experts\":4,\"mlp_only_layers\":[[0]]}"},
    {"sparse-step-2", "{" QWEN "\"num_experts\":4,\"decoder_sparse_step\":2}"},
    {"sparse-step-0", "{" QWEN "\"num_experts\":4,\"decoder_sparse_step\":0}"},
    {"experts-0", "{" QWEN "\"num_experts\":0}"},
    {"experts-1", "{" QWEN "\"num_experts\":1}"},
    {"experts-negative", "{" QWEN "\"num_experts\":-4}"},
    {"experts-65536", "{" QWEN "\"num_experts\":65536}"},
    {"experts-2-32-plus-4", "{" QWEN "\"num_experts\":4294967300}"},
    {"experts-2-64", "{" QWEN "\"num_experts\":18446744073709551616}"},
    {"experts-real", "{" QWEN "\"num_experts\":4.0}"},
    {"experts-text", "{" QWEN "\"num_experts\":\"4\"}"},
    {"experts-null", "{" QWEN "\"num_experts\":null}"},
    {"experts-twice", "{" QWEN "\"num_experts\":4,\"num_experts\":4}"},
    {"experts-missing", "{" QWEN "\"x\":4}"},
    {"layers-65536", "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":65536,"
                     "\"num_experts\":65536,\"num_experts_per_tok\":1,\"hidden_size\":8,"
                     "\"moe_intermediate_size\":4}"},
    {"widths-2-24", "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"num_experts\":4,"
                    "\"num_experts_per_tok\":1,\"hidden_size\":16777216,"
                    "\"moe_intermediate_size\":16777216}"},
    {"activation-unknown", "{" QWEN "\"num_experts\":4,\"hidden_act\":\"gelu\"}"},
    {"type-unknown", "{\"model_type\":\"gpt2\"}"},
    {"type-number", "{\"model_type\":7}"},
    {"type-missing", "{" SIZES "}"},
    {"quantization-null", "{" QWEN "\"num_experts\":4,\"quantization_config\":null}"},
    {"quantization-array", "{" QWEN "\"num_experts\":4,\"quantization_config\":[]}"},
    {"quantization-unknown",
     "{" QWEN "\"num_experts\":4,\"quantization_config\":{\"quant_method\":\"awq\"}}"},
    {"block-zero", "{" QWEN "\"num_experts\":4,\"quantization_config\":{\"quant_method\":\"fp8\","
                   "\"weight_block_size\":[0,128]}}"},
    {"block-one-number", "{" QWEN "\"num_experts\":4,\"quantization_config\":{\"quant_method\":"
                         "\"fp8\",\"weight_block_size\":[128]}}"},
    {"block-null", "{" QWEN "\"num_experts\":4,\"quantization_config\":{\"quant_method\":\"fp8\","
                   "\"weight_block_size\":null}}"},
    {"empty", ""},
    {"array", "[]"},
    {"unclosed", "{" QWEN "\"num_experts\":4"},
    {"text-behind", "{" QWEN "\"num_experts\":4} x"},
    {"byte-order-mark", "\xef\xbb\xbf{" QWEN "\"num_experts\":4}"},
};

static void make_configs(void)
{
    for (size_t i = 0; i < COUNT(configs); i++)
        corpus_write("config", configs[i].name, configs[i].text, strlen(configs[i].text));
    const char *good = configs[0].text;
    corpus_write("config", "nul-behind", good, strlen(good) + 1);
    corpus_bytes text = {0};
    corpus_add_text(&text, "{" QWEN "\"num_experts\":4");
    corpus_add_uint(&text, 0, 1);
    corpus_add_text(&text, "}");
    corpus_finish(&text, "config", "nul-behind-number");
    char *deep = nested(3000);
    corpus_add_text(&text, "{\"model_type\":%s", deep);
    corpus_finish(&text, "config", "nested");
    free(deep);
}

/* ---- model.safetensors.index.json -------------------------------------------------------- */

static const seed indexes[] = {
    {"one-tensor", "{\"weight_map\":{\"model.norm.weight\":\"b.safetensors\"}}"},
    {"wrong-shard", "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"}}"},
    {"no-such-tensor", "{\"weight_map\":{\"x\":\"a.safetensors\"}}"},
    {"no-such-file", "{\"weight_map\":{\"x\":\"c.safetensors\"}}"},
    {"above", "{\"weight_map\":{\"x\":\"../a.safetensors\"}}"},
    {"absolute", "{\"weight_map\":{\"x\":\"/tmp/a.safetensors\"}}"},
    {"below", "{\"weight_map\":{\"x\":\"./a.safetensors\"}}"},
    {"only-suffix", "{\"weight_map\":{\"x\":\".safetensors\"}}"},
    {"no-suffix", "{\"weight_map\":{\"x\":\"config.json\"}}"},
    {"itself", "{\"weight_map\":{\"x\":\"model.safetensors.index.json\"}}"},
    {"number", "{\"weight_map\":{\"x\":1}}"},
    {"null", "{\"weight_map\":{\"x\":null}}"},
    {"no-map", "{\"metadata\":{}}"},
    {"map-array", "{\"weight_map\":[\"a.safetensors\"]}"},
    {"map-empty", "{\"weight_map\":{}}"},
    {"same-name-twice", "{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b.safetensors\"}}"},
    {"name-with-nul", "{\"weight_map\":{\"x\":\"a.safetensors\\u0000.safetensors\"}}"},
    {"empty", ""},
};

static void make_indexes(const moe_maker *maker)
{
    for (size_t i = 0; i < COUNT(indexes); i++)
        corpus_write("index", indexes[i].name, indexes[i].text, strlen(indexes[i].text));
    corpus_bytes text = {0};
    corpus_add_text(&text, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (uint32_t t = 0; t < maker->shard.n_tensors; t++)
        corpus_add_text(&text, "%s\"%s\":\"%c.safetensors\"", t ? "," : "",
                        maker->shard.tensors[t].name, t % 2 ? 'b' : 'a');
    corpus_add_text(&text, "}}");
    corpus_finish(&text, "index", "whole");
    corpus_add_text(&text, "{\"weight_map\":{");
    for (uint32_t i = 0; i < 100; i++)
        corpus_add_text(&text, "%s\"%u\":\"%c.safetensors\"", i ? "," : "", i, i % 3 ? 'b' : 'a');
    corpus_add_text(&text, "}}");
    corpus_finish(&text, "index", "many-absent");
}

void corpus_make_checkpoints(void)
{
    moe_maker maker;
    moe_maker_init(&maker);
    make_indexes(&maker);
    make_configs();
    make_safetensors(&maker);
    moe_maker_free(&maker);
}
