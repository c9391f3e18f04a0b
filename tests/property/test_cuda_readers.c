/* Sessions whose streams lag behind: everything is submitted before anything has run, slots change
 * hands many times meanwhile, sessions come and go, and so does the end of the pool. Whatever was
 * submitted must read the experts that it was promised, when its turn comes. One thread acts, so
 * that a seed is a program; streams of the simulated driver run it with delays of their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "sim_cuda.h"
#include "testing.h"

enum {
    LAYERS = 3,
    EXPERTS = 8,
    TOP_K = 2,
    HIDDEN = 16,
    MAX_TOKENS = 3,
    SESSIONS = 2,
    DEVICES = 3,   /* most */
    READS = 400,   /* of experts by plans, between two checks */
    RESULTS = 100, /* of layers, the same */
    LAG = 12,      /* copies that a stream has to do before it reads */
    ACTIONS = 150,
    STRANGER = 0xd5 /* what the memory is full of that the pool has given up */
};

typedef struct scenario {
    bank_shape shape;
    pool_rig_config pool;
    bool failures;
    bool pageable; /* the host tier cannot be pinned */
} scenario;

/* One use of the library by a caller with a stream of its own, and one on each further GPU, which the first
 * one's events order. */
typedef struct actor {
    moepage_session *session;
    mp_cu_stream native, others[DEVICES];
    mp_cu_event events[DEVICES];
    bool step, planned, more; /* a step is open; its layer's plan too; it has another group */
    uint32_t layer, n_tokens;
    int32_t ids[MAX_TOKENS * TOP_K];
    float weights[MAX_TOKENS * TOP_K];
} actor;

typedef struct promise {
    uint32_t layer, expert;
    unsigned char *seen; /* pinned: the expert's tensors, one after the other */
} promise;

typedef struct result {
    uint32_t layer, n_tokens;
    int32_t ids[MAX_TOKENS * TOP_K];
    float weights[MAX_TOKENS * TOP_K];
    float *y; /* on the device */
} result;

static struct {
    uint64_t seed, random;
    bool failures;
    bank_model bank;
    pool_rig rig;
    actor actors[SESSIONS];
    promise promises[READS];
    result results[RESULTS];
    uint32_t n_promises, n_results;
    unsigned char *seen; /* [READS][expert_bytes] pinned */
    float *x, *y;        /* on the device: [MAX_TOKENS][HIDDEN], [RESULTS] of them */
    float host_x[MAX_TOKENS * HIDDEN];
    uint32_t slots, most;
} w;

#define must(condition)                                                                       \
    do {                                                                                      \
        if (!(condition))                                                                     \
            fail_msg("%s; seed %llu; last error: %s", #condition, (unsigned long long)w.seed, \
                     moepage_last_error());                                                   \
    } while (0)

static uint32_t below(uint32_t n)
{
    return bank_below(&w.random, n);
}

/* ---- the caller's side ---- */

static mp_cuda *gpu_at(uint32_t device)
{
    return mp_cuda_of(w.rig.devices[device]->device);
}

static mp_cuda *gpu(void)
{
    return gpu_at(0);
}

static mp_cu_ptr ptr(const void *memory)
{
    return (mp_cu_ptr)(uintptr_t)memory;
}

static void copy_on(mp_cu_stream stream, void *to, const void *from, uint64_t bytes)
{
    must(!gpu()->driver->copy(ptr(to), ptr(from), bytes, stream));
}

/* Makes later work of one of the caller's streams wait for another's. */
static void order(const actor *a, mp_cu_stream later, uint32_t at, mp_cu_stream earlier,
                  uint32_t from)
{
    must(!mp_cuda_enter(gpu_at(from)));
    must(!gpu()->driver->event_record(a->events[from], earlier));
    mp_cuda_leave(gpu_at(from));
    must(!mp_cuda_enter(gpu_at(at)));
    must(!gpu()->driver->stream_wait(later, a->events[from], 0));
    mp_cuda_leave(gpu_at(at));
}

/* Reads what a device has of the plan's experts, on a stream of that device. */
static void read_on(mp_cu_stream stream, uint32_t device, const moepage_plan *plan)
{
    const struct moepage_model *model = w.rig.pool->model;
    must(!mp_cuda_enter(gpu_at(device)));
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        if (plan->experts[e].device != device)
            continue;
        promise *p = &w.promises[w.n_promises];
        *p = (promise){plan->layer, plan->experts[e].expert,
                       w.seen + w.n_promises * w.bank.expert_bytes};
        w.n_promises++;
        for (uint32_t t = 0; t < w.bank.n_tensors; t++)
            copy_on(stream, p->seen + w.bank.tensor_at[t], plan->experts[e].tensors[t],
                    model->layouts[0].tensors[t].bytes);
    }
    mp_cuda_leave(gpu_at(device));
}

