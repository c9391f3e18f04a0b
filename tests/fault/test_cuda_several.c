/* Sessions over several CUDA devices when any one call of the driver fails, for a passing reason or for good:
 * nothing hangs, a step that says that it went well has the right results, and all of it can be taken down. So
 * it is where the host computes some of the experts. */
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "pool_rig.h"
#include "sim_cuda.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 6
#define TOP_K 2
#define HIDDEN 16
#define TOKENS 3
#define X_BYTES (TOKENS * HIDDEN * sizeof(float))
#define MOST_CALLS 3000

static const int32_t ids[TOKENS * TOP_K] = {0, 1, 2, 3, 5, 4};
static const float weights[TOKENS * TOP_K] = {0.5f, 0.25f, 1, 2, 0.75f, 1};

static bank_model bank;
static pool_rig rig;
static float host_x[TOKENS * HIDDEN];
static float *x, *y;

static void open_all(bool no_peers)
{
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = 16,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .seed = 8});
    pool_rig_open(&rig, &bank,
                  &(pool_rig_config){.n_devices = 2, .slots = 6, .no_peers = no_peers});
    x = device_rig_alloc(rig.devices[0], X_BYTES);
    y = device_rig_alloc(rig.devices[0], X_BYTES);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        host_x[i] = (float)(i % 23) / 8 - 1;
    device_rig_write(rig.devices[0], x, host_x, X_BYTES);
}

static void close_all(void)
{
    device_rig_free(rig.devices[0], x, X_BYTES);
    device_rig_free(rig.devices[0], y, X_BYTES);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    for (uint32_t d = 0; d < rig.n_devices; d++)
        device_rig_close(rig.devices[d]);
    bank_model_close(&bank);
}

/* Misses are among what the layers need. */
static moepage_status run_step(moepage_session *session)
{
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = ids,
                                     .weights = weights};
    const moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
    moepage_status status = moepage_session_begin(session, &step);
    for (uint32_t layer = 0; layer < LAYERS && !status; layer++) {
        status = moepage_session_route(session, layer, &routing, NULL);
        if (!status)
            status = moepage_session_ffn(session, layer, &ffn);
        if (!status)
            status = moepage_session_retire(session, layer);
    }
    return status ? status : moepage_session_end(session, NULL);
}

static bool is_poisoned(void)
{
    bool any = false;
    for (uint32_t d = 0; d < rig.n_devices; d++)
        any |= atomic_load(&mp_cuda_of(rig.devices[d]->device)->health.poisoned) != 0;
    return any;
}

static void expect_y(uint64_t nth)
{
    double want[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
    float got[TOKENS * HIDDEN];
    device_rig_read(rig.devices[0], y, got, X_BYTES);
    bank_model_reference(&bank, LAYERS - 1, TOKENS, TOP_K, ids, weights, host_x, MOEPAGE_MATH_FP32,
                         want, bound);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        if (!(got[i] - want[i] <= bound[i] && want[i] - got[i] <= bound[i]))
            fail_msg("call %llu failed, and element %u is %g", (unsigned long long)nth, i,
                     (double)got[i]);
}

/* The nth call from the session's creation to the step's end. Returns false if there were fewer. */
static bool fail_call(uint64_t nth, mp_cu_result result, bool no_peers, uint32_t miss)
{
    moepage_session *session = NULL;
    open_all(no_peers);
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_tokens = TOKENS,
                                           .miss = miss};
    sim_cuda_fail_any(nth, result, false);
    moepage_status status = moepage_session_create(rig.pool, NULL, &config, &session);
    if (!status)
        status = run_step(session);
    if (session)
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    sim_cuda_fail_none();
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    const bool poisoned = is_poisoned();
    if (!status && !poisoned)
        expect_y(nth);
    close_all();
    return status || poisoned;
}

/* Each third call, from another on for each variant, so that all are among them; MP_TEST_LONG has all of all. */
static void fail_each(mp_cu_result result)
{
    const uint32_t step = getenv("MP_TEST_LONG") ? 1 : 3;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t miss = i / 2 ? MOEPAGE_MISS_HOST : MOEPAGE_MISS_WAIT;
        uint64_t quiet = 0, nth = 1 + i % step;
        /* Some calls may fail without harm: until many in a row have. */
        for (; quiet < 60 && nth < MOST_CALLS; nth += step)
            quiet = fail_call(nth, result, i % 2, miss) ? 0 : quiet + step;
        assert_true(nth > 200 && nth < MOST_CALLS);
    }
}

static void test_cuda_several_when_a_call_fails(void **state)
{
    (void)state;
    fail_each(MP_CU_OUT_OF_MEMORY);
}

static void test_cuda_several_when_a_gpu_dies(void **state)
{
    (void)state;
    fail_each(MP_CU_LAUNCH_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_several_when_a_call_fails),
        cmocka_unit_test(test_cuda_several_when_a_gpu_dies),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
