/* Several sessions at once over a pool that is far too small: routes whose plans are read while
 * held, experts run by the library, hints, pins, failing reads, cancels, and a thread that looks up
 * every expert. No byte may be wrong, no thread may wait for ever, no slot may get lost, and the
 * sessions' counts must equal the pool's. Every failure prints its seed. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 4
#define EXPERTS 10
#define TOP_K 3
#define HIDDEN 8
#define MAX_TOKENS 5
#define MAX_SESSIONS 3

typedef struct scenario {
    pool_rig_config pool;
    uint32_t sessions;
    bool failures, pins, callback;
    bool slow;     /* reads give way to everything else, so that loads are under way for long */
    bool packed;   /* BF16 experts in a pack, through tiers that the seed chooses */
    bool tier;     /* a host tier of a size that the seed chooses */
    bool mixed;    /* layers differ in type, and slots in size */
    bool integers; /* of the pack, in slots; with a tier of a size that the seed chooses */
} scenario;

typedef struct world {
    const scenario *how;
    uint64_t seed;
    bank_model bank;
    pool_rig rig;
    uint32_t steps;
    _Atomic bool done;
} world;

typedef struct actor {
    world *world;
    moepage_session *session;
    moepage_session_config config;
    uint64_t random;
    int32_t ids[LAYERS][MAX_TOKENS * TOP_K];
    float weights[LAYERS][MAX_TOKENS * TOP_K];
} actor;

/* An assertion for any thread: cmocka's jump. */
#define must(condition)                                                                    \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s; seed %llu; last error: %s\n", __FILE__, __LINE__,  \
                    #condition, (unsigned long long)world_of->seed, moepage_last_error()); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

/* ---- one session ---- */

/* A load may fail where reads do; a slot may be missing while others pin, or hold failed loads. */
static bool excused(const world *w, moepage_status status)
{
    return (status == MOEPAGE_E_CALLBACK && w->how->failures) ||
           (status == MOEPAGE_E_BUSY && (w->how->pins || w->how->failures));
}

static void read_plan(actor *a, const moepage_plan *plan)
{
    const world *world_of = a->world;
    for (uint32_t e = 0; e < plan->n_experts; e++)
        must(pool_rig_holds(&a->world->rig, plan->layer, &plan->experts[e]));
}

static moepage_status read_layer(actor *a, uint32_t layer, const moepage_routing *routing)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_status status = moepage_session_route(a->session, layer, routing, &plan);
    while (!status) {
        read_plan(a, &plan);
        if (plan.group + 1 == plan.n_groups)
            return MOEPAGE_OK;
        status = moepage_session_next_group(a->session, layer, &plan);
        if (status && bank_below(&a->random, 2)) /* once more, or give up */
            status = moepage_session_next_group(a->session, layer, &plan);
    }
    return status;
}

static moepage_status run_experts(actor *a, uint32_t layer, const float *x, float *y)
{
    moepage_device *device = a->world->rig.devices[0];
    uint64_t bytes = MAX_TOKENS * HIDDEN * sizeof *x;
    float *there = device_rig_alloc(device, 2 * bytes);
    device_rig_write(device, there, x, bytes);
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = there,
                       .y = there + MAX_TOKENS * HIDDEN};
    moepage_status status = moepage_session_ffn(a->session, layer, &ffn);
    if (status && bank_below(&a->random, 2) && a->world->how->failures &&
        status == MOEPAGE_E_CALLBACK)
        status = moepage_session_ffn(a->session, layer, &ffn);
    device_rig_read(device, ffn.y, y, bytes);
    device_rig_free(device, there, 2 * bytes);
    return status;
}

static moepage_status run_layer(actor *a, uint32_t layer, const moepage_routing *routing,
                                uint32_t n)
{
    const world *world_of = a->world;
    float x[MAX_TOKENS * HIDDEN], y[MAX_TOKENS * HIDDEN];
    double expected[MAX_TOKENS * HIDDEN], bound[MAX_TOKENS * HIDDEN];
    for (uint32_t i = 0; i < MAX_TOKENS * HIDDEN; i++)
        x[i] = (float)((int)bank_below(&a->random, 129) - 64) / 32.0f;
    moepage_status status = moepage_session_route(a->session, layer, routing, NULL);
    if (!status)
        status = run_experts(a, layer, x, y);
    if (status || a->world->how->integers) /* read_plan sees whose they are */
        return status;
    bank_model_reference(&a->world->bank, layer, n, TOP_K, routing->ids, routing->weights, x,
                         MOEPAGE_MATH_FP32, expected, bound);
    for (uint32_t i = 0; i < n * HIDDEN; i++)
        must(fabs(y[i] - expected[i]) <= bound[i]);
    return MOEPAGE_OK;
}

