/* Directories of 4-bit weights: whatever the layout, the blocks that are read; and what is refused. */
#include "model/model.h"
#include "testing.h"
#include "w4_maker.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EXPERT "model.layers.1.mlp.experts.1."

static const w4_case cases[] = {
    {.method = W4_GPTQ, .group = 128},
    {.method = W4_GPTQ, .group = 32, .symmetric = true, .unlisted = true},
    {.method = W4_GPTQ, .group = 64, .bf16 = true},
    {.method = W4_GPTQ},
    {.method = W4_GPTQ_V2, .group = 64},
    {.method = W4_AWQ, .group = 128},
    {.method = W4_AWQ, .group = 32, .bf16 = true},
    {.method = W4_AWQ, .group = 64},
    {.method = W4_PACKED, .group = 128, .bf16 = true, .symmetric = true, .unlisted = true},
    {.method = W4_PACKED, .group = 32, .bf16 = true, .unlisted = true},
    {.method = W4_PACKED, .group = 64},
    {.method = W4_PACKED, .symmetric = true, .unlisted = true},
};

/* Columns out of order. */
static const w4_case reordered[] = {
    {.method = W4_GPTQ, .group = 64, .reordered = true},
    {.method = W4_GPTQ_V2, .group = 32, .bf16 = true, .symmetric = true, .reordered = true},
    {.method = W4_PACKED, .group = 128, .bf16 = true, .symmetric = true, .reordered = true},
    {.method = W4_PACKED, .group = 32, .reordered = true},
};

/* ---- What is read ---- */

static void expect_piece(const struct moepage_model *model, const w4_case *of, uint32_t layer,
                         uint32_t expert, uint32_t piece)
{
    static unsigned char want[1 << 17];
    const uint64_t rows = piece < 2 ? W4_INTERMEDIATE : W4_HIDDEN;
    const uint64_t columns = piece < 2 ? W4_HIDDEN : W4_INTERMEDIATE;
    char name[128];
    quantised_name(layer, expert, piece, name);
    quantised_expect_piece(model, layer, expert, piece, want,
                           (of->reordered ? w4_values : w4_blocks)(of, name, rows, columns, want));
}

static void expect_dense(const struct moepage_model *model, const w4_case *of)
{
    static unsigned char want[1 << 14];
    const uint64_t router = 2 * W4_EXPERTS * W4_HIDDEN;
    const uint64_t bytes = w4_blocks(of, "model.layers.1.self_attn.q_proj", 24, W4_HIDDEN, want);
    quantised_expect_dense(model, "model.layers.1.self_attn.q_proj.weight", w4_dtype(of, W4_HIDDEN),
                           24, W4_HIDDEN, want, bytes);
    quantised_expect_names(model);
    assert_int_equal(model->info.dense_bytes, 2 * (router + bytes));
}

static void test_w4_every_layout_is_read_as_the_same_blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const w4_case *of = &cases[i];
        moe_maker maker;
        w4_maker_init(&maker, of);
        moe_maker_write(&maker);
        moepage_model *model = moe_expect_open(&maker);
        assert_int_equal(model->info.ffn_supported, 1);
        assert_int_equal(model->layouts[0].tensors[0].dtype, w4_dtype(of, W4_HIDDEN));
        assert_int_equal(model->layouts[0].tensors[1].dtype, w4_dtype(of, W4_INTERMEDIATE));
        for (uint32_t l = 0; l < W4_LAYERS; l++)
            for (uint32_t e = 0; e < W4_EXPERTS; e++)
                for (uint32_t p = 0; p < 3; p++)
                    expect_piece(model, of, l, e, p);
        expect_dense(model, of);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        moe_maker_free(&maker);
    }
}

static void test_w4_reordered_columns_are_read_as_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(reordered); i++) {
        const uint32_t dtype = reordered[i].bf16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F16;
        moe_maker maker;
        w4_maker_init(&maker, &reordered[i]);
        moe_maker_write(&maker);
        moepage_model *model = moe_expect_open(&maker);
        assert_int_equal(model->info.ffn_supported, 1);
        for (uint32_t t = 0; t < 2; t++)
            assert_int_equal(model->layouts[0].tensors[t].dtype, dtype);
        for (uint32_t p = 0; p < 3; p++)
            expect_piece(model, &reordered[i], 1, 1, p);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        moe_maker_free(&maker);
    }
}

