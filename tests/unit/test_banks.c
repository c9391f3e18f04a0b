/* Models of caller-held experts. */
#include <math.h>
#include <string.h>

#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

enum { LAYERS = 3, EXPERTS = 5, H = 16, I = 12, MAX = MOEPAGE_MAX_EXPERT_TENSORS };

static unsigned char bytes[LAYERS * EXPERTS * MAX];
static const void *data[LAYERS * EXPERTS * MAX];
static moepage_expert_tensor tensors[MAX + 1];
static moepage_banks banks;

static int32_t read_nothing(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                            uint64_t offset, uint64_t n_bytes, void *out)
{
    (void)user, (void)layer, (void)expert, (void)tensor, (void)offset, (void)n_bytes, (void)out;
    return 1;
}

static void set_tensor(uint32_t i, uint32_t role, uint32_t dtype, uint64_t rows, uint64_t columns)
{
    tensors[i] = (moepage_expert_tensor){.role = role,
                                         .dtype = dtype,
                                         .rank = columns ? 2 : 1,
                                         .shape = {rows, columns}};
}

static int make(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        data[i] = &bytes[i];
    memset(tensors, 0, sizeof tensors);
    set_tensor(0, MOEPAGE_ROLE_GATE, MOEPAGE_DTYPE_F16, I, H);
    set_tensor(1, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_F16, H, I);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F16, I, H);
    banks = (moepage_banks){
        .struct_size = sizeof banks,
        .moe_layers = LAYERS,
        .experts = EXPERTS,
        .top_k = 2,
        .hidden = H,
        .expert_intermediate = I,
        .n_tensors = 3,
        .tensors = tensors,
        .data = data,
    };
    return 0;
}

static moepage_model *open_banks(void)
{
    moepage_model *model = NULL;
    if (moepage_model_open_banks(&banks, NULL, &model))
        fail_msg("not opened: %s", moepage_last_error());
    return model;
}

static void expect_refusal(moepage_status status, const char *words)
{
    moepage_model *model = NULL;
    moepage_status found = moepage_model_open_banks(&banks, NULL, &model);
    if (found != status)
        fail_msg("status %d, not %d, for words %s", found, status, words);
    assert_null(model);
    expect_sentence(words);
}

