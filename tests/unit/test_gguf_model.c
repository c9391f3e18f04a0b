/* GGUF files as models: the numbers that the metadata comes to, experts byte for byte as they were
 * written, and refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "gguf_moe.h"
#include "model/gates.h"
#include "model/gguf.h"
#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

static char dir[64];
static gguf_writer writer;
static gguf_moe usual;

static int make(void **state)
{
    (void)state;
    maker_dir_create(dir);
    gguf_init(&writer);
    usual = gguf_moe_usual();
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    gguf_free(&writer);
    maker_dir_remove(dir);
    return 0;
}

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

static moepage_status open_named(const char *name, moepage_model **out)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = NULL;
    return moepage_model_open(path, NULL, out);
}

static moepage_model *write_and_open(void)
{
    moepage_model *model;
    gguf_write(&writer, dir, "m.gguf");
    if (open_named("m.gguf", &model))
        fail_msg("not opened: %s", moepage_last_error());
    return model;
}

static void expect_refusal(moepage_status status, const char *words)
{
    moepage_model *model;
    gguf_write(&writer, dir, "m.gguf");
    moepage_status found = open_named("m.gguf", &model);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    assert_null(model);
    expect_sentence(words);
    expect_sentence("m.gguf");
    expect_sentence(dir);
}

/* ---- Experts ---- */

static const char *part_of_role(uint32_t role)
{
    switch (role) {
    case MOEPAGE_ROLE_GATE_UP: return "gate_up_exps.weight";
    case MOEPAGE_ROLE_GATE: return "gate_exps.weight";
    case MOEPAGE_ROLE_UP: return "up_exps.weight";
    case MOEPAGE_ROLE_DOWN: return "down_exps.weight";
    case MOEPAGE_ROLE_GATE_UP_BIAS: return "gate_up_exps.bias";
    case MOEPAGE_ROLE_GATE_BIAS: return "gate_exps.bias";
    case MOEPAGE_ROLE_UP_BIAS: return "up_exps.bias";
    case MOEPAGE_ROLE_DOWN_BIAS: return "down_exps.bias";
    }
    fail_msg("role %u", role);
    return NULL;
}

static gguf_made *made_of_role(uint32_t layer, uint32_t role)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.ffn_%s", layer, part_of_role(role));
    return gguf_made_of(&writer, name);
}

/* Reads the expert as an image and compares each tensor in it with the writer's bytes. */
static void expect_expert(const moepage_model *model, uint32_t moe_layer, uint32_t expert)
{
    const mp_layout *layout = mp_model_layout(model, moe_layer);
    uint64_t room = mp_model_image_room(model, MOEPAGE_FORM_DENSE), n = 0, bytes = 0;
    unsigned char *image = malloc(room);
    assert_int_equal(mp_model_read_image(model, moe_layer, expert, MOEPAGE_FORM_DENSE, image, room,
                                         &bytes),
                     MOEPAGE_OK);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const moepage_expert_tensor *tensor = &layout->tensors[t];
        const gguf_made *made =
            made_of_role((uint32_t)model->layer_of_moe[moe_layer], tensor->role);
        uint64_t size = made->bytes / GM_EXPERTS;
        assert_int_equal(tensor->bytes, size);
        assert_true(tensor->offset + size <= layout->slot_bytes);
        assert_memory_equal(image + tensor->offset, made->data + expert * size, size);
        assert_int_equal(tensor->rank, made->rank - 1);
        for (uint32_t d = 0; d < tensor->rank; d++)
            assert_int_equal(tensor->shape[d], made->shape[tensor->rank - 1 - d]);
        n += size;
    }
    assert_int_equal(bytes, n);
    assert_int_equal(layout->expert_bytes, n);
    free(image);
}

static void expect_experts(const moepage_model *model)
{
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < model->info.experts; expert++)
            expect_expert(model, layer, expert);
}