/* With `text` for `old` in config.json, experts are the same. */
static void expect_the_same(w4_method method, const char *old, const char *text)
{
    const w4_case of = {.method = method, .group = 64};
    moe_maker maker;
    w4_maker_init(&maker, &of);
    moe_maker_replace(&maker, old, text);
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    for (uint32_t p = 0; p < 3; p++)
        expect_piece(model, &of, 0, 0, p);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

/* Where config.json says that columns may be reordered and none are, they are blocks. */
static void test_w4_columns_in_order_are_blocks_whatever_config_says(void **state)
{
    (void)state;
    expect_the_same(W4_GPTQ, "\"desc_act\": false", "\"desc_act\": true");
}

static void test_w4_awq_may_name_its_version_in_capitals(void **state)
{
    (void)state;
    expect_the_same(W4_AWQ, "\"gemm\"", "\"GEMM\"");
}

/* ---- What is refused ---- */

static const quantised_bad_config bad_configs[] = {
    {W4_GPTQ, "\"bits\": 4", "\"bits\": 8", MOEPAGE_E_UNSUPPORTED, "\"bits\" is 8|4 bits"},
    {W4_GPTQ, "\"bits\": 4, ", "", MOEPAGE_E_FORMAT, "bits|missing"},
    {W4_GPTQ, "\"group_size\": 64", "\"group_size\": 128", MOEPAGE_E_FORMAT,
     ".scales|each 64|each 128"},
    {W4_GPTQ, "\"group_size\": 64", "\"group_size\": -1", MOEPAGE_E_FORMAT, ".scales|each 64"},
    {W4_GPTQ, "\"group_size\": 64", "\"group_size\": 0", MOEPAGE_E_FORMAT, "group_size|is 0"},
    {W4_GPTQ, "\"group_size\": 64", "\"group_size\": \"64\"", MOEPAGE_E_FORMAT, "group_size"},
    {W4_GPTQ, "\"desc_act\": false", "\"desc_act\": 0", MOEPAGE_E_FORMAT, "desc_act|true or false"},
    {W4_GPTQ, "\"gptq\"}", "\"marlin\"}", MOEPAGE_E_UNSUPPORTED, "checkpoint_format|\"marlin\""},
    {W4_GPTQ, "\"desc_act\": false, \"checkpoint_format\": \"gptq\"", "\"is_marlin_format\": true",
     MOEPAGE_E_UNSUPPORTED, "checkpoint_format|\"marlin\""},
    {W4_GPTQ, "\"desc_act\"", "\"pack_dtype\": \"int16\", \"desc_act\"", MOEPAGE_E_UNSUPPORTED,
     "pack_dtype|int16|int32"},
    {W4_GPTQ, "\"quant_method\": \"gptq\"", "\"quant_method\": \"bitsandbytes\"",
     MOEPAGE_E_UNSUPPORTED, "bitsandbytes|gptq, awq and compressed-tensors"},
    {W4_AWQ, "\"bits\": 4", "\"bits\": 3", MOEPAGE_E_UNSUPPORTED, "\"bits\" is 3"},
    {W4_AWQ, "\"gemm\"", "\"gemv\"", MOEPAGE_E_UNSUPPORTED, "version|gemv|gemm"},
    {W4_AWQ, "\"zero_point\": true", "\"zero_point\": false", MOEPAGE_E_UNSUPPORTED, "zero_point"},
    {W4_PACKED, "\"pack-quantized\"", "\"marlin-24\"", MOEPAGE_E_UNSUPPORTED,
     "format|marlin-24|pack-quantized"},
    {W4_PACKED, "\"num_bits\": 4", "\"num_bits\": 8", MOEPAGE_E_UNSUPPORTED, "num_bits|is 8"},
    {W4_PACKED, "\"int\"", "\"float\"", MOEPAGE_E_UNSUPPORTED, "type|float|int"},
    {W4_PACKED, "\"symmetric\": false", "\"symmetric\": true", MOEPAGE_E_FORMAT,
     "stored zero-points|symmetric"},
    {W4_PACKED, "\"strategy\": \"group\"", "\"strategy\": \"block\"", MOEPAGE_E_UNSUPPORTED,
     "strategy|block"},
    {W4_PACKED, "\"actorder\": null", "\"actorder\": \"sideways\"", MOEPAGE_E_UNSUPPORTED,
     "actorder"},
    {W4_PACKED, "{\"group_0\"", "{\"group_1\": 3, \"group_0\"", MOEPAGE_E_UNSUPPORTED, "weights"},
    {W4_PACKED, "{\"group_0\": {\"weights\"",
     "{\"group_0\": {\"format\": \"int-quantized\", \"weights\"", MOEPAGE_E_UNSUPPORTED,
     "format|int-quantized"},
    {W4_PACKED, "\"config_groups\"", "\"transform_config\": {\"a\": 1}, \"config_groups\"",
     MOEPAGE_E_UNSUPPORTED, "transform_config"},
    {W4_PACKED, "\"config_groups\"", "\"sparsity_config\": {\"a\": 1}, \"config_groups\"",
     MOEPAGE_E_UNSUPPORTED, "sparsity_config"},
    {W4_PACKED, "\"config_groups\"", "\"other\"", MOEPAGE_E_FORMAT, "config_groups"},
};

static void test_w4_every_bad_config_is_refused_by_key_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_configs); i++) {
        const w4_case of = {.method = (w4_method)bad_configs[i].method, .group = 64};
        moe_maker maker;
        w4_maker_init(&maker, &of);
        quantised_expect_bad_config(&maker, &bad_configs[i]);
    }
}

