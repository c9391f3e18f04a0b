/* GGUF files that the format's own package has written: tests/data/gguf. */
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_sound.h"
#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

#define FILES "tests/data/gguf/"

enum { LAYERS = 3, EXPERTS = 2, HIDDEN = 32, WIDTH = 64 };

static moepage_model *open_model(const char *path)
{
    moepage_model *model = NULL;
    if (moepage_model_open(path, NULL, &model))
        fail_msg("%s", moepage_last_error());
    const char *wrong = gguf_unsound(model->gguf);
    if (wrong)
        fail_msg("%s", wrong);
    return model;
}

static void expect_bytes(const void *data, uint64_t n, const char *name, uint64_t first)
{
    for (uint64_t i = 0; i < n; i++)
        if (((const unsigned char *)data)[i] != maker_byte(name, first + i))
            fail_msg("byte %llu of %s", (unsigned long long)(first + i), name);
}

/* Blocks of Q4_0 have 18 bytes, of Q5_1 24 and of MXFP4 17, for 32 weights each. */
static void expect_experts(const moepage_model *model)
{
    static const char *const names[2][3] = {
        {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"},
        {"blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight", "blk.2.ffn_down_exps.weight"}};
    static const uint64_t blocks[2][3] = {{18, 18, 24}, {18, 18, 17}};
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t expert = 0; expert < EXPERTS; expert++)
            for (uint32_t t = 0; t < 3; t++) {
                uint64_t bytes = HIDDEN * WIDTH / 32 * blocks[layer][t];
                unsigned char read[HIDDEN * WIDTH];
                assert_int_equal(mp_model_layout(model, layer)->tensors[t].bytes, bytes);
                assert_true(bytes <= sizeof read);
                assert_int_equal(mp_model_read_piece(model, layer, expert, t, 0, bytes, read),
                                 MOEPAGE_OK);
                expect_bytes(read, bytes, names[layer][t], expert * bytes);
            }
}

static void expect_model(const moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    assert_string_equal(info->architecture, "deepseek2");
    assert_int_equal(info->layers, LAYERS);
    assert_int_equal(info->moe_layers, 2);
    assert_int_equal(model->layer_of_moe[0], 1);
    assert_int_equal(info->experts, EXPERTS);
    assert_int_equal(info->top_k, 1);
    assert_int_equal(info->hidden, HIDDEN);
    assert_int_equal(info->expert_intermediate, WIDTH);
    assert_int_equal(info->shared_experts, 1);
    assert_int_equal(info->vocabulary, 5);
    assert_int_equal(info->layouts, 2);
    assert_int_equal(model->layouts[0].tensors[2].dtype, MOEPAGE_DTYPE_Q5_1);
    assert_int_equal(model->layouts[1].tensors[2].dtype, MOEPAGE_DTYPE_MXFP4);
    expect_experts(model);
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, "token_embd.weight", &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, MOEPAGE_DTYPE_Q8_0);
    assert_int_equal(view.shape[0], 5);
    assert_int_equal(view.shape[1], HIDDEN);
    expect_bytes(view.data, view.bytes, "token_embd.weight", 0);
    assert_int_equal(moepage_model_find_tensor(model, "blk.0.ffn_up.weight", &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, MOEPAGE_DTYPE_BF16);
    assert_int_equal(view.bytes, 3 * HIDDEN * 2);
    expect_bytes(view.data, view.bytes, "blk.0.ffn_up.weight", 0);
}

static const mp_gguf_value *value_of(const moepage_model *model, const char *key)
{
    const mp_gguf_value *value = mp_gguf_metadata_find(mp_model_metadata(model), key);
    if (!value)
        fail_msg("no key %s", key);
    return value;
}

static void expect_tokens(const mp_gguf_value *tokens)
{
    static const char *const expected[] = {"<s>", "\xc4\xa0the", "", "\xff\xfe", "\xe6\x97\xa5"};
    const unsigned char *at = NULL;
    mp_gguf_text text;
    assert_int_equal(tokens->n, 5);
    for (int i = 0; i < 5; i++) {
        assert_true(mp_gguf_value_text(tokens, &at, &text));
        assert_int_equal(text.n_bytes, strlen(expected[i]));
        assert_memory_equal(text.bytes, expected[i], text.n_bytes);
    }
    assert_false(mp_gguf_value_text(tokens, &at, &text));
}

static void test_gguf_reference_is_read_as_it_was_written(void **state)
{
    (void)state;
    moepage_model *model = open_model(FILES "whole.gguf");
    expect_model(model);
    double base;
    int64_t number;
    bool truth;
    assert_true(mp_gguf_value_real(value_of(model, "deepseek2.rope.freq_base"), 0, &base));
    assert_true(base == 10000.5);
    const mp_gguf_value *largest = value_of(model, "moepage.largest");
    assert_false(mp_gguf_value_int(largest, 0, &number));
    assert_int_equal(largest->type, MP_GGUF_U64);
    assert_memory_equal(largest->at, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    assert_true(mp_gguf_value_bool(value_of(model, "tokenizer.ggml.add_bos_token"), 0, &truth));
    assert_true(truth);
    assert_true(mp_gguf_value_int(value_of(model, "tokenizer.ggml.token_type"), 4, &number));
    assert_true(number == -1);
    expect_tokens(value_of(model, "tokenizer.ggml.tokens"));
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_reference_in_parts_is_the_same_model(void **state)
{
    (void)state;
    moepage_model *model = open_model(FILES "split-00001-of-00003.gguf");
    assert_int_equal(model->gguf->n_files, 3);
    expect_model(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    assert_int_equal(moepage_model_open(FILES "split-00003-of-00003.gguf", NULL, &model),
                     MOEPAGE_E_UNSUPPORTED);
    expect_sentence("part 3 of 3|open the first, split-00001-of-00003.gguf");
}

static void test_gguf_reference_of_the_other_byte_order_is_refused(void **state)
{
    (void)state;
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open(FILES "big-endian.gguf", NULL, &model),
                     MOEPAGE_E_UNSUPPORTED);
    expect_sentence("big-endian.gguf|version 3 in big-endian order");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_reference_is_read_as_it_was_written),
        cmocka_unit_test(test_gguf_reference_in_parts_is_the_same_model),
        cmocka_unit_test(test_gguf_reference_of_the_other_byte_order_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
