/* moepage-generate on checkpoints whose matrices are in FP8, dense ones too: the fixtures of tests/data/hf, of which
 * every matrix is stored in E4M3 with scales, give the bits of the same values in F32, in every math, from a pack and
 * at every budget. What the scales may not be is refused. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"
#include "tool_runs.h"

#define HF "tests/data/hf/"
#define BF16 MOEPAGE_DTYPE_BF16
#define F32 MOEPAGE_DTYPE_F32

/* Where the scales are: beside a block, or as ModelOpt has them, one of a matrix; and who says so. */
typedef enum layout { BLOCKS, WHOLE, WHOLE_SAID_BESIDE } layout;

typedef struct stored {
    const char *name, *dir;
    uint64_t rows, columns; /* of a block */
    uint32_t scale_dtype;
    layout layout;
    bool all;     /* embeddings and head, too */
    bool decoded; /* blocks end amid what is cut or transposed */
} stored;

static const stored cases[] = {
    {"qwen3_moe", HF "qwen3_moe", 16, 24, BF16, BLOCKS, true, false},
    {"qwen3_moe_in_blocks_of_128", HF "qwen3_moe", 128, 128, BF16, BLOCKS, false, false},
    {"qwen2_moe", HF "qwen2_moe", 7, 5, F32, BLOCKS, false, false},
    {"olmoe", HF "olmoe", 16, 16, F32, BLOCKS, true, false},
    {"phimoe", HF "phimoe", 3, 32, F32, BLOCKS, false, false},
    {"glm4_moe", HF "glm4_moe", 32, 8, BF16, BLOCKS, false, false},
    {"deepseek_v2", HF "deepseek_v2-lite", 4, 24, F32, BLOCKS, false, false},
    {"deepseek_v2_cut_amid_blocks", HF "deepseek_v2-lite", 16, 16, BF16, BLOCKS, false, true},
    {"deepseek_v3", HF "deepseek_v3-groups", 4, 5, BF16, BLOCKS, false, false},
    {"deepseek_v3_cut_amid_blocks", HF "deepseek_v3-groups", 24, 16, F32, BLOCKS, false, true},
    {"deepseek_v3_in_blocks_of_128", HF "deepseek_v3-groups", 128, 128, F32, BLOCKS, false, true},
    {"qwen3_moe_of_modelopt", HF "qwen3_moe", 1 << 20, 1 << 20, F32, WHOLE, false, false},
    {"qwen2_moe_of_older_modelopt", HF "qwen2_moe", 1 << 20, 1 << 20, F32, WHOLE_SAID_BESIDE, false,
     false},
};

/* ---- One checkpoint, twice ---------------------------------------------------------------- */

typedef struct twins {
    const stored *of;
    char fp8[64], floats[64];
    json_t *config;              /* of the fixture */
    maker_shard weights, scales; /* of the FP8 checkpoint, before they are written */
    maker_shard values;          /* of the one in floats */
} twins;

static twins both;

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool is_quantised(const stored *of, const char *name)
{
    static const char *const ends[] = {"_proj.weight", "_mqa.weight", ".w1.weight", ".w2.weight",
                                       ".w3.weight"};
    for (size_t i = 0; i < COUNT(ends); i++)
        if (ends_with(name, ends[i]))
            return true;
    return of->all &&
           (!strcmp(name, "lm_head.weight") || !strcmp(name, "model.embed_tokens.weight"));
}

/* The E4M3 number nearest to x, at most 448. */
static uint8_t nearest(double x)
{
    uint8_t low = 0, high = 0x7e;
    while (high - low > 1) {
        const uint8_t middle = (uint8_t)((low + high) / 2);
        *(num_e4m3(middle) <= fabs(x) ? &low : &high) = middle;
    }
    const double below = fabs(x) - num_e4m3(low), above = num_e4m3(high) - fabs(x);
    return (uint8_t)((below <= above ? low : high) | (x < 0 ? 0x80 : 0));
}

typedef struct quantised {
    const float *weights;
    uint64_t rows, columns;
    maker_tensor *codes, *scales, *values;
} quantised;

