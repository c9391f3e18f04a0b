/* Banks of FP8 experts: what size of block the shapes of their scales mean, and which are refused
 * to the library's kernels. */

#include "model/model.h"
#include "testing.h"

#define F8 MOEPAGE_DTYPE_F8_E4M3
#define F32 MOEPAGE_DTYPE_F32

static int32_t read_nothing(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                            uint64_t offset, uint64_t bytes, void *out)
{
    (void)user, (void)layer, (void)expert, (void)tensor, (void)offset, (void)bytes, (void)out;
    return -1;
}

typedef struct bank {
    uint32_t hidden, intermediate;
    uint32_t n;
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
} bank;

static void add(bank *b, uint32_t role, uint32_t dtype, uint64_t rows, uint64_t columns)
{
    b->tensors[b->n++] = (moepage_expert_tensor){.role = role,
                                                 .dtype = dtype,
                                                 .rank = columns ? 2 : 1,
                                                 .shape = {rows, columns}};
}

/* Gate, up and down, each with scales of so many rows and columns. */
static bank split_bank(uint32_t hidden, uint32_t intermediate, uint64_t in_rows,
                       uint64_t in_columns, uint64_t out_rows, uint64_t out_columns,
                       uint32_t scale_dtype)
{
    bank b = {.hidden = hidden, .intermediate = intermediate};
    add(&b, MOEPAGE_ROLE_DOWN, F8, hidden, intermediate);
    add(&b, MOEPAGE_ROLE_GATE, F8, intermediate, hidden);
    add(&b, MOEPAGE_ROLE_UP, F8, intermediate, hidden);
    add(&b, MOEPAGE_ROLE_UP_SCALE, scale_dtype, in_rows, in_columns);
    add(&b, MOEPAGE_ROLE_GATE_SCALE, scale_dtype, in_rows, in_columns);
    add(&b, MOEPAGE_ROLE_DOWN_SCALE, scale_dtype, out_rows, out_columns);
    return b;
}

static bank fused_bank(uint32_t hidden, uint32_t intermediate, uint64_t in_rows,
                       uint64_t in_columns, uint64_t out_rows, uint64_t out_columns)
{
    bank b = {.hidden = hidden, .intermediate = intermediate};
    add(&b, MOEPAGE_ROLE_GATE_UP, F8, 2ull * intermediate, hidden);
    add(&b, MOEPAGE_ROLE_GATE_UP_SCALE, F32, in_rows, in_columns);
    add(&b, MOEPAGE_ROLE_DOWN, F8, hidden, intermediate);
    add(&b, MOEPAGE_ROLE_DOWN_SCALE, F32, out_rows, out_columns);
    return b;
}

static moepage_model *open_bank(const bank *b)
{
    moepage_banks banks = {
        .struct_size = sizeof banks,
        .moe_layers = 1,
        .experts = 2,
        .top_k = 1,
        .hidden = b->hidden,
        .expert_intermediate = b->intermediate,
        .n_tensors = b->n,
        .tensors = b->tensors,
        .read = read_nothing,
    };
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    return model;
}

