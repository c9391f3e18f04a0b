/* Layers that the device runs by itself, when something is wrong: no bits at all rather than wrong
 * ones, the reason, and then all is well again. */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_clock.h"
#include "device_rig.h"
#include "path_rig.h"
#include "sim_cuda.h"
#include "testing.h"

static uint32_t rounds(void)
{
    return getenv("MP_TEST_LONG") ? 30 : 3;
}

/* An expert that the step needs and no slot holds: its load will be asked for in the first layer of
 * the three that lacks one. */
static bool find_absent(path_rig *r, const path_step *s, uint32_t *layer, uint32_t *expert)
{
    bool seen[PATH_EXPERTS];
    for (*layer = 0; *layer < PATH_LAYERS; ++*layer) {
        path_step_distinct(s, *layer, seen);
        for (*expert = 0; *expert < PATH_EXPERTS; ++*expert)
            if (seen[*expert] && pool_rig_state(&r->pool, *layer, *expert) == MOEPAGE_EXPERT_ABSENT)
                return true;
    }
    return false;
}

static void test_cuda_path_gives_nan_and_the_reason_when_a_load_fails(void **state)
{
    (void)state;
    path_rig r;
    uint32_t failures = 0, layer, expert;
    path_rig_open(&r,
                  &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32,
                                     .callback = true,
                                     .pool = {.slots = PATH_EXPERTS}},
                  2 * rounds());
    for (uint32_t i = 0; i < r.n_steps; i++) {
        if (find_absent(&r, &r.steps[i], &layer, &expert)) {
            r.bank.fail_key = layer * PATH_EXPERTS + expert;
            path_rig_run(&r, &r.steps[i], layer);
            path_rig_run(&r, &r.steps[i], 0); /* nobody has asked yet */
            r.bank.fail_key = UINT32_MAX;
            path_rig_run(&r, &r.steps[i], 0);
            moepage_cuda_path_stats stats = {.struct_size = sizeof stats};
            char named[64];
            snprintf(named, sizeof named, "expert %u of layer %u", expert, layer);
            assert_int_equal(moepage_cuda_path_check(r.path, &stats), MOEPAGE_E_CALLBACK);
            assert_int_equal(stats.status, MOEPAGE_E_CALLBACK);
            assert_non_null(strstr(moepage_last_error(), named));
            failures++;
        }
        assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_OK);
        path_rig_run(&r, &r.steps[i], PATH_LAYERS);
    }
    assert_true(failures > r.n_steps / 2);
    path_rig_close(&r);
}

static void test_cuda_path_refuses_ids_that_a_layer_lacks(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32}, 1);
    int32_t right = r.steps[0].ids[1][1];
    r.steps[0].ids[1][1] = PATH_EXPERTS;
    path_rig_run(&r, &r.steps[0], 1);
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "an id is 16"));
    r.steps[0].ids[1][1] = right;
    path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_OK);
    path_rig_close(&r);
}

/* ---- time: it stands still unless a test moves it ---- */

static _Atomic uint64_t virtual_ns, pauses;

static uint64_t virtual_now(void *user)
{
    (void)user;
    return atomic_load(&virtual_ns);
}

static void virtual_pause(void *user)
{
    (void)user;
    atomic_fetch_add(&pauses, 1);
    sched_yield();
}

static const cpu_clock virtual_clock = {.now_ns = virtual_now, .pause = virtual_pause};

/* Lets the kernel that waits now, or will soon, run out of time. */
static void expire(void)
{
    uint64_t before = atomic_load(&pauses);
    while (atomic_load(&pauses) < before + 2)
        sched_yield();
    atomic_fetch_add(&virtual_ns, 2000000ull * PATH_TIMEOUT_MS);
}

/* Reads of one layer's experts stand at a gate. */
typedef struct gate {
    uint32_t layer;
    _Atomic bool shut;
    sem_t reached, open;
} gate;

static void stand_at_gate(bank_model *bank, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)expert, (void)tensor;
    gate *g = bank->user;
    if (layer != g->layer || !atomic_load(&g->shut))
        return;
    sem_post(&g->reached);
    while (sem_wait(&g->open))
        continue;
    sem_post(&g->open);
}

