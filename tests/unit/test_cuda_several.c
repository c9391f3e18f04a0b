/* Sessions over several CUDA devices: what crosses between them, in which order, what each of them touches,
 * and what the caller is told when one of them fails. Over the simulated driver. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_caller.h"
#include "device_rig.h"
#include "issue.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "session/inside.h"
#include "sim_cuda.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 6
#define TOP_K 2
#define HIDDEN 16
#define INTERMEDIATE 16
#define TOKENS 3
#define X_BYTES (TOKENS * HIDDEN * sizeof(float))

static bank_model bank;
static pool_rig rig;
static moepage_session *session;
static mp_cu_stream native;
static const float weights[TOKENS * TOP_K] = {0.5f, 0.25f, 1, 2, 0.75f, 1};
static float host_x[TOKENS * HIDDEN];
static float *x, *y; /* of the first GPU */

static void open_all(const pool_rig_config *pool)
{
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = INTERMEDIATE,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .seed = 8});
    pool_rig_open(&rig, &bank, pool);
    session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS});
    native = cuda_caller_stream(rig.devices[0]);
    x = device_rig_alloc(rig.devices[0], X_BYTES);
    y = device_rig_alloc(rig.devices[0], X_BYTES);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        host_x[i] = (float)(i % 23) / 8 - 1;
    device_rig_write(rig.devices[0], x, host_x, X_BYTES);
}

/* `says`: what the driver says when the caller gives its stream up. */
static void close_session(mp_cu_result says)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    cuda_caller_give_up(rig.devices[0], native, says);
    device_rig_free(rig.devices[0], x, X_BYTES);
    device_rig_free(rig.devices[0], y, X_BYTES);
}

static void close_all(void)
{
    close_session(MP_CU_SUCCESS);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static void sync_native(void)
{
    cuda_caller_sync(rig.devices[0], native);
}

/* One layer of a step of its own. */
static moepage_status run_layer(uint32_t layer, const int32_t *ids, uint32_t n_tokens)
{
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = ids,
                                     .weights = weights,
                                     .stream = native};
    const moepage_ffn ffn = {
        .struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y, .stream = native};
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = n_tokens};
    moepage_status status = moepage_session_begin(session, &step);
    if (!status)
        status = moepage_session_route(session, layer, &routing, NULL);
    if (!status)
        status = moepage_session_ffn(session, layer, &ffn);
    if (!status)
        status = moepage_session_retire(session, layer);
    return status ? status : moepage_session_end(session, NULL);
}

static void expect_y(uint32_t layer, const int32_t *ids, uint32_t n_tokens)
{
    double want[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
    float got[TOKENS * HIDDEN];
    device_rig_read(rig.devices[0], y, got, X_BYTES);
    bank_model_reference(&bank, layer, n_tokens, TOP_K, ids, weights, host_x, MOEPAGE_MATH_FP32,
                         want, bound);
    for (uint32_t i = 0; i < n_tokens * HIDDEN; i++)
        assert_true(got[i] - want[i] <= bound[i] && want[i] - got[i] <= bound[i]);
}

static void hold_gpu(uint32_t gpu, bool hold)
{
    mp_cu_stream compute = mp_cuda_stream_of(session->scratch[gpu].compute)->handle;
    if (hold)
        sim_cuda_hold(compute);
    else
        sim_cuda_release(compute);
}

/* ---- order -------------------------------------------------------------------------------- */

/* The sum waits for every GPU that has experts of the layer, whichever is last; no thread waits. */
static void test_cuda_several_are_summed_when_all_are_done(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4}; /* on GPUs 0 1, 2 0, 2 1 */
    for (uint32_t i = 0; i < 2 * 3; i++) {
        open_all(&(pool_rig_config){.n_devices = 3, .no_peers = i / 3});
        assert_int_equal(rig.pool->indirect, i / 3 ? 2 : 0);
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK); /* all is resident then */
        sync_native();
        pool_rig_wait(&rig);
        memset(y, 0, X_BYTES);
        hold_gpu(i % 3, true);
        sim_cuda_stats before = sim_cuda_get_stats();
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK);
        sim_cuda_stats after = sim_cuda_get_stats();
        assert_int_equal(after.calls[SIM_stream_sync], before.calls[SIM_stream_sync]);
        assert_int_equal(after.calls[SIM_event_sync], before.calls[SIM_event_sync]);
        assert_int_equal(after.memory_calls, before.memory_calls);
        assert_int_equal(after.staged_copies, before.staged_copies);
        cuda_caller_enter(rig.devices[0]);
        assert_int_equal(cuda_caller_driver(rig.devices[0])->stream_query(native), MP_CU_NOT_READY);
        cuda_caller_leave(rig.devices[0]);
        hold_gpu(i % 3, false);
        sync_native();
        expect_y(1, ids, TOKENS);
        close_all();
    }
}

