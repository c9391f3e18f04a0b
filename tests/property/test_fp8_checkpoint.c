/* FP8 checkpoints with block scales, from the file to the result: paged into few slots they give
 * the bits that they give when all experts are resident, and those agree with the dequantised
 * weights in double precision. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "moe_maker.h"
#include "reference.h"
#include "testing.h"

enum { LAYERS = 2, EXPERTS = 6, KEYS = LAYERS * EXPERTS, TOP_K = 2, TOKENS = 7, STEPS = 2 };

/* ---- A checkpoint ---- */

/* How a model type names its tensors: layer, expert, projection. */
typedef struct naming {
    const char *model_type, *keys;
    const char *router, *weight;
    const char *projections[3]; /* gate, up, down */
} naming;

static const naming deepseek = {
    "deepseek_v3",
    "\"n_routed_experts\": 6, \"first_k_dense_replace\": 0, \"moe_intermediate_size\"",
    "model.layers.%d.mlp.gate.weight",
    "model.layers.%d.mlp.experts.%d.%s_proj.weight",
    {"gate", "up", "down"}};
static const naming minimax = {"minimax_m2",
                               "\"num_local_experts\": 6, \"intermediate_size\"",
                               "model.layers.%d.block_sparse_moe.gate.weight",
                               "model.layers.%d.block_sparse_moe.experts.%d.%s.weight",
                               {"w1", "w3", "w2"}};

typedef struct dims {
    uint32_t hidden, intermediate;
    uint32_t block_rows, block_columns;
    const char *scale_dtype; /* "F32" or "BF16" */
} dims;

typedef struct matrix {
    uint32_t rows, columns;
    const maker_tensor *weights, *scales;
    float *values; /* what they stand for */
} matrix;

typedef struct checkpoint {
    moe_maker maker;
    dims d;
    uint32_t scale_dtype;
    matrix of[KEYS][3]; /* gate, up, down */
    uint64_t random;
} checkpoint;

static checkpoint file;

static double uniform(double from, double to)
{
    return from + (to - from) * bank_below(&file.random, 1 << 20) / (1 << 20);
}

static void fill(const matrix *m)
{
    const uint64_t n_scales = m->scales->shape[0] * m->scales->shape[1];
    const double size = 1 / sqrt(m->columns); /* keeps sums near 1 */
    for (uint64_t i = 0; i < m->weights->bytes; i++)
        do
            m->weights->data[i] = (unsigned char)bank_below(&file.random, 256);
        while ((m->weights->data[i] & 0x7f) == 0x7f); /* NaN */
    for (uint64_t i = 0; i < n_scales; i++)
        reference_store(m->scales->data, i, file.scale_dtype, uniform(0.5, 2) * size / 100);
}

static void work_out(matrix *m)
{
    m->values = malloc(m->weights->bytes * sizeof *m->values);
    assert_non_null(m->values);
    for (uint64_t i = 0; i < m->weights->bytes; i++) {
        uint64_t row = i / m->columns / file.d.block_rows,
                 column = i % m->columns / file.d.block_columns;
        double scale =
            reference_load(m->scales->data, row * m->scales->shape[1] + column, file.scale_dtype);
        m->values[i] = (float)(reference_load(m->weights->data, i, MOEPAGE_DTYPE_F8_E4M3) * scale);
    }
}

static void add_matrix(matrix *m, const naming *names, int layer, int expert, int projection)
{
    const dims *d = &file.d;
    m->rows = projection < 2 ? d->intermediate : d->hidden;
    m->columns = projection < 2 ? d->hidden : d->intermediate;
    const uint64_t shape[] = {m->rows, m->columns};
    const uint64_t blocks[] = {(m->rows + d->block_rows - 1) / d->block_rows,
                               (m->columns + d->block_columns - 1) / d->block_columns};
    char name[112];
    snprintf(name, sizeof name, names->weight, layer, expert, names->projections[projection]);
    m->weights = maker_add(&file.maker.shard, "F8_E4M3", 2, shape, "%s", name);
    m->scales = maker_add(&file.maker.shard, d->scale_dtype, 2, blocks, "%s_scale_inv", name);
    fill(m);
    work_out(m);
}

static void make_checkpoint(const naming *names, dims d)
{
    file.d = d;
    file.random = d.hidden * 31 + d.intermediate;
    file.scale_dtype = strcmp(d.scale_dtype, "F32") == 0 ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    moe_maker_init_empty(&file.maker);
    snprintf(file.maker.config, sizeof file.maker.config,
             "{\"model_type\": \"%s\", %s: %u, \"hidden_size\": %u, \"num_hidden_layers\": %d, "
             "\"num_experts_per_tok\": %d, \"hidden_act\": \"silu\", \"quantization_config\": "
             "{\"quant_method\": \"fp8\", \"weight_block_size\": [%u, %u]}}",
             names->model_type, names->keys, d.intermediate, d.hidden, LAYERS, TOP_K, d.block_rows,
             d.block_columns);
    for (int l = 0; l < LAYERS; l++) {
        const uint64_t router[] = {EXPERTS, d.hidden};
        char name[112];
        snprintf(name, sizeof name, names->router, l);
        maker_add(&file.maker.shard, "F32", 2, router, "%s", name);
        for (int e = 0; e < EXPERTS; e++)
            for (int p = 0; p < 3; p++)
                add_matrix(&file.of[l * EXPERTS + e][p], names, l, e, p);
    }
    moe_maker_write(&file.maker);
}