static void test_banks_describe_what_was_given(void **state)
{
    (void)state;
    moepage_model *model = open_banks();
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.layers, LAYERS);
    assert_int_equal(info.moe_layers, LAYERS);
    assert_int_equal(info.experts, EXPERTS);
    assert_int_equal(info.top_k, 2);
    assert_int_equal(info.hidden, H);
    assert_int_equal(info.expert_intermediate, I);
    assert_int_equal(info.expert_tensors, 3);
    assert_int_equal(info.expert_bytes, 3 * 384);
    assert_int_equal(info.slot_bytes, 3 * 512);
    assert_int_equal(info.routed_bytes, 15 * 3 * 384);
    assert_int_equal(info.dense_bytes, 0);
    assert_int_equal(info.vocabulary, 0);
    assert_string_equal(info.architecture, "banks");
    assert_null(moepage_model_config_json(model));
    assert_int_equal(moepage_model_layer_index(model, 2), 2);
    assert_int_equal(moepage_model_layer_index(model, 3), -1);
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, "x", &view), MOEPAGE_E_NOT_FOUND);

    moepage_expert_tensor out[3];
    assert_int_equal(moepage_model_get_expert_tensors(model, out, 3), MOEPAGE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(out[i].role, tensors[i].role);
        assert_int_equal(out[i].bytes, 384);
        assert_int_equal(out[i].offset, i * 512);
        assert_int_equal(model->layouts[0].pieces[i].tensor, i);
        assert_int_equal(model->layouts[0].pieces[i].tensor_offset, 0);
        assert_int_equal(model->layouts[0].pieces[i].bytes, 384);
        assert_int_equal(model->layouts[0].pieces[i].slot_offset, i * 512);
    }
    assert_int_equal(model->layouts[0].ffn.gate, 0);
    assert_int_equal(model->layouts[0].ffn.down, 512);
    assert_int_equal(model->layouts[0].ffn.up, 1024);
    assert_int_equal(info.ffn_supported, 1);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_banks_copy_the_pointers_not_the_bytes(void **state)
{
    (void)state;
    moepage_model *model = open_banks();
    const void *last = data[LAYERS * EXPERTS * 3 - 1];
    memset(data, 0, sizeof data);
    assert_ptr_equal(model->sources[mp_model_source_index(model, 0, 0)], &bytes[0]);
    assert_ptr_equal(model->sources[mp_model_source_index(model, 1, 2) + 1],
                     &bytes[(1 * EXPERTS + 2) * 3 + 1]);
    assert_ptr_equal(model->sources[mp_model_source_index(model, 2, 4) + 2], last);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_banks_with_a_callback_have_no_pointers(void **state)
{
    (void)state;
    banks.data = NULL;
    banks.read = read_nothing;
    banks.read_user = &banks;
    moepage_model *model = open_banks();
    assert_null(model->sources);
    assert_ptr_equal(model->read, read_nothing);
    assert_ptr_equal(model->read_user, &banks);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void expect_ffn(uint32_t supported)
{
    moepage_model *model = open_banks();
    assert_int_equal(model->info.ffn_supported, supported);
    assert_int_equal(model->layouts[0].ffn.supported, supported);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_banks_ffn_takes_fused_rows_and_biases(void **state)
{
    (void)state;
    set_tensor(0, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_F32, 2 * I, H);
    set_tensor(1, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_F32, H, I);
    set_tensor(2, MOEPAGE_ROLE_GATE_UP_BIAS, MOEPAGE_DTYPE_F32, 2 * I, 0);
    set_tensor(3, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F32, H, 0);
    banks.n_tensors = 4;
    moepage_model *model = open_banks();
    assert_int_equal(model->layouts[0].ffn.supported, 1);
    assert_int_equal(mp_ffn_dtype(&model->layouts[0].ffn), MOEPAGE_DTYPE_F32);
    assert_int_equal(model->layouts[0].ffn.gate, 0);
    assert_int_equal(model->layouts[0].ffn.up, I * H * 4);
    assert_int_equal(model->layouts[0].ffn.down, 1536);
    assert_int_equal(model->layouts[0].ffn.gate_bias, 1536 + 768);
    assert_int_equal(model->layouts[0].ffn.up_bias, 1536 + 768 + I * 4);
    assert_int_equal(model->layouts[0].ffn.down_bias, 1536 + 768 + 256);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);

    set_tensor(2, MOEPAGE_ROLE_UP_BIAS, MOEPAGE_DTYPE_F32, I, 0);
    model = open_banks();
    assert_int_equal(model->layouts[0].ffn.supported, 1);
    assert_true(model->layouts[0].ffn.gate_bias == UINT64_MAX);
    assert_int_equal(model->layouts[0].ffn.up_bias, 1536 + 768);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void expect_activation(uint32_t kind, float alpha, float limit, uint32_t supported)
{
    moepage_model *model = open_banks();
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.activation, kind);
    assert_true(info.activation_alpha == alpha && info.activation_limit == limit);
    assert_int_equal(info.ffn_supported, supported);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_banks_have_an_activation(void **state)
{
    (void)state;
    expect_activation(MOEPAGE_ACTIVATION_SWIGLU, 0, 0, 1);
    banks.activation = MOEPAGE_ACTIVATION_SWIGLU_CLAMPED;
    expect_activation(MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 7, 1);
    banks.activation_alpha = 0x1p10f;
    banks.activation_limit = 3.4e38f;
    expect_activation(MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, 0x1p10f, 3.4e38f, 1);
    banks.activation = MOEPAGE_ACTIVATION_OTHER;
    expect_refusal(MOEPAGE_E_ARGUMENT, "activation_alpha is 1024 and activation_limit 3.4e+38");
    banks.activation_alpha = banks.activation_limit = 0;
    expect_activation(MOEPAGE_ACTIVATION_OTHER, 0, 0, 0);
}

static void test_banks_with_a_wrong_activation_are_refused(void **state)
{
    (void)state;
    static const float numbers[][2] = {{-1.702f, 7},   {0x1p-11f, 7}, {0x1p11f, 7},
                                       {NAN, 7},       {1, -7},       {1, INFINITY},
                                       {1, -INFINITY}, {1, NAN},      {INFINITY, 7}};
    banks.activation = MOEPAGE_ACTIVATION_SWIGLU_CLAMPED;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        banks.activation_alpha = numbers[i][0];
        banks.activation_limit = numbers[i][1];
        expect_refusal(MOEPAGE_E_ARGUMENT, "banks|activation_alpha|activation_limit");
    }
    banks.activation = MOEPAGE_ACTIVATION_SWIGLU;
    banks.activation_alpha = 0;
    banks.activation_limit = 7; /* SwiGLU has none */
    expect_refusal(MOEPAGE_E_ARGUMENT, "activation_limit 7");
    banks.activation_limit = 0;
    banks.activation = 3;
    expect_refusal(MOEPAGE_E_ARGUMENT, "activation is 3");
    banks.activation = 0;
    banks.n_files = 5;
    expect_refusal(MOEPAGE_E_ARGUMENT, "n_files must be set together");
}

static void test_banks_ffn_is_not_offered_for_what_kernels_cannot_read(void **state)
{
    (void)state;
    expect_ffn(1);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_BF16, I, H); /* each matrix in its own type */
    expect_ffn(1);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_I8, I, H);
    expect_ffn(0);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F8_E4M3, I, H); /* without scales */
    expect_ffn(0);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F16, H, I); /* transposed */
    expect_ffn(0);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F16, I * H, 0); /* flat */
    expect_ffn(0);
    set_tensor(2, MOEPAGE_ROLE_UP_SCALE, MOEPAGE_DTYPE_F16, I, H); /* no up */
    expect_ffn(0);
    set_tensor(2, MOEPAGE_ROLE_UP, MOEPAGE_DTYPE_F16, I, H);
    set_tensor(3, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F32, H, 0); /* a type of its own, too */
    banks.n_tensors = 4;
    expect_ffn(1);
    set_tensor(4, MOEPAGE_ROLE_UP_BIAS, MOEPAGE_DTYPE_F16, I, 0); /* but one for all biases */
    banks.n_tensors = 5;
    banks.data = NULL;
    banks.read = read_nothing;
    expect_ffn(0);
    set_tensor(4, MOEPAGE_ROLE_UP_BIAS, MOEPAGE_DTYPE_F32, I, 0);
    expect_ffn(1);
    banks.n_tensors = 4;
    set_tensor(3, MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_DTYPE_F16, H + 1, 0);
    expect_ffn(0);
    set_tensor(3, MOEPAGE_ROLE_DOWN_SCALE, MOEPAGE_DTYPE_F16, H, 0);
    expect_ffn(0);
    banks.n_tensors = 3;
    for (uint32_t i = 0; i < 3; i++)
        tensors[i].dtype = MOEPAGE_DTYPE_I8;
    expect_ffn(0);
    set_tensor(0, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_F16, 2 * I, H); /* no down */
    banks.n_tensors = 1;
    expect_ffn(0);
}

