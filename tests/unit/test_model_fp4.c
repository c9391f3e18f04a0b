/* Directories of NVFP4 weights and of FP8 with one scale for a matrix: the blocks and scales that are read; and
 * what is refused. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/floats.h"
#include "codec/quant.h"
#include "fp4_maker.h"
#include "model/model.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EXPERT "model.layers.1.mlp.experts.1."
#define FP8                  \
    {                        \
        FP4_FP8, 256, 128, 0 \
    }
#define MODELOPT                  \
    {                             \
        FP4_MODELOPT, 256, 128, 0 \
    }
#define PACKED                  \
    {                           \
        FP4_PACKED, 256, 128, 0 \
    }

static const fp4_case cases[] = {
    {FP4_MODELOPT, 256, 128, 0},
    {FP4_MODELOPT, 192, 512, 0},
    {FP4_PACKED, 256, 64, 0},
    {FP4_PACKED, 384, 256, 0},
};

/* ---- What is read ---- */

static void expect_piece(const struct moepage_model *model, const fp4_case *of, uint32_t layer,
                         uint32_t expert, uint32_t piece)
{
    static unsigned char want[1 << 17];
    const uint64_t rows = piece < 2 ? of->intermediate : of->hidden;
    const uint64_t columns = piece < 2 ? of->hidden : of->intermediate;
    char name[128];
    quantised_name(layer, expert, piece, name);
    quantised_expect_piece(model, layer, expert, piece, want,
                           fp4_blocks(of->method, name, rows, columns, want));
}

/* Numbers for activations and for the cache are no dense tensors. */
static void expect_dense(const struct moepage_model *model, const fp4_case *of)
{
    static unsigned char want[1 << 14];
    const uint64_t bytes =
        fp4_blocks(of->method, "model.layers.1.self_attn.q_proj", 24, of->hidden, want);
    quantised_expect_dense(model, "model.layers.1.self_attn.q_proj.weight", fp4_dtype(of->hidden),
                           24, of->hidden, want, bytes);
    quantised_expect_names(model);
}

static void expect_model(const moe_maker *maker, const fp4_case *of)
{
    moepage_model *model = moe_expect_open(maker);
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(model->layouts[0].tensors[0].dtype, fp4_dtype(of->hidden));
    assert_int_equal(model->layouts[0].tensors[1].dtype, fp4_dtype(of->intermediate));
    for (uint32_t l = 0; l < FP4_LAYERS; l++)
        for (uint32_t e = 0; e < FP4_EXPERTS; e++)
            for (uint32_t p = 0; p < 3; p++)
                expect_piece(model, of, l, e, p);
    expect_dense(model, of);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_fp4_matrices_are_read_as_blocks_with_their_factor(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        moe_maker maker;
        fp4_maker_init(&maker, &cases[i]);
        moe_maker_write(&maker);
        expect_model(&maker, &cases[i]);
        moe_maker_free(&maker);
    }
}

static void test_fp4_blocks_are_less_than_3_per_cent_longer_than_what_is_stored(void **state)
{
    static unsigned char blocks[1 << 15];
    (void)state;
    const uint64_t stored = 16 * (2048 / 2 + 2048 / 16) + 4;
    assert_true((double)fp4_blocks(FP4_MODELOPT, "x", 16, 2048, blocks) < 1.03 * (double)stored);
}