static void remove_checkpoint(void)
{
    for (int key = 0; key < KEYS; key++)
        for (int p = 0; p < 3; p++)
            free(file.of[key][p].values);
    moe_maker_free(&file.maker);
}

/* The same experts without a file: tensors of their own, blocks by their shapes. */

static int32_t read_expert(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                           uint64_t offset, uint64_t bytes, void *out)
{
    const matrix *m = &file.of[layer * EXPERTS + expert][tensor % 3];
    (void)user;
    memcpy(out, (tensor < 3 ? m->weights : m->scales)->data + offset, bytes);
    return 0;
}

static moepage_model *open_banks(void)
{
    static const uint32_t roles[] = {MOEPAGE_ROLE_GATE,     MOEPAGE_ROLE_UP,
                                     MOEPAGE_ROLE_DOWN,     MOEPAGE_ROLE_GATE_SCALE,
                                     MOEPAGE_ROLE_UP_SCALE, MOEPAGE_ROLE_DOWN_SCALE};
    moepage_expert_tensor tensors[6];
    for (uint32_t t = 0; t < 6; t++) {
        const matrix *m = &file.of[0][t % 3];
        const maker_tensor *from = t < 3 ? m->weights : m->scales;
        tensors[t] =
            (moepage_expert_tensor){.role = roles[t],
                                    .dtype = t < 3 ? MOEPAGE_DTYPE_F8_E4M3 : file.scale_dtype,
                                    .rank = 2,
                                    .shape = {from->shape[0], from->shape[1]}};
    }
    moepage_banks banks = {.struct_size = sizeof banks,
                           .moe_layers = LAYERS,
                           .experts = EXPERTS,
                           .top_k = TOP_K,
                           .hidden = file.d.hidden,
                           .expert_intermediate = file.d.intermediate,
                           .n_tensors = 6,
                           .tensors = tensors,
                           .read = read_expert};
    moepage_model *model = NULL;
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    return model;
}

/* ---- A run ---- */

typedef struct workload {
    float *x; /* [STEPS][TOKENS][H] */
    int32_t ids[STEPS][LAYERS][TOKENS * TOP_K];
    float weights[STEPS][LAYERS][TOKENS * TOP_K];
} workload;

static workload work;

static uint64_t outputs(void)
{
    return (uint64_t)STEPS * LAYERS * TOKENS * file.d.hidden;
}

static void make_work(void)
{
    const bank_model shape = {.shape = {.experts = EXPERTS}};
    const uint64_t n = (uint64_t)STEPS * TOKENS * file.d.hidden;
    work.x = malloc(n * sizeof *work.x);
    assert_non_null(work.x);
    for (uint64_t i = 0; i < n; i++)
        work.x[i] = (float)uniform(-2, 2);
    for (int s = 0; s < STEPS; s++)
        for (int l = 0; l < LAYERS; l++)
            bank_model_route(&shape, &file.random, TOKENS, TOP_K, true, work.ids[s][l],
                             work.weights[s][l]);
}

static void run_step(moepage_session *session, int s, float *y)
{
    const uint64_t batch = (uint64_t)TOKENS * file.d.hidden;
    moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = TOP_K,
                                   .ids = work.ids[s][l],
                                   .weights = work.weights[s][l]};
        moepage_ffn ffn = {.struct_size = sizeof ffn,
                           .dtype = MOEPAGE_DTYPE_F32,
                           .x = work.x + s * batch,
                           .y = y + (s * LAYERS + l) * batch};
        assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

/* Outputs with so many slots; freed by the caller. */
static float *run(moepage_model *model, uint32_t slots, uint32_t threads, uint32_t math)
{
    moepage_model_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    assert_int_equal(info.ffn_supported, 1);
    const uint64_t workspace = 1 << 20;
    moepage_device_config device_config = {.struct_size = sizeof device_config,
                                           .threads = threads,
                                           .workspace_bytes = workspace,
                                           .budget_bytes =
                                               workspace +
                                               (slots * info.slot_bytes + 4095) / 4096 * 4096};
    moepage_expert_pool_config pool_config = {.struct_size = sizeof pool_config, .slots = slots};
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = TOKENS,
                                     .math = math};
    moepage_device *device = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    assert_int_equal(moepage_device_open("host", &device_config, &device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&device, 1, model, &pool_config, &pool),
                     MOEPAGE_OK);
    assert_int_equal(moepage_session_create(pool, NULL, &config, &session), MOEPAGE_OK);
    float *y = calloc(outputs(), sizeof *y);
    assert_non_null(y);
    for (int s = 0; s < STEPS; s++)
        run_step(session, s, y);
    moepage_expert_pool_info pool_info = {.struct_size = sizeof pool_info};
    assert_int_equal(moepage_expert_pool_get_info(pool, &pool_info), MOEPAGE_OK);
    assert_int_equal(pool_info.evictions > 0, slots < KEYS / 2); /* it was paged */
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    return y;
}