/* Loads that nobody waits for: the layer is retired as soon as it is announced. */
static moepage_status announce_layer(actor *a, uint32_t layer, const moepage_routing *routing)
{
    return moepage_session_route(a->session, layer, routing, NULL);
}

static void hint_something(actor *a)
{
    const world *world_of = a->world;
    int32_t named[EXPERTS];
    uint32_t n = bank_below(&a->random, EXPERTS + 1);
    for (uint32_t i = 0; i < n; i++)
        named[i] = (int32_t)bank_below(&a->random, EXPERTS);
    must(!moepage_session_hint(a->session, bank_below(&a->random, LAYERS), named, n));
}

static void pin_something(actor *a)
{
    const world *world_of = a->world;
    uint32_t layer = bank_below(&a->random, LAYERS), expert = bank_below(&a->random, EXPERTS);
    moepage_status status = moepage_expert_pool_pin(a->world->rig.pool, layer, expert);
    must(!status || status == MOEPAGE_E_BUDGET || excused(a->world, status));
    if (status)
        return;
    moepage_residency residency = {.struct_size = sizeof residency};
    must(!moepage_expert_pool_lookup(a->world->rig.pool, layer, expert, &residency));
    must(residency.state == MOEPAGE_EXPERT_RESIDENT);
    must(!moepage_expert_pool_unpin(a->world->rig.pool, layer, expert));
}

/* Layers in order; now and then two are open, or the step is dropped. */
static void take_step(actor *a)
{
    const world *world_of = a->world;
    uint32_t n = 1 + bank_below(&a->random, MAX_TOKENS);
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = n,
                         .phase = bank_below(&a->random, 4) == 0};
    must(!moepage_session_begin(a->session, &step));
    for (uint32_t l = 0; l < LAYERS; l++) {
        bank_model_route(&a->world->bank, &a->random, n, TOP_K, true, a->ids[l], a->weights[l]);
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = TOP_K,
                                   .ids = a->ids[l],
                                   .weights = a->weights[l]};
        if (a->config.prefetch && bank_below(&a->random, 2))
            hint_something(a);
        if (a->world->how->pins && bank_below(&a->random, 4) == 0)
            pin_something(a);
        uint32_t way = bank_below(&a->random, 3);
        moepage_status status = way == 0   ? read_layer(a, l, &routing)
                                : way == 1 ? run_layer(a, l, &routing, n)
                                           : announce_layer(a, l, &routing);
        must(!status || excused(a->world, status));
        if (status || bank_below(&a->random, 32) == 0) {
            must(!moepage_session_cancel(a->session));
            return;
        }
        must(!moepage_session_retire(a->session, l));
    }
    must(!moepage_session_end(a->session, NULL));
}

static void *act(void *arg)
{
    actor *a = arg;
    for (uint32_t s = 0; s < a->world->steps; s++)
        take_step(a);
    return NULL;
}

/* ---- the bystander ---- */

static void *look(void *arg)
{
    world *world_of = arg;
    moepage_expert_pool *pool = world_of->rig.pool;
    uint64_t random = world_of->seed, routed = 0;
    while (!atomic_load(&world_of->done)) {
        moepage_expert_pool_info info = {.struct_size = sizeof info};
        moepage_residency residency = {.struct_size = sizeof residency};
        must(!moepage_expert_pool_get_info(pool, &info));
        must(info.resident + info.loading <= info.slots);
        must(info.hits + info.misses + info.late >= routed);
        routed = info.hits + info.misses + info.late;
        for (uint32_t i = 0; i < 50; i++)
            must(!moepage_expert_pool_lookup(pool, bank_below(&random, LAYERS),
                                             bank_below(&random, EXPERTS), &residency));
        sched_yield(); /* there may be fewer CPUs than actors */
    }
    return NULL;
}

/* ---- all together ---- */

static void give_way(bank_model *bank, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)bank;
    for (uint32_t i = 0; i < (layer + expert + tensor) % 8 * 4; i++)
        sched_yield();
}

static const uint32_t pack_forms[] = {1u << MOEPAGE_FORM_EXPH, 1u << MOEPAGE_FORM_DENSE,
                                      1u << MOEPAGE_FORM_EXPH | 1u << MOEPAGE_FORM_DENSE};

#define INTEGER_FORMS (1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT8 | 1u << MOEPAGE_FORM_INT4)