/* Layers follow each other while one GPU is behind: what it has not read is not written over. */
static void test_cuda_several_may_lag_behind_each_other(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4};
    for (uint32_t i = 0; i < 2 * 3; i++) {
        open_all(&(pool_rig_config){.n_devices = 3, .no_peers = i / 3});
        sim_cuda_jitter(i + 1);
        hold_gpu(i % 3, true);
        for (uint32_t k = 0; k < 7; k++)
            assert_int_equal(run_layer(k % LAYERS, ids, TOKENS), MOEPAGE_OK);
        hold_gpu(i % 3, false);
        sync_native();
        expect_y(0, ids, TOKENS);
        close_all();
    }
}

/* A GPU that has none of a layer's experts is given nothing to do, and not waited for. */
static void test_cuda_several_leave_out_who_has_nothing_to_do(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 3}; /* both on the first */
    open_all(&(pool_rig_config){.n_devices = 3});
    hold_gpu(1, true);
    hold_gpu(2, true);
    assert_int_equal(run_layer(0, ids, 1), MOEPAGE_OK);
    sync_native();
    expect_y(0, ids, 1);
    hold_gpu(1, false);
    hold_gpu(2, false);
    close_all();
}

typedef struct late_release {
    uint32_t gpu;
    _Atomic bool released;
} late_release;

static void *release_later(void *user)
{
    late_release *of = user;
    usleep(20000); /* a call that does not wait has returned by then */
    atomic_store(&of->released, true);
    hold_gpu(of->gpu, false);
    return NULL;
}

/* A KV pool waits for steps that have ended by the stream of its own GPU, whichever that is. */
static void test_cuda_several_are_waited_for_where_kv_is(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4};
    static const uint32_t token_bytes[1] = {64};
    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        late_release of = {.gpu = gpu};
        moepage_kv_pool *kv = NULL;
        pthread_t other;
        open_all(&(pool_rig_config){.n_devices = 2, .slots = LAYERS * EXPERTS});
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        assert_int_equal(
            moepage_kv_pool_create(rig.devices[gpu],
                                   &MOEPAGE_KV_POOL_CONFIG(.block_tokens = 1, .layers = 1,
                                                           .bytes_per_token = token_bytes,
                                                           .blocks_per_granule = 1, .blocks = 8),
                                   &kv),
            MOEPAGE_OK);
        assert_int_equal(moepage_session_create(rig.pool, kv,
                                                &MOEPAGE_SESSION_CONFIG(.max_tokens = TOKENS),
                                                &session),
                         MOEPAGE_OK);
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK); /* all is resident then */
        sync_native();
        pool_rig_wait(&rig);
        hold_gpu(gpu, true);
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK);
        assert_int_equal(pthread_create(&other, NULL, release_later, &of), 0);
        assert_int_equal(moepage_split_set(NULL, kv, 0, 4, NULL), MOEPAGE_OK);
        assert_true(atomic_load(&of.released));
        assert_int_equal(pthread_join(other, NULL), 0);
        sync_native();
        close_session(MP_CU_SUCCESS);
        assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
        pool_rig_close(&rig);
        bank_model_close(&bank);
    }
}

