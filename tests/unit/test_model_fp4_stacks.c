/* Directories of NVFP4 experts in stacks: each expert's blocks, whether it has a factor of its own or shares one, are
 * those of the same matrices apart; and what is refused. */
#include <stdio.h>
#include <string.h>

#include "fp4_maker.h"
#include "model/model.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define STACK "model.layers.1.mlp.experts."

enum { LAYERS = 2, EXPERTS = 3 };

static const char *const stacks[] = {"gate_up_proj", "down_proj"};

static void init(moe_maker *maker, uint32_t hidden, uint32_t intermediate)
{
    fp4_stacks_init(maker, &(quantised_sizes){LAYERS, EXPERTS, hidden, intermediate});
}

/* ---- What is read ---- */

/* The blocks of an expert's matrix; where experts share a factor it is the first one's. */
static uint64_t wanted(uint32_t layer, uint32_t expert, uint32_t stack, uint64_t rows,
                       uint64_t columns, unsigned char *out)
{
    char name[128];
    fp4_stacks_name(layer, expert, stack, name);
    const uint64_t bytes = fp4_blocks(FP4_MODELOPT, name, rows, columns, out);
    const uint64_t block = columns % 256 == 0 ? 256 : columns % 128 == 0 ? 128 : 64;
    if (!fp4_stacks_share(layer))
        return bytes;
    fp4_stacks_name(layer, 0, stack, name);
    const float factor = fp4_factor(FP4_MODELOPT, name);
    for (uint64_t at = 0; at < bytes; at += sizeof factor + block / 16 + block / 2)
        memcpy(out + at, &factor, sizeof factor);
    return bytes;
}

static void expect_stack(const struct moepage_model *model, uint32_t layer, uint32_t stack,
                         uint64_t rows, uint64_t columns)
{
    static unsigned char want[1 << 17];
    char name[128];
    moepage_tensor_view view = {.struct_size = sizeof view};
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", layer, stacks[stack]);
    assert_int_equal(moepage_model_find_tensor(model, name, &view), MOEPAGE_OK);
    assert_int_equal(view.rank, 3);
    assert_int_equal(view.shape[0], EXPERTS);
    assert_int_equal(view.shape[1], rows);
    assert_int_equal(view.shape[2], columns);
    assert_int_equal(view.dtype, fp4_dtype(columns));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint64_t bytes = wanted(layer, e, stack, rows, columns, want);
        quantised_expect_piece(model, layer, e, stack, want, bytes);
        assert_int_equal(view.bytes, EXPERTS * bytes);
        assert_memory_equal((const unsigned char *)view.data + e * bytes, want, bytes);
    }
}

static void test_fp4_stacks_are_read_expert_by_expert(void **state)
{
    static const uint32_t sizes[][2] = {{256, 64}, {192, 128}, {64, 320}};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const uint32_t hidden = sizes[i][0], intermediate = sizes[i][1];
        moe_maker maker;
        init(&maker, hidden, intermediate);
        moe_maker_write(&maker);
        moepage_model *model = moe_expect_open(&maker);
        assert_int_equal(model->info.ffn_supported, 1);
        assert_int_equal(model->info.expert_tensors, 2);
        assert_int_equal(model->layouts[0].tensors[0].dtype, fp4_dtype(hidden));
        assert_int_equal(model->layouts[0].tensors[1].dtype, fp4_dtype(intermediate));
        for (uint32_t l = 0; l < LAYERS; l++) {
            expect_stack(model, l, 0, 2ull * intermediate, hidden);
            expect_stack(model, l, 1, hidden, intermediate);
        }
        quantised_expect_names(model);
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        moe_maker_free(&maker);
    }
}

/* Matrices of zeros, some of which ModelOpt gives a factor of 0. */
static void test_fp4_stacks_may_have_experts_of_zeros(void **state)
{
    static unsigned char blocks[1 << 17];
    static float values[128 * 256];
    moe_maker maker;
    (void)state;
    init(&maker, 256, 64);
    maker_tensor *nibbles = maker_find(&maker.shard, "model.layers.0.mlp.experts.gate_up_proj");
    maker_tensor *factors =
        maker_find(&maker.shard, "model.layers.0.mlp.experts.gate_up_proj_weight_scale_2");
    memset(factors->data + 1 * sizeof(float), 0, sizeof(float));
    memset(nibbles->data + 2 * nibbles->bytes / EXPERTS, 0, nibbles->bytes / EXPERTS);
    moe_maker_write(&maker);
    moepage_model *model = moe_expect_open(&maker);
    const uint64_t bytes = model->layouts[0].pieces[0].bytes;
    assert_true(bytes <= sizeof blocks);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        assert_int_equal(mp_model_read_piece(model, 0, e, 0, 0, bytes, blocks), MOEPAGE_OK);
        assert_int_equal(moepage_blocks_decode(fp4_dtype(256), blocks, bytes, values,
                                               COUNT(values)),
                         MOEPAGE_OK);
        uint64_t others = 0;
        for (size_t i = 0; i < COUNT(values); i++)
            others += values[i] != 0;
        assert_true(e == 0 ? others > COUNT(values) / 2 : others == 0);
    }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(&maker);
}

