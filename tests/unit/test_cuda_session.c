/* Sessions on a device whose work outlasts the calls that submit it: what is ordered by streams
 * alone. Over the simulated driver, whose streams can be held still. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_caller.h"
#include "device_rig.h"
#include "issue.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "sim_cuda.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 6
#define HIDDEN 16
#define INTERMEDIATE 16

static bank_model bank;
static pool_rig rig;
static moepage_session *session;
static mp_cu_stream native;

static void open_all(const bank_shape *more, const pool_rig_config *pool)
{
    bank_shape shape = *more;
    shape.layers = LAYERS, shape.experts = EXPERTS, shape.top_k = 2;
    shape.hidden = HIDDEN, shape.intermediate = INTERMEDIATE;
    shape.dtype = MOEPAGE_DTYPE_BF16;
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, pool);
    session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 4});
    native = cuda_caller_stream(rig.devices[0]);
}

static void close_all(void)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    cuda_caller_give_up(rig.devices[0], native, MP_CU_SUCCESS);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static moepage_status route_on(mp_cu_stream stream, uint32_t layer, const int32_t *ids, uint32_t n,
                               moepage_plan *plan)
{
    static const float weights[EXPERTS] = {1, 1, 1, 1, 1, 1};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = n,
                               .ids = ids,
                               .weights = weights,
                               .stream = stream};
    return moepage_session_route(session, layer, &routing, plan);
}

static uint64_t tensor_bytes(void)
{
    return rig.pool->model->layouts[0].tensors[0].bytes;
}

/* The expert's first tensor, as the caller's stream reads it. */
static void read_on_native(const moepage_plan_expert *expert, void *to)
{
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(cuda_caller_driver(rig.devices[0])
                         ->copy((mp_cu_ptr)(uintptr_t)to, (mp_cu_ptr)(uintptr_t)expert->tensors[0],
                                tensor_bytes(), native),
                     MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
}

static void *pinned(uint64_t bytes)
{
    void *memory = NULL;
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(
        cuda_caller_driver(rig.devices[0])->host_alloc(&memory, bytes, MP_CU_HOST_PORTABLE),
        MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    memset(memory, 0xee, bytes);
    return memory;
}

static void unpin(void *memory)
{
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(cuda_caller_driver(rig.devices[0])->host_free(memory), MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
}

static void sync_native(void)
{
    cuda_caller_sync(rig.devices[0], native);
}

/* ---- plans ---- */

/* The caller's stream is still far behind when its slots are given away: it reads what the plan
 * promised all the same. */
static void test_cuda_session_slots_outlive_their_plan_for_late_readers(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 1}, &(pool_rig_config){.slots = 2});
    uint64_t bytes = tensor_bytes();
    unsigned char *seen = pinned(EXPERTS * bytes);
    moepage_plan plan = {.struct_size = sizeof plan};
    sim_cuda_hold(native);
    for (int32_t e = 0; e < EXPERTS; e += 2) {
        const int32_t ids[] = {e, e + 1};
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK);
        assert_int_equal(plan.n_experts, 2);
        for (uint32_t i = 0; i < 2; i++)
            read_on_native(&plan.experts[i], seen + plan.experts[i].expert * bytes);
        assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        if (e == 2) /* by now the second pair has asked for the first pair's slots */
            sim_cuda_release(native);
    }
    sync_native();
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_memory_equal(seen + e * bytes, bank_model_tensor(&bank, 0, e, 0), bytes);
    unpin(seen);
    close_all();
}

/* And it reads nothing before it is there, though the plan came back at once. */
static void test_cuda_session_plans_do_not_wait_for_the_bus(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 2, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
             &(pool_rig_config){.slots = 4, .host_experts = LAYERS * EXPERTS});
    uint64_t bytes = tensor_bytes();
    unsigned char *seen = pinned(2 * bytes);
    const int32_t ids[] = {4, 1};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    sim_cuda_hold_all(true);
    assert_int_equal(route_on(native, 1, ids, 2, &plan), MOEPAGE_OK);
    for (uint32_t i = 0; i < 2; i++)
        read_on_native(&plan.experts[i], seen + i * bytes);
    sim_cuda_hold_all(false);
    sync_native();
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(seen + i * bytes,
                            bank_model_tensor(&bank, 1, plan.experts[i].expert, 0), bytes);
    assert_int_equal(moepage_session_retire(session, 1), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    unpin(seen);
    close_all();
}

