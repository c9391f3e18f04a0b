/* Every recognised architecture: its names, its shapes, its MoE layers, its slot. The tensor names
 * are spelled out here as checkpoints have them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "moe_maker.h"
#include "testing.h"

/* H = 64 and I = 32, so that MX groups of 32 and FP8 blocks of 16 x 24 divide or do not. */
enum { H = 64, I = 32, E = 3 };

static moe_maker maker;
static moepage_model *model;
static moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
static unsigned char slot[65536];

static int make(void **state)
{
    (void)state;
    moe_maker_init_empty(&maker);
    model = NULL;
    return 0;
}

static void close_model(void)
{
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    model = NULL;
}

static int unmake(void **state)
{
    (void)state;
    close_model();
    moe_maker_free(&maker);
    return 0;
}

#define ADD(dtype, dims, ...) \
    maker_add(&maker.shard, dtype, sizeof(dims) / sizeof(uint64_t), dims, __VA_ARGS__)
#define DIMS(...) ((uint64_t[]){__VA_ARGS__})

static void set_config(const char *model_type, const char *rest)
{
    snprintf(maker.config, sizeof maker.config,
             "{\"model_type\": \"%s\", \"hidden_size\": %d, \"num_experts_per_tok\": 2, "
             "\"hidden_act\": \"silu\", \"vocab_size\": 10, %s}",
             model_type, H, rest);
}

static void reopen(void)
{
    moe_maker_write(&maker);
    model = moe_expect_open(&maker);
    assert_int_equal(moepage_model_get_expert_tensors(model, tensors, MOEPAGE_MAX_EXPERT_TENSORS),
                     MOEPAGE_OK);
    assert_int_equal(model->info.experts, E);
    assert_int_equal(model->info.hidden, H);
    assert_int_equal(model->info.expert_intermediate, I);
}

static void expect_refusal(moepage_status status, const char *words)
{
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, status, words);
}

static void expect_layers(uint32_t layers, uint32_t n, const int32_t *moe)
{
    assert_int_equal(model->info.layers, layers);
    assert_int_equal(model->info.moe_layers, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(moepage_model_layer_index(model, i), moe[i]);
    assert_int_equal(moepage_model_layer_index(model, n), -1);
}

static void expect_tensor(uint32_t i, uint32_t role, uint32_t dtype, uint32_t rank,
                          const uint64_t *shape)
{
    assert_in_range(i, 0, model->info.expert_tensors - 1);
    assert_int_equal(tensors[i].role, role);
    assert_int_equal(tensors[i].dtype, dtype);
    assert_int_equal(tensors[i].rank, rank);
    for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
        assert_int_equal(tensors[i].shape[d], d < rank ? shape[d] : 0);
    assert_int_equal(tensors[i].offset % 256, 0);
    if (i)
        assert_true(tensors[i].offset >= tensors[i - 1].offset + tensors[i - 1].bytes);
    assert_true(tensors[i].offset + tensors[i].bytes <= model->info.slot_bytes);
}
#define EXPECT_TENSOR(i, role, dtype, dims)                                                       \
    expect_tensor(i, MOEPAGE_ROLE_##role, MOEPAGE_DTYPE_##dtype, sizeof(dims) / sizeof(uint64_t), \
                  dims)

/* Fills `slot` from an expert's pieces, as a load does. */
static void load(uint32_t moe_layer, uint32_t expert)
{
    assert_in_range(model->info.slot_bytes, 1, sizeof slot);
    memset(slot, 0xee, sizeof slot);
    uint64_t moved = 0;
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        const mp_piece *piece = &model->layouts[0].pieces[p];
        assert_int_equal(mp_model_read_piece(model, moe_layer, expert, p, 0, piece->bytes,
                                             slot + piece->slot_offset),
                         MOEPAGE_OK);
        moved += piece->bytes;
    }
    assert_int_equal(moved, model->info.expert_bytes);
}

/* `bytes` of the slot at `offset` are those of tensor `name` from its byte `start`. */
static void expect_bytes(uint64_t offset, uint64_t bytes, uint64_t start, const char *format, ...)
{
    char name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    (void)maker_find(&maker.shard, name);
    for (uint64_t i = 0; i < bytes; i++)
        if (slot[offset + i] != maker_byte(name, start + i))
            fail_msg("byte %llu of %s is not at %llu", (unsigned long long)(start + i), name,
                     (unsigned long long)(offset + i));
}