/* ---- The same matrices, each in tensors of its own ---- */

/* Copies a part of an expert's matrix out of the stacks, of gate and up the half that is its own. */
static void copy_part(moe_maker *stacked, moe_maker *apart, uint32_t layer, uint32_t expert,
                      uint32_t piece, const char *part)
{
    char of[128], from[192], to[192];
    const bool is_weight = strcmp(part, "weight") == 0;
    snprintf(from, sizeof from, "model.layers.%u.mlp.experts.%s%s%s", layer, stacks[piece / 2],
             is_weight ? "" : "_", is_weight ? "" : part);
    quantised_name(layer, expert, piece, of);
    snprintf(to, sizeof to, "%s.%s", of, part);
    const maker_tensor *stack = maker_find(&stacked->shard, from);
    maker_tensor *one = maker_find(&apart->shard, to);
    const uint32_t halves = stack->rank == 3 && piece < 2 ? 2 : 1;
    const uint64_t place = stack->rank ? expert * halves + (halves == 2 ? piece : 0) : 0;
    assert_in_range((place + 1) * one->bytes, 1, stack->bytes);
    memcpy(one->data, stack->data + place * one->bytes, one->bytes);
}

/* A stack's piece must be those of `n` matrices, one after the other. */
static void expect_same(const struct moepage_model *stacked, const struct moepage_model *apart,
                        uint32_t layer, uint32_t expert, uint32_t first, uint32_t n)
{
    static unsigned char got[1 << 17], want[1 << 17];
    const uint64_t all = stacked->layouts[0].pieces[first / 2].bytes;
    const uint64_t bytes = apart->layouts[0].pieces[first].bytes;
    assert_int_equal(all, n * bytes);
    assert_in_range(all, 1, sizeof got);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(mp_model_read_piece(apart, layer, expert, first + i, 0, bytes,
                                             want + i * bytes),
                         MOEPAGE_OK);
    assert_int_equal(mp_model_read_piece(stacked, layer, expert, first / 2, 0, all, got),
                     MOEPAGE_OK);
    assert_memory_equal(got, want, all);
}

static void test_fp4_stacks_are_the_same_matrices_apart(void **state)
{
    static const char *const parts[] = {"weight", "weight_scale", "weight_scale_2"};
    const fp4_case of = {FP4_MODELOPT, 256, 64, LAYERS};
    moe_maker stacked, apart;
    (void)state;
    fp4_stacks_init(&stacked, &(quantised_sizes){LAYERS, FP4_EXPERTS, of.hidden, of.intermediate});
    fp4_maker_init(&apart, &of);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < FP4_EXPERTS; e++)
            for (uint32_t p = 0; p < 3; p++)
                for (size_t i = 0; i < COUNT(parts); i++)
                    copy_part(&stacked, &apart, l, e, p, parts[i]);
    moe_maker_write(&stacked);
    moe_maker_write(&apart);
    moepage_model *stacks_of = moe_expect_open(&stacked), *matrices = moe_expect_open(&apart);
    assert_int_equal(stacks_of->layouts[0].slot_bytes, matrices->layouts[0].slot_bytes);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < FP4_EXPERTS; e++) {
            expect_same(stacks_of, matrices, l, e, 0, 2);
            expect_same(stacks_of, matrices, l, e, 2, 1);
        }
    assert_int_equal(moepage_model_close(stacks_of), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(matrices), MOEPAGE_OK);
    moe_maker_free(&stacked);
    moe_maker_free(&apart);
}

/* ---- What is refused ---- */