static const quantised_bad_part bad_parts[] = {
    {W4_GPTQ,
     "gate_proj.qweight",
     "F32",
     {32, 128},
     MOEPAGE_E_UNSUPPORTED,
     "gate_proj.qweight|F32|I32"},
    {W4_GPTQ, "gate_proj.qweight", "I32", {64, 128}, MOEPAGE_E_FORMAT, "each 128|each 64"},
    {W4_GPTQ, "gate_proj.qweight", "I32", {32, 136}, MOEPAGE_E_FORMAT, "gate_proj.scales|[4, 136]"},
    {W4_GPTQ, "gate_proj.qweight", "I32", {4096, 0}, MOEPAGE_E_UNSUPPORTED, "two dimensions"},
    {W4_GPTQ,
     "gate_proj.scales",
     "F32",
     {4, 128},
     MOEPAGE_E_UNSUPPORTED,
     "gate_proj.scales|F32|BF16"},
    {W4_GPTQ, "gate_proj.scales", "BF16", {4, 128}, MOEPAGE_E_FORMAT, "W4G64_BF16|W4G64_F16|alike"},
    {W4_GPTQ,
     "gate_proj.scales",
     "F16",
     {5, 128},
     MOEPAGE_E_UNSUPPORTED,
     "5 scales|256|multiple of 32"},
    {W4_GPTQ,
     "gate_proj.scales",
     "F16",
     {16, 128},
     MOEPAGE_E_UNSUPPORTED,
     "16 scales|256|multiple of 32"},
    {W4_GPTQ, "gate_proj.scales", NULL, {0}, MOEPAGE_E_NOT_FOUND, "gate_proj.scales"},
    {W4_GPTQ,
     "gate_proj.qzeros",
     "I32",
     {4, 15},
     MOEPAGE_E_FORMAT,
     "gate_proj.qzeros|[4, 15]|[4, 16]"},
    {W4_GPTQ,
     "gate_proj.qzeros",
     "I32",
     {2, 16},
     MOEPAGE_E_FORMAT,
     "gate_proj.qzeros|[2, 16]|[4, 16]"},
    {W4_GPTQ, "gate_proj.qzeros", NULL, {0}, MOEPAGE_E_NOT_FOUND, "gate_proj.qzeros"},
    {W4_GPTQ, "gate_proj.g_idx", "I32", {255, 0}, MOEPAGE_E_FORMAT, "gate_proj.g_idx|[255]|[256]"},
    {W4_GPTQ, "gate_proj.g_idx", "I64", {256, 0}, MOEPAGE_E_FORMAT, "gate_proj.g_idx|I64|I32"},
    {W4_GPTQ, "gate_proj.qweight", NULL, {0}, MOEPAGE_E_NOT_FOUND, "gate_proj.weight"},
    {W4_AWQ, "gate_proj.qweight", "I32", {256, 17}, MOEPAGE_E_FORMAT, "gate_proj.scales|[4, 136]"},
    {W4_AWQ,
     "gate_proj.qzeros",
     "I32",
     {4, 17},
     MOEPAGE_E_FORMAT,
     "gate_proj.qzeros|[4, 17]|[4, 16]"},
    {W4_PACKED,
     "gate_proj.weight_packed",
     "I32",
     {128, 64},
     MOEPAGE_E_FORMAT,
     "weight_shape|[128, 256]|[128, 512]"},
    {W4_PACKED, "gate_proj.weight_shape", "I64", {3, 0}, MOEPAGE_E_FORMAT, "weight_shape|[3]|[2]"},
    {W4_PACKED, "gate_proj.weight_shape", "F32", {2, 0}, MOEPAGE_E_FORMAT, "weight_shape|F32|I64"},
    {W4_PACKED, "gate_proj.weight_shape", NULL, {0}, MOEPAGE_E_NOT_FOUND, "weight_shape"},
    {W4_PACKED,
     "gate_proj.weight_scale",
     "F16",
     {64, 4},
     MOEPAGE_E_FORMAT,
     "weight_scale|[64, 4]|[128, 4]"},
    {W4_PACKED,
     "gate_proj.weight_zero_point",
     "I32",
     {15, 4},
     MOEPAGE_E_FORMAT,
     "weight_zero_point|[15, 4]|[16, 4]"},
    {W4_PACKED,
     "gate_proj.weight_zero_point",
     "I8",
     {128, 4},
     MOEPAGE_E_FORMAT,
     "weight_zero_point|I8|I32"},
    {W4_PACKED,
     "gate_proj.weight_zero_point",
     NULL,
     {0},
     MOEPAGE_E_FORMAT,
     "no stored zero-points|asymmetric"},
};