static void test_cuda_path_gives_up_in_time_and_goes_on_when_the_host_is_done(void **state)
{
    (void)state;
    path_rig r;
    gate g = {.layer = 1, .shut = true};
    sem_init(&g.open, 0, 0);
    sem_init(&g.reached, 0, 0);
    cpu_clock_set(&virtual_clock);
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32, .callback = true, .slots = 40},
                  2);
    r.bank.user = &g;
    r.bank.before = stand_at_gate;

    path_caller_write(&r.caller, &r.steps[0]);
    path_rig_submit(&r, r.steps[0].n_tokens);
    while (sem_wait(&g.reached))
        continue;
    expire();
    path_caller_sync(&r.caller);
    path_rig_expect(&r, &r.steps[0], 1);
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_E_BUSY);

    /* The loads are still on their way: not even a layer that has all it needs may run. */
    path_caller_write(&r.caller, &r.steps[0]);
    path_rig_submit(&r, r.steps[0].n_tokens);
    expire();
    path_caller_sync(&r.caller);
    path_rig_expect(&r, &r.steps[0], 0);
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_E_BUSY);

    path_caller_write(&r.caller, &r.steps[1]);
    path_rig_submit(&r, r.steps[1].n_tokens);
    atomic_store(&g.shut, false);
    sem_post(&g.open);
    path_caller_sync(&r.caller);
    path_rig_expect(&r, &r.steps[1], PATH_LAYERS);
    assert_int_equal(moepage_cuda_path_check(r.path, NULL), MOEPAGE_OK);
    path_rig_close(&r);
    cpu_clock_set(NULL);
    sem_destroy(&g.open);
    sem_destroy(&g.reached);
}

/* ---- life ---- */

static void test_cuda_path_takes_the_workspace_that_it_says(void **state)
{
    (void)state;
    path_rig r;
    uint64_t bytes = 0;
    moepage_device_info before = {.struct_size = sizeof before}, after = before;
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32}, 1);
    assert_int_equal(moepage_device_get_info(r.caller.home, &after), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
    assert_int_equal(moepage_device_get_info(r.caller.home, &before), MOEPAGE_OK);
    moepage_session_config session = {.struct_size = sizeof session, .max_tokens = PATH_TOKENS};
    assert_int_equal(moepage_cuda_path_workspace(r.bank.model, &session, NULL, &bytes), MOEPAGE_OK);
    assert_true(bytes > 0);
    assert_int_equal(after.used_bytes - before.used_bytes, bytes);
    r.path = NULL;
    path_rig_close(&r);
}

static void test_cuda_path_has_the_session_to_itself(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32}, 1);
    moepage_cuda_path *second = NULL, *path = r.path;
    moepage_step begin = {.struct_size = sizeof begin, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(r.session, &begin), MOEPAGE_E_STATE);
    assert_int_equal(moepage_session_destroy(r.session), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_cuda_path_create(r.session, NULL, &second), MOEPAGE_E_STATE);
    assert_int_equal(moepage_cuda_path_destroy(path), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_path_destroy(path), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_cuda_path_check(path, NULL), MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_session_begin(r.session, &begin), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_path_create(r.session, NULL, &second), MOEPAGE_E_STATE);
    assert_int_equal(moepage_session_end(r.session, NULL), MOEPAGE_OK);
    r.path = path_rig_create(&r, 0);
    path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    path_rig_close(&r);
}