/* ModelOpt's older versions say what they quantised in a file of their own. */
static void test_fp4_is_found_in_the_file_beside_config_json(void **state)
{
    const fp4_case of = MODELOPT;
    moe_maker maker;
    (void)state;
    fp4_maker_init(&maker, &of);
    moe_maker_replace(&maker,
                      ", \"quantization_config\": {\"quant_method\": \"modelopt\", "
                      "\"quant_algo\": \"NVFP4\", \"group_size\": 16}",
                      "");
    moe_maker_write(&maker);
    maker_write_text(maker.dir, "hf_quant_config.json",
                     "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": "
                     "{\"quant_algo\": \"NVFP4\", \"kv_cache_quant_algo\": \"FP8\", "
                     "\"group_size\": 16, \"exclude_modules\": [\"lm_head\"]}}");
    expect_model(&maker, &of);
    maker_write_text(maker.dir, "hf_quant_config.json", "{\"quantization\": 3}");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "hf_quant_config.json|quantization|object");
    maker_write_text(maker.dir, "hf_quant_config.json",
                     "{\"quantization\": {\"quant_algo\": \"W4A8_AWQ\"}}");
    moe_expect_refusal(&maker, MOEPAGE_E_UNSUPPORTED, "hf_quant_config.json|quant_algo|W4A8_AWQ");
    maker_write_text(maker.dir, "hf_quant_config.json", "{\"quantization\": ");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "hf_quant_config.json");
    moe_maker_free(&maker);
}

static void expect_scale(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t piece, const char *part)
{
    char name[128];
    unsigned char want[4];
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s", layer, expert, part);
    const float scale = fp4_factor(FP4_FP8, name);
    memcpy(want, &scale, sizeof want);
    quantised_expect_piece(model, layer, expert, piece, want, sizeof want);
}

static void test_fp8_with_one_scale_is_one_block(void **state)
{
    const fp4_case of = FP8;
    moe_maker maker;
    (void)state;
    fp4_maker_init(&maker, &of);
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(model->info.expert_tensors, 4);
    for (uint32_t t = 0; t < 2; t++) {
        assert_int_equal(model->layouts[0].tensors[t].dtype, MOEPAGE_DTYPE_F8_E4M3);
        assert_int_equal(model->layouts[0].tensors[2 + t].dtype, MOEPAGE_DTYPE_F32);
        assert_int_equal(model->layouts[0].tensors[2 + t].shape[0], 2 - t);
        assert_int_equal(model->layouts[0].tensors[2 + t].shape[1], 1);
    }
    expect_scale(model, 1, 0, 3, "gate_proj");
    expect_scale(model, 1, 0, 4, "up_proj");
    expect_scale(model, 1, 1, 5, "down_proj");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

static void test_fp4_and_fp8_are_read_of_one_checkpoint(void **state)
{
    const fp4_case of = MODELOPT;
    moe_maker maker;
    moepage_tensor_view view = {.struct_size = sizeof view};
    (void)state;
    fp4_maker_init(&maker, &of);
    moe_maker_replace(&maker, "\"quant_algo\": \"NVFP4\", \"group_size\": 16",
                      "\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"a\": "
                      "{\"quant_algo\": \"NVFP4\", \"group_size\": 16}, \"b\": {\"quant_algo\": "
                      "\"FP8\"}}");
    fp4_add_matrix(&maker.shard, FP4_FP8, "lm_head", 16, 256);
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    expect_piece(model, &of, 1, 1, 2);
    assert_int_equal(moepage_model_find_tensor(model, "lm_head.weight_scale_inv", &view),
                     MOEPAGE_OK);
    const float scale = fp4_factor(FP4_FP8, "lm_head");
    assert_int_equal(view.bytes, 4);
    assert_memory_equal(view.data, &scale, 4);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

/* ---- What it means ---- */

#define FIXTURES "tests/data/fp4/"

static uint64_t checksum(const float *values, uint64_t n)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < 4 * n; i++)
        sum = (sum ^ (mp_bits_of(values[i / 4]) >> i % 4 * 8 & 255u)) * 0x100000001b3u;
    return sum;
}