/* ---- One tensor per expert and projection ------------------------------------------------ */

static void add_separate(int layer, const char *dtype)
{
    ADD("F32", DIMS(E, H), "model.layers.%d.mlp.gate.weight", layer);
    for (int e = 0; e < E; e++) {
        ADD(dtype, DIMS(I, H), "model.layers.%d.mlp.experts.%d.gate_proj.weight", layer, e);
        ADD(dtype, DIMS(H, I), "model.layers.%d.mlp.experts.%d.down_proj.weight", layer, e);
        ADD(dtype, DIMS(I, H), "model.layers.%d.mlp.experts.%d.up_proj.weight", layer, e);
    }
}

static void expect_separate(uint32_t moe_layer, int layer, uint64_t element)
{
    uint64_t matrix = I * H * element;
    for (int e = 0; e < E; e++) {
        const char *format = "model.layers.%d.mlp.experts.%d.%s_proj.weight";
        load(moe_layer, (uint32_t)e);
        expect_bytes(tensors[0].offset, matrix, 0, format, layer, e, "gate");
        expect_bytes(tensors[0].offset + matrix, matrix, 0, format, layer, e, "up");
        expect_bytes(tensors[1].offset, matrix, 0, format, layer, e, "down");
    }
}

static void test_architecture_qwen3_moe_follows_its_sparse_step(void **state)
{
    (void)state;
    set_config("qwen3_moe", "\"num_hidden_layers\": 7, \"moe_intermediate_size\": 32, "
                            "\"intermediate_size\": 99, \"num_experts\": 3, "
                            "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3, 4]");
    add_separate(1, "F32");
    add_separate(5, "F32");
    ADD("F32", DIMS(99, H), "model.layers.3.mlp.gate_proj.weight");
    reopen();
    expect_layers(7, 2, (int32_t[]){1, 5});
    assert_string_equal(model->info.architecture, "qwen3_moe");
    assert_int_equal(model->info.shared_experts, 0);
    EXPECT_TENSOR(0, GATE_UP, F32, DIMS(2 * I, H));
    EXPECT_TENSOR(1, DOWN, F32, DIMS(H, I));
    assert_int_equal(model->info.expert_tensors, 2);
    assert_int_equal(model->info.ffn_supported, 1);
    expect_separate(0, 1, 4);
    expect_separate(1, 5, 4);
}

static void test_architecture_qwen2_moe_keeps_its_shared_expert_dense(void **state)
{
    (void)state;
    set_config("qwen2_moe", "\"num_hidden_layers\": 1, \"moe_intermediate_size\": 32, "
                            "\"num_experts\": 3, \"shared_expert_intermediate_size\": 77");
    add_separate(0, "F16");
    ADD("F16", DIMS(77, H), "model.layers.0.mlp.shared_expert.gate_proj.weight");
    ADD("F16", DIMS(1, H), "model.layers.0.mlp.shared_expert_gate.weight");
    reopen();
    expect_layers(1, 1, (int32_t[]){0});
    assert_int_equal(model->info.shared_experts, 1);
    assert_int_equal(model->info.dense_bytes, E * H * 4 + 77 * H * 2 + H * 2);
    assert_int_equal(model->info.routed_bytes, E * 3 * I * H * 2);
    EXPECT_TENSOR(0, GATE_UP, F16, DIMS(2 * I, H));
    assert_int_equal(model->info.ffn_supported, 1);
    expect_separate(0, 0, 2);
}

static void test_architecture_olmoe_has_experts_in_every_layer(void **state)
{
    (void)state;
    set_config("olmoe", "\"num_hidden_layers\": 2, \"intermediate_size\": 32, \"num_experts\": 3");
    add_separate(0, "BF16");
    add_separate(1, "BF16");
    reopen();
    expect_layers(2, 2, (int32_t[]){0, 1});
    assert_string_equal(model->info.architecture, "olmoe");
    assert_int_equal(model->info.ffn_supported, 1);
    expect_separate(0, 0, 2);
    expect_separate(1, 1, 2);
}