static void test_cuda_path_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    path_rig r;
    moepage_cuda_path *path = NULL;
    path_rig_open(&r, &(path_rig_config){.dtype = MOEPAGE_DTYPE_F32, .pool = {.slots = 20}}, 1);
    moepage_cuda_layer good = {.struct_size = sizeof good,
                               .n_tokens = 1,
                               .top_k = PATH_TOP_K,
                               .dtype = MOEPAGE_DTYPE_F32,
                               .ids = r.caller.ids,
                               .weights = r.caller.weights,
                               .x = r.caller.x,
                               .y = r.caller.y};
    moepage_cuda_layer wrong[10];
    for (uint32_t i = 0; i < 10; i++)
        wrong[i] = good;
    wrong[0].layer = PATH_LAYERS;
    wrong[1].n_tokens = 0;
    wrong[2].n_tokens = PATH_TOKENS + 1;
    wrong[3].top_k = 0;
    wrong[4].top_k = PATH_TOP_K + 1;
    wrong[5].dtype = MOEPAGE_DTYPE_I8;
    wrong[6].accumulate = 2;
    wrong[7].ids = NULL;
    wrong[8].y = NULL;
    wrong[9].x_stride = PATH_HIDDEN - 1;
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(moepage_cuda_path_layer(r.path, &wrong[i], r.caller.stream),
                         MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);

    moepage_cuda_path_config config = {.struct_size = sizeof config, .slots = PATH_EXPERTS - 1};
    assert_int_equal(moepage_cuda_path_create(r.session, &config, &path), MOEPAGE_E_BUDGET);
    config.slots = 21;
    assert_int_equal(moepage_cuda_path_create(r.session, &config, &path), MOEPAGE_E_BUDGET);
    config =
        (moepage_cuda_path_config){.struct_size = sizeof config, .max_tokens = PATH_TOKENS + 1};
    assert_int_equal(moepage_cuda_path_create(r.session, &config, &path), MOEPAGE_E_ARGUMENT);

    /* What is left to others: nothing, then a slot. */
    r.path = path_rig_create(&r, 20);
    moepage_session *other = NULL;
    assert_int_equal(moepage_session_create(r.pool.pool, NULL, NULL, &other), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
    r.path = path_rig_create(&r, 19);
    assert_int_equal(moepage_session_create(r.pool.pool, NULL, NULL, &other), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    path_rig_close(&r);
}

static void test_cuda_path_is_of_cuda_devices_alone(void **state)
{
    (void)state;
    bank_model bank;
    pool_rig pool;
    moepage_cuda_path *path = NULL;
    setenv("MP_TEST_DEVICE", "host", 1);
    bank_model_open(
        &bank,
        &(bank_shape){.layers = 2, .experts = 4, .top_k = 1, .hidden = 8, .intermediate = 4});
    pool_rig_open(&pool, &bank, &(pool_rig_config){0});
    moepage_session *session = pool_rig_session(&pool, NULL);
    assert_int_equal(moepage_cuda_path_create(session, NULL, &path), MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&pool);
    bank_model_close(&bank);
    setenv("MP_TEST_DEVICE", "sim", 1);
}

/* `words`: of the refusal; NULL: a path there is. */
static void expect_path(const bank_shape *shape, const pool_rig_config *config, uint32_t miss,
                        const char *words)
{
    bank_model bank;
    pool_rig pool;
    moepage_cuda_path *path = NULL;
    bank_model_open(&bank, shape);
    pool_rig_open(&pool, &bank, config);
    moepage_session *session = pool_rig_session(&pool, &(moepage_session_config){.miss = miss});
    moepage_status status = moepage_cuda_path_create(session, NULL, &path);
    assert_int_equal(status, words ? MOEPAGE_E_UNSUPPORTED : MOEPAGE_OK);
    if (words)
        assert_non_null(strstr(moepage_last_error(), words));
    assert_int_equal(moepage_cuda_path_destroy(path), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&pool);
    bank_model_close(&bank);
}

/* There are no kernels for such rows, and slots of two sizes have no one stride. */
static void test_cuda_path_refuses_experts_that_it_cannot_run(void **state)
{
    (void)state;
    bank_shape shape = {.layers = 2,
                        .experts = 4,
                        .top_k = 1,
                        .hidden = 32,
                        .intermediate = 36,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT4};
    expect_path(&shape, &(pool_rig_config){.slot_form = MOEPAGE_FORM_INT4}, 0,
                "int4 have rows of 32 and 36 weights");
    shape.pack_forms = 0;
    shape.odd_dtype = MOEPAGE_DTYPE_F32;
    expect_path(&shape, &(pool_rig_config){0}, 0, "differ in size");
}

/* A path loads what is absent and waits for it; low versions it does not know. */
static void test_cuda_path_refuses_steps_in_two_versions(void **state)
{
    (void)state;
    moepage_precision_config precision = {.struct_size = sizeof precision,
                                          .lo_form = MOEPAGE_FORM_INT4,
                                          .hi_experts = 2};
    const bank_shape shape = {.layers = 2,
                              .experts = 8,
                              .top_k = 1,
                              .hidden = 32,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT4};
    const pool_rig_config config = {.precision = &precision, .arena_slots = 64};
    expect_path(&shape, &config, MOEPAGE_MISS_WAIT, "two versions, and a path in one");
    precision.serve = MOEPAGE_SERVE_CACHE;
    precision.hi_experts = 0;
    expect_path(&shape, &config, MOEPAGE_MISS_LOW, "two versions, and a path in one");
    expect_path(&shape, &config, MOEPAGE_MISS_WAIT, NULL);
}

/* Whatever of the device cannot be had; then it is as if nothing had been asked for. */
static void test_cuda_path_that_cannot_be_created_leaves_nothing_behind(void **state)
{
    (void)state;
    static const sim_cuda_call calls[] = {SIM_mem_alloc, SIM_host_alloc, SIM_stream_create};
    path_rig r;
    path_rig_open(&r, &(path_rig_config){0}, 1);
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
    moepage_device_info before = {.struct_size = sizeof before}, after = before;
    assert_int_equal(moepage_device_get_info(r.caller.home, &before), MOEPAGE_OK);
    for (uint32_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        sim_cuda_stats calm = sim_cuda_get_stats();
        sim_cuda_fail(calls[i], 1, MP_CU_OUT_OF_MEMORY, false);
        assert_int_equal(moepage_cuda_path_create(r.session, NULL, &r.path), MOEPAGE_E_NO_MEMORY);
        sim_cuda_fail_none();
        sim_cuda_stats stats = sim_cuda_get_stats();
        assert_int_equal(stats.allocated, calm.allocated);
        assert_int_equal(stats.pinned, calm.pinned);
        assert_int_equal(moepage_device_get_info(r.caller.home, &after), MOEPAGE_OK);
        assert_int_equal(after.used_bytes, before.used_bytes);
    }
    r.path = path_rig_create(&r, 0);
    path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    path_rig_close(&r);
}

/* A GPU that is lost says so, and everything can still be closed. */
static void test_cuda_path_says_that_its_gpu_is_lost(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r, &(path_rig_config){0}, 1);
    path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    sim_cuda_break(0, MP_CU_LAUNCH_FAILED);
    moepage_cuda_path_stats stats = {.struct_size = sizeof stats};
    moepage_status status = MOEPAGE_OK;
    while (!status) /* until some call has met with it */
        status = path_rig_try(&r, r.steps[0].n_tokens);
    assert_int_equal(status, MOEPAGE_E_DEVICE);
    assert_int_equal(moepage_cuda_path_check(r.path, &stats), MOEPAGE_E_DEVICE);
    assert_int_equal(moepage_cuda_path_check(r.path, &stats), MOEPAGE_E_DEVICE);
    assert_int_equal(stats.status, MOEPAGE_E_DEVICE);
    assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(r.session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(r.pool.pool), MOEPAGE_OK);
    device_rig_close(r.pool.devices[0]);
    bank_model_close(&r.bank);
    free(r.steps);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_path_gives_nan_and_the_reason_when_a_load_fails),
        cmocka_unit_test(test_cuda_path_refuses_ids_that_a_layer_lacks),
        cmocka_unit_test(test_cuda_path_gives_up_in_time_and_goes_on_when_the_host_is_done),
        cmocka_unit_test(test_cuda_path_takes_the_workspace_that_it_says),
        cmocka_unit_test(test_cuda_path_has_the_session_to_itself),
        cmocka_unit_test(test_cuda_path_refuses_what_it_cannot_do),
        cmocka_unit_test(test_cuda_path_is_of_cuda_devices_alone),
        cmocka_unit_test(test_cuda_path_refuses_experts_that_it_cannot_run),
        cmocka_unit_test(test_cuda_path_refuses_steps_in_two_versions),
        cmocka_unit_test(test_cuda_path_that_cannot_be_created_leaves_nothing_behind),
        cmocka_unit_test(test_cuda_path_says_that_its_gpu_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