static void open_world(world *w, const scenario *how, uint64_t seed)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = HIDDEN,
                        .intermediate = how->integers ? 8 : 4,
                        .bias = true,
                        .callback = how->callback,
                        .dtype =
                            how->packed || how->integers ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32,
                        .odd_dtype = how->mixed ? MOEPAGE_DTYPE_F16 : 0,
                        .pack_forms = how->packed     ? pack_forms[seed % 3]
                                      : how->integers ? INTEGER_FORMS
                                                      : 0,
                        .seed = seed};
    /* Where bytes are looked at through streams, each look takes its time. */
    uint32_t steps = device_rig_is_cuda() ? 12 : 40;
    *w = (world){.how = how, .seed = seed, .steps = getenv("MP_TEST_LONG") ? 2000 : steps};
    bank_model_open(&w->bank, &shape);
    w->bank.before = how->slow ? give_way : NULL;
    pool_rig_open(&w->rig, &w->bank, &how->pool);
    atomic_store(&w->bank.fail_every, how->failures ? 37 : 0);
}

static void run_scenario(const scenario *how, uint64_t seed)
{
    static world w;
    static actor actors[MAX_SESSIONS];
    pthread_t threads[MAX_SESSIONS], bystander;
    open_world(&w, how, seed);
    for (uint32_t i = 0; i < how->sessions; i++) {
        actors[i] = (actor){.world = &w, .random = seed * 10 + i};
        actors[i].config = (moepage_session_config){
            .max_tokens = MAX_TOKENS,
            .prefetch = (uint32_t)((seed + i) % 3),
            .prefetch_depth = 1 + i,
            .max_group_experts = (uint32_t)(seed % 4),
            .regime = (uint32_t)((seed / 2 + i) % 3),
        };
        actors[i].session = pool_rig_session(&w.rig, &actors[i].config);
    }
    assert_int_equal(pthread_create(&bystander, NULL, look, &w), 0);
    for (uint32_t i = 0; i < how->sessions; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    for (uint32_t i = 0; i < how->sessions; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&w.done, true);
    pthread_join(bystander, NULL);

    moepage_session_stats sum = {0};
    for (uint32_t i = 0; i < how->sessions; i++) {
        moepage_session_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(moepage_session_get_stats(actors[i].session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.hits + stats.misses + stats.late, stats.routed);
        sum.hits += stats.hits, sum.misses += stats.misses, sum.late += stats.late;
        assert_int_equal(moepage_session_destroy(actors[i].session), MOEPAGE_OK);
    }
    moepage_expert_pool_info info = pool_rig_info(&w.rig);
    assert_int_equal(info.hits, sum.hits);
    assert_int_equal(info.misses, sum.misses);
    assert_int_equal(info.late, sum.late);
    assert_int_equal(info.pinned, 0);
    if (!how->failures)
        assert_int_equal(info.failed_loads, 0);
    pool_rig_close(&w.rig);
    bank_model_close(&w.bank);
}

static void run_seeds(scenario how)
{
    static const uint64_t slots[] = {4, 6, 12, LAYERS * EXPERTS};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        how.pool.slots = slots[seed % 4];
        how.pool.scope = seed % 5 == 0 && how.pool.slots >= 3 * LAYERS ? MOEPAGE_SCOPE_LAYER : 0;
        how.pool.policy = seed % 2 ? "lru" : "lfu";
        how.pool.chunk_bytes = seed % 3 ? 100 : 0;
        how.pool.scan_percent = seed % 3 == 1 ? 40 : 0;
        how.sessions = 1 + (uint32_t)(seed % MAX_SESSIONS);
        if (how.pool.scope == MOEPAGE_SCOPE_LAYER)
            how.pool.slots = 3 * LAYERS;
        if (how.packed) {
            bool exph = pack_forms[seed % 3] & 1u << MOEPAGE_FORM_EXPH;
            how.pool.host_experts = (uint32_t)(seed % 4 * 3);
            how.pool.compressed = exph ? (uint32_t)(seed % 5) : 0;
            how.pool.bus_form = seed % 7 == 0 ? MOEPAGE_FORM_DENSE : 0;
            how.pool.staging = seed % 2 ? 2 : 0;
            how.pool.io_threads = 1 + (uint32_t)(seed % 3);
        } else if (how.integers) {
            how.pool.slot_form = seed % 2 ? MOEPAGE_FORM_INT8 : MOEPAGE_FORM_INT4;
            how.pool.host_experts = (uint32_t)(seed % 4 * 3);
        } else if (how.tier) {
            how.pool.host_experts = 1 + (uint32_t)(seed % 9);
            how.pool.io_threads = 1 + (uint32_t)(seed % 3);
        }
        run_scenario(&how, seed);
    }
}

static void test_pool_stress_serves_the_right_bytes(void **state)
{
    (void)state;
    run_seeds((scenario){0});
}

static void test_pool_stress_survives_failing_reads(void **state)
{
    (void)state;
    run_seeds((scenario){.callback = true, .failures = true});
}

static void test_pool_stress_with_slots_of_two_sizes(void **state)
{
    (void)state;
    run_seeds((scenario){.mixed = true});
    run_seeds((scenario){.mixed = true, .pins = true, .callback = true, .failures = true});
    run_seeds((scenario){.mixed = true, .tier = true, .callback = true, .slow = true});
}

static void test_pool_stress_with_integers_in_slots(void **state)
{
    (void)state;
    run_seeds((scenario){.integers = true});
    run_seeds((scenario){.integers = true, .pins = true});
}

static void test_pool_stress_while_loads_are_slow(void **state)
{
    (void)state;
    run_seeds((scenario){.callback = true, .slow = true});
}

static void test_pool_stress_over_tiers(void **state)
{
    (void)state;
    run_seeds((scenario){.packed = true});
    run_seeds((scenario){.packed = true, .pins = true});
    run_seeds((scenario){.tier = true, .callback = true, .failures = true});
}

/* ---- a crowded pool ---- */

/* One of two sessions that fight for the last slot. */
typedef struct rival {
    world *world;
    moepage_session *session;
    int32_t sets[2][2]; /* routed in turn; the second expert may be MOEPAGE_NO_EXPERT */
} rival;

static void *fight(void *arg)
{
    rival *r = arg;
    const world *world_of = r->world;
    const float weights[2] = {1, 1};
    for (uint32_t i = 0; i < world_of->steps; i++) {
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = 2,
                                   .ids = r->sets[i % 2],
                                   .weights = weights};
        moepage_plan plan = {.struct_size = sizeof plan};
        pool_rig_begin(r->session, 1, MOEPAGE_PHASE_DECODE);
        moepage_status status = moepage_session_route(r->session, 1, &routing, &plan);
        must(!status || status == MOEPAGE_E_BUSY);
        for (uint32_t e = 0; !status && e < plan.n_experts; e++)
            must(pool_rig_holds(&r->world->rig, 1, &plan.experts[e]));
        must(!moepage_session_cancel(r->session));
    }
    return NULL;
}