/* ---- memory ------------------------------------------------------------------------------- */

/* The caller's x and y are memory that no other GPU may touch, as that of an allocator's own mappings is. */
static void test_cuda_several_touch_no_memory_of_the_caller_s(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4};
    const mp_cu_mem_prop on = {.type = MP_CU_ALLOCATION_PINNED,
                               .location = {.type = MP_CU_LOCATION_DEVICE, .id = 0}};
    const mp_cu_access access = {.location = on.location, .flags = MP_CU_ACCESS_READWRITE};
    float *usual_x, *usual_y;
    open_all(&(pool_rig_config){.n_devices = 3});
    mp_cu_ptr memory;
    mp_cu_handle handle;
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(
        cuda_caller_driver(rig.devices[0])->address_reserve(&memory, SIM_GRANULARITY, 0, 0, 0),
        MP_CU_SUCCESS);
    assert_int_equal(
        cuda_caller_driver(rig.devices[0])->mem_create(&handle, SIM_GRANULARITY, &on, 0),
        MP_CU_SUCCESS);
    assert_int_equal(
        cuda_caller_driver(rig.devices[0])->mem_map(memory, SIM_GRANULARITY, 0, handle, 0),
        MP_CU_SUCCESS);
    assert_int_equal(
        cuda_caller_driver(rig.devices[0])->mem_set_access(memory, SIM_GRANULARITY, &access, 1),
        MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    usual_x = x, usual_y = y;
    x = (float *)(uintptr_t)memory, y = x + TOKENS * HIDDEN;
    memcpy(x, host_x, X_BYTES);
    assert_int_equal(run_layer(0, ids, TOKENS), MOEPAGE_OK);
    sync_native();
    expect_y(0, ids, TOKENS);
    assert_int_equal(sim_cuda_take_misuse(), 0);
    x = usual_x, y = usual_y;
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(cuda_caller_driver(rig.devices[0])->mem_unmap(memory, SIM_GRANULARITY),
                     MP_CU_SUCCESS);
    assert_int_equal(cuda_caller_driver(rig.devices[0])->mem_release(handle), MP_CU_SUCCESS);
    assert_int_equal(cuda_caller_driver(rig.devices[0])->address_free(memory, SIM_GRANULARITY),
                     MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    close_all();
}

/* What goes by way of the host takes no lines in the workspace, and is given back with the session. */
static void test_cuda_several_cross_by_host_memory_where_they_must(void **state)
{
    (void)state;
    const uint64_t lines = mp_session_align(TOKENS * TOP_K * HIDDEN * sizeof(float));
    uint64_t used[2], pinned[2];
    for (uint32_t i = 0; i < 2; i++) {
        moepage_device_info info = {.struct_size = sizeof info};
        open_all(&(pool_rig_config){.n_devices = 2, .no_peers = i});
        assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
        used[i] = info.used_bytes;
        pinned[i] = sim_cuda_get_stats().pinned;
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        assert_int_equal(moepage_device_get_info(rig.devices[0], &info), MOEPAGE_OK);
        session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS});
        assert_int_equal(sim_cuda_get_stats().pinned, pinned[i]);
        close_all();
    }
    assert_int_equal(used[0] - used[1], lines);
    assert_true(pinned[1] > pinned[0]);
}

/* ---- kinds -------------------------------------------------------------------------------- */

