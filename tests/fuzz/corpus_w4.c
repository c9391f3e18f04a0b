/* Seeds of the target w4: small models in every layout of 4-bit weights, integers and floats, and what is wrong
 * with others. */
#include <stdlib.h>
#include <string.h>

#include "corpus.h"
#include "fp4_maker.h"
#include "w4_maker.h"

#define UP "model.layers.0.mlp.experts.1.up_proj"
#define STACK "model.layers.0.mlp.experts.gate_up_proj"
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void write_seed(const moe_maker *maker, const char *name)
{
    corpus_bytes seed = {0};
    size_t n;
    moe_maker_write(maker);
    unsigned char *bytes = maker_read(maker->dir, "model.safetensors", &n);
    corpus_add_uint(&seed, strlen(maker->config), 2);
    corpus_add_text(&seed, "%s", maker->config);
    corpus_add(&seed, bytes, n);
    corpus_finish(&seed, "w4", name);
    free(bytes);
}

static void init(moe_maker *maker, const w4_case *of)
{
    static const quantised_sizes sizes = {.layers = 1,
                                          .experts = 2,
                                          .hidden = 64,
                                          .intermediate = 32};
    w4_maker_init_sized(maker, of, &sizes);
}

static const struct {
    const char *name;
    w4_case of;
} right[] = {
    {"gptq", {.method = W4_GPTQ, .group = 32}},
    {"gptq-v2-all-columns", {.method = W4_GPTQ_V2, .bf16 = true, .unlisted = true}},
    {"gptq-reordered", {.method = W4_GPTQ, .group = 32, .reordered = true}},
    {"awq", {.method = W4_AWQ, .group = 32}},
    {"packed", {.method = W4_PACKED, .group = 32, .bf16 = true, .unlisted = true}},
    {"packed-symmetric", {.method = W4_PACKED, .group = 32, .symmetric = true}},
    {"packed-reordered", {.method = W4_PACKED, .group = 32, .reordered = true}},
};

/* A byte of a part that is another. */
static const struct {
    const char *name, *part;
    w4_method method;
    uint32_t at;
    unsigned char to;
    bool reordered;
} lies[] = {
    {"zero-point-15", UP ".qzeros", W4_GPTQ, 0, 0xff, false},
    {"column-of-another-group", UP ".g_idx", W4_GPTQ, 0, 1, false},
    {"column-of-no-group", UP ".g_idx", W4_GPTQ, 7, 0x80, true},
    {"other-shape-stated", UP ".weight_shape", W4_PACKED, 0, 31, false},
};

static void make_shapes(void)
{
    static const struct {
        const char *name, *part, *dtype;
        uint64_t shape[2];
    } shapes[] = {
        {"words-turned", UP ".qweight", "I32", {32, 8}},
        {"no-rows", UP ".qweight", "I32", {8, 0}},
        {"scales-of-all", UP ".scales", "F16", {1, 32}},
        {"more-scales", UP ".scales", "F16", {4, 32}},
        {"scales-f32", UP ".scales", "F32", {2, 32}},
        {"zeros-short", UP ".qzeros", "I32", {2, 3}},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        moe_maker maker;
        init(&maker, &(w4_case){.method = W4_GPTQ, .group = 32});
        maker_reshape(maker_find(&maker.shard, shapes[i].part), shapes[i].dtype, 2,
                      shapes[i].shape);
        write_seed(&maker, shapes[i].name);
        moe_maker_free(&maker);
    }
}

/* ---- floats ---- */

static void init_fp4(moe_maker *maker, fp4_method method)
{
    const fp4_case of = {.method = method, .hidden = 64, .intermediate = 64, .layers = 1};
    fp4_maker_init(maker, &of);
}

static void make_right_fp4(void)
{
    static const char *const names[] = {"fp4-modelopt", "fp4-packed", "fp8-one-scale"};
    for (uint32_t method = FP4_MODELOPT; method <= FP4_FP8; method++) {
        moe_maker maker;
        init_fp4(&maker, method);
        write_seed(&maker, names[method]);
        moe_maker_free(&maker);
    }
}