static void test_banks_refuse_bad_counts(void **state)
{
    (void)state;
    static const struct {
        size_t field;
        uint32_t value;
        const char *words;
    } bad[] = {
        {offsetof(moepage_banks, moe_layers), 0, "moe_layers is 0"},
        {offsetof(moepage_banks, moe_layers), UINT32_MAX, "moe_layers is 4294967295"},
        {offsetof(moepage_banks, experts), 0, "experts is 0"},
        {offsetof(moepage_banks, experts), 1u << 31, "experts is 2147483648"},
        {offsetof(moepage_banks, top_k), 0, "top_k is 0"},
        {offsetof(moepage_banks, top_k), EXPERTS + 1, "top_k is 6|1 to 5"},
        {offsetof(moepage_banks, hidden), 0, "hidden is 0"},
        {offsetof(moepage_banks, expert_intermediate), 0, "expert_intermediate is 0"},
        {offsetof(moepage_banks, n_tensors), 0, "n_tensors is 0"},
        {offsetof(moepage_banks, n_tensors), MAX + 1, "n_tensors is 9|1 to 8"},
        {offsetof(moepage_banks, reserved), 1, "reserved is 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        make(NULL);
        memcpy((char *)&banks + bad[i].field, &bad[i].value, 4);
        expect_refusal(MOEPAGE_E_ARGUMENT, bad[i].words);
    }
    make(NULL);
    banks.struct_size = 12;
    expect_refusal(MOEPAGE_E_VERSION, "struct_size is 12");
}

static void test_banks_refuse_bad_tensors(void **state)
{
    (void)state;
    tensors[1].role = MOEPAGE_ROLE_NONE;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 1 has role 0");
    tensors[1].role = MOEPAGE_ROLE_DOWN_BIAS + 1;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 1 has role 13");
    tensors[1].role = MOEPAGE_ROLE_GATE;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 1 has role 2|another");
    tensors[1].role = MOEPAGE_ROLE_GATE_UP;
    expect_refusal(MOEPAGE_E_ARGUMENT, "role 1 is fused of roles 2 and 3");
    make(NULL);
    tensors[2].dtype = MOEPAGE_DTYPE_NONE;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 2 has dtype 0");
    tensors[2].dtype = MOEPAGE_DTYPE_I64 + 1;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 2 has dtype 11");
    tensors[2].dtype = MOEPAGE_DTYPE_NVFP4G256_F32 + 1;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 2 has dtype 39|from 1 to 10|from 16 to 38");
    tensors[2].dtype = MOEPAGE_DTYPE_Q6_K;
    tensors[2].shape[1] = 255;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 2 is Q6_K|last dimension 255|256 weights");
    make(NULL);
    tensors[0].rank = 0;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 0 has rank 0");
    tensors[0].rank = 5;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 0 has rank 5");
    tensors[0].rank = 3;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 0 has rank 3|shape[2] = 0");
    tensors[0].rank = 1;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 0 has rank 1|shape[1] = 16");
    make(NULL);
    tensors[0].reserved = 9;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 0 has reserved = 9");
    banks.tensors = NULL;
    expect_refusal(MOEPAGE_E_ARGUMENT, "neither of tensors and layer_tensors");
}

/* ---- layers of different types ---- */

static moepage_expert_tensor mixed[LAYERS][3];

/* The last layer's down is F32, all else what it was. */
static void make_mixed(void)
{
    make(NULL);
    for (uint32_t l = 0; l < LAYERS; l++)
        memcpy(mixed[l], tensors, sizeof mixed[l]);
    mixed[LAYERS - 1][1].dtype = MOEPAGE_DTYPE_F32;
    banks.tensors = NULL;
    banks.layer_tensors = mixed[0];
}

static void test_banks_of_layers_that_differ_in_type(void **state)
{
    (void)state;
    moepage_model *model;
    moepage_model_info info = {.struct_size = sizeof info};
    moepage_expert_tensor out[3];
    make_mixed();
    const uint64_t matrix = I * H * 2;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.layouts, 2);
    assert_int_equal(info.expert_bytes, 4 * matrix);
    assert_int_equal(info.slot_bytes, 512 + 768 + 512);
    assert_int_equal(info.routed_bytes, EXPERTS * (LAYERS * 3 + 1) * matrix);
    for (uint32_t l = 0; l < LAYERS; l++) {
        bool last = l == LAYERS - 1;
        assert_int_equal(moepage_model_get_layer_tensors(model, l, out, 3), MOEPAGE_OK);
        assert_int_equal(out[1].dtype, last ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_F16);
        assert_int_equal(out[1].bytes, last ? 2 * matrix : matrix);
        assert_int_equal(out[1].offset, 512);
        assert_int_equal(out[2].offset, last ? 512 + 768 : 1024);
        assert_int_equal(out[2].dtype, MOEPAGE_DTYPE_F16);
    }
    assert_int_equal(moepage_model_get_layer_tensors(model, LAYERS, out, 3), MOEPAGE_E_ARGUMENT);
    expect_sentence("layer is|the model has");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_banks_refuse_layers_of_different_shapes(void **state)
{
    (void)state;
    make_mixed();
    mixed[1][2].shape[0]++;
    expect_refusal(MOEPAGE_E_ARGUMENT, "MoE layer 1|tensor 2 has another role or shape");
    make_mixed();
    mixed[1][0].role = MOEPAGE_ROLE_GATE_BIAS;
    expect_refusal(MOEPAGE_E_ARGUMENT, "MoE layer 1|tensor 0 has another role or shape");
    make_mixed();
    mixed[0][0].dtype = 0;
    expect_refusal(MOEPAGE_E_ARGUMENT, "MoE layer 0|tensor 0 has dtype 0");
    make_mixed();
    banks.tensors = tensors;
    expect_refusal(MOEPAGE_E_ARGUMENT, "each of tensors and layer_tensors");
}

static void test_banks_refuse_sizes_that_overflow(void **state)
{
    (void)state;
    tensors[1].shape[0] = tensors[1].shape[1] = (uint64_t)1 << 32;
    expect_refusal(MOEPAGE_E_ARGUMENT, "tensor 1|overflows");
    tensors[1].shape[0] = UINT64_MAX / 2 / I;
    expect_refusal(MOEPAGE_E_ARGUMENT, "overflows");
    tensors[1].shape[0] = (uint64_t)1 << 58; /* one expert fits, fifteen do not */
    tensors[1].shape[1] = 1;
    tensors[1].dtype = MOEPAGE_DTYPE_I64;
    expect_refusal(MOEPAGE_E_ARGUMENT, "3 layers of 5 experts|overflows");
}

static void test_banks_refuse_unclear_or_missing_sources(void **state)
{
    (void)state;
    banks.read = read_nothing;
    expect_refusal(MOEPAGE_E_ARGUMENT, "more than one of data, read and places");
    banks.data = NULL;
    banks.read = NULL;
    expect_refusal(MOEPAGE_E_ARGUMENT, "none of data, read and places");
    banks.data = data;
    data[(2 * EXPERTS + 3) * 3 + 1] = NULL;
    expect_refusal(MOEPAGE_E_ARGUMENT, "layer 2, expert 3, tensor 1 is NULL");
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open_banks(NULL, NULL, &model), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_model_open_banks(&banks, NULL, NULL), MOEPAGE_E_ARGUMENT);
}