/* A graph that was captured with a plan's addresses would read them again when they are others'. */
static void test_cuda_session_refuses_streams_that_are_captured(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 3}, &(pool_rig_config){0});
    const int32_t ids[] = {0, 3};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK); /* now they are resident */
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(sim_cuda_capture_begin(native, SIM_CAPTURE_RELAXED), MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_E_STATE);
    assert_non_null(strstr(moepage_last_error(), "captur"));
    sim_cuda_graph *graph = NULL;
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(sim_cuda_capture_end(native, &graph), MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    sim_cuda_graph_destroy(graph);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    close_all();
}

/* How long the slots of an open plan are read cannot be noted while its stream is captured: no
 * other expert may have them until it can. */
static void test_cuda_session_keeps_plans_whose_stream_is_captured(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 6}, &(pool_rig_config){0});
    const int32_t ids[] = {0, 3};
    moepage_plan plan = {.struct_size = sizeof plan};
    sim_cuda_graph *graph = NULL;
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK);
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(sim_cuda_capture_begin(native, SIM_CAPTURE_RELAXED), MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_E_STATE);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_E_STATE);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_E_STATE);
    assert_non_null(strstr(moepage_last_error(), "captur"));
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(sim_cuda_capture_end(native, &graph), MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    sim_cuda_graph_destroy(graph);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    close_all();
}

/* ---- calls that wait ---- */

static mp_cu_stream demand_bus(void)
{
    return mp_cuda_stream_of(rig.pool->cache->shards[0].transfer->pipes[MP_PIPE_DEMAND].bus)
        ->handle;
}

/* Until no stream has anything left to do, the library's own included: no slot has late readers. */
static void drain_streams(void)
{
    for (uint32_t i = 0; i < sim_cuda_streams(); i++)
        while (sim_cuda_pending(sim_cuda_stream_at(i)))
            sched_yield();
}

/* Lets the bus do what it can while a call is made that waits for it. */
typedef struct bus_driver {
    pthread_t thread;
    _Atomic bool returned; /* the call */
    bool waited, stuck;    /* it did; and for something that the bus could not do */
} bus_driver;

static void *drive_bus(void *arg)
{
    bus_driver *bus = arg;
    while (!atomic_load(&bus->returned) && !sim_cuda_waiting())
        sched_yield();
    bus->waited = !atomic_load(&bus->returned);
    while (sim_cuda_step(demand_bus()))
        ;
    while (!atomic_load(&bus->returned) && !bus->stuck) {
        bus->stuck = sim_cuda_waiting() > 0;
        sched_yield();
    }
    if (bus->stuck)
        sim_cuda_hold_all(false);
    return NULL;
}

static void drive_begin(bus_driver *bus)
{
    *bus = (bus_driver){.stuck = false};
    assert_int_equal(pthread_create(&bus->thread, NULL, drive_bus, bus), 0);
}

/* The call has returned: it has waited for the bus, and for nothing behind it. */
static void drive_end(bus_driver *bus)
{
    atomic_store(&bus->returned, true);
    assert_int_equal(pthread_join(bus->thread, NULL), 0);
    assert_true(bus->waited);
    assert_false(bus->stuck);
}

/* Plans an expert, puts the reading of it on the caller's stream, and lets go of it. */
static void plan_one(int32_t expert, unsigned char *seen)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, &expert, 1, &plan), MOEPAGE_OK);
    read_on_native(&plan.experts[0], seen + (uint64_t)expert * tensor_bytes());
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

/* Two slots: the first one's expert has landed, the second one's is on the bus, and the caller's
 * stream has still to read both. Who needs both slots waits for that load, not for the one that the
 * first slot got meanwhile, behind the caller's stream. */
