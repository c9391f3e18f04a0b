/* config.json: what it means, and every way in which it can be wrong. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

static moe_maker maker;

static int make(void **state)
{
    (void)state;
    moe_maker_init(&maker);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    moe_maker_free(&maker);
    return 0;
}

static const struct {
    const char *from, *to;
    moepage_status status;
    const char *words;
} bad_configs[] = {
    {"{\"model_type\"", "[\"model_type\"", MOEPAGE_E_FORMAT, "not valid JSON"},
    {"\"silu\", ", "\"silu\", \"num_experts\": 4, ", MOEPAGE_E_FORMAT, "duplicate"},
    {"\"qwen3_moe\"", "\"llama\"", MOEPAGE_E_UNSUPPORTED,
     "\"llama\"|qwen3_moe|qwen2_moe|mixtral|olmoe|phimoe|deepseek_v2|deepseek_v3|glm4_moe|minimax_"
     "m2|"
     "gpt_oss"},
    {"\"qwen3_moe\"", "7", MOEPAGE_E_FORMAT, "model_type|7|string"},
    {"\"model_type\"", "\"model_tipe\"", MOEPAGE_E_FORMAT, "model_type|missing"},
    {"\"num_experts\": 4", "\"num_experts\": 0", MOEPAGE_E_FORMAT, "num_experts|is 0|from 1"},
    {"\"num_experts\": 4", "\"num_experts\": -4", MOEPAGE_E_FORMAT, "num_experts|is -4"},
    {"\"num_experts\": 4", "\"num_experts\": 4.0", MOEPAGE_E_FORMAT, "num_experts|is 4.0"},
    {"\"num_experts\": 4", "\"num_experts\": \"4\"", MOEPAGE_E_FORMAT, "num_experts|is \"4\""},
    {"\"num_experts\": 4", "\"num_experts\": null", MOEPAGE_E_FORMAT, "num_experts|is null"},
    {"\"num_experts\": 4, ", "", MOEPAGE_E_FORMAT, "num_experts|missing"},
    {"\"num_experts\": 4", "\"num_experts\": 4294967300", MOEPAGE_E_FORMAT, "4294967300"},
    {"\"num_experts\": 4", "\"num_experts\": 65536", MOEPAGE_E_FORMAT,
     "model.layers.0.mlp.gate.weight|[4, 8]|[65536, 8]"},
    {"\"num_experts\": 4", "\"num_experts\": 3", MOEPAGE_E_FORMAT,
     "model.layers.0.mlp.gate.weight|[4, 8]|[3, 8]"},
    {"per_tok\": 2", "per_tok\": 5", MOEPAGE_E_FORMAT, "num_experts_per_tok|is 5|4 experts"},
    {"per_tok\": 2", "per_tok\": 0", MOEPAGE_E_FORMAT, "num_experts_per_tok|is 0"},
    {"hidden_layers\": 2", "hidden_layers\": 0", MOEPAGE_E_FORMAT, "num_hidden_layers|is 0"},
    {"hidden_layers\": 2", "hidden_layers\": 3", MOEPAGE_E_NOT_FOUND,
     "model.layers.2.mlp.gate.weight"},
    {"hidden_layers\": 2", "hidden_layers\": 4000000000", MOEPAGE_E_FORMAT, "4000000000"},
    {"\"hidden_size\": 8", "\"hidden_size\": 16", MOEPAGE_E_FORMAT, "gate.weight|[4, 8]|[4, 16]"},
    {"\"hidden_size\": 8", "\"hidden_size\": 9223372036854775807", MOEPAGE_E_FORMAT,
     "hidden_size|9223372036854775807"},
    {"\"moe_intermediate_size\": 4", "\"moe_intermediate_size\": 5", MOEPAGE_E_FORMAT,
     "experts.0.gate_proj.weight|[4, 8]|[5, 8]"},
    {"\"vocab_size\": 16", "\"vocab_size\": -1", MOEPAGE_E_FORMAT, "vocab_size|is -1"},
    {"sparse_step\": 1", "sparse_step\": 0", MOEPAGE_E_FORMAT, "decoder_sparse_step|is 0"},
    {"sparse_step\": 1", "sparse_step\": 3", MOEPAGE_E_FORMAT, "none of its 2 layers"},
    {"sparse_step\": 1", "sparse_step\": 2", MOEPAGE_E_FORMAT,
     "model.layers.0.mlp.experts.|not part of any routed expert"},
    {"layers\": []", "layers\": [0]", MOEPAGE_E_FORMAT, "model.layers.0.mlp.experts."},
    {"layers\": []", "layers\": [2]", MOEPAGE_E_FORMAT, "mlp_only_layers|is 2|from 0 to 1"},
    {"layers\": []", "layers\": [-1]", MOEPAGE_E_FORMAT, "mlp_only_layers|is -1"},
    {"layers\": []", "layers\": {}", MOEPAGE_E_FORMAT, "mlp_only_layers|array"},
    {"\"silu\"", "3", MOEPAGE_E_FORMAT, "hidden_act|string"},
    {"\"silu\"", "\"silu\", \"quantization_config\": {}", MOEPAGE_E_FORMAT, "quant_method"},
    {"\"silu\"", "\"silu\", \"quantization_config\": {\"quant_method\": \"hqq\"}",
     MOEPAGE_E_UNSUPPORTED, "\"hqq\"|fp8|mxfp4|gptq"},
    {"\"silu\"",
     "\"silu\", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null}",
     MOEPAGE_E_UNSUPPORTED, "weight_block_size"},
    {"\"silu\"",
     "\"silu\", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [1]}",
     MOEPAGE_E_FORMAT, "weight_block_size"},
    {"\"silu\"",
     "\"silu\", \"quantization_config\": {\"quant_method\": \"fp8\", "
     "\"weight_block_size\": [1, 0]}",
     MOEPAGE_E_FORMAT, "weight_block_size|is 0"},
};

static void test_model_open_refuses_every_bad_config_by_key_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        char good[sizeof maker.config];
        memcpy(good, maker.config, sizeof good);
        moe_maker_replace(&maker, bad_configs[i].from, bad_configs[i].to);
        moe_maker_write(&maker);
        moe_expect_refusal(&maker, bad_configs[i].status, bad_configs[i].words);
        memcpy(maker.config, good, sizeof good);
    }
    moe_maker_write(&maker);
    moe_expect_whole(&maker);
}

static void test_model_open_refuses_an_empty_or_huge_config(void **state)
{
    (void)state;
    moe_maker_write(&maker);
    maker_write_text(maker.dir, "config.json", "");
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "config.json|not valid JSON");
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", maker.dir);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, "config.json|1099511627776 bytes");
}

static void test_model_config_defaults_are_the_formats(void **state)
{
    (void)state;
    moe_maker_replace(&maker,
                      ", \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], "
                      "\"hidden_act\": \"silu\", \"torch_dtype\": \"float32\"",
                      ", \"mlp_only_layers\": null");
    moe_maker_replace(&maker, "\"num_experts\"", "\"num_local_experts\"");
    moe_maker_replace(&maker, ", \"vocab_size\": 16", "");
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.experts, 4);
    assert_int_equal(info.vocabulary, 0);
    assert_int_equal(info.ffn_supported, 1);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_model_with_another_activation_is_paged_but_not_run(void **state)
{
    (void)state;
    moe_maker_replace(&maker, "\"silu\"", "\"gelu\"");
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    assert_int_equal(model->info.ffn_supported, 0);
    assert_int_equal(model->info.activation, MOEPAGE_ACTIVATION_OTHER);
    assert_int_equal(model->layouts[0].ffn.supported, 0);
    moe_expect_expert(model, 0, 0);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_model_open_refuses_every_bad_config_by_key_and_value),
        CASE(test_model_open_refuses_an_empty_or_huge_config),
        CASE(test_model_config_defaults_are_the_formats),
        CASE(test_model_with_another_activation_is_paged_but_not_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