/* The values of a matrix by its name, dense or an expert's: views are of any tensor. */
static void expect_values(const struct moepage_model *model, const char *name, const char *sum)
{
    moepage_tensor_view view = {.struct_size = sizeof view}, scale = view;
    char of_scale[160];
    assert_int_equal(moepage_model_find_tensor(model, name, &view), MOEPAGE_OK);
    const uint64_t n = view.shape[0] * view.shape[1] * (view.rank == 3 ? view.shape[2] : 1);
    float *values = calloc(n, sizeof *values);
    assert_non_null(values);
    if (view.dtype == MOEPAGE_DTYPE_F8_E4M3) {
        snprintf(of_scale, sizeof of_scale, "%s_scale_inv", name);
        assert_int_equal(moepage_model_find_tensor(model, of_scale, &scale), MOEPAGE_OK);
        for (uint64_t i = 0; i < n; i++)
            values[i] =
                mp_f8_e4m3_value(((const uint8_t *)view.data)[i]) * *(const float *)scale.data;
    } else {
        assert_int_equal(view.dtype, fp4_dtype(view.shape[view.rank - 1]));
        assert_int_equal(moepage_blocks_decode(view.dtype, view.data, view.bytes, values, n),
                         MOEPAGE_OK);
    }
    if (checksum(values, n) != strtoull(sum, NULL, 16))
        fail_msg("%s: a value differs from the package's", name);
    free(values);
}

static moepage_model *open_fixture(const char *name)
{
    char path[64];
    moepage_model *model = NULL;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    assert_int_equal(moepage_model_open(path, NULL, &model), MOEPAGE_OK);
    return model;
}

static void test_fp4_values_are_those_of_modelopt_and_compressed_tensors(void **state)
{
    static const struct {
        const char *name;
        size_t tensors;
    } kinds[] = {{"modelopt", 56}, {"packed", 56}, {"stacked", 12}, {"fp8", 48}};
    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char path[64];
        moepage_model *model = open_fixture(kinds[i].name);
        const char *name;
        json_t *sum;
        snprintf(path, sizeof path, FIXTURES "%s/values.json", kinds[i].name);
        json_t *sums = json_load_file(path, 0, NULL);
        assert_int_equal(json_object_size(sums), kinds[i].tensors);
        json_object_foreach(sums, name, sum) expect_values(model, name, json_string_value(sum));
        json_decref(sums);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

static void expect_same_piece(const struct moepage_model *a, const struct moepage_model *b,
                              uint32_t layer, uint32_t expert, uint32_t piece)
{
    static unsigned char want[1 << 15];
    const uint64_t bytes = a->layouts[0].pieces[piece].bytes;
    assert_in_range(bytes, 1, sizeof want);
    assert_int_equal(mp_model_read_piece(a, layer, expert, piece, 0, bytes, want), MOEPAGE_OK);
    quantised_expect_piece(b, layer, expert, piece, want, bytes);
}

/* GGUF's blocks have no room for the scale of their matrix: it is beside them. */
static void test_fp4_of_a_gguf_file_with_scales_is_that_of_the_checkpoint(void **state)
{
    (void)state;
    moepage_model *checkpoint = open_fixture("modelopt"), *gguf = open_fixture("modelopt.gguf");
    moepage_tensor_view a = {.struct_size = sizeof a}, b = a;
    assert_int_equal(gguf->info.ffn_supported, 1);
    assert_int_equal(gguf->info.routed_bytes, checkpoint->info.routed_bytes);
    for (uint32_t layer = 0; layer < gguf->info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < gguf->info.experts; expert++)
            for (uint32_t piece = 0; piece < 3; piece++)
                expect_same_piece(checkpoint, gguf, layer, expert, piece);
    assert_int_equal(moepage_model_find_tensor(checkpoint, "model.layers.1.self_attn.v_proj.weight",
                                               &a),
                     MOEPAGE_OK);
    assert_int_equal(moepage_model_find_tensor(gguf, "blk.1.attn_v.weight", &b), MOEPAGE_OK);
    assert_int_equal(a.dtype, b.dtype);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.data, b.data, a.bytes);
    for (uint64_t i = 0;; i++) {
        char name[64];
        if (moepage_model_get_tensor_name(gguf, i, name, sizeof name))
            break;
        assert_null(strstr(name, "scale"));
    }
    /* all experts of a layer, as one tensor */
    assert_int_equal(moepage_model_find_tensor(gguf, "blk.0.ffn_down_exps.weight", &b), MOEPAGE_OK);
    const uint64_t bytes = gguf->layouts[0].pieces[2].bytes;
    assert_int_equal(b.bytes, gguf->info.experts * bytes);
    for (uint32_t expert = 0; expert < gguf->info.experts; expert++)
        quantised_expect_piece(gguf, 0, expert, 2, (const unsigned char *)b.data + expert * bytes,
                               bytes);
    assert_int_equal(moepage_model_close(checkpoint), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(gguf), MOEPAGE_OK);
}