/* ---- What must come out ---- */

/* One token through one layer: each expert's row within its own bound, and a weighted sum of TOP_K
 * of them, by fused multiply-adds. */
static void check_token(const float *y, const void *x, const int32_t *ids, const float *weights,
                        uint32_t layer, uint32_t math)
{
    const uint32_t h = file.d.hidden;
    double *want = calloc(h, sizeof *want), *bound = calloc(h, sizeof *bound);
    double *one = calloc(h, sizeof *one), *error = calloc(h, sizeof *error);
    assert_true(want && bound && one && error);
    for (uint32_t k = 0; k < TOP_K; k++) {
        if (ids[k] < 0)
            continue;
        const matrix *m = file.of[layer * EXPERTS + (uint32_t)ids[k]];
        const mp_ffn_expert expert = {.gate = m[0].values, .up = m[1].values, .down = m[2].values};
        reference_expert_row(&expert, x, h, file.d.intermediate, MOEPAGE_DTYPE_F32, math, one,
                             error);
        for (uint32_t i = 0; i < h; i++) {
            want[i] += weights[k] * one[i];
            bound[i] += weights[k] * (error[i] + TOP_K * 0x1p-24 * (fabs(one[i]) + error[i]));
        }
    }
    for (uint32_t i = 0; i < h; i++)
        if (!(fabs(y[i] - want[i]) <= bound[i]))
            fail_msg("layer %u, element %u is %.9g, must be %.9g +- %.2g", layer, i, (double)y[i],
                     want[i], bound[i]);
    free(want);
    free(bound);
    free(one);
    free(error);
}

static void check_outputs(const float *y, uint32_t math)
{
    const uint32_t h = file.d.hidden;
    const uint32_t operand = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    float x[512]; /* room for either type */
    assert_true(h <= 512);
    for (uint32_t s = 0; s < STEPS; s++)
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t t = 0; t < TOKENS; t++) {
                for (uint32_t i = 0; i < h; i++)
                    reference_store(x, i, operand, work.x[(uint64_t)(s * TOKENS + t) * h + i]);
                check_token(y + (uint64_t)((s * LAYERS + l) * TOKENS + t) * h, x,
                            &work.ids[s][l][t * TOP_K], &work.weights[s][l][t * TOP_K], l, math);
            }
}

static void expect_same(moepage_model *model, uint32_t slots, uint32_t threads, uint32_t math,
                        const float *want)
{
    float *y = run(model, slots, threads, math);
    assert_memory_equal(y, want, outputs() * sizeof *y);
    free(y);
}

static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

static void check_checkpoint(const naming *names, dims d, bool blocks_are_powers_of_two)
{
    make_checkpoint(names, d);
    make_work();
    moepage_model *model = moe_expect_open(&file.maker);
    for (size_t m = 0; m < 2; m++) {
        float *want = run(model, KEYS, 1, maths[m]);
        check_outputs(want, maths[m]);
        expect_same(model, KEYS, 2, maths[m], want);
        expect_same(model, 4, 1, maths[m], want);
        expect_same(model, 2, 2, maths[m], want);
        if (blocks_are_powers_of_two) {
            moepage_model *banks = open_banks();
            expect_same(banks, KEYS, 1, maths[m], want);
            expect_same(banks, 3, 1, maths[m], want);
            assert_int_equal(moepage_model_close(banks), MOEPAGE_OK);
        }
        free(want);
    }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    free(work.x);
    remove_checkpoint();
}

static void test_fp8_checkpoint_of_whole_blocks(void **state)
{
    (void)state;
    check_checkpoint(&deepseek, (dims){256, 128, 128, 128, "F32"}, true);
}

static void test_fp8_checkpoint_with_ragged_blocks(void **state)
{
    (void)state;
    check_checkpoint(&minimax, (dims){200, 136, 128, 128, "F32"}, true);
    check_checkpoint(&deepseek, (dims){75, 61, 16, 24, "F32"}, false);
}

static void test_fp8_checkpoint_with_bf16_scales(void **state)
{
    (void)state;
    check_checkpoint(&minimax, (dims){130, 96, 64, 32, "BF16"}, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_checkpoint_of_whole_blocks),
        cmocka_unit_test(test_fp8_checkpoint_with_ragged_blocks),
        cmocka_unit_test(test_fp8_checkpoint_with_bf16_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