/* ---- What else a whole model has ---------------------------------------------------------- */

static const float numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static moepage_dense_tensor dense[3];
static const int32_t layer_index[LAYERS] = {1, 2, 5};

static void add_extras(void)
{
    dense[0] = (moepage_dense_tensor){"w.b", MOEPAGE_DTYPE_F32, 2, {2, 3}, numbers};
    dense[1] = (moepage_dense_tensor){"w.a", MOEPAGE_DTYPE_F16, 1, {5}, numbers};
    dense[2] = (moepage_dense_tensor){"s", MOEPAGE_DTYPE_I64, 0, {0}, numbers};
    banks.architecture = "my_moe";
    banks.config_json = "{}";
    banks.layer_index = layer_index;
    banks.layers = 7;
    banks.shared_experts = 2;
    banks.vocabulary = 100;
    banks.n_dense = 3;
    banks.dense = dense;
}

static void test_banks_bring_the_rest_of_a_model(void **state)
{
    (void)state;
    static const char *const sorted[] = {"s", "w.a", "w.b"};
    char name[8];
    add_extras();
    moepage_model *model = open_banks();
    memset(dense, 0, sizeof dense); /* copied */
    assert_string_equal(model->info.architecture, "my_moe");
    assert_string_equal(moepage_model_config_json(model), "{}");
    assert_int_equal(model->info.layers, 7);
    assert_int_equal(model->info.shared_experts, 2);
    assert_int_equal(model->info.vocabulary, 100);
    assert_int_equal(model->info.dense_bytes, 24 + 10 + 8);
    assert_int_equal(moepage_model_layer_index(model, 2), 5);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(moepage_model_get_tensor_name(model, i, name, sizeof name), MOEPAGE_OK);
        assert_string_equal(name, sorted[i]);
    }
    assert_int_equal(moepage_model_get_tensor_name(model, 3, name, 8), MOEPAGE_E_NOT_FOUND);
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, "w.b", &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, MOEPAGE_DTYPE_F32);
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.shape[1], 3);
    assert_int_equal(view.bytes, 24);
    assert_ptr_equal(view.data, numbers);
    float part[2];
    assert_int_equal(moepage_model_read_tensor(model, "w.b", 4, 8, part, &view), MOEPAGE_OK);
    assert_memory_equal(part, (const char *)numbers + 4, 8);
    assert_int_equal(view.bytes, 24);
    assert_null(view.data);
    assert_int_equal(moepage_model_find_tensor(model, "w.c", &view), MOEPAGE_E_NOT_FOUND);
    expect_sentence("w.c|3 dense ones");
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Of a program that knows only the struct's first form. */
static void test_banks_of_the_first_form_are_taken(void **state)
{
    (void)state;
    add_extras();
    banks.struct_size = offsetof(moepage_banks, architecture);
    moepage_model *model = open_banks();
    assert_string_equal(model->info.architecture, "banks");
    assert_int_equal(model->info.layers, LAYERS);
    assert_int_equal(model->info.dense_bytes, 0);
    assert_null(model->extras);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    banks.struct_size--;
    expect_refusal(MOEPAGE_E_VERSION, "struct_size is");
}