static void test_cuda_session_waits_for_no_load_behind_the_callers_stream(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 8, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
             &(pool_rig_config){.slots = 2, .host_experts = LAYERS * EXPERTS});
    uint64_t bytes = tensor_bytes();
    unsigned char *seen = pinned(EXPERTS * bytes);
    for (int32_t e = 0; e < 4; e++) { /* into the host tier */
        plan_one(e, seen);
        drain_streams();
        pool_rig_wait(&rig);
    }
    memset(seen, 0xee, EXPERTS * bytes);
    sim_cuda_hold(native);
    sim_cuda_hold(demand_bus());
    plan_one(0, seen);
    plan_one(1, seen);
    while (pool_rig_state(&rig, 0, 0) != MOEPAGE_EXPERT_RESIDENT) {
        sim_cuda_step(demand_bus());
        pool_rig_info(&rig); /* looks at what has landed */
    }
    assert_int_equal(pool_rig_state(&rig, 0, 1), MOEPAGE_EXPERT_LOADING);

    const int32_t ids[] = {2, 3};
    moepage_plan plan = {.struct_size = sizeof plan};
    bus_driver bus;
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    drive_begin(&bus);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK);
    drive_end(&bus);
    for (uint32_t i = 0; i < 2; i++)
        read_on_native(&plan.experts[i], seen + plan.experts[i].expert * bytes);
    sim_cuda_hold_all(false);
    sync_native();
    for (uint32_t e = 0; e < 4; e++)
        assert_memory_equal(seen + e * bytes, bank_model_tensor(&bank, 0, e, 0), bytes);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    unpin(seen);
    close_all();
}

/* The failure is known as soon as the host has tried to read; the bus is still far from where it
 * could say so. Who asks again is not given the old failure. */
static void test_cuda_session_tries_again_what_failed_before_the_bus_has_passed(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 9, .callback = true}, &(pool_rig_config){.slots = 3});
    const int32_t ids[] = {5};
    moepage_plan plan = {.struct_size = sizeof plan};
    bus_driver bus;
    sim_cuda_hold(demand_bus());
    atomic_store(&bank.fail_key, 5);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, ids, 1, &plan), MOEPAGE_E_CALLBACK);
    atomic_store(&bank.fail_key, UINT32_MAX);
    drive_begin(&bus);
    moepage_status status = route_on(native, 0, ids, 1, &plan);
    drive_end(&bus);
    assert_int_equal(status, MOEPAGE_OK);
    sim_cuda_hold_all(false);
    sync_native();
    assert_true(pool_rig_holds(&rig, 0, &plan.experts[0]));
    assert_int_equal(pool_rig_info(&rig).failed_loads, 1);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    close_all();
}

/* ---- the library's own experts ---- */

/* The caller's kernels read a plan's slots on one stream, and it gives the layer to the library on
 * another: the slots change hands from group to group, behind those kernels too. */
static void test_cuda_session_runs_a_planned_layer_behind_the_plans_readers(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 7}, &(pool_rig_config){.slots = 2});
    moepage_device *device = rig.devices[0];
    const int32_t ids[] = {0, 1, 2, 3};
    const float zeros[2 * HIDDEN] = {0};
    uint64_t bytes = tensor_bytes();
    unsigned char *seen = pinned(2 * bytes);
    float *dx = device_rig_alloc(device, sizeof zeros),
          *dy = device_rig_alloc(device, sizeof zeros);
    device_rig_write(device, dx, zeros, sizeof zeros);
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_ffn ffn = {
        .struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = dx, .y = dy, .stream = NULL};
    pool_rig_begin(session, 2, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, ids, 2, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_groups, 2);
    assert_int_equal(plan.n_experts, 2);
    sim_cuda_hold(native);
    for (uint32_t i = 0; i < 2; i++)
        read_on_native(&plan.experts[i], seen + plan.experts[i].expert * bytes);
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    sim_cuda_release(native);
    sync_native();
    for (uint32_t e = 0; e < 2; e++)
        assert_memory_equal(seen + e * bytes, bank_model_tensor(&bank, 0, e, 0), bytes);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    pool_rig_wait(&rig);
    unpin(seen);
    device_rig_read(device, dy, (float[2 * HIDDEN]){0}, sizeof zeros);
    device_rig_free(device, dx, sizeof zeros);
    device_rig_free(device, dy, sizeof zeros);
    close_all();
}