/* ---- What is refused ---- */

static const quantised_bad_config bad_configs[] = {
    {FP4_MODELOPT, "\"NVFP4\"", "\"NVFP4_AWQ\"", MOEPAGE_E_UNSUPPORTED, "quant_algo|NVFP4_AWQ"},
    {FP4_MODELOPT, "\"NVFP4\"", "\"MIXED_PRECISION\"", MOEPAGE_E_FORMAT, "quantized_layers"},
    {FP4_MODELOPT, "\"NVFP4\"",
     "\"MIXED_PRECISION\", \"quantized_layers\": {\"a\": {\"quant_algo\": \"W4A8_AWQ\"}}",
     MOEPAGE_E_UNSUPPORTED, "quantized_layers|W4A8_AWQ"},
    {FP4_MODELOPT, "\"NVFP4\"", "\"MIXED_PRECISION\", \"quantized_layers\": {\"a\": 3}",
     MOEPAGE_E_FORMAT, "\"a\"|quant_algo"},
    {FP4_MODELOPT, "\"group_size\": 16", "\"group_size\": 32", MOEPAGE_E_UNSUPPORTED,
     "group_size|32|16"},
    {FP4_MODELOPT, "\"quant_algo\": \"NVFP4\"", "\"quant_algo\": 4", MOEPAGE_E_FORMAT,
     "quant_algo"},
    {FP4_PACKED, "\"num_bits\": 4", "\"num_bits\": 8", MOEPAGE_E_UNSUPPORTED, "num_bits|8"},
    {FP4_PACKED, "\"float\"", "\"int\"", MOEPAGE_E_UNSUPPORTED, "type|int|float"},
    {FP4_PACKED, "\"symmetric\": true", "\"symmetric\": false", MOEPAGE_E_UNSUPPORTED, "symmetric"},
    {FP4_PACKED, "\"tensor_group\"", "\"group\"", MOEPAGE_E_UNSUPPORTED, "strategy|tensor_group"},
    {FP4_PACKED, "\"group_size\": 16", "\"group_size\": 32", MOEPAGE_E_UNSUPPORTED,
     "group_size|32"},
    {FP4_PACKED, "{\"group_0\"", "{\"group_1\": 3, \"group_0\"", MOEPAGE_E_UNSUPPORTED, "weights"},
    {FP4_PACKED, "{\"weights\"", "{\"format\": \"pack-quantized\", \"weights\"",
     MOEPAGE_E_UNSUPPORTED, "format|pack-quantized|nvfp4"},
    {FP4_PACKED, "\"config_groups\"", "\"transform_config\": {\"a\": 1}, \"config_groups\"",
     MOEPAGE_E_UNSUPPORTED, "transform_config"},
    {FP4_PACKED, "\"config_groups\"", "\"sparsity_config\": {\"a\": 1}, \"config_groups\"",
     MOEPAGE_E_UNSUPPORTED, "sparsity_config"},
    {FP4_PACKED, "\"config_groups\"", "\"other\"", MOEPAGE_E_FORMAT, "config_groups"},
};

static void test_fp4_every_bad_config_is_refused_by_key_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_configs); i++) {
        const fp4_case of = {(fp4_method)bad_configs[i].method, 256, 128, 0};
        moe_maker maker;
        fp4_maker_init(&maker, &of);
        quantised_expect_bad_config(&maker, &bad_configs[i]);
    }
}

