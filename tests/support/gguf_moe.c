/* A small model as a GGUF file. */
#include "gguf_moe.h"

#include <stdio.h>
#include <string.h>

#include "testing.h"

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

gguf_moe gguf_moe_usual(void)
{
    return (gguf_moe){.architecture = "qwen3moe",
                      .width_key = "expert_feed_forward_length",
                      .layers = GM_LAYERS,
                      .type = GGML_Q8_0,
                      .hidden = GM_HIDDEN,
                      .width = GM_WIDTH,
                      .experts = GM_EXPERTS};
}

static void add_key(gguf_writer *w, const gguf_moe *of, const char *rest, uint32_t value,
                    const char *skip)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", of->architecture, rest);
    if (!skip || strcmp(rest, skip) != 0)
        gguf_u32(w, key, value);
}

void gguf_moe_values(gguf_writer *w, const gguf_moe *of, const char *skip)
{
    if (!skip || strcmp(skip, "architecture") != 0)
        gguf_text(w, "general.architecture", of->architecture);
    add_key(w, of, "block_count", of->dense + of->layers, skip);
    add_key(w, of, "embedding_length", of->hidden, skip);
    add_key(w, of, of->width_key, of->width, skip);
    add_key(w, of, "expert_count", of->experts, skip);
    add_key(w, of, "expert_used_count", GM_TOP_K, skip);
    if (of->dense)
        add_key(w, of, "leading_dense_block_count", of->dense, skip);
    if (skip && strcmp(skip, "tokens") == 0)
        return;
    gguf_array(w, "tokenizer.ggml.tokens", W_TEXT, GM_TOKENS);
    for (int i = 0; i < GM_TOKENS; i++)
        gguf_append_text(&w->values, "tok");
}

static void add_experts(gguf_writer *w, const gguf_moe *of, uint32_t layer)
{
    static const char *const halves[] = {"gate", "up"};
    if (of->fused)
        gguf_tensor(w, of->type, 3, SHAPE(of->hidden, 2 * of->width, of->experts),
                    "blk.%u.ffn_gate_up_exps.weight", layer);
    for (int i = 0; i < 2 && !of->fused; i++)
        gguf_tensor(w, of->type, 3, SHAPE(of->hidden, of->width, of->experts),
                    "blk.%u.ffn_%s_exps.weight", layer, halves[i]);
    gguf_tensor(w, of->type, 3, SHAPE(of->width, of->hidden, of->experts),
                "blk.%u.ffn_down_exps.weight", layer);
    if (!of->biases)
        return;
    if (of->fused)
        gguf_tensor(w, GGML_F32, 2, SHAPE(2 * of->width, of->experts),
                    "blk.%u.ffn_gate_up_exps.bias", layer);
    for (int i = 0; i < 2 && !of->fused; i++)
        gguf_tensor(w, GGML_F32, 2, SHAPE(of->width, of->experts), "blk.%u.ffn_%s_exps.bias", layer,
                    halves[i]);
    gguf_tensor(w, GGML_F32, 2, SHAPE(of->hidden, of->experts), "blk.%u.ffn_down_exps.bias", layer);
}

void gguf_moe_make(gguf_writer *w, const gguf_moe *of)
{
    gguf_moe_values(w, of, NULL);
    gguf_tensor(w, of->hidden % 32 ? GGML_F16 : GGML_Q8_0, 2, SHAPE(of->hidden, GM_TOKENS),
                "token_embd.weight");
    for (uint32_t layer = 0; layer < of->dense + of->layers; layer++) {
        gguf_tensor(w, GGML_F32, 1, SHAPE(of->hidden), "blk.%u.attn_norm.weight", layer);
        if (layer < of->dense) {
            gguf_tensor(w, GGML_F16, 2, SHAPE(of->hidden, 96), "blk.%u.ffn_up.weight", layer);
            continue;
        }
        gguf_tensor(w, GGML_F32, 2, SHAPE(of->hidden, of->experts), "blk.%u.ffn_gate_inp.weight",
                    layer);
        add_experts(w, of, layer);
    }
    gguf_tensor(w, GGML_F32, 1, SHAPE(of->hidden), "output_norm.weight");
}

void gguf_moe_retype(gguf_writer *w, uint32_t layer, const char *part, uint32_t type)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, part);
    gguf_made *tensor = gguf_made_of(w, name);
    uint64_t shape[3];
    memcpy(shape, tensor->shape, sizeof shape);
    gguf_reshape(tensor, type, 3, shape);
}