static void test_architecture_deepseek_starts_after_its_dense_layers(void **state)
{
    (void)state;
    static const char *const types[] = {"deepseek_v2", "deepseek_v3", "glm4_moe"};
    for (int i = 0; i < 3; i++) {
        set_config(types[i], "\"num_hidden_layers\": 6, \"moe_intermediate_size\": 32, "
                             "\"n_routed_experts\": 3, \"n_shared_experts\": 2, "
                             "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 2");
        if (i == 0) {
            add_separate(2, "BF16");
            add_separate(4, "BF16");
            ADD("F32", DIMS(E), "model.layers.4.mlp.gate.e_score_correction_bias");
        }
        reopen();
        expect_layers(6, 2, (int32_t[]){2, 4});
        assert_string_equal(model->info.architecture, types[i]);
        assert_int_equal(model->info.shared_experts, 2);
        assert_int_equal(model->info.ffn_supported, 1);
        expect_separate(0, 2, 2);
        expect_separate(1, 4, 2);
        close_model();
    }
    maker_tensor *bias =
        maker_find(&maker.shard, "model.layers.4.mlp.gate.e_score_correction_bias");
    memcpy(bias->data + 4, "\x00\x00\xc0\xff", 4);
    expect_refusal(MOEPAGE_E_FORMAT, "layers.4.mlp.gate.e_score_correction_bias|NaN|column 1");
}

static void test_architecture_glm_has_one_dense_layer_and_one_shared_expert(void **state)
{
    (void)state;
    set_config("glm4_moe", "\"num_hidden_layers\": 3, \"moe_intermediate_size\": 32, "
                           "\"n_routed_experts\": 3");
    add_separate(1, "BF16");
    add_separate(2, "BF16");
    reopen();
    expect_layers(3, 2, (int32_t[]){1, 2});
    assert_string_equal(model->info.architecture, "glm4_moe");
    assert_int_equal(model->info.shared_experts, 1);
    assert_int_equal(model->info.ffn_supported, 1);
}

static void add_fp8(void)
{
    set_config("deepseek_v3",
               "\"num_hidden_layers\": 2, \"moe_intermediate_size\": 32, \"n_routed_experts\": 3, "
               "\"first_k_dense_replace\": 1, \"quantization_config\": {\"quant_method\": \"fp8\", "
               "\"fmt\": \"e4m3\", \"weight_block_size\": [16, 24]}");
    add_separate(1, "F8_E4M3");
    for (int e = 0; e < E; e++) {
        const char *format = "model.layers.1.mlp.experts.%d.%s_proj.weight_scale_inv";
        char name[128];
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, format, e, ((const char *[]){"gate", "up", "down"})[p]);
            /* ceil(32 / 16) x ceil(64 / 24), and ceil(64 / 16) x ceil(32 / 24) */
            ADD("F32", DIMS(p < 2 ? 2 : 4, p < 2 ? 3 : 2), "%s", name);
        }
    }
}

/* The kernels can run GATE_UP, DOWN and their F32 scales, in blocks of this size. */
static void expect_fp8_ffn(uint32_t rows, uint32_t columns)
{
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(mp_ffn_dtype(&model->layouts[0].ffn), MOEPAGE_DTYPE_F8_E4M3);
    assert_int_equal(model->layouts[0].ffn.scale.dtype, MOEPAGE_DTYPE_F32);
    assert_int_equal(model->layouts[0].ffn.scale.rows, rows);
    assert_int_equal(model->layouts[0].ffn.scale.columns, columns);
    assert_int_equal(model->layouts[0].ffn.gate, tensors[0].offset);
    assert_int_equal(model->layouts[0].ffn.up, tensors[0].offset + I * H);
    assert_int_equal(model->layouts[0].ffn.down, tensors[1].offset);
    assert_int_equal(model->layouts[0].ffn.gate_scale, tensors[2].offset);
    assert_int_equal(model->layouts[0].ffn.up_scale, tensors[2].offset + tensors[2].bytes / 2);
    assert_int_equal(model->layouts[0].ffn.down_scale, tensors[3].offset);
}