static void run_layer(uint32_t layer, const int32_t *ids, float *x, float *y)
{
    moepage_ffn ffn = {
        .struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y, .stream = native};
    assert_int_equal(route_on(native, layer, ids, 2, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
}

static void step_over(int32_t first, float *x, float *y)
{
    const int32_t ids[] = {first, first + 1};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    run_layer(1, ids, x, y);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

/* While the caller's stream has not even made x, whole steps are submitted, with misses, and with
 * evictions of experts that steps before have still to compute with. */
static void test_cuda_session_steps_run_ahead_of_the_device(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 4, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
             &(pool_rig_config){.slots = 4, .host_experts = LAYERS * EXPERTS});
    moepage_device *device = rig.devices[0];
    float x[HIDDEN], zeros[HIDDEN] = {0}, got[HIDDEN];
    double want[HIDDEN], bound[HIDDEN];
    const float ones[] = {1, 1};
    for (uint32_t i = 0; i < HIDDEN; i++)
        x[i] = (float)i / 8 - 1;
    float *dx = device_rig_alloc(device, sizeof x), *later = pinned(sizeof x);
    float *dy = device_rig_alloc(device, EXPERTS / 2 * sizeof x);
    memcpy(later, x, sizeof x);
    device_rig_write(device, dx, zeros, sizeof x);
    step_over(0, dx, dy);
    sync_native();
    pool_rig_wait(&rig);

    sim_cuda_stats before = sim_cuda_get_stats();
    sim_cuda_hold(native);
    cuda_caller_enter(rig.devices[0]);
    assert_int_equal(cuda_caller_driver(rig.devices[0])
                         ->copy((mp_cu_ptr)(uintptr_t)dx, (mp_cu_ptr)(uintptr_t)later, sizeof x,
                                native),
                     MP_CU_SUCCESS);
    cuda_caller_leave(rig.devices[0]);
    for (int32_t e = 0; e < EXPERTS; e += 2)
        step_over(e, dx, dy + e / 2 * HIDDEN);
    sim_cuda_stats after = sim_cuda_get_stats();
    assert_int_equal(pool_rig_info(&rig).evictions, 2);
    sim_cuda_release(native);
    assert_int_equal(after.calls[SIM_stream_sync], before.calls[SIM_stream_sync]);
    assert_int_equal(after.calls[SIM_event_sync], before.calls[SIM_event_sync]);
    assert_int_equal(after.memory_calls, before.memory_calls);
    assert_int_equal(after.staged_copies, before.staged_copies);
    sync_native();
    for (int32_t e = 0; e < EXPERTS; e += 2) {
        const int32_t ids[] = {e, e + 1};
        device_rig_read(device, dy + e / 2 * HIDDEN, got, sizeof got);
        bank_model_reference(&bank, 1, 1, 2, ids, ones, x, MOEPAGE_MATH_FP32, want, bound);
        for (uint32_t i = 0; i < HIDDEN; i++)
            assert_true(got[i] - want[i] <= bound[i] && want[i] - got[i] <= bound[i]);
    }
    unpin(later);
    device_rig_free(device, dx, sizeof x);
    device_rig_free(device, dy, EXPERTS / 2 * sizeof x);
    close_all();
}

#define MANY 300 /* tokens, whose tables are large */

/* Copies that one layer of `n` tokens submits; its experts are resident. */
static uint64_t copies_of(uint32_t n, float *x, float *y)
{
    int32_t ids[2 * MANY];
    float weights[2 * MANY];
    for (uint32_t i = 0; i < 2 * n; i++) {
        ids[i] = (int32_t)((i / 2 + i % 2) % EXPERTS);
        weights[i] = 1.0f / (float)(1 + i % 5);
    }
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = 2,
                                     .ids = ids,
                                     .weights = weights,
                                     .stream = native};
    const moepage_ffn ffn = {
        .struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y, .stream = native};
    const sim_cuda_stats before = sim_cuda_get_stats();
    pool_rig_begin(session, n, MOEPAGE_PHASE_PREFILL);
    assert_int_equal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    sync_native();
    const sim_cuda_stats after = sim_cuda_get_stats();
    return after.calls[SIM_copy] - before.calls[SIM_copy] + after.calls[SIM_copy_batch] -
           before.calls[SIM_copy_batch];
}

/* Of a few tokens the table of the sum travels in its kernel's arguments; of many it is copied in front of it, as
 * that of the experts always is. A token's result is the same. */
static void test_cuda_session_copies_no_small_tables(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 6}, &(pool_rig_config){.slots = LAYERS * EXPERTS});
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = MANY});
    moepage_device *device = rig.devices[0];
    static float x[MANY * HIDDEN], one[MANY * HIDDEN], many[MANY * HIDDEN];
    for (uint32_t i = 0; i < MANY * HIDDEN; i++)
        x[i] = (float)(i % 37) / 16 - 1;
    float *dx = device_rig_alloc(device, sizeof x), *dy = device_rig_alloc(device, sizeof x);
    device_rig_write(device, dx, x, sizeof x);
    copies_of(MANY, dx, dy); /* loads what is absent, and makes room for tables */
    assert_int_equal(copies_of(MANY, dx, dy), 2);
    device_rig_read(device, dy, many, sizeof many);
    for (uint32_t n = 1; n <= 8; n *= 2) {
        assert_int_equal(copies_of(n, dx, dy), 1);
        device_rig_read(device, dy, one, n * HIDDEN * sizeof *one);
        assert_memory_equal(one, many, n * HIDDEN * sizeof *one);
    }
    device_rig_free(device, dx, sizeof x);
    device_rig_free(device, dy, sizeof x);
    close_all();
}

