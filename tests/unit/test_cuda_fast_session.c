/* Sessions with MATH_BF16_FAST over the simulated driver and a simulated cuBLAS: what they take of
 * the workspace, and that their results are right with the library and without. */

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "kernels/fast_args.h"
#include "numbers.h"
#include "pool_rig.h"
#include "sim_blas.h"
#include "sim_cuda.h"
#include "testing.h"

#define LEAST MP_FAST_LEAST_ROWS
#define TOKENS 150u
#define HIDDEN 32u
#define MOST_EXPERTS 3u
#define TOP_K 2u

static const moepage_device_config machine = {.struct_size = sizeof machine,
                                              .threads = 1,
                                              .budget_bytes = 192u << 20,
                                              .workspace_bytes = 128u << 20};

static bank_model bank;
static pool_rig rig;

static void open_pool(bool with_blas, uint32_t dtype)
{
    bank_model_open(&bank, &(bank_shape){.layers = 1,
                                         .experts = MOST_EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = 40,
                                         .dtype = dtype,
                                         .bias = true,
                                         .seed = 9});
    const mp_cuda_driver *driver = sim_cuda_open(&(sim_cuda_config){.seed = 5});
    const mp_cuda_blas *blas = sim_blas_open(driver);
    mp_device *device = NULL;
    if (mp_cuda_device_open(driver, with_blas ? blas : NULL, "not here", sim_images, sim_n_images,
                            0, &machine, &device))
        fail_msg("%s", moepage_last_error());
    rig = (pool_rig){.bank = &bank, .n_devices = 1};
    assert_int_equal(mp_home_open(device, &machine, &rig.devices[0]), MOEPAGE_OK);
    moepage_expert_pool_config config = {.struct_size = sizeof config};
    assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                     MOEPAGE_OK);
}

static void close_pool(void)
{
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(rig.devices[0]), MOEPAGE_OK);
    bank_model_close(&bank);
    sim_blas_close();
    sim_cuda_close();
}

static uint64_t used_bytes(void)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
    return info.used_bytes;
}

static uint64_t workspace(uint32_t math, uint32_t max_tokens)
{
    uint64_t bytes = 0;
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = max_tokens,
                                     .math = math};
    assert_int_equal(moepage_session_workspace(bank.model, &config, &bytes), MOEPAGE_OK);
    return bytes;
}

/* y of one layer, whose tokens have expert 0 and one of the others, against double precision. */
static void run_session(moepage_session *session, bool plans)
{
    static int32_t ids[TOKENS * TOP_K];
    static float weights[TOKENS * TOP_K], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    static double want[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
    const uint64_t bytes = sizeof x;
    float *memory = device_rig_alloc(rig.devices[0], 2 * bytes);
    for (uint32_t t = 0; t < TOKENS; t++) {
        ids[t * TOP_K] = 0;
        ids[t * TOP_K + 1] = t % 5 ? 1 : 2;
        weights[t * TOP_K] = 0.75f;
        weights[t * TOP_K + 1] = 0.25f;
    }
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = num_random();
    memcpy(memory, x, bytes);
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = TOP_K,
                               .ids = ids,
                               .weights = weights};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = memory,
                       .y = memory + TOKENS * HIDDEN};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_PREFILL);
    assert_int_equal(moepage_session_route(session, 0, &routing, plans ? &plan : NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    device_rig_read(rig.devices[0], ffn.y, y, bytes);
    bank_model_reference(&bank, 0, TOKENS, TOP_K, ids, weights, x, MOEPAGE_MATH_BF16, want, bound);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        if (!(fabs(y[i] - want[i]) <= bound[i]))
            fail_msg("element %u is %.9g, should be %.9g +- %.2g", i, y[i], want[i], bound[i]);
    }
    device_rig_free(rig.devices[0], memory, 2 * bytes);
}

/* A session of this math takes `bytes`, and is right. */
static void check_session(uint32_t math, uint64_t bytes)
{
    const uint64_t before = used_bytes();
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS, .math = math});
    assert_int_equal(used_bytes() - before, bytes);
    run_session(session, true);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(used_bytes(), before);
}

static void test_cuda_fast_session_brings_the_scratch(void **state)
{
    (void)state;
    open_pool(true, MOEPAGE_DTYPE_BF16);
    const uint64_t fast = workspace(MOEPAGE_MATH_BF16_FAST, TOKENS);
    const uint64_t exact = workspace(MOEPAGE_MATH_BF16, TOKENS);
    assert_true(fast > exact + MP_FAST_LIBRARY_BYTES);
    assert_int_equal(workspace(MOEPAGE_MATH_BF16_FAST, LEAST / TOP_K),
                     workspace(MOEPAGE_MATH_BF16, LEAST / TOP_K));
    check_session(MOEPAGE_MATH_BF16, exact);
    assert_int_equal(sim_blas_calls(SIM_BLAS_create), 0);
    check_session(MOEPAGE_MATH_BF16_FAST, fast);
    assert_true(sim_blas_products() >= 9); /* two chunks of one expert, one of another */
    check_session(MOEPAGE_MATH_BF16_FAST, fast);
    assert_int_equal(sim_blas_calls(SIM_BLAS_create), 1);
    close_pool();
}

static void test_cuda_fast_session_without_the_library_takes_no_more(void **state)
{
    (void)state;
    open_pool(false, MOEPAGE_DTYPE_BF16);
    check_session(MOEPAGE_MATH_BF16_FAST, workspace(MOEPAGE_MATH_BF16, TOKENS));
    close_pool();
    open_pool(true, MOEPAGE_DTYPE_F16); /* weights that are not its kind */
    assert_int_equal(workspace(MOEPAGE_MATH_BF16_FAST, TOKENS),
                     workspace(MOEPAGE_MATH_BF16, TOKENS));
    check_session(MOEPAGE_MATH_BF16_FAST, workspace(MOEPAGE_MATH_BF16, TOKENS));
    assert_int_equal(sim_blas_calls(SIM_BLAS_create), 0);
    close_pool();
}

static void test_cuda_fast_session_passes_its_failure_on(void **state)
{
    (void)state;
    moepage_session *session = NULL;
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = TOKENS,
                                     .math = MOEPAGE_MATH_BF16_FAST};
    open_pool(true, MOEPAGE_DTYPE_BF16);
    const uint64_t before = used_bytes();
    sim_blas_fail(SIM_BLAS_create, 1, MP_BLAS_INTERNAL_ERROR);
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_DEVICE);
    assert_non_null(strstr(moepage_last_error(), "CUBLAS_STATUS_INTERNAL_ERROR"));
    assert_null(session);
    assert_int_equal(used_bytes(), before);
    close_pool();
}

/* What the host computes is BF16 math's, too. */
static void test_cuda_fast_session_with_experts_of_the_host(void **state)
{
    (void)state;
    moepage_session_stats stats = {.struct_size = sizeof stats};
    open_pool(true, MOEPAGE_DTYPE_BF16);
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS,
                                                         .math = MOEPAGE_MATH_BF16_FAST,
                                                         .miss = MOEPAGE_MISS_HOST});
    run_session(session, false);
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_true(stats.host_experts > 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_pool();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_fast_session_brings_the_scratch),
        cmocka_unit_test(test_cuda_fast_session_without_the_library_takes_no_more),
        cmocka_unit_test(test_cuda_fast_session_passes_its_failure_on),
        cmocka_unit_test(test_cuda_fast_session_with_experts_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