static void test_architecture_deepseek_v3_in_fp8_brings_block_scales(void **state)
{
    (void)state;
    add_fp8();
    reopen();
    assert_int_equal(model->info.expert_tensors, 4);
    EXPECT_TENSOR(0, GATE_UP, F8_E4M3, DIMS(2 * I, H));
    EXPECT_TENSOR(1, DOWN, F8_E4M3, DIMS(H, I));
    EXPECT_TENSOR(2, GATE_UP_SCALE, F32, DIMS(4, 3));
    EXPECT_TENSOR(3, DOWN_SCALE, F32, DIMS(4, 2));
    assert_int_equal(model->info.expert_bytes, 3 * I * H + 12 * 4 + 8 * 4);
    expect_fp8_ffn(16, 24);
    expect_separate(0, 1, 1);
    load(0, 2);
    const char *format = "model.layers.1.mlp.experts.2.%s_proj.weight_scale_inv";
    expect_bytes(tensors[2].offset, 24, 0, format, "gate");
    expect_bytes(tensors[2].offset + 24, 24, 0, format, "up");
    expect_bytes(tensors[3].offset, 32, 0, format, "down");
}

static void test_architecture_in_fp8_is_refused_without_its_scales(void **state)
{
    (void)state;
    const char *name = "model.layers.1.mlp.experts.0.up_proj.weight_scale_inv";
    add_fp8();
    maker_remove(&maker.shard, name);
    expect_refusal(MOEPAGE_E_NOT_FOUND, name);
    ADD("F32", DIMS(2, 4), "%s", name);
    expect_refusal(MOEPAGE_E_FORMAT, "up_proj.weight_scale_inv|[2, 4]|[2, 3]");
}

static void test_architecture_in_bf16_is_refused_with_stray_scales(void **state)
{
    (void)state;
    set_config("deepseek_v2", "\"num_hidden_layers\": 1, \"moe_intermediate_size\": 32, "
                              "\"n_routed_experts\": 3");
    add_separate(0, "BF16");
    ADD("F32", DIMS(1, 1), "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv");
    expect_refusal(MOEPAGE_E_FORMAT, "experts.1.up_proj.weight_scale_inv|not part of any");
}

/* ---- Mixtral's names --------------------------------------------------------------------- */

static void test_architecture_mixtral_and_phimoe_number_their_projections(void **state)
{
    (void)state;
    static const char *const types[] = {"mixtral", "phimoe"};
    for (int l = 0; l < 2; l++) {
        ADD("BF16", DIMS(E, H), "model.layers.%d.block_sparse_moe.gate.weight", l);
        for (int e = 0; e < E; e++) {
            const char *format = "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight";
            char name[3][128];
            for (int w = 1; w <= 3; w++)
                snprintf(name[w - 1], sizeof name[0], format, l, e, w);
            ADD("BF16", DIMS(I, H), "%s", name[0]);
            ADD("BF16", DIMS(H, I), "%s", name[1]);
            ADD("BF16", DIMS(I, H), "%s", name[2]);
        }
    }
    for (int i = 0; i < 2; i++) {
        set_config(types[i], "\"num_hidden_layers\": 2, \"intermediate_size\": 32, "
                             "\"num_local_experts\": 3");
        reopen();
        expect_layers(2, 2, (int32_t[]){0, 1});
        assert_string_equal(model->info.architecture, types[i]);
        assert_int_equal(model->info.ffn_supported, 1);
        EXPECT_TENSOR(0, GATE_UP, BF16, DIMS(2 * I, H));
        EXPECT_TENSOR(1, DOWN, BF16, DIMS(H, I));
        uint64_t matrix = I * H * 2;
        load(1, 2);
        expect_bytes(0, matrix, 0, "model.layers.1.block_sparse_moe.experts.2.w1.weight");
        expect_bytes(matrix, matrix, 0, "model.layers.1.block_sparse_moe.experts.2.w3.weight");
        expect_bytes(tensors[1].offset, matrix, 0,
                     "model.layers.1.block_sparse_moe.experts.2.w2.weight");
        close_model();
    }
}

/* ---- All experts in one tensor ----------------------------------------------------------- */