static void test_w4_every_bad_part_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_parts); i++) {
        const w4_case of = {.method = (w4_method)bad_parts[i].method, .group = 64};
        moe_maker maker;
        w4_maker_init(&maker, &of);
        quantised_expect_bad_part(&maker, &bad_parts[i]);
    }
}

/* Where columns may be out of order, what says so must be there; with a group of matrices in order it need not. */
static void test_w4_reordered_columns_without_their_groups_are_refused(void **state)
{
    static const char *const parts[] = {"gate_proj.g_idx", "gate_proj.g_idx",
                                        "gate_proj.weight_g_idx", "gate_proj.weight_g_idx"};
    (void)state;
    for (size_t i = 0; i < COUNT(reordered); i++) {
        const quantised_bad_part bad = {.part = parts[i],
                                        .status = MOEPAGE_E_NOT_FOUND,
                                        .words = parts[i]};
        moe_maker maker;
        w4_maker_init(&maker, &reordered[i]);
        quantised_expect_bad_part(&maker, &bad);
    }
    const w4_case unlisted = {.method = W4_PACKED, .group = 64, .unlisted = true};
    moe_maker maker;
    w4_maker_init(&maker, &unlisted);
    moe_maker_replace(&maker, "{\"group_0\"",
                      "{\"group_1\": {\"weights\": {\"num_bits\": 4, \"actorder\": \"group\"}}, "
                      "\"group_0\"");
    moe_maker_write(&maker);
    assert_int_equal(moepage_model_close(moe_expect_open(&maker)), MOEPAGE_OK);
    moe_maker_free(&maker);
}

static void test_w4_a_matrix_beside_its_parts_is_refused(void **state)
{
    const w4_case of = {.method = W4_GPTQ, .group = 64};
    const uint64_t shape[] = {W4_INTERMEDIATE, W4_HIDDEN};
    moe_maker maker;
    (void)state;
    w4_maker_init(&maker, &of);
    maker_add(&maker.shard, "F16", 2, shape, EXPERT "gate_proj.weight");
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "gate_proj.weight|computed");
    moe_maker_free(&maker);
}