static void test_gguf_model_has_every_expert_as_it_was_written(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, dtype;
    } types[] = {
        {GGML_F32, MOEPAGE_DTYPE_F32},   {GGML_F16, MOEPAGE_DTYPE_F16},
        {GGML_BF16, MOEPAGE_DTYPE_BF16}, {GGML_Q4_0, MOEPAGE_DTYPE_Q4_0},
        {GGML_Q5_1, MOEPAGE_DTYPE_Q5_1}, {GGML_Q8_0, MOEPAGE_DTYPE_Q8_0},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        gguf_free(&writer);
        usual.type = types[i].type;
        gguf_moe_make(&writer, &usual);
        moepage_model *model = write_and_open();
        const moepage_model_info *info = &model->info;
        assert_string_equal(info->architecture, "qwen3moe");
        assert_int_equal(info->layers, GM_LAYERS);
        assert_int_equal(info->moe_layers, GM_LAYERS);
        assert_int_equal(info->experts, GM_EXPERTS);
        assert_int_equal(info->top_k, GM_TOP_K);
        assert_int_equal(info->hidden, GM_HIDDEN);
        assert_int_equal(info->expert_intermediate, GM_WIDTH);
        assert_int_equal(info->vocabulary, GM_TOKENS);
        assert_int_equal(info->shared_experts, 0);
        assert_int_equal(info->expert_tensors, 3);
        assert_int_equal(model->n_layouts, 1);
        assert_int_equal(model->layouts[0].tensors[2].dtype, types[i].dtype);
        assert_int_equal(model->info.activation, MOEPAGE_ACTIVATION_SWIGLU);
        uint64_t bytes = 3 * gguf_type_bytes(types[i].type, GM_HIDDEN * GM_WIDTH);
        assert_int_equal(info->expert_bytes, bytes);
        assert_int_equal(info->routed_bytes, GM_LAYERS * GM_EXPERTS * bytes);
        expect_experts(model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

/* As a mixture of one writer: more bits for some layers' down, and one layer in which all differ. */
static void test_gguf_model_has_a_layout_for_each_mixture_of_types(void **state)
{
    (void)state;
    usual.type = GGML_Q4_0;
    usual.layers = 5;
    gguf_moe_make(&writer, &usual);
    gguf_moe_retype(&writer, 0, "down", GGML_Q8_0);
    gguf_moe_retype(&writer, 2, "gate", GGML_F32);
    gguf_moe_retype(&writer, 2, "up", GGML_Q5_1);
    gguf_moe_retype(&writer, 2, "down", GGML_MXFP4);
    gguf_moe_retype(&writer, 4, "down", GGML_Q8_0);
    moepage_model *model = write_and_open();
    static const uint8_t expected[] = {0, 1, 2, 1, 0};
    const uint64_t weights = GM_HIDDEN * GM_WIDTH;
    uint64_t sizes[] = {
        2 * gguf_type_bytes(GGML_Q4_0, weights) + gguf_type_bytes(GGML_Q8_0, weights),
        3 * gguf_type_bytes(GGML_Q4_0, weights),
        gguf_type_bytes(GGML_F32, weights) + gguf_type_bytes(GGML_Q5_1, weights) +
            gguf_type_bytes(GGML_MXFP4, weights),
    };
    assert_int_equal(model->n_layouts, 3);
    for (uint32_t l = 0; l < 3; l++)
        assert_int_equal(model->layouts[l].expert_bytes, sizes[l]);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(model->layout_of[i], expected[i]);
    assert_int_equal(model->info.expert_bytes, sizes[2]);
    assert_int_equal(model->info.routed_bytes,
                     GM_EXPERTS * (2 * sizes[0] + 2 * sizes[1] + sizes[2]));
    moepage_form_info form = {.struct_size = sizeof form};
    uint64_t slots = 0;
    for (uint32_t i = 0; i < 5; i++)
        slots += GM_EXPERTS * model->layouts[expected[i]].slot_bytes;
    assert_int_equal(moepage_model_get_form(model, MOEPAGE_FORM_DENSE, &form), MOEPAGE_OK);
    assert_int_equal(form.image_bytes, slots);
    expect_experts(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_refuses_more_mixtures_than_it_has_layouts_for(void **state)
{
    (void)state;
    static const uint32_t types[] = {GGML_Q4_0, GGML_Q5_1, GGML_Q8_0, GGML_MXFP4};
    usual.type = GGML_Q4_0;
    usual.layers = MP_MAX_LAYOUTS;
    gguf_moe_make(&writer, &usual);
    for (uint32_t i = 0; i < usual.layers; i++) {
        gguf_moe_retype(&writer, i, "gate", types[i % 4]);
        gguf_moe_retype(&writer, i, "up", types[i / 4 % 4]);
        gguf_moe_retype(&writer, i, "down", types[i / 16 % 4]);
    }
    moepage_model *model = write_and_open();
    assert_int_equal(model->n_layouts, MP_MAX_LAYOUTS);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_free(&writer);
    usual.layers++;
    gguf_moe_make(&writer, &usual);
    for (uint32_t i = 0; i < usual.layers; i++) {
        gguf_moe_retype(&writer, i, "gate", types[i % 4]);
        gguf_moe_retype(&writer, i, "up", types[i / 4 % 4]);
        gguf_moe_retype(&writer, i, "down", types[i / 16 % 4]);
    }
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "more than 32 ways");
}

static void test_gguf_model_reads_experts_with_gate_and_up_in_one_tensor(void **state)
{
    (void)state;
    usual.fused = true;
    gguf_moe_make(&writer, &usual);
    moepage_model *model = write_and_open();
    const moepage_expert_tensor *tensor = model->layouts[0].tensors;
    assert_int_equal(model->info.expert_tensors, 2);
    assert_int_equal(tensor[0].role, MOEPAGE_ROLE_GATE_UP);
    assert_int_equal(tensor[0].shape[0], 2 * GM_WIDTH);
    assert_int_equal(tensor[0].shape[1], GM_HIDDEN);
    assert_int_equal(tensor[1].role, MOEPAGE_ROLE_DOWN);
    expect_experts(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_reads_biases(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        gguf_free(&writer);
        gguf_moe gpt = usual;
        gpt.architecture = "gpt-oss";
        gpt.type = GGML_MXFP4;
        gpt.fused = fused;
        gpt.biases = true;
        gguf_moe_make(&writer, &gpt);
        moepage_model *model = write_and_open();
        assert_int_equal(model->info.expert_tensors, fused ? 4 : 6);
        assert_int_equal(model->layouts[0].tensors[0].dtype, MOEPAGE_DTYPE_MXFP4);
        assert_int_equal(model->info.activation, MOEPAGE_ACTIVATION_SWIGLU_CLAMPED);
        assert_true(model->info.activation_alpha == 1.702f && model->info.activation_limit == 7.0f);
        assert_int_equal(model->info.ffn_supported, 1);
        expect_experts(model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

static void test_gguf_model_of_every_architecture_opens(void **state)
{
    (void)state;
    static const struct {
        const char *name, *width_key;
        uint32_t activation;
    } known[] = {
        {"qwen3moe", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"qwen2moe", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"olmoe", "feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"llama", "feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"phimoe", "feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"deepseek2", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"glm4moe", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"minimax-m2", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU},
        {"gpt-oss", "expert_feed_forward_length", MOEPAGE_ACTIVATION_SWIGLU_CLAMPED},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        gguf_free(&writer);
        usual.architecture = known[i].name;
        usual.width_key = known[i].width_key;
        usual.type = GGML_F32;
        gguf_moe_make(&writer, &usual);
        moepage_model *model = write_and_open();
        assert_string_equal(model->info.architecture, known[i].name);
        assert_int_equal(model->info.activation, known[i].activation);
        assert_int_equal(model->info.ffn_supported, 1);
        expect_experts(model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

/* ---- Counts ---- */

static void test_gguf_model_knows_layers_without_experts(void **state)
{
    (void)state;
    usual.architecture = "deepseek2";
    usual.dense = 2;
    gguf_moe_make(&writer, &usual);
    gguf_u32(&writer, "deepseek2.expert_shared_count", 3);
    moepage_model *model = write_and_open();
    assert_int_equal(model->info.layers, 2 + GM_LAYERS);
    assert_int_equal(model->info.moe_layers, GM_LAYERS);
    assert_int_equal(model->info.shared_experts, 3);
    for (uint32_t i = 0; i < GM_LAYERS; i++)
        assert_int_equal(moepage_model_layer_index(model, i), 2 + i);
    expect_experts(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* The last layer predicts a further token: its experts are tensors like others. */
static void test_gguf_model_leaves_out_layers_that_predict_further_tokens(void **state)
{
    (void)state;
    usual.architecture = "glm4moe";
    gguf_moe_make(&writer, &usual);
    gguf_u32(&writer, "glm4moe.nextn_predict_layers", 1);
    moepage_model *model = write_and_open();
    assert_int_equal(model->info.layers, GM_LAYERS - 1);
    assert_int_equal(model->info.moe_layers, GM_LAYERS - 1);
    expect_experts(model);
    mp_dense_tensor tensor;
    bool found = false;
    for (uint64_t i = 0; mp_model_dense_at(model, i, &tensor); i++)
        found |= strcmp(tensor.name, "blk.2.ffn_down_exps.weight") == 0;
    assert_true(found);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_takes_the_vocabulary_from_the_tokens(void **state)
{
    (void)state;
    gguf_moe_make(&writer, &usual);
    gguf_u32(&writer, "qwen3moe.vocab_size", 1000);
    moepage_model *model = write_and_open();
    assert_int_equal(model->info.vocabulary, GM_TOKENS);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_clear_values(&writer);
    gguf_moe_values(&writer, &usual, NULL);
    /* The key's last letter: the tokens are then under another name. */
    for (size_t i = 0; i + 6 < writer.values.n; i++)
        if (memcmp(writer.values.at + i, "tokens", 6) == 0)
            writer.values.at[i + 5] = 'z';
    gguf_u32(&writer, "qwen3moe.vocab_size", 1000);
    model = write_and_open();
    assert_int_equal(model->info.vocabulary, 1000);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_finds_a_shared_expert_by_its_tensor(void **state)
{
    (void)state;
    usual.architecture = "qwen2moe";
    gguf_moe_make(&writer, &usual);
    gguf_tensor(&writer, GGML_F16, 2, SHAPE(GM_HIDDEN, 48), "blk.0.ffn_up_shexp.weight");
    moepage_model *model = write_and_open();
    assert_int_equal(model->info.shared_experts, 1);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- Everything else ---- */

static void test_gguf_model_shows_dense_tensors_in_order_rows_first(void **state)
{
    (void)state;
    gguf_moe_make(&writer, &usual);
    gguf_tensor(&writer, GGML_F64, 1, SHAPE(3), "a.double");
    gguf_tensor(&writer, GGML_UNKNOWN, 1, SHAPE(64), "a.new");
    gguf_tensor(&writer, GGML_BF16, 4, SHAPE(2, 3, 4, 5), "a.deep");
    moepage_model *model = write_and_open();
    uint64_t n = 0, bytes = 0;
    char before[128] = "";
    mp_dense_tensor tensor;
    for (; mp_model_dense_at(model, n, &tensor); n++) {
        const gguf_made *made = gguf_made_of(&writer, tensor.name);
        assert_true(strcmp(before, tensor.name) < 0);
        assert_null(strstr(tensor.name, "_exps"));
        assert_int_equal(tensor.bytes, made->bytes);
        unsigned char *read = malloc(tensor.bytes);
        assert_non_null(read);
        assert_int_equal(mp_dense_read(&tensor, read), MOEPAGE_OK);
        assert_memory_equal(read, made->data, made->bytes);
        free(read);
        snprintf(before, sizeof before, "%s", tensor.name);
        bytes += made->bytes;
    }
    assert_int_equal(n, writer.n_tensors - 3 * GM_LAYERS);
    assert_int_equal(model->info.dense_bytes, bytes);

    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, "token_embd.weight", &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, MOEPAGE_DTYPE_Q8_0);
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.shape[0], GM_TOKENS);
    assert_int_equal(view.shape[1], GM_HIDDEN);
    assert_int_equal(moepage_model_find_tensor(model, "a.deep", &view), MOEPAGE_OK);
    assert_memory_equal(view.shape, SHAPE(5, 4, 3, 2), sizeof view.shape);
    /* Routed ones are found as well. */
    assert_int_equal(moepage_model_find_tensor(model, "blk.1.ffn_up_exps.weight", &view),
                     MOEPAGE_OK);
    assert_memory_equal(view.shape, SHAPE(GM_EXPERTS, GM_WIDTH, GM_HIDDEN, 0), sizeof view.shape);
    assert_int_equal(view.bytes, made_of_role(1, MOEPAGE_ROLE_UP)->bytes);
    assert_memory_equal(view.data, made_of_role(1, MOEPAGE_ROLE_UP)->data, view.bytes);
    assert_int_equal(moepage_model_find_tensor(model, "absent", &view), MOEPAGE_E_NOT_FOUND);
    expect_sentence("m.gguf|\"absent\"");
    assert_int_equal(moepage_model_find_tensor(model, "a.double", &view), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("m.gguf|\"a.double\"|type 28");
    assert_int_equal(moepage_model_find_tensor(model, "a.new", &view), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("\"a.new\"|type 9999");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_keeps_its_metadata(void **state)
{
    (void)state;
    gguf_moe_make(&writer, &usual);
    gguf_f32(&writer, "qwen3moe.rope.freq_base", 1e6f);
    moepage_model *model = write_and_open();
    assert_null(moepage_model_config_json(model));
    const mp_gguf_metadata *metadata = mp_model_metadata(model);
    assert_non_null(metadata);
    const mp_gguf_value *value = mp_gguf_metadata_find(metadata, "qwen3moe.rope.freq_base");
    double base = 0;
    assert_non_null(value);
    assert_true(mp_gguf_value_real(value, 0, &base) && base == 1e6);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker maker;
    moe_maker_init(&maker);
    moe_maker_write(&maker);
    model = moe_expect_open(&maker);
    assert_null(mp_model_metadata(model));
    uint64_t count;
    assert_int_equal(moepage_model_get_metadata(model, "general.architecture", 0, NULL, 0, &count),
                     MOEPAGE_E_NOT_FOUND);
    expect_sentence("only GGUF");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

/* One value that must be there, and the only one under its key. */
static moepage_metadata value_of(const moepage_model *model, const char *key)
{
    moepage_metadata value;
    uint64_t count = 99;
    memset(&value, 0x55, sizeof value);
    if (moepage_model_get_metadata(model, key, 0, &value, 1, &count))
        fail_msg("%s: %s", key, moepage_last_error());
    assert_int_equal(count, 1);
    assert_int_equal(value.is_array, 0);
    return value;
}

static void add_values(void)
{
    gguf_moe_make(&writer, &usual);
    gguf_f32(&writer, "a.real", -0.25f);
    gguf_bool(&writer, "a.truth", true);
    gguf_u16(&writer, "a.short", 65535);
    gguf_key(&writer, "a.negative", W_I8);
    gguf_append_uint(&writer.values, 0xfe, 1);
    gguf_text(&writer, "a.text", "four");
    gguf_key(&writer, "a.huge", W_U64);
    gguf_append_uint(&writer.values, UINT64_MAX / 2 + 1, 8);
    gguf_array(&writer, "a.texts", W_TEXT, 4);
    static const char *const texts[] = {"one", "", "three", "x"};
    for (int i = 0; i < 4; i++)
        gguf_append_text(&writer.values, texts[i]);
    gguf_array(&writer, "a.numbers", W_I16, 3);
    for (int i = 0; i < 3; i++)
        gguf_append_uint(&writer.values, (uint64_t)(7 - 9 * i), 2); /* 7, -2, -11 */
    gguf_array(&writer, "a.none", W_F32, 0);
}

static void test_gguf_model_gives_metadata_by_key(void **state)
{
    (void)state;
    add_values();
    moepage_model *model = write_and_open();
    moepage_metadata value = value_of(model, "a.real");
    assert_int_equal(value.type, MOEPAGE_METADATA_REAL);
    assert_true(value.real == -0.25 && !value.integer && !value.text);
    value = value_of(model, "a.truth");
    assert_int_equal(value.type, MOEPAGE_METADATA_TRUTH);
    assert_int_equal(value.integer, 1);
    value = value_of(model, "a.short");
    assert_int_equal(value.type, MOEPAGE_METADATA_INTEGER);
    assert_int_equal(value.integer, 65535);
    assert_true(value_of(model, "a.negative").integer == -2);
    value = value_of(model, "a.text");
    assert_int_equal(value.type, MOEPAGE_METADATA_TEXT);
    assert_int_equal(value.text_bytes, 4);
    assert_memory_equal(value.text, "four", 4);
    assert_true(value_of(model, "qwen3moe.block_count").integer == GM_LAYERS);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_gives_arrays_from_any_element(void **state)
{
    (void)state;
    add_values();
    moepage_model *model = write_and_open();
    moepage_metadata values[5];
    uint64_t count = 0;
    memset(values, 0x55, sizeof values);
    assert_int_equal(moepage_model_get_metadata(model, "a.texts", 1, values, 2, &count),
                     MOEPAGE_OK);
    assert_int_equal(count, 4);
    assert_int_equal(values[0].is_array, 1);
    assert_int_equal(values[0].text_bytes, 0);
    assert_int_equal(values[1].text_bytes, 5);
    assert_memory_equal(values[1].text, "three", 5);
    assert_int_equal(values[2].type, 0x55555555); /* past the capacity */
    assert_int_equal(moepage_model_get_metadata(model, "a.numbers", 1, values, 5, &count),
                     MOEPAGE_OK);
    assert_int_equal(count, 3);
    assert_true(values[0].integer == -2 && values[1].integer == -11);
    assert_int_equal(values[2].type, 0x55555555);
    assert_int_equal(moepage_model_get_metadata(model, "a.none", 0, NULL, 0, &count), MOEPAGE_OK);
    assert_int_equal(count, 0);
    assert_int_equal(moepage_model_get_metadata(model, "a.texts", 4, values, 1, &count),
                     MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_gguf_model_refuses_metadata_that_is_not_there(void **state)
{
    (void)state;
    add_values();
    moepage_model *model = write_and_open();
    moepage_metadata value;
    uint64_t count = 99;
    assert_int_equal(moepage_model_get_metadata(model, "a.tex", 0, &value, 1, &count),
                     MOEPAGE_E_NOT_FOUND);
    expect_sentence("\"a.tex\"");
    assert_int_equal(moepage_model_get_metadata(model, "a.texts", 5, &value, 1, &count),
                     MOEPAGE_E_ARGUMENT);
    expect_sentence("first is 5|4 elements");
    assert_int_equal(moepage_model_get_metadata(model, "a.huge", 0, &value, 1, &count),
                     MOEPAGE_E_UNSUPPORTED);
    expect_sentence("\"a.huge\"");
    assert_int_equal(moepage_model_get_metadata(model, NULL, 0, &value, 1, &count),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_metadata(model, "a.text", 0, NULL, 1, &count),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_metadata(model, "a.text", 0, &value, 1, NULL),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_get_metadata(NULL, "a.text", 0, &value, 1, &count),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(count, 99);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Some architectures are named in GGUF files as in checkpoints; their tensors are not. */
static void test_gguf_model_gives_routers_of_every_architecture(void **state)
{
    (void)state;
    static const char *const architectures[] = {"olmoe", "phimoe"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        gguf_moe of = usual;
        of.architecture = architectures[i];
        of.width_key = "feed_forward_length";
        gguf_free(&writer);
        gguf_moe_make(&writer, &of);
        moepage_model *model = write_and_open();
        mp_gates gates;
        assert_int_equal(mp_gates_open(model, &gates), MOEPAGE_OK);
        assert_memory_equal(gates.weights[0],
                            gguf_made_of(&writer, "blk.0.ffn_gate_inp.weight")->data,
                            gguf_made_of(&writer, "blk.0.ffn_gate_inp.weight")->bytes);
        mp_gates_close(&gates);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

static void test_gguf_model_gives_its_routers(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++) {
        gguf_free(&writer);
        gguf_moe_make(&writer, &usual);
        for (uint32_t layer = 0; biased && layer < GM_LAYERS; layer++)
            gguf_tensor(&writer, GGML_F32, 1, SHAPE(GM_EXPERTS), "blk.%u.ffn_gate_inp.bias", layer);
        moepage_model *model = write_and_open();
        mp_gates gates;
        assert_int_equal(mp_gates_open(model, &gates), MOEPAGE_OK);
        for (uint32_t layer = 0; layer < GM_LAYERS; layer++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", layer);
            const gguf_made *made = gguf_made_of(&writer, name);
            assert_memory_equal(gates.weights[layer], made->data, made->bytes);
            snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.bias", layer);
            if (biased)
                assert_memory_equal(gates.biases[layer], gguf_made_of(&writer, name)->data,
                                    GM_EXPERTS * sizeof(float));
        }
        assert_true(biased == (gates.biases != NULL));
        mp_gates_close(&gates);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    }
}

/* Experts in one part, all else in the other. */
static void test_gguf_model_opens_from_the_parts_of_a_split_one(void **state)
{
    (void)state;
    static gguf_writer parts[2];
    gguf_moe_make(&writer, &usual);
    for (uint32_t p = 0; p < 2; p++) {
        gguf_init(&parts[p]);
        if (p == 0)
            gguf_moe_values(&parts[p], &usual, NULL);
        gguf_u16(&parts[p], "split.no", (uint16_t)p);
        gguf_u16(&parts[p], "split.count", 2);
        gguf_u32(&parts[p], "split.tensors.count", writer.n_tensors);
        for (uint32_t i = 0; i < writer.n_tensors; i++) {
            const gguf_made *made = &writer.tensors[i];
            if ((strstr(made->name, "_exps") != NULL) == p)
                gguf_tensor(&parts[p], made->type, made->rank, made->shape, "%s", made->name);
        }
    }
    gguf_write(&parts[0], dir, "m-00001-of-00002.gguf");
    moepage_model *model;
    assert_int_equal(open_named("m-00001-of-00002.gguf", &model), MOEPAGE_E_NOT_FOUND);
    expect_sentence("part 2 of 2 is missing|m-00002-of-00002.gguf");
    gguf_write(&parts[1], dir, "m-00002-of-00002.gguf");
    assert_int_equal(open_named("m-00001-of-00002.gguf", &model), MOEPAGE_OK);
    expect_experts(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_free(&parts[0]);
    gguf_free(&parts[1]);
}

/* ---- Refusals ---- */

static void test_gguf_model_refuses_metadata_that_is_missing(void **state)
{
    (void)state;
    static const struct {
        const char *key, *words;
        moepage_status status;
    } needed[] = {
        {"architecture", "general.architecture\" is missing", MOEPAGE_E_FORMAT},
        {"block_count", "qwen3moe.block_count\" is missing", MOEPAGE_E_FORMAT},
        {"embedding_length", "qwen3moe.embedding_length\" is missing", MOEPAGE_E_FORMAT},
        {"expert_feed_forward_length", "qwen3moe.expert_feed_forward_length\" is missing",
         MOEPAGE_E_FORMAT},
        {"expert_count", "no routed experts|qwen3moe.expert_count\" is missing",
         MOEPAGE_E_UNSUPPORTED},
        {"expert_used_count", "qwen3moe.expert_used_count\" is missing", MOEPAGE_E_FORMAT},
    };
    gguf_moe_make(&writer, &usual);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        gguf_clear_values(&writer);
        gguf_moe_values(&writer, &usual, needed[i].key);
        expect_refusal(needed[i].status, needed[i].words);
    }
}

static void test_gguf_model_refuses_counts_that_are_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
        moepage_status status;
    } bad[] = {
        {"block_count", 0, "block_count\" is 0", MOEPAGE_E_FORMAT},
        {"block_count", 65537, "block_count\" is 65537|1 to 65536", MOEPAGE_E_FORMAT},
        {"block_count", GM_LAYERS + 1, "no tensor \"blk.3.ffn_gate_inp.weight\"",
         MOEPAGE_E_NOT_FOUND},
        {"block_count", GM_LAYERS - 1, "", MOEPAGE_OK}, /* a shorter model, others are dense */
        {"leading_dense_block_count", GM_LAYERS, "leading_dense_block_count\" is 3|0 to 2",
         MOEPAGE_E_FORMAT},
        {"leading_dense_block_count", 1, "\"blk.0.ffn_gate_exps.weight\"|no routed expert",
         MOEPAGE_E_UNSUPPORTED},
        {"nextn_predict_layers", GM_LAYERS, "nextn_predict_layers\" is 3", MOEPAGE_E_FORMAT},
        {"embedding_length", 0, "embedding_length\" is 0", MOEPAGE_E_FORMAT},
        {"embedding_length", 64, "\"blk.0.ffn_gate_inp.weight\"|[32, 4]|[64, 4]", MOEPAGE_E_FORMAT},
        {"embedding_length", 1 << 25, "embedding_length\" is 33554432", MOEPAGE_E_FORMAT},
        {"expert_feed_forward_length", 32, "\"blk.0.ffn_gate_exps.weight\"|[32, 64, 4]|[32, 32, 4]",
         MOEPAGE_E_FORMAT},
        {"expert_feed_forward_length", 0, "expert_feed_forward_length\" is 0", MOEPAGE_E_FORMAT},
        {"expert_count", 0, "no routed experts|is 0", MOEPAGE_E_UNSUPPORTED},
        {"expert_count", 3, "\"blk.0.ffn_gate_inp.weight\"|[32, 4]|[32, 3]", MOEPAGE_E_FORMAT},
        {"expert_count", 65537, "expert_count\" is 65537", MOEPAGE_E_FORMAT},
        {"expert_used_count", 5, "expert_used_count\" is 5|1 to 4", MOEPAGE_E_FORMAT},
        {"expert_used_count", 0, "expert_used_count\" is 0|1 to 4", MOEPAGE_E_FORMAT},
        {"expert_shared_count", 65537, "expert_shared_count\" is 65537", MOEPAGE_E_FORMAT},
    };
    gguf_moe_make(&writer, &usual);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char key[64];
        snprintf(key, sizeof key, "qwen3moe.%s", bad[i].key);
        gguf_clear_values(&writer);
        gguf_moe_values(&writer, &usual, bad[i].key);
        gguf_u32(&writer, key, bad[i].value);
        if (bad[i].status)
            expect_refusal(bad[i].status, bad[i].words);
        else
            assert_int_equal(moepage_model_close(write_and_open()), MOEPAGE_OK);
    }
}

static void test_gguf_model_refuses_an_unknown_architecture(void **state)
{
    (void)state;
    usual.architecture = "bert";
    gguf_moe_make(&writer, &usual);
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "\"bert\" is not recognised|qwen3moe, qwen2moe");
    gguf_clear_values(&writer);
    gguf_u32(&writer, "general.architecture", 3);
    expect_refusal(MOEPAGE_E_FORMAT, "general.architecture\" is of type 4");
}

static void test_gguf_model_refuses_missing_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {
        "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",   "blk.0.ffn_down_exps.weight",
        "blk.2.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight", "blk.0.ffn_gate_inp.weight",
        "blk.2.ffn_gate_inp.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char words[64];
        gguf_free(&writer);
        gguf_moe_make(&writer, &usual);
        gguf_remove(&writer, names[i]);
        snprintf(words, sizeof words, "no tensor \"%s\"", names[i]);
        expect_refusal(MOEPAGE_E_NOT_FOUND, words);
    }
}

static void test_gguf_model_refuses_tensors_of_wrong_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t rank;
        uint64_t shape[3];
        const char *words;
    } bad[] = {
        {"blk.1.ffn_gate_exps.weight", 3, {GM_WIDTH, GM_HIDDEN, 4}, "[64, 32, 4]|[32, 64, 4]"},
        {"blk.1.ffn_up_exps.weight", 3, {GM_HIDDEN, GM_WIDTH, 3}, "[32, 64, 3]|[32, 64, 4]"},
        {"blk.2.ffn_down_exps.weight", 2, {GM_WIDTH, GM_HIDDEN * 4}, "[64, 128]|[64, 32, 4]"},
        {"blk.2.ffn_down_exps.weight", 3, {GM_WIDTH, GM_HIDDEN, 5}, "[64, 32, 5]|[64, 32, 4]"},
        {"blk.2.ffn_gate_inp.weight", 1, {GM_HIDDEN * 4}, "[128]|[32, 4]"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gguf_free(&writer);
        gguf_moe_make(&writer, &usual);
        gguf_reshape(gguf_made_of(&writer, bad[i].name), GGML_Q8_0, bad[i].rank, bad[i].shape);
        expect_refusal(MOEPAGE_E_FORMAT, bad[i].words);
        expect_sentence(bad[i].name);
    }
}

static void test_gguf_model_refuses_experts_of_an_unknown_type(void **state)
{
    (void)state;
    gguf_moe_make(&writer, &usual);
    gguf_moe_retype(&writer, 1, "up", GGML_UNKNOWN);
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "\"blk.1.ffn_up_exps.weight\"|type 9999");
}

/* A part that no slot has: the experts would be served without it. */
static void test_gguf_model_refuses_parts_of_experts_that_it_does_not_know(void **state)
{
    (void)state;
    gguf_moe_make(&writer, &usual);
    gguf_tensor(&writer, GGML_F32, 1, SHAPE(GM_EXPERTS), "blk.1.ffn_down_exps.scale");
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "\"blk.1.ffn_down_exps.scale\"|no routed expert");
    gguf_remove(&writer, "blk.1.ffn_down_exps.scale");
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(GM_HIDDEN, GM_EXPERTS), "blk.1.ffn_down_exps.bias");
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "\"blk.1.ffn_down_exps.bias\"|no routed expert");
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(GM_HIDDEN, GM_EXPERTS), "blk.0.ffn_down_exps.bias");
    expect_refusal(MOEPAGE_E_NOT_FOUND, "no tensor \"blk.2.ffn_down_exps.bias\"");
    gguf_tensor(&writer, GGML_F32, 2, SHAPE(GM_HIDDEN, GM_EXPERTS), "blk.2.ffn_down_exps.bias");
    moepage_model *model = write_and_open();
    assert_int_equal(model->info.expert_tensors, 4);
    expect_experts(model);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    gguf_tensor(&writer, GGML_Q8_0, 3, SHAPE(GM_HIDDEN, 2 * GM_WIDTH, GM_EXPERTS),
                "blk.0.ffn_gate_up_exps.weight");
    expect_refusal(MOEPAGE_E_FORMAT, "layer 0|in one tensor and apart");
}

static void test_gguf_model_refuses_routers_that_are_not_finite(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0x7fc00000, 0xff800000};
    static const char *const words[] = {"NaN at row 3, column 5", "an infinity at row 3, column 5"};
    for (int i = 0; i < 2; i++) {
        gguf_free(&writer);
        gguf_moe_make(&writer, &usual);
        gguf_made *router = gguf_made_of(&writer, "blk.1.ffn_gate_inp.weight");
        memcpy(router->data + 4 * (3 * GM_HIDDEN + 5), &bits[i], 4);
        expect_refusal(MOEPAGE_E_FORMAT, words[i]);
        expect_sentence("\"blk.1.ffn_gate_inp.weight\"");
    }
    gguf_free(&writer);
    gguf_moe_make(&writer, &usual);
    gguf_tensor(&writer, GGML_F32, 1, SHAPE(GM_EXPERTS - 1), "blk.0.exp_probs_b.bias");
    expect_refusal(MOEPAGE_E_FORMAT, "\"blk.0.exp_probs_b.bias\"|[3]|[4]");
}

static void test_gguf_model_is_known_by_its_first_bytes(void **state)
{
    (void)state;
    moepage_model *model;
    gguf_moe_make(&writer, &usual);
    gguf_write(&writer, dir, "no-suffix");
    assert_int_equal(open_named("no-suffix", &model), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    maker_write_text(dir, "m.gguf", "GGU");
    assert_true(open_named("m.gguf", &model) != MOEPAGE_OK);
    expect_sentence("m.gguf");
    maker_write_text(dir, "m.gguf", "GGUF");
    assert_int_equal(open_named("m.gguf", &model), MOEPAGE_E_FORMAT);
    expect_sentence("m.gguf|truncated");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_gguf_model_has_every_expert_as_it_was_written),
        CASE(test_gguf_model_has_a_layout_for_each_mixture_of_types),
        CASE(test_gguf_model_refuses_more_mixtures_than_it_has_layouts_for),
        CASE(test_gguf_model_reads_experts_with_gate_and_up_in_one_tensor),
        CASE(test_gguf_model_reads_biases),
        CASE(test_gguf_model_of_every_architecture_opens),
        CASE(test_gguf_model_knows_layers_without_experts),
        CASE(test_gguf_model_leaves_out_layers_that_predict_further_tokens),
        CASE(test_gguf_model_takes_the_vocabulary_from_the_tokens),
        CASE(test_gguf_model_finds_a_shared_expert_by_its_tensor),
        CASE(test_gguf_model_shows_dense_tensors_in_order_rows_first),
        CASE(test_gguf_model_keeps_its_metadata),
        CASE(test_gguf_model_gives_metadata_by_key),
        CASE(test_gguf_model_gives_arrays_from_any_element),
        CASE(test_gguf_model_refuses_metadata_that_is_not_there),
        CASE(test_gguf_model_gives_its_routers),
        CASE(test_gguf_model_gives_routers_of_every_architecture),
        CASE(test_gguf_model_opens_from_the_parts_of_a_split_one),
        CASE(test_gguf_model_refuses_metadata_that_is_missing),
        CASE(test_gguf_model_refuses_counts_that_are_out_of_range),
        CASE(test_gguf_model_refuses_an_unknown_architecture),
        CASE(test_gguf_model_refuses_missing_tensors),
        CASE(test_gguf_model_refuses_tensors_of_wrong_shapes),
        CASE(test_gguf_model_refuses_experts_of_an_unknown_type),
        CASE(test_gguf_model_refuses_parts_of_experts_that_it_does_not_know),
        CASE(test_gguf_model_refuses_routers_that_are_not_finite),
        CASE(test_gguf_model_is_known_by_its_first_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