static void test_architecture_stacked_experts_are_cut_apart(void **state)
{
    (void)state;
    static const struct {
        const char *type, *config, *router;
    } types[] = {
        {"qwen3_moe", "\"moe_intermediate_size\": 32, \"num_experts\": 3", "gate"},
        {"qwen2_moe", "\"moe_intermediate_size\": 32, \"num_experts\": 3", "gate"},
        {"olmoe", "\"intermediate_size\": 32, \"num_experts\": 3", "gate"},
        {"mixtral", "\"intermediate_size\": 32, \"num_local_experts\": 3", "gate"},
        {"phimoe", "\"intermediate_size\": 32, \"num_local_experts\": 3", "router"},
        {"deepseek_v2", "\"moe_intermediate_size\": 32, \"n_routed_experts\": 3", "gate"},
        {"minimax_m2", "\"intermediate_size\": 32, \"num_local_experts\": 3", "gate"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char config[256];
        snprintf(config, sizeof config, "\"num_hidden_layers\": 2, %s", types[i].config);
        set_config(types[i].type, config);
        for (int l = 0; l < 2; l++) {
            ADD("BF16", DIMS(E, H), "model.layers.%d.mlp.%s.weight", l, types[i].router);
            ADD("BF16", DIMS(E, 2 * I, H), "model.layers.%d.mlp.experts.gate_up_proj", l);
            ADD("BF16", DIMS(E, H, I), "model.layers.%d.mlp.experts.down_proj", l);
        }
        reopen();
        assert_int_equal(model->n_pieces, 2);
        assert_int_equal(model->info.ffn_supported, 1);
        assert_int_equal(model->info.dense_bytes, 2 * E * H * 2);
        EXPECT_TENSOR(0, GATE_UP, BF16, DIMS(2 * I, H));
        EXPECT_TENSOR(1, DOWN, BF16, DIMS(H, I));
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t e = 0; e < E; e++) {
                uint64_t matrix = I * H * 2;
                load(l, e);
                expect_bytes(0, 2 * matrix, e * 2 * matrix,
                             "model.layers.%u.mlp.experts.gate_up_proj", l);
                expect_bytes(tensors[1].offset, matrix, e * matrix,
                             "model.layers.%u.mlp.experts.down_proj", l);
            }
        close_model();
        maker_shard_free(&maker.shard);
    }
}

static void test_architecture_stacked_experts_must_be_as_many_as_the_config_says(void **state)
{
    (void)state;
    set_config("olmoe", "\"num_hidden_layers\": 1, \"intermediate_size\": 32, \"num_experts\": 3");
    ADD("BF16", DIMS(E, H), "model.layers.0.mlp.gate.weight");
    ADD("BF16", DIMS(E, 2 * I, H), "model.layers.0.mlp.experts.gate_up_proj");
    maker_tensor *down = ADD("BF16", DIMS(E - 1, H, I), "model.layers.0.mlp.experts.down_proj");
    expect_refusal(MOEPAGE_E_FORMAT, "experts.down_proj|[2, 64, 32]|[3, 64, 32]");
    maker_reshape(down, "BF16", 3, DIMS(E, H, I));
    reopen();
}

static void add_stacked_fp8(const char *quantization, uint64_t gate_up_blocks, uint64_t down_blocks)
{
    char config[256];
    snprintf(config, sizeof config,
             "\"num_hidden_layers\": 1, \"moe_intermediate_size\": 32, \"num_experts\": 3%s",
             quantization);
    set_config("qwen3_moe", config);
    maker_shard_free(&maker.shard);
    ADD("BF16", DIMS(E, H), "model.layers.0.mlp.gate.weight");
    ADD("F8_E4M3", DIMS(E, 2 * I, H), "model.layers.0.mlp.experts.gate_up_proj");
    ADD("F8_E4M3", DIMS(E, H, I), "model.layers.0.mlp.experts.down_proj");
    ADD("F32", DIMS(E, gate_up_blocks, 1), "model.layers.0.mlp.experts.gate_up_proj_scale_inv");
    ADD("F32", DIMS(E, down_blocks, 1), "model.layers.0.mlp.experts.down_proj_scale_inv");
    reopen();
    EXPECT_TENSOR(2, GATE_UP_SCALE, F32, DIMS(gate_up_blocks, 1));
    EXPECT_TENSOR(3, DOWN_SCALE, F32, DIMS(down_blocks, 1));
    load(0, 2);
    expect_bytes(tensors[3].offset, 4 * down_blocks, 8 * down_blocks,
                 "model.layers.0.mlp.experts.down_proj_scale_inv");
}

#define FP8(block) \
    ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": " block "}"

static void test_architecture_stacked_in_fp8_is_run_where_up_begins_a_block(void **state)
{
    (void)state;
    add_stacked_fp8(FP8("[16, 64]"), 4, 4);
    expect_fp8_ffn(16, 64);
    close_model();
    add_stacked_fp8("", 1, 1); /* 128 x 128: one block */
    assert_int_equal(model->info.ffn_supported, 0);
    close_model();
    /* Of 43 rows there are as many as of 32, which would begin with up. */
    add_stacked_fp8(FP8("[43, 64]"), 2, 2);
    assert_int_equal(model->info.ffn_supported, 0);
}