/* Stores a block of which row and column are the first ones, and the values that it stands for. */
static void store_block(const quantised *q, uint64_t row, uint64_t column, uint64_t at)
{
    const stored *of = both.of;
    const uint64_t end = row + of->rows < q->rows ? row + of->rows : q->rows;
    const uint64_t past = column + of->columns < q->columns ? column + of->columns : q->columns;
    float most = 0;
    for (uint64_t r = row; r < end; r++)
        for (uint64_t c = column; c < past; c++)
            most = fmaxf(most, fabsf(q->weights[r * q->columns + c]));
    const double scale = num_rounded(of->scale_dtype, most / 448);
    num_put(of->scale_dtype, q->scales->data, at, scale);
    for (uint64_t r = row; r < end; r++)
        for (uint64_t c = column; c < past; c++) {
            const uint64_t i = r * q->columns + c;
            q->codes->data[i] = nearest((double)q->weights[i] / scale);
            num_put(F32, q->values->data, i, (float)(num_e4m3(q->codes->data[i]) * scale));
        }
}

static maker_tensor *add_scales(const char *name, const uint64_t *blocks)
{
    const int stem = (int)(strlen(name) - strlen(".weight"));
    if (both.of->layout == BLOCKS)
        return maker_add(&both.scales, both.of->scale_dtype == F32 ? "F32" : "BF16", 2, blocks,
                         "%s_scale_inv", name);
    const uint64_t one = 1;
    memcpy(maker_add(&both.scales, "F32", 1, &one, "%.*s.input_scale", stem, name)->data,
           &(float){1}, sizeof(float));
    return maker_add(&both.scales, "F32", 0, NULL, "%.*s.weight_scale", stem, name);
}

static void quantise(const char *name, const uint64_t *shape, const float *weights)
{
    const stored *of = both.of;
    const uint64_t blocks[] = {(shape[0] - 1) / of->rows + 1, (shape[1] - 1) / of->columns + 1};
    const quantised q = {.weights = weights,
                         .rows = shape[0],
                         .columns = shape[1],
                         .codes = maker_add(&both.weights, "F8_E4M3", 2, shape, "%s", name),
                         .scales = add_scales(name, blocks),
                         .values = maker_add(&both.values, "F32", 2, shape, "%s", name)};
    for (uint64_t r = 0; r < blocks[0]; r++)
        for (uint64_t c = 0; c < blocks[1]; c++)
            store_block(&q, r * of->rows, c * of->columns, r * blocks[1] + c);
}

static void copy_to(maker_shard *shard, const char *name, const char *dtype, const json_t *dims,
                    const void *data)
{
    uint64_t shape[MAKER_MAX_RANK];
    for (size_t i = 0; i < json_array_size(dims); i++)
        shape[i] = (uint64_t)json_integer_value(json_array_get(dims, i));
    maker_tensor *tensor =
        maker_add(shard, dtype, (uint32_t)json_array_size(dims), shape, "%s", name);
    memcpy(tensor->data, data, tensor->bytes);
}

static void take_tensor(const char *name, const json_t *described, const unsigned char *data)
{
    const json_t *dims = json_object_get(described, "shape");
    const char *dtype = json_string_value(json_object_get(described, "dtype"));
    const uint32_t type = !strcmp(dtype, "F32") ? F32 : BF16;
    data += json_integer_value(json_array_get(json_object_get(described, "data_offsets"), 0));
    if (!is_quantised(both.of, name)) {
        copy_to(&both.weights, name, dtype, dims, data);
        copy_to(&both.values, name, dtype, dims, data);
        return;
    }
    assert_int_equal(json_array_size(dims), 2);
    assert_true(type == F32 || !strcmp(dtype, "BF16"));
    const uint64_t shape[] = {(uint64_t)json_integer_value(json_array_get(dims, 0)),
                              (uint64_t)json_integer_value(json_array_get(dims, 1))};
    float *weights = malloc(shape[0] * shape[1] * sizeof *weights);
    assert_non_null(weights);
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++)
        weights[i] = num_get(type, data, i);
    quantise(name, shape, weights);
    free(weights);
}

static void read_fixture(const char *dir)
{
    size_t n;
    const char *name;
    json_t *described;
    unsigned char *bytes = maker_read(dir, "model.safetensors", &n);
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    json_t *header = json_loadb((const char *)bytes + 8, length, 0, NULL);
    assert_non_null(header);
    json_object_foreach(header, name, described)
    {
        if (strcmp(name, "__metadata__") != 0)
            take_tensor(name, described, bytes + 8 + length);
    }
    json_decref(header);
    free(bytes);
    bytes = maker_read(dir, "config.json", &n);
    both.config = json_loadb((const char *)bytes, n, 0, NULL);
    assert_non_null(both.config);
    free(bytes);
}

static void write_json(const char *dir, const char *name, const json_t *json)
{
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    maker_write_text(dir, name, text);
    free(text);
}