/* Bytes of a part that are others. */
static void make_false_fp4(void)
{
    static const struct {
        const char *name, *part;
        fp4_method method;
        unsigned char bytes[4];
        uint32_t n;
    } false_ones[] = {
        {"fp4-scale-negative", UP ".weight_scale", FP4_MODELOPT, {0x80}, 1},
        {"fp4-scale-nan", UP ".weight_scale", FP4_PACKED, {0x7f}, 1},
        {"fp4-factor-nan", UP ".weight_scale_2", FP4_MODELOPT, {0, 0, 0xc0, 0x7f}, 4},
        {"fp4-factor-negative", UP ".weight_global_scale", FP4_PACKED, {0, 0, 0x80, 0xbf}, 4},
        {"fp4-factor-zero", UP ".weight_global_scale", FP4_PACKED, {0}, 4},
        {"fp4-factor-denormal", UP ".weight_scale_2", FP4_MODELOPT, {1}, 4},
    };
    for (size_t i = 0; i < COUNT(false_ones); i++) {
        moe_maker maker;
        init_fp4(&maker, false_ones[i].method);
        memcpy(maker_find(&maker.shard, false_ones[i].part)->data, false_ones[i].bytes,
               false_ones[i].n);
        write_seed(&maker, false_ones[i].name);
        moe_maker_free(&maker);
    }
}

static void make_shapes_fp4(void)
{
    static const struct {
        const char *name, *part, *dtype;
        fp4_method method;
        uint32_t rank;
        uint64_t shape[3];
    } shapes[] = {
        {"fp4-rows-of-96", UP ".weight", "U8", FP4_MODELOPT, 2, {64, 48}},
        {"fp4-no-rows", UP ".weight", "U8", FP4_MODELOPT, 2, {0, 32}},
        {"fp4-no-columns", UP ".weight", "U8", FP4_MODELOPT, 2, {64, 0}},
        {"fp4-stacked", UP ".weight", "U8", FP4_MODELOPT, 3, {1, 64, 32}},
        {"fp4-scales-short", UP ".weight_scale", "F8_E4M3", FP4_PACKED, 2, {64, 3}},
        {"fp4-scales-u8", UP ".weight_scale", "U8", FP4_PACKED, 2, {64, 4}},
        {"fp4-factor-of-rows", UP ".weight_scale_2", "F32", FP4_MODELOPT, 1, {64}},
        {"fp4-factor-none", UP ".weight_scale_2", "F32", FP4_MODELOPT, 1, {0}},
        {"fp4-factor-bf16", UP ".weight_global_scale", "BF16", FP4_PACKED, 1, {1}},
        {"fp8-scale-of-rows", UP ".weight_scale", "F32", FP4_FP8, 2, {64, 1}},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        moe_maker maker;
        init_fp4(&maker, shapes[i].method);
        maker_reshape(maker_find(&maker.shard, shapes[i].part), shapes[i].dtype, shapes[i].rank,
                      shapes[i].shape);
        write_seed(&maker, shapes[i].name);
        moe_maker_free(&maker);
    }
}

/* Stacks of two layers: of two factors, and of one; and others that do not fit. */
static void make_stacks(void)
{
    static const quantised_sizes sizes = {.layers = 2,
                                          .experts = 2,
                                          .hidden = 64,
                                          .intermediate = 64};
    static const struct {
        const char *name, *part, *dtype;
        uint32_t rank;
        uint64_t shape[3];
    } stacks[] = {
        {"fp4-stacks", NULL, NULL, 0, {0}},
        {"fp4-stack-turned", STACK, "U8", 3, {2, 32, 128}},
        {"fp4-stack-of-one-more", STACK, "U8", 3, {3, 128, 32}},
        {"fp4-stack-of-none", STACK, "U8", 3, {0, 128, 32}},
        {"fp4-stack-without-rows", STACK, "U8", 3, {2, 0, 32}},
        {"fp4-stack-scales-flat", STACK "_weight_scale", "F8_E4M3", 2, {256, 4}},
        {"fp4-stack-factor-of-rows", STACK "_weight_scale_2", "F32", 2, {2, 128}},
    };
    for (size_t i = 0; i < COUNT(stacks); i++) {
        moe_maker maker;
        fp4_stacks_init(&maker, &sizes);
        if (stacks[i].part)
            maker_reshape(maker_find(&maker.shard, stacks[i].part), stacks[i].dtype, stacks[i].rank,
                          stacks[i].shape);
        write_seed(&maker, stacks[i].name);
        moe_maker_free(&maker);
    }
}

void corpus_make_w4(void)
{
    moe_maker maker;
    for (size_t i = 0; i < COUNT(right); i++) {
        init(&maker, &right[i].of);
        write_seed(&maker, right[i].name);
        moe_maker_free(&maker);
    }
    for (size_t i = 0; i < COUNT(lies); i++) {
        init(&maker,
             &(w4_case){.method = lies[i].method, .group = 32, .reordered = lies[i].reordered});
        maker_find(&maker.shard, lies[i].part)->data[lies[i].at] = lies[i].to;
        write_seed(&maker, lies[i].name);
        moe_maker_free(&maker);
    }
    make_shapes();
    make_right_fp4();
    make_false_fp4();
    make_shapes_fp4();
    make_stacks();
}