/* ---- MiniMax-M2 -------------------------------------------------------------------------- */

static void add_minimax(int layer)
{
    ADD("F32", DIMS(E, H), "model.layers.%d.block_sparse_moe.gate.weight", layer);
    ADD("F32", DIMS(E), "model.layers.%d.block_sparse_moe.e_score_correction_bias", layer);
    for (int e = 0; e < E; e++) {
        const char *format = "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight";
        for (int w = 1; w <= 3; w++) {
            char name[128];
            snprintf(name, sizeof name, format, layer, e, w);
            ADD("F8_E4M3", DIMS(w == 2 ? H : I, w == 2 ? I : H), "%s", name);
            /* of 16 x 24 weights */
            ADD("F32", DIMS(w == 2 ? 4 : 2, w == 2 ? 2 : 3), "%s_scale_inv", name);
        }
    }
}

static void test_architecture_minimax_m2_has_fp8_experts_in_every_layer(void **state)
{
    (void)state;
    set_config("minimax_m2", "\"num_hidden_layers\": 2, \"intermediate_size\": 32, "
                             "\"num_local_experts\": 3, \"scoring_func\": \"sigmoid\", "
                             "\"quantization_config\": {\"quant_method\": \"fp8\", "
                             "\"weight_block_size\": [16, 24]}");
    add_minimax(0);
    add_minimax(1);
    reopen();
    expect_layers(2, 2, (int32_t[]){0, 1});
    assert_string_equal(model->info.architecture, "minimax_m2");
    assert_int_equal(model->info.shared_experts, 0);
    assert_int_equal(model->info.dense_bytes, 2 * (E * H + E) * 4);
    EXPECT_TENSOR(0, GATE_UP, F8_E4M3, DIMS(2 * I, H));
    EXPECT_TENSOR(1, DOWN, F8_E4M3, DIMS(H, I));
    EXPECT_TENSOR(2, GATE_UP_SCALE, F32, DIMS(4, 3));
    EXPECT_TENSOR(3, DOWN_SCALE, F32, DIMS(4, 2));
    expect_fp8_ffn(16, 24);
    load(1, 2);
#define X "model.layers.1.block_sparse_moe.experts.2."
    expect_bytes(tensors[0].offset, I * H, 0, X "w1.weight");
    expect_bytes(tensors[0].offset + I * H, I * H, 0, X "w3.weight");
    expect_bytes(tensors[1].offset, H * I, 0, X "w2.weight");
    expect_bytes(tensors[2].offset, 24, 0, X "w1.weight_scale_inv");
    expect_bytes(tensors[2].offset + 24, 24, 0, X "w3.weight_scale_inv");
    expect_bytes(tensors[3].offset, 32, 0, X "w2.weight_scale_inv");
#undef X
    maker_tensor *bias =
        maker_find(&maker.shard, "model.layers.1.block_sparse_moe.e_score_correction_bias");
    memcpy(bias->data + 8, "\x00\x00\x80\x7f", 4);
    expect_refusal(MOEPAGE_E_FORMAT, "layers.1.block_sparse_moe.e_score_correction_bias|infinity");
}

/* ---- gpt-oss ----------------------------------------------------------------------------- */

static void add_gpt_oss(bool packed)
{
    set_config("gpt_oss", packed ? "\"num_hidden_layers\": 1, \"intermediate_size\": 32, "
                                   "\"num_local_experts\": 3, "
                                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}"
                                 : "\"num_hidden_layers\": 1, \"intermediate_size\": 32, "
                                   "\"num_local_experts\": 3");
#define X "model.layers.0.mlp.experts."
    ADD("BF16", DIMS(E, H), "model.layers.0.mlp.router.weight");
    ADD("BF16", DIMS(E), "model.layers.0.mlp.router.bias");
    ADD("BF16", DIMS(E, 2 * I), X "gate_up_proj_bias");
    ADD("BF16", DIMS(E, H), X "down_proj_bias");
    if (packed) {
        ADD("U8", DIMS(E, 2 * I, H / 32, 16), X "gate_up_proj_blocks");
        ADD("U8", DIMS(E, 2 * I, H / 32), X "gate_up_proj_scales");
        ADD("U8", DIMS(E, H, I / 32, 16), X "down_proj_blocks");
        ADD("U8", DIMS(E, H, I / 32), X "down_proj_scales");
    } else {
        ADD("BF16", DIMS(E, H, 2 * I), X "gate_up_proj");
        ADD("BF16", DIMS(E, I, H), X "down_proj");
    }
}