static const quantised_bad_part bad_parts[] = {
    {FP4_MODELOPT,
     "gate_proj.weight",
     "U8",
     {128, 64},
     MOEPAGE_E_FORMAT,
     "gate_proj.weight_scale|[128, 16]|[128, 8]"},
    {FP4_MODELOPT,
     "gate_proj.weight",
     "U8",
     {128, 120},
     MOEPAGE_E_UNSUPPORTED,
     "gate_proj.weight|multiple of 64"},
    {FP4_MODELOPT,
     "gate_proj.weight",
     "U8",
     {16384, 0},
     MOEPAGE_E_UNSUPPORTED,
     "gate_proj.weight|two dimensions"},
    {FP4_MODELOPT,
     "gate_proj.weight",
     "BF16",
     {128, 256},
     MOEPAGE_E_FORMAT,
     "gate_proj.weight|BF16|alike"},
    {FP4_MODELOPT,
     "gate_proj.weight_scale",
     "F8_E4M3",
     {64, 16},
     MOEPAGE_E_FORMAT,
     "gate_proj.weight_scale|[64, 16]|[128, 16]"},
    {FP4_MODELOPT,
     "gate_proj.weight_scale",
     "U8",
     {128, 16},
     MOEPAGE_E_FORMAT,
     "gate_proj.weight_scale|U8|F8_E4M3"},
    {FP4_MODELOPT, "gate_proj.weight_scale", NULL, {0}, MOEPAGE_E_NOT_FOUND, "weight_scale"},
    {FP4_MODELOPT, "gate_proj.weight_scale_2", NULL, {0}, MOEPAGE_E_NOT_FOUND, "weight_scale_2"},
    {FP4_MODELOPT,
     "gate_proj.weight_scale_2",
     "F32",
     {2, 0},
     MOEPAGE_E_UNSUPPORTED,
     "weight_scale_2|one number"},
    {FP4_MODELOPT,
     "gate_proj.weight_scale_2",
     "BF16",
     {1, 0},
     MOEPAGE_E_UNSUPPORTED,
     "weight_scale_2|BF16|F32"},
    {FP4_MODELOPT, "gate_proj.weight", NULL, {0}, MOEPAGE_E_NOT_FOUND, "gate_proj.weight"},
    {FP4_PACKED,
     "gate_proj.weight_packed",
     "I32",
     {128, 32},
     MOEPAGE_E_UNSUPPORTED,
     "weight_packed|I32|U8"},
    {FP4_PACKED,
     "gate_proj.weight_global_scale",
     NULL,
     {0},
     MOEPAGE_E_NOT_FOUND,
     "weight_global_scale"},
    {FP4_PACKED,
     "gate_proj.weight_global_scale",
     "F32",
     {1, 1},
     MOEPAGE_E_UNSUPPORTED,
     "weight_global_scale|one number"},
    {FP4_FP8,
     "gate_proj.weight_scale",
     "F32",
     {128, 1},
     MOEPAGE_E_UNSUPPORTED,
     "weight_scale|one number"},
    {FP4_FP8, "gate_proj.weight_scale", NULL, {0}, MOEPAGE_E_NOT_FOUND, "weight_scale"},
    {FP4_FP8, "gate_proj.weight", "F8_E4M3", {64, 256}, MOEPAGE_E_FORMAT, "[64, 256]|[128, 256]"},
};

static void test_fp4_every_bad_part_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_parts); i++) {
        const fp4_case of = {(fp4_method)bad_parts[i].method, 256, 128, 0};
        moe_maker maker;
        fp4_maker_init(&maker, &of);
        quantised_expect_bad_part(&maker, &bad_parts[i]);
    }
}