/* The stream is behind, then reads all tensors of the plan's experts, by way of the streams of their devices. */
static void read_plan(actor *a, const moepage_plan *plan)
{
    must(!mp_cuda_enter(gpu()));
    for (uint32_t i = 0; i < LAG; i++)
        copy_on(a->native, w.y + (RESULTS + (a - w.actors)) * MAX_TOKENS * HIDDEN, w.x,
                sizeof w.host_x);
    mp_cuda_leave(gpu());
    read_on(a->native, 0, plan);
    for (uint32_t d = 1; d < w.rig.n_devices; d++) {
        order(a, a->others[d], d, a->native, 0);
        read_on(a->others[d], d, plan);
        order(a, a->native, 0, a->others[d], d);
    }
}

static void open_actor(actor *a)
{
    const moepage_session_config config = {.max_tokens = MAX_TOKENS,
                                           .prefetch = below(3),
                                           .prefetch_depth = 1 + below(2),
                                           .max_group_experts = below(4)};
    a->session = pool_rig_session(&w.rig, &config);
    a->step = a->planned = false;
}

static void cancel(actor *a)
{
    must(!moepage_session_cancel(a->session));
    a->step = a->planned = false;
}

/* ---- what may happen ---- */

static bool excused(moepage_status status)
{
    return status == MOEPAGE_E_BUSY || (w.failures && status == MOEPAGE_E_CALLBACK);
}

static void begin_step(actor *a)
{
    a->n_tokens = 1 + below(MAX_TOKENS);
    a->layer = below(LAYERS);
    pool_rig_begin(a->session, a->n_tokens, MOEPAGE_PHASE_DECODE);
    a->step = true;
}

static moepage_status route(actor *a, moepage_plan *plan)
{
    bank_model_route(&w.bank, &w.random, a->n_tokens, TOP_K, true, a->ids, a->weights);
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = TOP_K,
                                     .ids = a->ids,
                                     .weights = a->weights,
                                     .stream = a->native};
    return moepage_session_route(a->session, a->layer, &routing, plan);
}

/* The library's own experts; `a` has the layer open. */
static moepage_status run_layer(actor *a)
{
    result *r = &w.results[w.n_results];
    *r = (result){.layer = a->layer,
                  .n_tokens = a->n_tokens,
                  .y = w.y + w.n_results * MAX_TOKENS * HIDDEN};
    memcpy(r->ids, a->ids, sizeof r->ids);
    memcpy(r->weights, a->weights, sizeof r->weights);
    const moepage_ffn ffn = {.struct_size = sizeof ffn,
                             .dtype = MOEPAGE_DTYPE_F32,
                             .x = w.x,
                             .y = r->y,
                             .stream = a->native};
    moepage_status status = moepage_session_ffn(a->session, a->layer, &ffn);
    w.n_results += !status;
    return status;
}

static void open_layer(actor *a)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    bool planned = below(2);
    moepage_status status = route(a, planned ? &plan : NULL);
    if (!status && planned) {
        read_plan(a, &plan);
        a->planned = true;
        a->more = plan.group + 1 < plan.n_groups;
        return;
    }
    if (!status && below(8)) /* else its loads are nobody's */
        status = run_layer(a);
    must(!status || excused(status));
    if (status)
        cancel(a);
    else
        must(!moepage_session_retire(a->session, a->layer));
}

static void go_on_with_plan(actor *a)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    if (!a->more) {
        must(!moepage_session_retire(a->session, a->layer));
        a->planned = false;
        return;
    }
    moepage_status status = moepage_session_next_group(a->session, a->layer, &plan);
    must(!status || excused(status));
    if (status) {
        cancel(a);
        return;
    }
    read_plan(a, &plan);
    a->more = plan.group + 1 < plan.n_groups;
}

static void act(actor *a)
{
    uint32_t chance = below(40);
    if (chance == 0) {
        must(!moepage_session_destroy(a->session));
        open_actor(a);
    } else if (chance == 1) {
        cancel(a);
    } else if (!a->step) {
        begin_step(a);
    } else if (a->planned) {
        go_on_with_plan(a);
    } else if (below(3) == 0) {
        must(!moepage_session_end(a->session, NULL));
        a->step = false;
    } else {
        a->layer = (a->layer + 1) % LAYERS;
        open_layer(a);
    }
}