/* What is said of the quantisation, and where. */
static void write_config(void)
{
    const stored *of = both.of;
    json_t *config = json_copy(both.config);
    json_t *said = of->layout == BLOCKS
                       ? json_pack("{s:s, s:s, s:[I, I]}", "quant_method", "fp8",
                                   "activation_scheme", "dynamic", "weight_block_size",
                                   (json_int_t)of->rows, (json_int_t)of->columns)
                       : json_pack("{s:s, s:s}", "quant_method", "modelopt", "quant_algo", "FP8");
    if (of->layout == BLOCKS && of->rows == 128)
        json_object_del(said, "weight_block_size");
    if (of->layout == WHOLE_SAID_BESIDE) {
        json_t *beside = json_pack("{s:O}", "quantization", said);
        write_json(both.fp8, "hf_quant_config.json", beside);
        json_decref(beside);
    } else {
        json_object_set(config, "quantization_config", said);
    }
    write_json(both.fp8, "config.json", config);
    json_decref(said);
    json_decref(config);
}

static void write_fp8(void)
{
    write_config();
    maker_write_shard(&both.weights, both.fp8, "a.safetensors");
    maker_write_shard(&both.scales, both.fp8, "b.safetensors");
}

static void open_twins(const stored *of)
{
    both = (twins){.of = of};
    maker_dir_create(both.fp8);
    maker_dir_create(both.floats);
    read_fixture(of->dir);
    write_fp8();
    write_json(both.floats, "config.json", both.config);
    maker_write_shard(&both.values, both.floats, "a.safetensors");
}

static void close_twins(void)
{
    maker_shard_free(&both.weights);
    maker_shard_free(&both.scales);
    maker_shard_free(&both.values);
    json_decref(both.config);
    maker_dir_remove(both.fp8);
    maker_dir_remove(both.floats);
}

/* ---- The same bits ------------------------------------------------------------------------ */

static void run(const char *model, const reference *ref, const char *const *flags, generation *out)
{
    const generation_part part = {.n = ref->n_prompts,
                                  .n_tokens = UINT32_MAX,
                                  .max_tokens = ref->prompts[0].n_greedy};
    generation_run(model, ref, &part, flags, out);
}

static void expect_same(const generation *expected, const char *model, const reference *ref,
                        const char *const *flags)
{
    generation found;
    run(model, ref, flags, &found);
    generation_assert_same(expected, &found, flags[1]);
    generation_free(&found);
}

/* Weights are multiplied as they are stored, but those that blocks do not let be cut. */
static void check_bytes(const generation *fp8, const generation *floats)
{
    const uint64_t bytes = generation_stat(fp8, "dense_bytes");
    const uint64_t decoded = generation_stat(fp8, "dense_decoded_bytes");
    assert_int_equal(generation_stat(floats, "dense_decoded_bytes"), 0);
    assert_int_equal(decoded > 0, both.of->decoded);
    assert_true(bytes < generation_stat(floats, "dense_bytes"));
    assert_true(decoded <= bytes);
}

static void test_generate_fp8_gives_the_bits_of_floats(void **state)
{
    static const char *const maths[] = {"fp32", "bf16", "int8"};
    reference ref;
    place packed;
    open_twins(*state);
    reference_load_hf(both.of->dir, &ref);
    place_open(&packed);
    pack(LIST(both.fp8, packed.path, "--verify"));
    for (size_t m = 0; m < COUNT(maths); m++) {
        generation expected, found;
        run(both.floats, &ref, LIST("--math", maths[m]), &expected);
        run(both.fp8, &ref, LIST("--math", maths[m]), &found);
        generation_assert_same(&expected, &found, maths[m]);
        check_bytes(&found, &expected);
        generation_free(&found);
        expect_same(&expected, both.fp8, &ref,
                    LIST("--math", maths[m], "--budget", "25%", "--threads", "2", "--batch-prefill",
                         "3"));
        expect_same(&expected, packed.path, &ref,
                    LIST("--math", maths[m], "--budget", "50%", "--prefetch", "on"));
        generation_free(&expected);
    }
    place_close(&packed);
    reference_free(&ref);
    close_twins();
}

/* ---- What the scales may not be ----------------------------------------------------------- */

#define Q "model.layers.0.self_attn.q_proj.weight" /* [64, 32] */

static const stored small = {"", HF "qwen3_moe", 16, 24, BF16, BLOCKS, false, false};