static void test_fp4_stacks_of_another_shape_or_type_are_refused(void **state)
{
    static const struct {
        const char *part, *dtype;
        uint32_t rank;
        uint64_t shape[5];
        moepage_status status;
        const char *words;
    } bad[] = {
        {"gate_up_proj", NULL, 0, {0}, MOEPAGE_E_NOT_FOUND, "gate_up_proj"},
        {"gate_up_proj_weight_scale",
         NULL,
         0,
         {0},
         MOEPAGE_E_NOT_FOUND,
         "gate_up_proj_weight_scale"},
        {"down_proj_weight_scale_2", NULL, 0, {0}, MOEPAGE_E_NOT_FOUND, "down_proj_weight_scale_2"},
        /* the experts of one more, and of one less */
        {"gate_up_proj",
         "U8",
         3,
         {4, 128, 128},
         MOEPAGE_E_FORMAT,
         "gate_up_proj_weight_scale|[3, 128, 16]|[4, 128, 16]"},
        {"gate_up_proj_weight_scale",
         "F8_E4M3",
         3,
         {2, 128, 16},
         MOEPAGE_E_FORMAT,
         "gate_up_proj_weight_scale|[3, 128, 16]"},
        {"gate_up_proj",
         "U8",
         3,
         {3, 192, 64},
         MOEPAGE_E_FORMAT,
         "gate_up_proj_weight_scale|[3, 192, 8]"},
        /* turned: the weights have the same shape */
        {"gate_up_proj_weight_scale",
         "F8_E4M3",
         3,
         {3, 16, 128},
         MOEPAGE_E_FORMAT,
         "gate_up_proj_weight_scale|[3, 16, 128]|[3, 128, 16]"},
        {"down_proj", "U8", 3, {3, 256, 24}, MOEPAGE_E_UNSUPPORTED, "down_proj|multiple of 64"},
        {"down_proj", "U8", 3, {3, 0, 32}, MOEPAGE_E_UNSUPPORTED, "down_proj|rows and columns"},
        {"down_proj", "U8", 3, {3, 256, 0}, MOEPAGE_E_UNSUPPORTED, "down_proj|rows and columns"},
        /* many, of no bytes */
        {"down_proj", "U8", 3, {3, 0, 1ull << 62}, MOEPAGE_E_UNSUPPORTED, "rows and columns"},
        {"down_proj", "U8", 3, {1ull << 62, 0, 32}, MOEPAGE_E_FORMAT, "down_proj|overflows"},
        {"down_proj", "U8", 3, {0, 256, 32}, MOEPAGE_E_FORMAT, "down_proj|[0, 256, 32]"},
        {"down_proj", "U8", 2, {768, 32}, MOEPAGE_E_FORMAT, "down_proj|[768, 32]"},
        {"down_proj", "I8", 3, {3, 256, 32}, MOEPAGE_E_FORMAT, "down_proj|[3, 256, 32]"},
        {"down_proj_weight_scale",
         "U8",
         3,
         {3, 256, 4},
         MOEPAGE_E_FORMAT,
         "down_proj_weight_scale|U8|F8_E4M3"},
        {"down_proj_weight_scale_2",
         "F32",
         1,
         {2},
         MOEPAGE_E_UNSUPPORTED,
         "down_proj_weight_scale_2|[2]|for each expert"},
        {"down_proj_weight_scale_2",
         "F32",
         2,
         {3, 256},
         MOEPAGE_E_UNSUPPORTED,
         "down_proj_weight_scale_2|[3, 256]"},
        {"down_proj_weight_scale_2",
         "F32",
         2,
         {1, 3},
         MOEPAGE_E_UNSUPPORTED,
         "down_proj_weight_scale_2|[1, 3]"},
        {"down_proj_weight_scale_2",
         "F32",
         1,
         {0},
         MOEPAGE_E_UNSUPPORTED,
         "weight_scale_2|[0]|for each expert"},
        {"down_proj_weight_scale_2",
         "F32",
         5,
         {3, 1, 1, 1, 2},
         MOEPAGE_E_UNSUPPORTED,
         "weight_scale_2"},
        {"down_proj_weight_scale_2", "BF16", 1, {3}, MOEPAGE_E_UNSUPPORTED, "BF16|F32"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        char name[128];
        moe_maker maker;
        snprintf(name, sizeof name, STACK "%s", bad[i].part);
        init(&maker, 256, 64);
        if (bad[i].dtype)
            maker_reshape(maker_find(&maker.shard, name), bad[i].dtype, bad[i].rank, bad[i].shape);
        else
            maker_remove(&maker.shard, name);
        moe_maker_write(&maker);
        moe_expect_refusal(&maker, bad[i].status, bad[i].words);
        moe_maker_free(&maker);
    }
}

/* All parts fit each other, and not config.json, which the routers do. */
static void test_fp4_stacks_of_another_model_are_refused(void **state)
{
    static const struct {
        const char *from, *to;
        uint64_t router[2];
        const char *words;
    } changes[] = {
        {"\"num_experts\": 3", "\"num_experts\": 2", {2, 256}, "[3, 128, 256]|[2, 128, 256]"},
        {"\"num_experts\": 3", "\"num_experts\": 5", {5, 256}, "[3, 128, 256]|[5, 128, 256]"},
        {"\"num_experts\": 3", "\"num_experts\": 500", {500, 256}, "[500, 128, 256]"},
        {"_size\": 64", "_size\": 128", {3, 256}, "[3, 128, 256]|[3, 256, 256]"},
        {"\"hidden_size\": 256", "\"hidden_size\": 512", {3, 512}, "[3, 128, 256]|[3, 128, 512]"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++) {
        moe_maker maker;
        init(&maker, 256, 64);
        moe_maker_replace(&maker, changes[i].from, changes[i].to);
        for (uint32_t l = 0; l < LAYERS; l++) {
            char router[64];
            snprintf(router, sizeof router, "model.layers.%u.mlp.gate.weight", l);
            maker_reshape(maker_find(&maker.shard, router), "BF16", 2, changes[i].router);
        }
        moe_maker_write(&maker);
        moe_expect_refusal(&maker, MOEPAGE_E_FORMAT, changes[i].words);
        moe_maker_free(&maker);
    }
}

/* gpt-oss has the input's dimension first, and gate's and up's rows in turn: what is computed is not that. */
static void test_fp4_stacks_of_gpt_oss_are_refused(void **state)
{
    moe_maker maker;
    (void)state;
    init(&maker, 256, 64);
    moe_maker_replace(&maker, "qwen3_moe", "gpt_oss");
    moe_maker_replace(&maker, "moe_intermediate_size", "intermediate_size");
    for (uint32_t l = 0; l < LAYERS; l++) {
        char router[64];
        snprintf(router, sizeof router, "model.layers.%u.mlp.gate.weight", l);
        maker_tensor *tensor = maker_find(&maker.shard, router);
        snprintf(tensor->name, sizeof tensor->name, "model.layers.%u.mlp.router.weight", l);
    }
    moe_maker_write(&maker);
    moe_expect_refusal(&maker, MOEPAGE_E_UNSUPPORTED, "gate_up_proj|NVFP4G256_F32|gpt_oss");
    moe_maker_free(&maker);
}

/* Numbers that no quantiser makes are found by the loads of the experts that have them. */
static void test_fp4_stacks_with_a_false_scale_fail_where_it_is(void **state)
{
    static const struct {
        uint32_t layer;
        const char *part;
        uint64_t at;
        unsigned char bytes[4];
        uint32_t n;
        bool fails[EXPERTS];
        const char *words;
    } bad[] = {
        {0,
         "gate_up_proj_weight_scale",
         1ull * 128 * 16 + 7,
         {0xff},
         1,
         {false, true, false},
         "negative or a NaN"},
        {0,
         "gate_up_proj_weight_scale_2",
         4,
         {0, 0, 0xc0, 0x7f},
         4,
         {false, true, false},
         "nan|2^-100"},
        /* 2^101 */
        {0,
         "gate_up_proj_weight_scale_2",
         8,
         {0, 0, 0, 0x72},
         4,
         {false, false, true},
         "e+30|2^100"},
        /* -1, of all experts */
        {1,
         "gate_up_proj_weight_scale_2",
         0,
         {0, 0, 0x80, 0xbf},
         4,
         {true, true, true},
         "-1|2^-100"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        unsigned char out[64];
        char name[128];
        moe_maker maker;
        init(&maker, 256, 64);
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", bad[i].layer, bad[i].part);
        memcpy(maker_find(&maker.shard, name)->data + bad[i].at, bad[i].bytes, bad[i].n);
        moe_maker_write(&maker);
        moepage_model *model = moe_expect_open(&maker);
        for (uint32_t e = 0; e < EXPERTS; e++)
            for (uint32_t p = 0; p < 2; p++) {
                const bool fails = bad[i].fails[e] && p == 0;
                assert_int_equal(mp_model_read_piece(model, bad[i].layer, e, p, 0, sizeof out, out),
                                 fails ? MOEPAGE_E_FORMAT : MOEPAGE_OK);
                if (fails)
                    expect_sentence(bad[i].words);
            }
        assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
        moe_maker_free(&maker);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp4_stacks_are_read_expert_by_expert),
        cmocka_unit_test(test_fp4_stacks_may_have_experts_of_zeros),
        cmocka_unit_test(test_fp4_stacks_are_the_same_matrices_apart),
        cmocka_unit_test(test_fp4_stacks_of_another_shape_or_type_are_refused),
        cmocka_unit_test(test_fp4_stacks_of_another_model_are_refused),
        cmocka_unit_test(test_fp4_stacks_of_gpt_oss_are_refused),
        cmocka_unit_test(test_fp4_stacks_with_a_false_scale_fail_where_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