static void test_cuda_several_are_of_one_kind(void **state)
{
    (void)state;
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .workspace_bytes = 1 << 20,
                                          .budget_bytes = 5 << 20};
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = INTERMEDIATE,
                                         .dtype = MOEPAGE_DTYPE_BF16});
    for (uint32_t i = 0; i < 2; i++) {
        moepage_device *devices[2], *host = NULL;
        moepage_expert_pool *pool = NULL;
        moepage_session *none = NULL;
        assert_int_equal(moepage_device_open("host", &config, &host), MOEPAGE_OK);
        devices[i] = host;
        devices[1 - i] = device_rig_open(&config);
        assert_int_equal(moepage_expert_pool_create(devices, 2, bank.model, NULL, &pool),
                         MOEPAGE_OK);
        assert_int_equal(moepage_session_create(pool, NULL, NULL, &none), MOEPAGE_E_UNSUPPORTED);
        assert_non_null(strstr(moepage_last_error(), "several hosts or several CUDA devices"));
        assert_non_null(strstr(moepage_last_error(), i ? "cuda:0 and host" : "host and cuda:0"));
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(host), MOEPAGE_OK);
        device_rig_close(devices[1 - i]);
    }
    bank_model_close(&bank);
}

/* ---- failure ------------------------------------------------------------------------------ */

static bool is_poisoned(uint32_t gpu)
{
    moepage_cuda_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_cuda_get_info(rig.devices[gpu], &info), MOEPAGE_OK);
    return info.poisoned != 0;
}

static void close_after_failure(uint32_t gpu)
{
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    close_session(gpu == 0 ? MP_CU_LAUNCH_FAILED : MP_CU_SUCCESS);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    for (uint32_t d = 0; d < rig.n_devices; d++)
        device_rig_close(rig.devices[d]);
    bank_model_close(&bank);
}

/* The call that finds it out names the GPU; the others are well, and all of it can be taken down. */
static void test_cuda_several_say_which_one_has_failed(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4};
    for (uint32_t i = 0; i < 2 * 3; i++) {
        const uint32_t gpu = i % 3;
        char name[16];
        snprintf(name, sizeof name, "cuda:%u", gpu);
        open_all(&(pool_rig_config){.n_devices = 3, .no_peers = i / 3});
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK);
        sync_native();
        sim_cuda_break(gpu, MP_CU_LAUNCH_FAILED);
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_E_DEVICE);
        assert_non_null(strstr(moepage_last_error(), name));
        for (uint32_t d = 0; d < 3; d++)
            assert_int_equal(is_poisoned(d), d == gpu);
        close_after_failure(gpu);
    }
}

/* All is submitted, and runs, but for what the GPU that fails has of it. The caller's stream says nothing. */
static void test_cuda_several_ask_each_other_s_health_between_steps(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3, 5, 4};
    for (uint32_t i = 0; i < 2; i++) {
        open_all(&(pool_rig_config){.n_devices = 3});
        assert_int_equal(run_layer(1, ids, TOKENS), MOEPAGE_OK);
        if (i == 1)
            pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        sim_cuda_break(2, MP_CU_LAUNCH_FAILED);
        sync_native();
        assert_false(is_poisoned(2)); /* nobody knows yet */
        const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
        assert_int_equal(i ? moepage_session_end(session, NULL)
                           : moepage_session_begin(session, &step),
                         MOEPAGE_E_DEVICE);
        assert_non_null(strstr(moepage_last_error(), "cuda:2"));
        close_after_failure(2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_several_are_summed_when_all_are_done),
        cmocka_unit_test(test_cuda_several_may_lag_behind_each_other),
        cmocka_unit_test(test_cuda_several_leave_out_who_has_nothing_to_do),
        cmocka_unit_test(test_cuda_several_are_waited_for_where_kv_is),
        cmocka_unit_test(test_cuda_several_touch_no_memory_of_the_caller_s),
        cmocka_unit_test(test_cuda_several_cross_by_host_memory_where_they_must),
        cmocka_unit_test(test_cuda_several_are_of_one_kind),
        cmocka_unit_test(test_cuda_several_say_which_one_has_failed),
        cmocka_unit_test(test_cuda_several_ask_each_other_s_health_between_steps),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