/* All slots but one are in an open plan. One session wants two experts, gets a slot for the first
 * and has to give up; the other uses that first one while it still tries. */
static void crowd(const char *policy)
{
    scenario how = {.pool = {.slots = 8, .policy = policy}};
    static world w;
    open_world(&w, &how, 1);
    w.steps *= 8;
    moepage_session_config config = {.max_tokens = 1, .max_top_k = 7};
    moepage_session *holder = pool_rig_session(&w.rig, &config);
    pool_rig_begin(holder, 1, MOEPAGE_PHASE_DECODE);
    const int32_t held[] = {0, 1, 2, 3, 4, 5, 6};
    assert_int_equal(pool_rig_route(holder, 0, held, 7, NULL), MOEPAGE_OK);
    rival rivals[2] = {
        {.world = &w, .sets = {{0, 1}, {0, 1}}},
        {.world = &w, .sets = {{0, MOEPAGE_NO_EXPERT}, {2, MOEPAGE_NO_EXPERT}}},
    };
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++)
        rivals[i].session = pool_rig_session(&w.rig, &config);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fight, &rivals[i]), 0);
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(moepage_session_destroy(rivals[i].session), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(holder), MOEPAGE_OK);
    pool_rig_close(&w.rig);
    bank_model_close(&w.bank);
}

static void test_pool_stress_in_a_crowded_pool(void **state)
{
    (void)state;
    crowd("lru");
    crowd("lfu");
}

static void test_pool_stress_with_pins(void **state)
{
    (void)state;
    run_seeds((scenario){.pins = true});
    run_seeds((scenario){.pins = true, .callback = true, .failures = true});
}

static void test_pool_stress_over_two_devices(void **state)
{
    (void)state;
    static const uint64_t slots[] = {6, 10, 24};
    for (uint64_t seed = 1; seed <= 9; seed++)
        run_scenario(&(scenario){.pool = {.n_devices = 2,
                                          .slots = slots[seed % 3],
                                          .threads = 1 + seed % 2,
                                          .chunk_bytes = 64},
                                 .sessions = 3,
                                 .callback = seed % 2,
                                 .failures = seed % 2},
                     seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_stress_serves_the_right_bytes),
        cmocka_unit_test(test_pool_stress_survives_failing_reads),
        cmocka_unit_test(test_pool_stress_with_slots_of_two_sizes),
        cmocka_unit_test(test_pool_stress_with_integers_in_slots),
        cmocka_unit_test(test_pool_stress_while_loads_are_slow),
        cmocka_unit_test(test_pool_stress_over_tiers),
        cmocka_unit_test(test_pool_stress_in_a_crowded_pool),
        cmocka_unit_test(test_pool_stress_with_pins),
        cmocka_unit_test(test_pool_stress_over_two_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
