/* One model in two kinds of files. */
#include "twin_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "moepage.h"
#include "naive_blocks.h"
#include "testing.h"

typedef enum kind { NORM, ROUTER, ATTENTION, END } kind;

typedef struct pair {
    const char *checkpoint, *gguf;
    kind kind;
} pair;

static const pair ends[] = {
    {"model.embed_tokens.weight", "token_embd.weight", END},
    {"model.norm.weight", "output_norm.weight", NORM},
    {"lm_head.weight", "output.weight", END},
};

/* After "model.layers.0." and "blk.0.". */
static const pair of_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", NORM},
    {"self_attn.q_proj.weight", "attn_q.weight", ATTENTION},
    {"self_attn.k_proj.weight", "attn_k.weight", ATTENTION},
    {"self_attn.v_proj.weight", "attn_v.weight", ATTENTION},
    {"self_attn.o_proj.weight", "attn_output.weight", ATTENTION},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", NORM},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", NORM},
    {"post_attention_layernorm.weight", "ffn_norm.weight", NORM},
    {"mlp.gate.weight", "ffn_gate_inp.weight", ROUTER},
};

static const char *const parts[] = {"gate", "up", "down"};

/* ---- Values ---- */

/* Appends the tensor's values, which are BF16, as floats. */
static void take_values(const moepage_model *model, const char *name, float *out,
                        moepage_tensor_view *view)
{
    *view = (moepage_tensor_view){.struct_size = sizeof *view};
    if (moepage_model_find_tensor(model, name, view))
        fail_msg("%s: %s", name, moepage_last_error());
    assert_int_equal(view->dtype, MOEPAGE_DTYPE_BF16);
    const uint16_t *bits = view->data;
    for (uint64_t i = 0; i < view->bytes / 2; i++) {
        uint32_t wide = (uint32_t)bits[i] << 16;
        memcpy(&out[i], &wide, 4);
    }
}

/* Half precision is not among the types: trained weights are below its range. */
static void encode(uint32_t type, const float *values, uint64_t n, unsigned char *out)
{
    if (type == GGML_Q8_0 || type == GGML_Q4_0)
        naive_quantise(type, values, n, out);
    for (uint64_t i = 0; i < n && type == GGML_F32; i++)
        memcpy(out + 4 * i, &values[i], 4);
    for (uint64_t i = 0; i < n && type == GGML_BF16; i++)
        memcpy(out + 2 * i, (const unsigned char *)&values[i] + 2, 2);
}

static void decode(uint32_t type, const unsigned char *bytes, uint64_t n, float *out)
{
    memset(out, 0, n * 4);
    if (type == GGML_Q8_0 || type == GGML_Q4_0)
        naive_dequantise(type, bytes, n, out);
    else if (type == GGML_F32)
        memcpy(out, bytes, 4 * n);
    else
        for (uint64_t i = 0; i < n; i++)
            memcpy((unsigned char *)&out[i] + 2, bytes + 2 * i, 2);
}

/* ---- The GGUF file ---- */

static void add_tensor(gguf_writer *w, const moepage_model *model, const char *from, uint32_t type,
                       const char *to)
{
    static float values[TWIN_TOKENS * TWIN_HIDDEN];
    moepage_tensor_view view;
    uint64_t shape[2];
    take_values(model, from, values, &view);
    for (uint32_t d = 0; d < view.rank; d++)
        shape[d] = view.shape[view.rank - 1 - d];
    gguf_made *made = gguf_tensor(w, type, view.rank, shape, "%s", to);
    encode(type, values, view.bytes / 2, made->data);
}

static void add_experts(gguf_writer *w, const moepage_model *model, uint32_t layer, uint32_t type,
                        const char *part)
{
    static float values[TWIN_TOKENS * TWIN_HIDDEN];
    char name[128];
    gguf_made *made = NULL;
    for (uint32_t e = 0; e < TWIN_EXPERTS; e++) {
        moepage_tensor_view view;
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, e,
                 part);
        take_values(model, name, values, &view);
        const uint64_t shape[] = {view.shape[1], view.shape[0], TWIN_EXPERTS};
        if (!made)
            made = gguf_tensor(w, type, 3, shape, "blk.%u.ffn_%s_exps.weight", layer, part);
        encode(type, values, view.bytes / 2, made->data + made->bytes / TWIN_EXPERTS * e);
    }
}

static uint32_t type_of(const twin_types *types, kind of)
{
    return of == END ? types->ends : of == ATTENTION ? types->attention : (uint32_t)GGML_F32;
}