/* What fails on the host is known when the call returns, and no slot is published. */
static void test_cuda_session_failed_reads_are_the_call_s_own(void **state)
{
    (void)state;
    open_all(&(bank_shape){.seed = 5, .callback = true}, &(pool_rig_config){.slots = 3});
    moepage_device *device = rig.devices[0];
    float *dx = device_rig_alloc(device, HIDDEN * sizeof *dx);
    float *dy = device_rig_alloc(device, HIDDEN * sizeof *dy);
    float zeros[HIDDEN] = {0};
    device_rig_write(device, dx, zeros, sizeof zeros);
    const int32_t ids[] = {2, 5};
    atomic_store(&bank.fail_key, 5);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_on(native, 0, ids, 2, NULL), MOEPAGE_OK);
    moepage_ffn ffn = {
        .struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = dx, .y = dy, .stream = native};
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_CALLBACK);
    assert_non_null(strstr(moepage_last_error(), "expert 5 of layer 0"));
    atomic_store(&bank.fail_key, UINT32_MAX);
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    sync_native();
    device_rig_free(device, dx, HIDDEN * sizeof *dx);
    device_rig_free(device, dy, HIDDEN * sizeof *dy);
    close_all();
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_session_slots_outlive_their_plan_for_late_readers),
        cmocka_unit_test(test_cuda_session_plans_do_not_wait_for_the_bus),
        cmocka_unit_test(test_cuda_session_refuses_streams_that_are_captured),
        cmocka_unit_test(test_cuda_session_keeps_plans_whose_stream_is_captured),
        cmocka_unit_test(test_cuda_session_waits_for_no_load_behind_the_callers_stream),
        cmocka_unit_test(test_cuda_session_tries_again_what_failed_before_the_bus_has_passed),
        cmocka_unit_test(test_cuda_session_runs_a_planned_layer_behind_the_plans_readers),
        cmocka_unit_test(test_cuda_session_steps_run_ahead_of_the_device),
        cmocka_unit_test(test_cuda_session_copies_no_small_tables),
        cmocka_unit_test(test_cuda_session_failed_reads_are_the_call_s_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
