/* MATH_BF16_FAST on a CUDA device, over the simulated driver or that of MP_TEST_DEVICE: with
 * experts of enough rows for cuBLAS, where there is one, and of few, results are right. */
#include <stdlib.h>
#include <string.h>

#include <math.h>

#include "arena/home.h"
#include "bank_model.h"
#include "device_rig.h"
#include "gpu.h"
#include "kernels/fast_args.h"
#include "testing.h"

#define EXPERTS 4
#define TOP_K 2
#define TOKENS 300u /* of which one expert has all, one some, and two few */
#define HIDDEN 64u
#define INTERMEDIATE 48u

typedef struct layer {
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    double want[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
} layer;

static void make_layer(const bank_model *bank, layer *l)
{
    uint64_t random = 4;
    for (uint32_t t = 0; t < TOKENS; t++) {
        l->ids[t * TOP_K] = 0;
        l->ids[t * TOP_K + 1] = t % 2 ? 1 : t % 10 ? 2 : 3;
        l->weights[t * TOP_K] = 0.75f;
        l->weights[t * TOP_K + 1] = 0.25f;
    }
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        l->x[i] = (float)((int)bank_below(&random, 20001) - 10000) / 7919.0f;
    bank_model_reference(bank, 0, TOKENS, TOP_K, l->ids, l->weights, l->x, MOEPAGE_MATH_BF16,
                         l->want, l->bound);
}

static void run_layer(moepage_device *device, moepage_session *session, layer *l)
{
    float *memory = device_rig_alloc(device, 2 * sizeof l->x);
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = l->ids,
                                     .weights = l->weights};
    const moepage_ffn ffn = {.struct_size = sizeof ffn,
                             .dtype = MOEPAGE_DTYPE_F32,
                             .x = memory,
                             .y = memory + TOKENS * HIDDEN};
    device_rig_write(device, memory, l->x, sizeof l->x);
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_OK);
    if (moepage_session_ffn(session, 0, &ffn))
        fail_msg("%s", moepage_last_error());
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    device_rig_read(device, ffn.y, l->y, sizeof l->y);
    device_rig_free(device, memory, 2 * sizeof l->x);
}

static void expect_right(bool bias)
{
    static layer l;
    bank_model bank;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    moepage_session_config config = {.struct_size = sizeof config};
    const bank_shape shape = {.layers = 1,
                              .experts = EXPERTS,
                              .top_k = TOP_K,
                              .hidden = HIDDEN,
                              .intermediate = INTERMEDIATE,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .bias = bias,
                              .seed = 8};
    moepage_device *device = device_rig_open(&(moepage_device_config){
        .struct_size = sizeof(moepage_device_config),
        .threads = 1,
        .budget_bytes = 192u << 20,
        .workspace_bytes = 128u << 20,
    });
    bank_model_open(&bank, &shape);
    make_layer(&bank, &l);
    config.max_tokens = TOKENS;
    config.math = MOEPAGE_MATH_BF16_FAST;
    assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, NULL, &pool), MOEPAGE_OK);
    if (moepage_session_create(pool, NULL, &config, &session))
        fail_msg("%s", moepage_last_error());
    for (uint32_t round = 0; round < 2; round++) {
        run_layer(device, session, &l);
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
            if (!(fabs(l.y[i] - l.want[i]) <= l.bound[i]))
                fail_msg("element %u is %.9g, should be %.9g +- %.2g", i, (double)l.y[i], l.want[i],
                         l.bound[i]);
    }
    const mp_cuda *cuda = mp_cuda_of(device->device);
    print_message("cuBLAS: %s\n", cuda->blas ? "there" : cuda->blas_missing);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    bank_model_close(&bank);
    device_rig_close(device);
}

static void test_gpu_fast_math_is_right_for_few_rows_and_many(void **state)
{
    (void)state;
    assert_true(TOKENS / 2 >= MP_FAST_LEAST_ROWS && TOKENS / 10 < MP_FAST_LEAST_ROWS);
    expect_right(false);
    expect_right(true);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_fast_math_is_right_for_few_rows_and_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