/* Row `row` of a slot's gate_up: gate's rows are stored at even places, up's at odd ones. */
static uint64_t stored_row(uint64_t row)
{
    return row < I ? 2 * row : 2 * (row - I) + 1;
}

static unsigned nibble(const char *name, uint64_t weight)
{
    return maker_byte(name, weight / 2) >> weight % 2 * 4 & 15;
}

/* Blocks of 32 in the slot have the weights and scales that are stored for one expert. */
static void expect_mxfp4(const moepage_expert_tensor *tensor, uint32_t expert, const char *blocks,
                         const char *scales, bool in_turn)
{
    const uint64_t groups = tensor->shape[1] / 32;
    for (uint64_t r = 0; r < tensor->shape[0]; r++)
        for (uint64_t g = 0; g < groups; g++) {
            const uint64_t row = expert * tensor->shape[0] + (in_turn ? stored_row(r) : r);
            const unsigned char *block = slot + tensor->offset + (r * groups + g) * 17;
            assert_int_equal(block[0], maker_byte(scales, row * groups + g));
            for (uint64_t w = 0; w < 32; w++)
                assert_int_equal(block[1 + w % 16] >> w / 16 * 4 & 15,
                                 nibble(blocks, (row * groups + g) * 32 + w));
        }
}

static void expect_turned_bias(const moepage_expert_tensor *tensor, uint32_t expert)
{
    for (uint64_t r = 0; r < 2 * I; r++)
        expect_bytes(tensor->offset + 2 * r, 2, 2 * (expert * 2 * I + stored_row(r)),
                     X "gate_up_proj_bias");
}

static void test_architecture_gpt_oss_in_mxfp4_becomes_blocks(void **state)
{
    (void)state;
    add_gpt_oss(true);
    reopen();
    assert_int_equal(model->info.expert_tensors, 4);
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(model->info.activation, MOEPAGE_ACTIVATION_SWIGLU_CLAMPED);
    assert_true(model->info.activation_alpha == 1.702f && model->info.activation_limit == 7.0f);
    EXPECT_TENSOR(0, GATE_UP, MXFP4, DIMS(2 * I, H));
    EXPECT_TENSOR(1, DOWN, MXFP4, DIMS(H, I));
    EXPECT_TENSOR(2, GATE_UP_BIAS, BF16, DIMS(2 * I));
    EXPECT_TENSOR(3, DOWN_BIAS, BF16, DIMS(H));
    load(0, 1);
    expect_mxfp4(&tensors[0], 1, X "gate_up_proj_blocks", X "gate_up_proj_scales", true);
    expect_mxfp4(&tensors[1], 1, X "down_proj_blocks", X "down_proj_scales", false);
    expect_turned_bias(&tensors[2], 1);
    expect_bytes(tensors[3].offset, 2 * H, 2 * H, X "down_proj_bias");
}

static void test_architecture_gpt_oss_in_bf16_is_turned_around(void **state)
{
    (void)state;
    add_gpt_oss(false);
    reopen();
    assert_int_equal(model->info.expert_tensors, 4);
    assert_int_equal(model->info.ffn_supported, 1);
    assert_int_equal(model->info.activation, MOEPAGE_ACTIVATION_SWIGLU_CLAMPED);
    assert_true(model->info.activation_alpha == 1.702f && model->info.activation_limit == 7.0f);
    EXPECT_TENSOR(0, GATE_UP, BF16, DIMS(2 * I, H));
    EXPECT_TENSOR(1, DOWN, BF16, DIMS(H, I));
    EXPECT_TENSOR(2, GATE_UP_BIAS, BF16, DIMS(2 * I));
    EXPECT_TENSOR(3, DOWN_BIAS, BF16, DIMS(H));
    load(0, 2);
    for (uint64_t r = 0; r < 2 * I; r++)
        for (uint64_t k = 0; k < H; k++)
            expect_bytes(tensors[0].offset + 2 * (r * H + k), 2,
                         2 * ((2 * H + k) * 2 * I + stored_row(r)), X "gate_up_proj");
    for (uint64_t r = 0; r < H; r++)
        for (uint64_t k = 0; k < I; k++)
            expect_bytes(tensors[1].offset + 2 * (r * I + k), 2, 2 * ((2 * I + k) * H + r),
                         X "down_proj");
    expect_turned_bias(&tensors[2], 2);
    expect_bytes(tensors[3].offset, 2 * H, 2 * 2 * H, X "down_proj_bias");
}