static void test_w4_routers_in_four_bits_are_refused(void **state)
{
    const w4_case of = {.method = W4_AWQ, .group = 64};
    moe_maker maker;
    (void)state;
    w4_maker_init(&maker, &of);
    maker_remove(&maker.shard, "model.layers.0.mlp.gate.weight");
    w4_add_matrix(&maker.shard, &of, "model.layers.0.mlp.gate", 8, W4_HIDDEN);
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT,
                       "model.layers.0.mlp.gate.weight|[8, 256]|[2, 256]");
    moe_maker_free(&maker);
    for (size_t i = 0; i < COUNT(reordered); i++) {
        w4_maker_init_sized(&maker, &reordered[i], &(quantised_sizes){2, 8, W4_HIDDEN, 128});
        maker_remove(&maker.shard, "model.layers.0.mlp.gate.weight");
        w4_add_matrix(&maker.shard, &reordered[i], "model.layers.0.mlp.gate", 8, W4_HIDDEN);
        moe_maker_write(&maker);
        moe_expect_refusal(&maker, MOEPAGE_E_UNSUPPORTED,
                           "model.layers.0.mlp.gate.weight|computed");
        moe_maker_free(&maker);
    }
}

/* ---- What a load finds ---- */

static void expect_failed_load(const w4_case *of, const char *part, uint64_t byte, unsigned char to,
                               const char *words)
{
    moe_maker maker;
    w4_maker_init(&maker, of);
    maker_find(&maker.shard, part)->data[byte] = to;
    quantised_expect_failed_load(&maker, words);
}

static void test_w4_a_zero_point_of_no_one_meaning_fails_its_load(void **state)
{
    const w4_case gptq = {.method = W4_GPTQ, .group = 64};
    (void)state;
    expect_failed_load(&gptq, EXPERT "up_proj.qzeros", 0, 0x3f,
                       "layer 1, expert 1|model.safetensors|stored as 15");
}

/* In floats a column is of any group, but of one that there is. */
static void test_w4_a_column_of_no_group_fails_its_load(void **state)
{
    const w4_case of = {.method = W4_GPTQ_V2, .group = 64, .reordered = true};
    (void)state;
    expect_failed_load(&of, EXPERT "up_proj.g_idx", 4 * 9, 4, "column 9|group 4 of 4");
}

static void test_w4_a_column_out_of_its_place_fails_its_load(void **state)
{
    const w4_case gptq = {.method = W4_GPTQ, .group = 64};
    const w4_case packed = {.method = W4_PACKED, .group = 64};
    (void)state;
    expect_failed_load(&gptq, EXPERT "up_proj.g_idx", 4 * 200, 1,
                       "layer 1, expert 1|column 200|group 1 of 4|group 3|act-order");
    expect_failed_load(&packed, EXPERT "up_proj.weight_g_idx", 4 * 63 + 3, 1, "column 63");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_w4_every_layout_is_read_as_the_same_blocks),
        cmocka_unit_test(test_w4_reordered_columns_are_read_as_floats),
        cmocka_unit_test(test_w4_columns_in_order_are_blocks_whatever_config_says),
        cmocka_unit_test(test_w4_awq_may_name_its_version_in_capitals),
        cmocka_unit_test(test_w4_every_bad_config_is_refused_by_key_and_value),
        cmocka_unit_test(test_w4_every_bad_part_is_refused_by_name),
        cmocka_unit_test(test_w4_reordered_columns_without_their_groups_are_refused),
        cmocka_unit_test(test_w4_a_matrix_beside_its_parts_is_refused),
        cmocka_unit_test(test_w4_routers_in_four_bits_are_refused),
        cmocka_unit_test(test_w4_a_zero_point_of_no_one_meaning_fails_its_load),
        cmocka_unit_test(test_w4_a_column_of_no_group_fails_its_load),
        cmocka_unit_test(test_w4_a_column_out_of_its_place_fails_its_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