#define EXPECT_REFUSED(change, words)              \
    do {                                           \
        make(NULL);                                \
        add_extras();                              \
        change;                                    \
        expect_refusal(MOEPAGE_E_ARGUMENT, words); \
    } while (0)

static void test_banks_refuse_bad_extras(void **state)
{
    (void)state;
    static const int32_t equal[] = {0, 3, 3}, beyond[] = {0, 1, 7}, negative[] = {-1, 0, 1};
    EXPECT_REFUSED(banks.architecture = "", "architecture has 0 characters");
    EXPECT_REFUSED(banks.architecture =
                       "0123456789012345678901234567890123456789012345678901234567890123",
                   "architecture has 64 characters");
    EXPECT_REFUSED(banks.layers = 2, "banks: layers is 2, it must be 3 to");
    EXPECT_REFUSED(banks.layer_index = equal, "MoE layer 2 is layer 3");
    EXPECT_REFUSED(banks.layer_index = beyond, "MoE layer 2 is layer 7");
    EXPECT_REFUSED(banks.layer_index = negative, "MoE layer 0 is layer -1");
    EXPECT_REFUSED(banks.dense = NULL, "n_dense is 3, but dense is NULL");
    EXPECT_REFUSED(dense[1].name = NULL, "dense tensor 1 has no name");
    EXPECT_REFUSED(dense[1].name = "", "dense tensor 1 has an empty name");
    EXPECT_REFUSED(dense[1].name = "s", "two dense tensors have the name \"s\"");
    EXPECT_REFUSED(dense[2].dtype = 0, "dense tensor 2 has dtype 0");
    EXPECT_REFUSED(dense[2].dtype = 11, "dense tensor 2 has dtype 11");
    EXPECT_REFUSED((dense[0].dtype = MOEPAGE_DTYPE_MXFP4, dense[0].rank = 0,
                    memset(dense[0].shape, 0, sizeof dense[0].shape)),
                   "dense tensor 0 has rank 0|MXFP4");
    EXPECT_REFUSED((dense[0].dtype = MOEPAGE_DTYPE_MXFP4, dense[0].shape[1] = 33),
                   "dense tensor 0 is MXFP4|last dimension 33|32 weights");
    EXPECT_REFUSED((dense[0].dtype = MOEPAGE_DTYPE_Q4_0, dense[0].shape[0] = UINT64_MAX / 8,
                    dense[0].shape[1] = 32),
                   "dense tensor 0|overflows");
    EXPECT_REFUSED((dense[0].dtype = MOEPAGE_DTYPE_Q4_0, dense[0].shape[1] = 32,
                    dense[0].data = (const char *)numbers + 1),
                   "dense tensor 0: data is at|multiple of 2");
    EXPECT_REFUSED(dense[0].rank = 5, "dense tensor 0 has rank 5");
    EXPECT_REFUSED(dense[0].rank = 1, "dense tensor 0 has rank 1 and shape[1] = 3");
    EXPECT_REFUSED(dense[0].shape[0] = UINT64_MAX, "dense tensor 0|overflows");
    EXPECT_REFUSED((dense[0].shape[0] = UINT64_MAX / 8, dense[0].shape[1] = 2,
                    dense[1].shape[0] = UINT64_MAX / 8),
                   "overflows");
    EXPECT_REFUSED(dense[0].data = NULL, "dense tensor 0 has 24 bytes, but data is NULL");
    EXPECT_REFUSED(dense[1].data = (const char *)numbers + 1, "dense tensor 1: data is at");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup(f, make)
    const struct CMUnitTest tests[] = {
        CASE(test_banks_describe_what_was_given),
        CASE(test_banks_copy_the_pointers_not_the_bytes),
        CASE(test_banks_with_a_callback_have_no_pointers),
        CASE(test_banks_ffn_takes_fused_rows_and_biases),
        CASE(test_banks_have_an_activation),
        CASE(test_banks_with_a_wrong_activation_are_refused),
        CASE(test_banks_ffn_is_not_offered_for_what_kernels_cannot_read),
        CASE(test_banks_refuse_bad_counts),
        CASE(test_banks_refuse_bad_tensors),
        CASE(test_banks_of_layers_that_differ_in_type),
        CASE(test_banks_refuse_layers_of_different_shapes),
        CASE(test_banks_refuse_sizes_that_overflow),
        CASE(test_banks_refuse_unclear_or_missing_sources),
        CASE(test_banks_bring_the_rest_of_a_model),
        CASE(test_banks_of_the_first_form_are_taken),
        CASE(test_banks_refuse_bad_extras),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
