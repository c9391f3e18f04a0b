/* Seeds of the target gguf. */
#include <stdlib.h>
#include <string.h>

#include "corpus.h"
#include "gguf_moe.h"
#include "gguf_wrong.h"

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

static void finish(gguf_writer *w, const char *name)
{
    size_t n_bytes;
    unsigned char *bytes = gguf_whole(w, &n_bytes);
    corpus_write("gguf", name, bytes, n_bytes);
    free(bytes);
    gguf_free(w);
}

/* A value of every type, alone and in an array. */
static void add_values(gguf_writer *w)
{
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char key[2] = "a";
    for (uint32_t type = W_U8; type <= W_F64; type++) {
        if (type == W_ARRAY)
            continue;
        key[0] = (char)('a' + type);
        gguf_key(w, key, type);
        gguf_append_uint(&w->values, 0, type == W_TEXT ? 8 : sizes[type]);
        key[0] = (char)('A' + type);
        gguf_array(w, key, type, 2);
        for (int i = 0; i < 2; i++)
            if (type == W_TEXT)
                gguf_append_text(&w->values, "ab");
            else
                gguf_append_uint(&w->values, 1, sizes[type]);
    }
}

static void add_tensors(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 2, SHAPE(4, 3), "t.f32");
    gguf_tensor(w, GGML_Q8_0, 2, SHAPE(32, 2), "t.q8");
    gguf_tensor(w, GGML_MXFP4, 3, SHAPE(32, 1, 2), "t.mx");
    gguf_tensor(w, GGML_Q4_K, 2, SHAPE(256, 1), "t.q4");
    gguf_tensor(w, GGML_UNKNOWN, 1, SHAPE(5), "t.new");
    gguf_tensor(w, GGML_BF16, 4, SHAPE(1, 2, 1, 2), "t.bf16");
    gguf_tensor(w, GGML_I64, 0, SHAPE(0), "t.one");
    gguf_tensor(w, GGML_F16, 2, SHAPE(0, 2), "t.none");
}

/* The target has the second part of a model of two parts and two tensors, one of them "second". */
static void make_part(gguf_writer *w, uint32_t no, uint32_t count, uint32_t tensors,
                      const char *tensor, const char *name)
{
    gguf_u16(w, "split.count", (uint16_t)count);
    gguf_u16(w, "split.no", (uint16_t)no);
    gguf_u32(w, "split.tensors.count", tensors);
    gguf_tensor(w, GGML_F32, 1, SHAPE(2), "%s", tensor);
    finish(w, name);
}

static void make_good(gguf_writer *w)
{
    finish(w, "nothing");
    add_values(w);
    finish(w, "values");
    add_tensors(w);
    finish(w, "tensors");
    add_values(w);
    add_tensors(w);
    w->version = 2;
    finish(w, "version-2");
    w->alignment = 128;
    gguf_u32(w, "general.alignment", 128);
    add_tensors(w);
    finish(w, "alignment-128");
    make_part(w, 0, 2, 2, "first", "first-part");
}

static void make_bad(gguf_writer *w)
{
    static const uint32_t versions[] = {0, 1, 4, 0x03000000};
    static const char *const names[] = {"version-0", "version-1", "version-4", "big-endian"};
    for (size_t i = 0; i < 4; i++) {
        add_tensors(w);
        w->version = versions[i];
        finish(w, names[i]);
    }
    for (const gguf_wrong *wrong = gguf_wrongs; wrong->name; wrong++) {
        wrong->make(w);
        finish(w, wrong->name);
    }
    make_part(w, 0, 3, 2, "t", "first-of-three");
    make_part(w, 1, 2, 2, "t", "second-part");
    make_part(w, 0, 2, 3, "t", "first-part-of-more");
    make_part(w, 0, 2, 2, "second", "first-part-same-tensor");
    corpus_write("gguf", "empty", "", 0);
    corpus_write("gguf", "magic-alone", "GGUF", 4);
    corpus_write("gguf", "another-magic", "GGML\3\0\0\0", 8);
}

/* NVFP4 with the scales of experts beside it, right and wrong. */
static void make_scaled(gguf_writer *w, const gguf_moe *of)
{
    static const struct {
        const char *name;
        uint64_t n;
        float scale;
    } seeds[] = {{"model-nvfp4-scaled", 4, 0.5f},
                 {"model-nvfp4-scale-negative", 4, -1},
                 {"model-nvfp4-scales-short", 3, 0.5f}};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        gguf_moe_make(w, of);
        gguf_moe_retype(w, 1, "down", GGML_NVFP4);
        gguf_made *scales =
            gguf_tensor(w, GGML_F32, 1, SHAPE(seeds[i].n), "blk.1.ffn_down_exps.scale");
        for (uint64_t k = 0; k < seeds[i].n; k++)
            memcpy(scales->data + 4 * k, &seeds[i].scale, 4);
        finish(w, seeds[i].name);
    }
}

/* Files that open as models, and some that miss one thing. Most are of few bytes, so that changes
 * meet the header. */
static void make_models(gguf_writer *w)
{
    gguf_moe small = gguf_moe_usual();
    small.layers = 2;
    gguf_moe_make(w, &small);
    gguf_moe_retype(w, 0, "down", GGML_Q4_0);
    gguf_moe_retype(w, 1, "gate", GGML_MXFP4);
    finish(w, "model-of-two-mixtures");
    make_scaled(w, &small);
    small.hidden = 2;
    small.width = 3;
    small.type = GGML_F32;
    gguf_moe_make(w, &small);
    finish(w, "model");
    gguf_moe_make(w, &small);
    gguf_moe_retype(w, 0, "up", GGML_F16);
    finish(w, "model-small-mixtures");
    gguf_moe_make(w, &small);
    gguf_remove(w, "blk.1.ffn_down_exps.weight");
    finish(w, "model-without-down");
    gguf_moe_values(w, &small, NULL);
    finish(w, "model-without-tensors");
    small.dense = 1;
    small.architecture = "deepseek2";
    gguf_moe_make(w, &small);
    gguf_u32(w, "deepseek2.expert_shared_count", 1);
    gguf_u32(w, "deepseek2.nextn_predict_layers", 1);
    finish(w, "model-dense-first");
    small.architecture = "gpt-oss";
    small.fused = small.biases = true;
    gguf_moe_make(w, &small);
    finish(w, "model-fused-biases");
}

void corpus_make_ggufs(void)
{
    gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        exit(1);
    gguf_init(w);
    make_good(w);
    make_bad(w);
    make_models(w);
    gguf_free(w);
    free(w);
}