static void expect_limit(const char *text, float limit)
{
    char more[160];
    add_gpt_oss(false);
    snprintf(more, sizeof more,
             "\"num_hidden_layers\": 1, \"intermediate_size\": 32, \"num_local_experts\": 3, "
             "\"swiglu_limit\": %s",
             text);
    set_config("gpt_oss", more);
    if (limit == 0) {
        expect_refusal(MOEPAGE_E_FORMAT, "swiglu_limit|above 0");
    } else {
        reopen();
        assert_true(model->info.activation_limit == limit);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        model = NULL;
    }
    maker_shard_free(&maker.shard);
}

static void test_architecture_gpt_oss_reads_its_limit(void **state)
{
    (void)state;
    expect_limit("null", 7);
    expect_limit("5", 5);
    expect_limit("6.5", 6.5f);
    expect_limit("0", 0);
    expect_limit("-7.0", 0);
    expect_limit("1e39", 0);
    expect_limit("\"7\"", 0);
    add_gpt_oss(false);
}

static void test_architecture_gpt_oss_is_refused_without_a_part(void **state)
{
    (void)state;
    static const char *const parts[] = {X "gate_up_proj_blocks", X "gate_up_proj_scales",
                                        X "gate_up_proj_bias",   X "down_proj_blocks",
                                        X "down_proj_scales",    X "down_proj_bias"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        add_gpt_oss(true);
        maker_remove(&maker.shard, parts[i]);
        expect_refusal(MOEPAGE_E_NOT_FOUND, parts[i]);
        maker_shard_free(&maker.shard);
    }
    add_gpt_oss(true);
    maker_reshape(maker_find(&maker.shard, parts[0]), "BF16", 4, DIMS(E, 2 * I, H / 32, 16));
    expect_refusal(MOEPAGE_E_UNSUPPORTED, "gate_up_proj_blocks|BF16");
}

static void test_architecture_without_its_experts_says_which_names_it_sought(void **state)
{
    (void)state;
    set_config("mixtral",
               "\"num_hidden_layers\": 1, \"intermediate_size\": 32, \"num_local_experts\": 3");
    add_separate(0, "BF16");
    expect_refusal(MOEPAGE_E_NOT_FOUND, "model.layers.0.block_sparse_moe.experts.0.w1.weight|"
                                        "model.layers.0.mlp.experts.gate_up_proj|mixtral");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_architecture_qwen3_moe_follows_its_sparse_step),
        CASE(test_architecture_qwen2_moe_keeps_its_shared_expert_dense),
        CASE(test_architecture_olmoe_has_experts_in_every_layer),
        CASE(test_architecture_deepseek_starts_after_its_dense_layers),
        CASE(test_architecture_glm_has_one_dense_layer_and_one_shared_expert),
        CASE(test_architecture_deepseek_v3_in_fp8_brings_block_scales),
        CASE(test_architecture_in_fp8_is_refused_without_its_scales),
        CASE(test_architecture_in_bf16_is_refused_with_stray_scales),
        CASE(test_architecture_mixtral_and_phimoe_number_their_projections),
        CASE(test_architecture_stacked_experts_are_cut_apart),
        CASE(test_architecture_stacked_experts_must_be_as_many_as_the_config_says),
        CASE(test_architecture_stacked_in_fp8_is_run_where_up_begins_a_block),
        CASE(test_architecture_minimax_m2_has_fp8_experts_in_every_layer),
        CASE(test_architecture_gpt_oss_in_mxfp4_becomes_blocks),
        CASE(test_architecture_gpt_oss_in_bf16_is_turned_around),
        CASE(test_architecture_gpt_oss_reads_its_limit),
        CASE(test_architecture_gpt_oss_is_refused_without_a_part),
        CASE(test_architecture_without_its_experts_says_which_names_it_sought),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