/* Memory that the pool gives up belongs to another owner from then on. */
static void resize(void)
{
    uint32_t slots = 4 + below(w.most - 3);
    const mp_shard *shard = &w.rig.pool->cache->shards[0];
    unsigned char *from =
        w.rig.pool->slots[0] + (shard->all.first + slots) * w.rig.pool->slot_bytes;
    if (slots > w.slots) { /* nothing has come after the pool had given it up */
        for (unsigned char *i =
                 w.rig.pool->slots[0] + (shard->all.first + w.slots) * w.rig.pool->slot_bytes;
             i < from; i++)
            must(*i == STRANGER);
    }
    moepage_status status = moepage_split_set(w.rig.pool, NULL, slots, 0, NULL);
    must(!status || status == MOEPAGE_E_BUSY);
    if (status)
        return;
    if (slots < w.slots)
        memset(from, STRANGER, (w.slots - slots) * w.rig.pool->slot_bytes);
    w.slots = slots;
}

/* ---- checks ---- */

static void check_result(const result *r)
{
    double want[MAX_TOKENS * HIDDEN], bound[MAX_TOKENS * HIDDEN];
    bank_model_reference(&w.bank, r->layer, r->n_tokens, TOP_K, r->ids, r->weights, w.host_x,
                         MOEPAGE_MATH_FP32, want, bound);
    for (uint32_t i = 0; i < r->n_tokens * HIDDEN; i++)
        must(fabs(r->y[i] - want[i]) <= bound[i]);
}

static void check_promise(const promise *p)
{
    const struct moepage_model *model = w.rig.pool->model;
    for (uint32_t t = 0; t < w.bank.n_tensors; t++)
        must(!memcmp(p->seen + w.bank.tensor_at[t],
                     bank_model_tensor(&w.bank, p->layer, p->expert, t),
                     model->layouts[0].tensors[t].bytes));
}

static void check_all(void)
{
    must(!mp_cuda_enter(gpu()));
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!gpu()->driver->stream_sync(w.actors[i].native));
    mp_cuda_leave(gpu());
    for (uint32_t i = 0; i < w.n_promises; i++)
        check_promise(&w.promises[i]);
    for (uint32_t i = 0; i < w.n_results; i++)
        check_result(&w.results[i]);
    w.n_promises = w.n_results = 0;
}

/* ---- all together ---- */

static void open_streams(actor *a)
{
    for (uint32_t d = 0; d < w.rig.n_devices; d++) {
        must(!mp_cuda_enter(gpu_at(d)));
        must(!gpu()->driver->stream_create(d ? &a->others[d] : &a->native,
                                           MP_CU_STREAM_NON_BLOCKING, 0));
        must(!gpu()->driver->event_create(&a->events[d], MP_CU_EVENT_DISABLE_TIMING));
        mp_cuda_leave(gpu_at(d));
    }
}

static void close_streams(actor *a)
{
    for (uint32_t d = 0; d < w.rig.n_devices; d++) {
        must(!mp_cuda_enter(gpu_at(d)));
        must(!gpu()->driver->stream_destroy(d ? a->others[d] : a->native));
        must(!gpu()->driver->event_destroy(a->events[d]));
        mp_cuda_leave(gpu_at(d));
    }
}

/* The driver is there, and can be told to refuse, as soon as any device is open. */
static void open_pool(const scenario *how)
{
    const moepage_device_config any = {.struct_size = sizeof any, .budget_bytes = 4 << 20};
    moepage_device *first = device_rig_open(&any);
    if (how->pageable)
        sim_cuda_fail(SIM_host_register, 1, MP_CU_NOT_SUPPORTED, true);
    pool_rig_open(&w.rig, &w.bank, &how->pool);
    sim_cuda_fail_none();
    device_rig_close(first);
    must((atomic_load(&gpu()->device.pageable_bytes) > 0) == how->pageable);
}