/* What config.json says. */
static void add_metadata(gguf_writer *w)
{
    gguf_text(w, "general.architecture", "qwen3moe");
    gguf_u32(w, "qwen3moe.block_count", TWIN_LAYERS);
    gguf_u32(w, "qwen3moe.context_length", 1024);
    gguf_u32(w, "qwen3moe.embedding_length", TWIN_HIDDEN);
    gguf_u32(w, "qwen3moe.feed_forward_length", 256);
    gguf_u32(w, "qwen3moe.expert_feed_forward_length", 64);
    gguf_u32(w, "qwen3moe.expert_count", TWIN_EXPERTS);
    gguf_u32(w, "qwen3moe.expert_used_count", 8);
    gguf_u32(w, "qwen3moe.attention.head_count", 4);
    gguf_u32(w, "qwen3moe.attention.head_count_kv", 2);
    gguf_u32(w, "qwen3moe.attention.key_length", 32);
    gguf_u32(w, "qwen3moe.attention.value_length", 32);
    gguf_f32(w, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_f32(w, "qwen3moe.rope.freq_base", 10000);
    gguf_u32(w, "qwen3moe.vocab_size", TWIN_TOKENS);
    gguf_u32(w, "tokenizer.ggml.eos_token_id", 257);
}

void twin_make(gguf_writer *w, const twin_types *types)
{
    moepage_model *model;
    char from[128], to[64];
    if (moepage_model_open(TWIN_MODEL, NULL, &model))
        fail_msg("%s", moepage_last_error());
    add_metadata(w);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        add_tensor(w, model, ends[i].checkpoint, type_of(types, ends[i].kind), ends[i].gguf);
    for (uint32_t l = 0; l < TWIN_LAYERS; l++) {
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            snprintf(from, sizeof from, "model.layers.%u.%s", l, of_layer[i].checkpoint);
            snprintf(to, sizeof to, "blk.%u.%s", l, of_layer[i].gguf);
            add_tensor(w, model, from, type_of(types, of_layer[i].kind), to);
        }
        for (int p = 0; p < 3; p++)
            add_experts(w, model, l, p < 2 ? types->inner[l % 2] : types->down[l % 2], parts[p]);
    }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- The checkpoint ---- */

typedef struct checkpoint {
    gguf_bytes header, data;
} checkpoint;

/* Appends `n` values of a tensor from the `first` one on, as an F32 tensor of rank 1 or 2. */
static void write_tensor(checkpoint *to, const gguf_made *made, uint64_t first, uint64_t n,
                         const char *name)
{
    float *values = malloc(n * 4);
    char text[256], shape[64];
    assert_non_null(values);
    decode(made->type, made->data + gguf_type_bytes(made->type, first), n, values);
    if (made->rank == 1)
        snprintf(shape, sizeof shape, "%llu", (unsigned long long)n);
    else
        snprintf(shape, sizeof shape, "%llu,%llu", (unsigned long long)made->shape[1],
                 (unsigned long long)made->shape[0]);
    snprintf(text, sizeof text,
             "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             to->header.n ? ',' : '{', name, shape, to->data.n, to->data.n + 4 * n);
    gguf_append(&to->header, text, strlen(text));
    gguf_append(&to->data, values, 4 * n);
    free(values);
}

static void write_experts(checkpoint *to, gguf_writer *w, uint32_t layer, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, part);
    const gguf_made *made = gguf_made_of(w, name);
    const uint64_t n = made->shape[0] * made->shape[1];
    for (uint32_t e = 0; e < TWIN_EXPERTS; e++) {
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, e,
                 part);
        write_tensor(to, made, n * e, n, name);
    }
}

static void write_pair(checkpoint *to, gguf_writer *w, const char *gguf, const char *name)
{
    const gguf_made *made = gguf_made_of(w, gguf);
    write_tensor(to, made, 0, made->shape[0] * (made->rank == 1 ? 1 : made->shape[1]), name);
}

void twin_write_checkpoint(gguf_writer *w, const char *dir)
{
    checkpoint to = {0};
    gguf_bytes file = {0};
    char gguf[64], name[128];
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        write_pair(&to, w, ends[i].gguf, ends[i].checkpoint);
    for (uint32_t l = 0; l < TWIN_LAYERS; l++) {
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            snprintf(gguf, sizeof gguf, "blk.%u.%s", l, of_layer[i].gguf);
            snprintf(name, sizeof name, "model.layers.%u.%s", l, of_layer[i].checkpoint);
            write_pair(&to, w, gguf, name);
        }
        for (int p = 0; p < 3; p++)
            write_experts(&to, w, l, parts[p]);
    }
    gguf_append(&to.header, "}", 1);
    while (to.header.n % 8)
        gguf_append(&to.header, " ", 1);
    gguf_append_uint(&file, to.header.n, 8);
    gguf_append(&file, to.header.at, to.header.n);
    gguf_append(&file, to.data.at, to.data.n);
    maker_write(dir, "model.safetensors", file.at, file.n);
    size_t n_bytes;
    unsigned char *config = maker_read(TWIN_MODEL, "config.json", &n_bytes);
    maker_write(dir, "config.json", config, n_bytes);
    free(config), free(file.at), free(to.header.at), free(to.data.at);
}