static void test_fp4_a_matrix_beside_its_parts_is_refused(void **state)
{
    static const struct {
        fp4_method method;
        const char *name;
    } beside[] = {{FP4_PACKED, "gate_proj.weight"}, {FP4_FP8, "gate_proj.weight_scale_inv"}};
    const uint64_t shape[] = {128, 256};
    (void)state;
    for (size_t i = 0; i < COUNT(beside); i++) {
        const fp4_case of = {beside[i].method, 256, 128, 0};
        char words[128];
        moe_maker maker;
        fp4_maker_init(&maker, &of);
        maker_add(&maker.shard, "F16", 2, shape, EXPERT "%s", beside[i].name);
        moe_maker_write(&maker);
        snprintf(words, sizeof words, "%s|computed", beside[i].name);
        moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, words);
        moe_maker_free(&maker);
    }
}

/* What would change the activations, such as AWQ's scales before a product, is no part that is known. */
static void test_fp4_a_part_that_is_not_known_is_refused(void **state)
{
    const fp4_case of = MODELOPT;
    const uint64_t shape[] = {256};
    moe_maker maker;
    (void)state;
    fp4_maker_init(&maker, &of);
    maker_add(&maker.shard, "F32", 1, shape, EXPERT "gate_proj.pre_quant_scale");
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "pre_quant_scale|not part of any routed");
    moe_maker_free(&maker);
}

/* ---- What a load finds ---- */

static void expect_failed_load(const fp4_case *of, const char *part, const void *bytes, uint64_t n,
                               const char *words)
{
    moe_maker maker;
    fp4_maker_init(&maker, of);
    memcpy(maker_find(&maker.shard, part)->data, bytes, n);
    quantised_expect_failed_load(&maker, words);
}

static void test_fp4_a_scale_that_no_quantiser_makes_fails_its_load(void **state)
{
    static const unsigned char bad[] = {0x7f, 0x80, 0xb8, 0xff};
    const fp4_case of[] = {MODELOPT, PACKED};
    (void)state;
    for (size_t c = 0; c < COUNT(of); c++)
        for (size_t i = 0; i < COUNT(bad); i++)
            expect_failed_load(&of[c], EXPERT "up_proj.weight_scale", &bad[i], 1,
                               "layer 1, expert 1|model.safetensors|negative or a NaN");
}

static void test_fp4_a_factor_that_no_quantiser_makes_fails_its_load(void **state)
{
    static const float bad[] = {NAN, INFINITY, -1, -0.0f, 0x1p-101f, 0x1p101f, 0x1p-149f};
    static const float zero = 0;
    const fp4_case modelopt = MODELOPT, packed = PACKED;
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        expect_failed_load(&modelopt, EXPERT "up_proj.weight_scale_2", &bad[i], 4,
                           "layer 1, expert 1|model.safetensors|scale of a matrix|2^-100");
        expect_failed_load(&packed, EXPERT "up_proj.weight_global_scale", &bad[i], 4,
                           "layer 1, expert 1|model.safetensors|scale of a matrix|2^-100");
    }
    expect_failed_load(&packed, EXPERT "up_proj.weight_global_scale", &zero, 4, "2^-100");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp4_matrices_are_read_as_blocks_with_their_factor),
        cmocka_unit_test(test_fp4_blocks_are_less_than_3_per_cent_longer_than_what_is_stored),
        cmocka_unit_test(test_fp4_is_found_in_the_file_beside_config_json),
        cmocka_unit_test(test_fp8_with_one_scale_is_one_block),
        cmocka_unit_test(test_fp4_and_fp8_are_read_of_one_checkpoint),
        cmocka_unit_test(test_fp4_values_are_those_of_modelopt_and_compressed_tensors),
        cmocka_unit_test(test_fp4_of_a_gguf_file_with_scales_is_that_of_the_checkpoint),
        cmocka_unit_test(test_fp4_every_bad_config_is_refused_by_key_and_value),
        cmocka_unit_test(test_fp4_every_bad_part_is_refused_by_name),
        cmocka_unit_test(test_fp4_a_matrix_beside_its_parts_is_refused),
        cmocka_unit_test(test_fp4_a_part_that_is_not_known_is_refused),
        cmocka_unit_test(test_fp4_a_scale_that_no_quantiser_makes_fails_its_load),
        cmocka_unit_test(test_fp4_a_factor_that_no_quantiser_makes_fails_its_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