static void open_world(const scenario *how, uint64_t seed)
{
    bank_shape shape = how->shape;
    shape.layers = LAYERS, shape.experts = EXPERTS, shape.top_k = TOP_K;
    shape.hidden = HIDDEN, shape.intermediate = 8, shape.seed = seed;
    memset(&w, 0, sizeof w);
    w.seed = w.random = seed;
    w.failures = how->failures;
    bank_model_open(&w.bank, &shape);
    open_pool(how);
    sim_cuda_jitter(seed);
    atomic_store(&w.bank.fail_every, how->failures ? 29 : 0);
    w.most = w.slots = pool_slots(&w.rig.pool->cache->shards[0]);
    w.x = device_rig_alloc(w.rig.devices[0], sizeof w.host_x);
    w.y = device_rig_alloc(w.rig.devices[0], (RESULTS + SESSIONS) * sizeof w.host_x);
    for (uint32_t i = 0; i < MAX_TOKENS * HIDDEN; i++)
        w.host_x[i] = (float)((int)below(129) - 64) / 32.0f;
    device_rig_write(w.rig.devices[0], w.x, w.host_x, sizeof w.host_x);
    must(!mp_cuda_enter(gpu()));
    must(!gpu()->driver->host_alloc((void **)&w.seen, READS * w.bank.expert_bytes,
                                    MP_CU_HOST_PORTABLE));
    mp_cuda_leave(gpu());
    for (uint32_t i = 0; i < SESSIONS; i++)
        open_streams(&w.actors[i]);
    for (uint32_t i = 0; i < SESSIONS; i++)
        open_actor(&w.actors[i]);
}

static void close_world(void)
{
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!moepage_session_destroy(w.actors[i].session));
    check_all();
    for (uint32_t i = 0; i < SESSIONS; i++)
        close_streams(&w.actors[i]);
    must(!mp_cuda_enter(gpu()));
    must(!gpu()->driver->host_free(w.seen));
    mp_cuda_leave(gpu());
    device_rig_free(w.rig.devices[0], w.x, sizeof w.host_x);
    device_rig_free(w.rig.devices[0], w.y, (RESULTS + SESSIONS) * sizeof w.host_x);
    pool_rig_close(&w.rig);
    bank_model_close(&w.bank);
}

static void run(const scenario *how)
{
    const char *from = getenv("MP_TEST_SEED");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    uint64_t rounds = from ? 1 : getenv("MP_TEST_LONG") ? 200 : 6;
    for (uint64_t seed = first; seed < first + rounds; seed++) {
        scenario one = *how;
        one.pool.slots = (5 + seed % 5) * (one.pool.n_devices ? one.pool.n_devices : 1);
        one.pool.policy = seed % 2 ? "lru" : "lfu";
        one.pool.chunk_bytes = seed % 3 ? 100 : 0;
        open_world(&one, seed);
        for (uint32_t i = 0; i < ACTIONS; i++) {
            if (below(15) == 0 && w.rig.n_devices == 1)
                resize();
            act(&w.actors[below(SESSIONS)]);
            if (w.n_promises + EXPERTS > READS || w.n_results == RESULTS || below(60) == 0)
                check_all();
        }
        close_world();
    }
}

static void test_cuda_readers_see_what_they_were_promised(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_F32, .bias = true}});
}

static void test_cuda_readers_see_it_through_a_host_tier(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
                    .pool = {.host_experts = 5, .io_threads = 2}});
}

static void test_cuda_readers_see_it_through_a_pageable_host_tier(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
                    .pool = {.host_experts = 5, .io_threads = 2},
                    .pageable = true});
}

static void test_cuda_readers_see_it_on_several_gpus(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_F32, .bias = true}, .pool = {.n_devices = 2}});
    run(&(
        scenario){.shape = {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_DENSE},
                  .pool = {.n_devices = 3, .host_experts = 5, .io_threads = 2, .no_peers = true}});
}

static void test_cuda_readers_see_it_through_the_decoder(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_EXPH},
                    .pool = {.host_experts = 6, .io_threads = 2, .staging = 2, .compressed = 2}});
}

static void test_cuda_readers_see_it_where_reads_fail(void **state)
{
    (void)state;
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_F32, .callback = true}, .failures = true});
    run(&(scenario){.shape = {.dtype = MOEPAGE_DTYPE_F32, .callback = true},
                    .pool = {.host_experts = 4, .io_threads = 2},
                    .failures = true});
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_readers_see_what_they_were_promised),
        cmocka_unit_test(test_cuda_readers_see_it_through_a_host_tier),
        cmocka_unit_test(test_cuda_readers_see_it_through_a_pageable_host_tier),
        cmocka_unit_test(test_cuda_readers_see_it_on_several_gpus),
        cmocka_unit_test(test_cuda_readers_see_it_through_the_decoder),
        cmocka_unit_test(test_cuda_readers_see_it_where_reads_fail),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