static void expect_block(bank b, uint32_t dtype, uint32_t rows, uint32_t columns)
{
    moepage_model *model = open_bank(&b);
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(mp_ffn_dtype(&model->layouts[0].ffn), F8);
    assert_int_equal(model->layouts[0].ffn.scale.dtype, dtype);
    assert_int_equal(model->layouts[0].ffn.scale.rows, rows);
    assert_int_equal(model->layouts[0].ffn.scale.columns, columns);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void expect_unsupported(bank b)
{
    moepage_model *model = open_bank(&b);
    assert_int_equal(model->info.ffn_supported, 0);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- What is deduced ---- */

static void test_block_scales_of_published_models_are_128_square(void **state)
{
    (void)state;
    expect_block(split_bank(7168, 2048, 16, 56, 56, 16, F32), F32, 128, 128); /* DeepSeek-V3 */
    expect_block(split_bank(3072, 1536, 12, 24, 24, 12, F32), F32, 128, 128); /* MiniMax-M2 */
    expect_block(split_bank(2048, 768, 6, 16, 16, 6, MOEPAGE_DTYPE_BF16), MOEPAGE_DTYPE_BF16, 128,
                 128); /* Qwen3-30B-A3B */
    expect_block(fused_bank(7168, 2048, 32, 56, 56, 16), F32, 128, 128);
}

static void test_block_scales_are_powers_of_two(void **state)
{
    (void)state;
    expect_block(split_bank(300, 200, 13, 10, 19, 7, F32), F32, 16, 32);
    expect_block(split_bank(300, 200, 200, 300, 300, 200, F32), F32, 1, 1);
    expect_block(split_bank(300, 200, 1, 2, 1, 1, F32), F32, 512, 256);
    expect_block(split_bank(300, 200, 200, 1, 300, 1, F32), F32, 1, 512); /* a scale per row */
    /* One block covers all: of those that do, the usual one. */
    expect_block(split_bank(100, 64, 1, 1, 1, 1, F32), F32, 128, 128);
}

static void test_block_scales_lie_where_their_tensors_do(void **state)
{
    (void)state;
    bank b = split_bank(256, 128, 1, 2, 2, 1, F32);
    moepage_model *model = open_bank(&b);
    assert_int_equal(model->layouts[0].ffn.up_scale, model->layouts[0].tensors[3].offset);
    assert_int_equal(model->layouts[0].ffn.gate_scale, model->layouts[0].tensors[4].offset);
    assert_int_equal(model->layouts[0].ffn.down_scale, model->layouts[0].tensors[5].offset);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    bank fused = fused_bank(256, 128, 2, 2, 2, 1);
    model = open_bank(&fused);
    assert_int_equal(model->layouts[0].ffn.gate_scale, model->layouts[0].tensors[1].offset);
    assert_int_equal(model->layouts[0].ffn.up_scale,
                     model->layouts[0].tensors[1].offset + 2 * sizeof(float));
    assert_int_equal(model->layouts[0].ffn.down_scale, model->layouts[0].tensors[3].offset);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- What is not ---- */

static void test_block_scales_of_no_block_size_are_left_to_the_caller(void **state)
{
    (void)state;
    expect_unsupported(split_bank(300, 200, 13, 10, 18, 7, F32));    /* 300 rows make 19 of 16 */
    expect_unsupported(split_bank(300, 200, 12, 10, 19, 7, F32));    /* 200 rows make 13 of 16 */
    expect_unsupported(split_bank(300, 200, 13, 10, 19, 6, F32));    /* 200 columns make 7 of 32 */
    expect_unsupported(split_bank(300, 200, 13, 11, 19, 7, F32));    /* 300 columns make 10 of 32 */
    expect_unsupported(split_bank(300, 200, 67, 100, 100, 67, F32)); /* 3 x 3 */
    bank ranks = split_bank(300, 200, 1, 0, 1, 0, F32);
    expect_unsupported(ranks);
}

/* 96 rows of gate and 96 of up have two scales: one each, or of 128 and 64 rows. */
static void test_block_scales_that_could_straddle_gate_and_up_are_not_guessed(void **state)
{
    (void)state;
    expect_unsupported(fused_bank(128, 96, 2, 1, 1, 1));
    expect_block(split_bank(128, 96, 1, 1, 1, 1, F32), F32, 128, 128);
    expect_unsupported(fused_bank(128, 192, 3, 1, 1, 2)); /* 384 / 128: up begins amid the second */
    expect_block(fused_bank(64, 64, 2, 1, 1, 1), F32, 64, 128);
}

static void test_block_scales_must_be_there_and_of_one_known_type(void **state)
{
    (void)state;
    expect_unsupported(split_bank(128, 128, 1, 1, 1, 1, MOEPAGE_DTYPE_F16));
    expect_unsupported(split_bank(128, 128, 1, 1, 1, 1, MOEPAGE_DTYPE_F8_E8M0));
    bank mixed = split_bank(128, 128, 1, 1, 1, 1, F32);
    mixed.tensors[4].dtype = MOEPAGE_DTYPE_BF16;
    expect_unsupported(mixed);
    for (uint32_t left_out = 3; left_out < 6; left_out++) {
        bank b = split_bank(128, 128, 1, 1, 1, 1, F32);
        b.tensors[left_out] = b.tensors[--b.n];
        expect_unsupported(b);
    }
    bank none = split_bank(128, 128, 1, 1, 1, 1, F32);
    none.n = 3;
    expect_unsupported(none);
}

static void test_block_scales_belong_to_e4m3_without_biases(void **state)
{
    (void)state;
    bank biased = split_bank(128, 128, 1, 1, 1, 1, F32);
    add(&biased, MOEPAGE_ROLE_DOWN_BIAS, F8, 128, 0);
    expect_unsupported(biased);
    const uint32_t others[] = {MOEPAGE_DTYPE_F8_E5M2, MOEPAGE_DTYPE_BF16, F32, MOEPAGE_DTYPE_I8};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bank b = split_bank(128, 128, 1, 1, 1, 1, F32);
        for (uint32_t t = 0; t < 3; t++)
            b.tensors[t].dtype = others[i];
        moepage_model *model = open_bank(&b);
        assert_int_equal(model->info.ffn_supported, 0);
        assert_int_equal(model->layouts[0].ffn.scale.dtype, MOEPAGE_DTYPE_NONE);
        assert_int_equal(model->layouts[0].ffn.scale.rows, 0);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_scales_of_published_models_are_128_square),
        cmocka_unit_test(test_block_scales_are_powers_of_two),
        cmocka_unit_test(test_block_scales_lie_where_their_tensors_do),
        cmocka_unit_test(test_block_scales_of_no_block_size_are_left_to_the_caller),
        cmocka_unit_test(test_block_scales_that_could_straddle_gate_and_up_are_not_guessed),
        cmocka_unit_test(test_block_scales_must_be_there_and_of_one_known_type),
        cmocka_unit_test(test_block_scales_belong_to_e4m3_without_biases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