static void expect_refusal(const char *sentence)
{
    write_fp8();
    assert_refused("moepage-generate", LIST("--model", both.fp8, "--tokens", "1"), sentence);
}

static void test_generate_fp8_refuses_scales_that_do_not_fit(void **state)
{
    static const struct {
        const char *dtype;
        uint32_t rank;
        uint64_t shape[3];
        const char *sentence;
    } wrong[] = {
#define MISFIT Q "_scale_inv does not have the shape [4, 2] that blocks of 16 x 24 weights imply"
        {"BF16", 2, {4, 1}, MISFIT},
        {"BF16", 2, {5, 2}, MISFIT},
        {"BF16", 2, {2, 4}, MISFIT},
        {"BF16", 2, {1, 1}, MISFIT},
        {"BF16", 1, {8}, MISFIT},
        {"BF16", 3, {1, 4, 2}, MISFIT},
        {"F32", 0, {0}, MISFIT},
        {"F16", 2, {4, 2}, Q "_scale_inv is neither F32 nor BF16"},
        {"F8_E8M0", 2, {4, 2}, Q "_scale_inv is neither F32 nor BF16"},
        {"I64", 2, {4, 2}, Q "_scale_inv is neither F32 nor BF16"},
        {"F64", 2, {4, 2}, Q "_scale_inv"},
    };
    (void)state;
    open_twins(&small);
    maker_tensor *scales = maker_find(&both.scales, Q "_scale_inv");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        maker_reshape(scales, wrong[i].dtype, wrong[i].rank, wrong[i].shape);
        expect_refusal(wrong[i].sentence);
    }
    maker_remove(&both.scales, Q "_scale_inv");
    expect_refusal(Q " is in F8_E4M3, and its scales, " Q "_scale_inv, are missing");
    close_twins();
}

/* Scales of a matrix in floats would be left out, and other numbers of eight bits are not known. */
static void test_generate_fp8_refuses_other_weights_beside_scales(void **state)
{
    (void)state;
    open_twins(&small);
    maker_tensor *weights = maker_find(&both.weights, Q);
    maker_reshape(weights, "BF16", 2, (uint64_t[]){64, 32});
    expect_refusal("tensor " Q "_scale_inv is not supported");
    maker_reshape(weights, "F8_E5M2", 2, (uint64_t[]){64, 32});
    expect_refusal(Q " is neither F32, F16, BF16, F8_E4M3 nor in blocks");
    maker_reshape(weights, "F8_E4M3", 2, (uint64_t[]){32, 64});
    expect_refusal(Q " does not have the shape [64, 32] that config.json implies");
    close_twins();
}

/* Spoils a scale of each of n tensors, of which the name may have a number, and runs the model. */
static void run_with_nans(const char *format, int n, tool_result *out)
{
    open_twins(&small);
    for (int i = 0; i < n; i++) {
        char name[128];
        snprintf(name, sizeof name, format, i);
        num_put(BF16, maker_find(&both.scales, name)->data, 0, NAN);
    }
    write_fp8();
    tool_run("moepage-generate", LIST("--model", both.fp8, "--tokens", "1"), out);
    close_twins();
}

/* Damage that shows in no header: the tool ends as it does where experts have it. */
static void test_generate_fp8_treats_a_nan_as_an_experts(void **state)
{
    tool_result dense, experts;
    (void)state;
    run_with_nans("model.layers.1.mlp.down_proj.weight_scale_inv", 1, &dense);
    run_with_nans("model.layers.0.mlp.experts.%d.down_proj.weight_scale_inv", 8, &experts);
    assert_int_equal(dense.exit_status, experts.exit_status);
    assert_string_equal(dense.err, experts.err);
    tool_result_free(&dense);
    tool_result_free(&experts);
}

int main(void)
{
    enum { OTHERS = 3 };
    static char names[COUNT(cases)][128];
    static struct CMUnitTest tests[OTHERS + COUNT(cases)] = {
        cmocka_unit_test(test_generate_fp8_refuses_scales_that_do_not_fit),
        cmocka_unit_test(test_generate_fp8_refuses_other_weights_beside_scales),
        cmocka_unit_test(test_generate_fp8_treats_a_nan_as_an_experts),
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(names[i], sizeof names[i], "test_generate_fp8_of_%s_gives_the_bits_of_floats",
                 cases[i].name);
        tests[OTHERS + i] =
            (struct CMUnitTest){.name = names[i],
                                .test_func = test_generate_fp8_gives_the_bits_of_floats,
                                .initial_state = (void *)(uintptr_t)&cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
