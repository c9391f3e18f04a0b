/* The library's own experts: the same bits whatever is resident, and the right ones.
 *
 * One model is run under every combination that may not matter (budgets, policies, prefetching,
 * threads, waves, devices, sources, batch sizes), always through several steps, so that later
 * steps find a pool in the state that earlier ones left. Outputs must equal those of a first,
 * fully resident run bit for bit, and that run a naive reference within its rounding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "pool_rig.h"
#include "session/inside.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 16
#define TOP_K 3
#define HIDDEN 40 /* no multiple of a vector's width */
#define INTERMEDIATE 24
#define STEPS 4
#define MAX_TOKENS 12
#define KEYS (LAYERS * EXPERTS)

static const uint32_t step_tokens[STEPS] = {1, 12, 5, 1};

/* What is run: inputs and routing, the same for every variant. */
typedef struct workload {
    bank_model bank;
    float x[STEPS][MAX_TOKENS * HIDDEN];
    int32_t ids[STEPS][LAYERS][MAX_TOKENS * TOP_K];
    float weights[STEPS][LAYERS][MAX_TOKENS * TOP_K];
} workload;

typedef struct outputs {
    float y[STEPS][LAYERS][MAX_TOKENS * HIDDEN];
} outputs;

/* One way to run it. */
typedef struct variant {
    pool_rig_config pool;
    uint32_t math;
    uint32_t prefetch, prefetch_depth;
    uint32_t regime, miss;
    uint32_t change_every; /* so many layers all change over to the other regime; 0: never */
    uint32_t max_group_experts;
    bool with_plan; /* route asks for a plan, too */
    bool two_open;  /* the next layer is routed before this one runs */
    bool token_by_token;
} variant;

static void workload_open(workload *load, const bank_shape *more)
{
    bank_shape shape = *more;
    uint64_t random = shape.seed ^ 0x5eed;
    shape.layers = LAYERS, shape.experts = EXPERTS, shape.top_k = TOP_K;
    shape.hidden = HIDDEN, shape.intermediate = INTERMEDIATE;
    bank_model_open(&load->bank, &shape);
    for (uint32_t s = 0; s < STEPS; s++) {
        for (uint32_t i = 0; i < MAX_TOKENS * HIDDEN; i++)
            load->x[s][i] = (float)((int)bank_below(&random, 20001) - 10000) / 7919.0f;
        for (uint32_t l = 0; l < LAYERS; l++)
            bank_model_route(&load->bank, &random, step_tokens[s], TOP_K, true, load->ids[s][l],
                             load->weights[s][l]);
    }
}

/* ---- running ---- */

static void hint_truth(moepage_session *session, const workload *load, uint32_t s, uint32_t layer,
                       uint32_t tokens)
{
    int32_t named[EXPERTS];
    uint32_t n = 0;
    bool seen[EXPERTS] = {false};
    for (uint32_t r = 0; r < tokens * TOP_K; r++) {
        int32_t id = load->ids[s][layer][r];
        if (id < 0 || seen[id])
            continue;
        seen[id] = true;
        named[n++] = id;
    }
    assert_int_equal(moepage_session_hint(session, layer, named, n), MOEPAGE_OK);
}

static void route(moepage_session *session, const workload *load, uint32_t s, uint32_t layer,
                  uint32_t first, bool with_plan)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_routing routing = {.struct_size = sizeof routing, .top_k = TOP_K};
    routing.ids = load->ids[s][layer] + first * TOP_K;
    routing.weights = load->weights[s][layer] + first * TOP_K;
    assert_int_equal(moepage_session_route(session, layer, &routing, with_plan ? &plan : NULL),
                     MOEPAGE_OK);
}

static uint64_t on_host, loaded; /* experts so far */

/* x and y in the device's memory. */
typedef struct bench {
    moepage_device *device;
    moepage_session *session;
    float *x, *y;
} bench;

#define BENCH_BYTES (MAX_TOKENS * (HIDDEN + 3) * sizeof(float))

static void bench_open(bench *b, pool_rig *rig, const moepage_session_config *config)
{
    b->device = rig->devices[0];
    b->session = pool_rig_session(rig, config);
    b->x = device_rig_alloc(b->device, BENCH_BYTES);
    b->y = device_rig_alloc(b->device, BENCH_BYTES);
}

static void bench_close(bench *b)
{
    assert_int_equal(moepage_session_destroy(b->session), MOEPAGE_OK);
    device_rig_free(b->device, b->x, BENCH_BYTES);
    device_rig_free(b->device, b->y, BENCH_BYTES);
}

/* x is written before the layer's loads, so that what the device has to do goes on without us. */
static void finish_layer(const bench *b, uint32_t layer, uint32_t n, float *y)
{
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = b->x, .y = b->y};
    assert_int_equal(moepage_session_ffn(b->session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(b->session, layer), MOEPAGE_OK);
    device_rig_read(b->device, b->y, y, n * HIDDEN * sizeof *y);
}

/* As if what the session sees of its layers had made it think otherwise. */
static void change_over(moepage_session *session)
{
    bool on = !mp_client_streams_any(session->step.client);
    for (uint32_t l = 0; l < LAYERS; l++)
        mp_client_stream(session->step.client, l, on);
}

/* A step over tokens [first, first + n) of step s. */
static void run_step(const bench *b, const workload *load, const variant *how, uint32_t s,
                     uint32_t first, uint32_t n, outputs *out)
{
    moepage_session *session = b->session;
    device_rig_write(b->device, b->x, load->x[s] + first * HIDDEN, n * HIDDEN * sizeof *b->x);
    pool_rig_begin(session, n, s == 1 ? MOEPAGE_PHASE_PREFILL : MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++) {
        bool was_routed = how->two_open && l > 0;
        if (!was_routed)
            route(session, load, s, l, first, how->with_plan);
        if (how->prefetch == MOEPAGE_PREFETCH_HINT && l + 1 < LAYERS)
            hint_truth(session, load, s, l + 1, n);
        if (how->two_open && l + 1 < LAYERS)
            route(session, load, s, l + 1, first, how->with_plan);
        finish_layer(b, l, n, out->y[s][l] + first * HIDDEN);
        if (how->change_every && (s * LAYERS + l) % how->change_every == 0)
            change_over(session);
    }
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    if (!how->pool.precision) /* versions are there, or low */
        assert_int_equal(stats.hits + stats.misses + stats.late + stats.host_experts, stats.routed);
    on_host += stats.host_experts;
    loaded += stats.misses;
}

static void run(workload *load, const variant *how, outputs *out)
{
    pool_rig rig;
    pool_rig_open(&rig, &load->bank, &how->pool);
    moepage_session_config config = {
        .max_tokens = MAX_TOKENS,
        .math = how->math,
        .prefetch = how->prefetch,
        .prefetch_depth = how->prefetch_depth,
        .regime = how->regime,
        .max_group_experts = how->max_group_experts,
        .miss = how->miss,
    };
    bench b;
    bench_open(&b, &rig, &config);
    memset(out, 0xff, sizeof *out);
    for (uint32_t s = 0; s < STEPS; s++) {
        uint32_t at_once = how->token_by_token ? 1 : step_tokens[s];
        for (uint32_t first = 0; first < step_tokens[s]; first += at_once)
            run_step(&b, load, how, s, first, at_once, out);
    }
    bench_close(&b);
    pool_rig_close(&rig);
}

static void print_variant(const variant *how)
{
    print_message(
        "slots %u, devices %u, threads %u, scope %u, policy %s, chunk %u, scan %u, math "
        "%u, prefetch %u, regime %u, change %u, group %u, plan %d, two open %d, by token %d\n",
        (unsigned)how->pool.slots, how->pool.n_devices, how->pool.threads, how->pool.scope,
        how->pool.policy ? how->pool.policy : "-", how->pool.chunk_bytes, how->pool.scan_percent,
        how->math, how->prefetch, how->regime, how->change_every, how->max_group_experts,
        how->with_plan, how->two_open, how->token_by_token);
}

/* Over the simulated driver, where each takes ten times as long, a third of the variants, by
 * a hash of their number, so that no setting is always among those left out. MP_TEST_LONG has all. */
static bool left_out(void)
{
    static uint32_t variants;
    uint32_t hash = variants++ * 2654435769u;
    return device_rig_is_simulated() && !getenv("MP_TEST_LONG") && hash >= UINT32_MAX / 3;
}

static void expect_same_now(workload *load, const variant *how, const outputs *expected)
{
    static outputs out;
    run(load, how, &out);
    if (memcmp(&out, expected, sizeof out) == 0)
        return;
    print_variant(how);
    fail_msg("the outputs differ from those of full residency");
}

/* Returns false if the variant was left out. */
static bool expect_same(workload *load, const variant *how, const outputs *expected)
{
    const bool runs = !left_out();
    if (runs)
        expect_same_now(load, how, expected);
    return runs;
}

static void expect_right(const workload *load, uint32_t math, const outputs *out)
{
    static double y[MAX_TOKENS * HIDDEN], bound[MAX_TOKENS * HIDDEN];
    for (uint32_t s = 0; s < STEPS; s++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            bank_model_reference(&load->bank, l, step_tokens[s], TOP_K, load->ids[s][l],
                                 load->weights[s][l], load->x[s], math, y, bound);
            for (uint32_t i = 0; i < step_tokens[s] * HIDDEN; i++) {
                double off = out->y[s][l][i] - y[i];
                if (!(off <= bound[i] && off >= -bound[i]))
                    fail_msg("step %u, layer %u, element %u: %g instead of %g, off by more than "
                             "%g",
                             s, l, i, (double)out->y[s][l][i], y[i], bound[i]);
            }
        }
}

/* ---- the claims ---- */

static workload load;
static outputs reference;

static void reference_run(const bank_shape *shape, uint32_t math)
{
    workload_open(&load, shape);
    run(&load, &(variant){.math = math}, &reference);
    expect_right(&load, math, &reference);
}

static void test_same_bits_over_capacity_policy_and_prefetch(void **state)
{
    (void)state;
    static const uint64_t slots[] = {KEYS, KEYS / 2, KEYS / 4, KEYS / 8, LAYERS};
    static const char *const policies[] = {"lru", "lfu"};
    for (uint32_t math = 0; math < 2; math++) {
        reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .seed = 11 + math}, math);
        for (uint32_t i = 0; i < 5 * 2 * 3 * 2; i++)
            expect_same(&load,
                        &(variant){.pool = {.slots = slots[i % 5],
                                            .policy = policies[i / 5 % 2],
                                            .scope = i / 30 % 2},
                                   .prefetch = i / 10 % 3,
                                   .math = math},
                        &reference);
        expect_same(&load, &(variant){.pool = {.slots = 1}, .math = math}, &reference);
        expect_same(&load, &(variant){.pool = {.slots = 1}, .math = math, .prefetch = 2},
                    &reference);
        bank_model_close(&load.bank);
    }
}

static void test_same_bits_over_regimes(void **state)
{
    (void)state;
    static const uint64_t slots[] = {KEYS - 1, 2 * EXPERTS + 4, EXPERTS + 3, EXPERTS / 2, 2};
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .bias = true, .seed = 13},
                  MOEPAGE_MATH_FP32);
    for (uint32_t i = 0; i < 5 * 2 * 3 * 3; i++) {
        variant how = {.pool = {.slots = slots[i % 5],
                                .threads = 1 + i % 2,
                                .n_devices = slots[i % 5] > 2 ? 1 + i / 5 % 2 : 1,
                                .chunk_bytes = i % 3 ? 100 : 0,
                                .scan_percent = i % 4 == 3 ? 40 : 0},
                       .regime = MOEPAGE_REGIME_STREAM,
                       .prefetch = i / 10 % 3,
                       .prefetch_depth = 2,
                       .max_group_experts = i % 7 == 0 ? 3 : 0};
        how.token_by_token = i / 30 == 1;
        how.two_open = i / 30 == 2 && how.pool.slots == KEYS - 1;
        how.with_plan = how.two_open;
        expect_same(&load, &how, &reference);
    }
    for (uint32_t i = 0; i < 5 * 3 * 3; i++)
        expect_same(&load,
                    &(variant){.pool = {.slots = slots[i % 5],
                                        .chunk_bytes = i % 2 ? 100 : 0,
                                        .policy = i / 5 % 2 ? "cycle" : "lru"},
                               .change_every = 1 + i / 5 % 3,
                               .prefetch = i / 15},
                    &reference);
    for (uint32_t i = 0; i < 3 * 3; i++) /* with slots of their own, layers have no use for it */
        expect_same(&load,
                    &(variant){.pool = {.slots = LAYERS * (1 + i % 3 * 4),
                                        .scope = MOEPAGE_SCOPE_LAYER},
                               .regime = i / 3},
                    &reference);
    bank_model_close(&load.bank);
}

static void test_same_bits_over_threads_waves_and_chunks(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {0, 100, 4096};
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_F32, .split = true, .bias = true, .seed = 3},
                  MOEPAGE_MATH_FP32);
    for (uint32_t i = 0; i < 3 * 4 * 3; i++)
        expect_same(&load,
                    &(variant){.pool = {.slots = KEYS / 4,
                                        .threads = 1 + i % 3,
                                        .chunk_bytes = chunks[i / 12]},
                               .max_group_experts = i / 3 % 4,
                               .prefetch = i % 3,
                               .prefetch_depth = 2},
                    &reference);
    bank_model_close(&load.bank);
}

static void test_same_bits_over_devices_and_scopes(void **state)
{
    (void)state;
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_F16, .bias = true, .seed = 5},
                  MOEPAGE_MATH_BF16);
    for (uint32_t i = 0; i < 2 * 2 * 3 * 2; i++)
        expect_same(&load,
                    &(variant){.pool = {.n_devices = 1 + i % 2,
                                        .scope = i / 2 % 2,
                                        .slots = i / 12 ? KEYS / 2 : 4 * LAYERS,
                                        .scan_percent = i / 12 ? 30 : 0,
                                        .no_peers = i / 3 % 2},
                               .prefetch = i / 4 % 3,
                               .math = MOEPAGE_MATH_BF16},
                    &reference);
    bank_model_close(&load.bank);
}

/* At each share of the slots, by devices of one size and by a large one with smaller ones beside it; GPUs that
 * reach each other's memory, and such that do not. */
static void test_same_bits_over_devices_of_any_size(void **state)
{
    (void)state;
    static const uint32_t part[] = {1, 2, 4, 8}; /* 100, 50, 25, 12.5 % */
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .seed = 15}, MOEPAGE_MATH_BF16);
    for (uint32_t i = 0; i < 4 * 2 * 2 * 2; i++)
        expect_same_now(&load,
                        &(variant){.pool = {.slots = KEYS / part[i % 4],
                                            .n_devices = 2 + i / 4 % 2,
                                            .arena_slots = 1000, /* three of a GPU's granules */
                                            .smaller_slots = i / 8 % 2 ? 330 : 0,
                                            .no_peers = i / 16},
                                   .math = MOEPAGE_MATH_BF16,
                                   .prefetch = i % 3,
                                   .two_open = i % 5 == 0 && i % 4 < 2}, /* else too few slots */
                        &reference);
    bank_model_close(&load.bank);
}

/* Absent experts computed in host memory, on CUDA devices some of them: FP32 math is the same everywhere, and BF16
 * within its bounds. */
static void test_same_bits_with_experts_in_host_memory(void **state)
{
    (void)state;
    static const uint32_t part[] = {1, 2, 4, 8}; /* 100, 50, 25, 12.5 % */
    static outputs out;
    for (uint32_t math = 0; math < 2; math++) {
        reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .bias = true, .seed = 31}, math);
        on_host = loaded = 0;
        for (uint32_t i = 0; i < 4 * 2 * 3 * 2; i++) {
            const variant how = {.pool = {.slots = KEYS / part[i % 4],
                                          .n_devices = 1 + i / 4 % 2,
                                          .host_experts = i / 8 % 3 * 20,
                                          .no_peers = i / 24},
                                 .math = math,
                                 .miss = MOEPAGE_MISS_HOST,
                                 .prefetch = i % 3,
                                 .max_group_experts = i % 5 == 0 ? 3 : 0,
                                 .token_by_token = i % 7 == 0};
            if (math == MOEPAGE_MATH_FP32 || !device_rig_is_cuda()) {
                expect_same_now(&load, &how, &reference);
            } else {
                run(&load, &how, &out);
                expect_right(&load, math, &out);
            }
        }
        assert_true(on_host > 100 && loaded > 100);
        bank_model_close(&load.bank);
    }
}

/* gpt-oss's activation, from every source; the reference computes it too. */
static void test_same_bits_of_a_clamped_activation(void **state)
{
    (void)state;
    static const uint32_t forms[] = {0, 0, 1u << MOEPAGE_FORM_DENSE, 1u << MOEPAGE_FORM_EXPH};
    static const uint64_t slots[] = {KEYS, KEYS / 4, LAYERS};
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t math = i / 4 ? MOEPAGE_MATH_BF16 : MOEPAGE_MATH_FP32;
        reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16,
                                    .clamped = true,
                                    .bias = true,
                                    .split = i & 1,
                                    .callback = i % 4 == 1,
                                    .pack_forms = forms[i % 4],
                                    .seed = 71},
                      math);
        for (uint32_t k = 0; k < 6; k++)
            expect_same(&load,
                        &(variant){.pool = {.slots = slots[k % 3], .threads = 1 + k % 2},
                                   .math = math,
                                   .prefetch = k % 3},
                        &reference);
        bank_model_close(&load.bank);
    }
}

/* Slots of two sizes, two layers to one. */
static void test_same_bits_over_layers_of_different_types(void **state)
{
    (void)state;
    static const uint64_t slots[] = {KEYS, KEYS / 2, 2 * LAYERS, LAYERS};
    static const char *const policies[] = {"lru", "cycle", "lfu"};
    for (uint32_t callback = 0; callback < 2; callback++) {
        reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16,
                                    .odd_dtype = MOEPAGE_DTYPE_F32,
                                    .bias = true,
                                    .callback = callback,
                                    .seed = 61},
                      MOEPAGE_MATH_FP32);
        for (uint32_t i = 0; i < 4 * 3 * 3; i++) {
            variant how = {.pool = {.slots = slots[i % 4],
                                    .policy = policies[i / 4 % 3],
                                    .scope = i / 2 % 2,
                                    .threads = 1 + i % 2,
                                    .n_devices = slots[i % 4] > LAYERS ? 1 + i / 4 % 2 : 1,
                                    .host_experts = i % 5 ? 0 : 4,
                                    .chunk_bytes = i % 3 ? 100 : 0,
                                    .scan_percent = i % 7 == 3 ? 40 : 0},
                           .regime = i / 12,
                           .prefetch = i % 3,
                           .prefetch_depth = 2,
                           .with_plan = i % 4 == 0};
            expect_same(&load, &how, &reference);
        }
        bank_model_close(&load.bank);
    }
}

static void test_same_bits_over_open_layers_and_plans(void **state)
{
    (void)state;
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .seed = 9}, MOEPAGE_MATH_FP32);
    for (uint32_t i = 0; i < 2 * 3 * 2; i++)
        expect_same(&load,
                    &(variant){.pool = {.slots = i / 6 ? KEYS : 2 * LAYERS,
                                        .scope = MOEPAGE_SCOPE_LAYER},
                               .with_plan = i % 2,
                               .two_open = true,
                               .prefetch = i / 2 % 3},
                    &reference);
    for (uint32_t i = 0; i < 3; i++)
        expect_same(&load,
                    &(variant){.pool = {.slots = KEYS / 4}, .with_plan = true, .prefetch = i},
                    &reference);
    bank_model_close(&load.bank);
}

static void test_same_bits_from_callback_as_from_pointers(void **state)
{
    (void)state;
    bank_shape shape = {.dtype = MOEPAGE_DTYPE_BF16, .bias = true, .split = true, .seed = 21};
    reference_run(&shape, MOEPAGE_MATH_FP32);
    bank_model_close(&load.bank);
    shape.callback = true;
    workload_open(&load, &shape);
    bool ran = false;
    for (uint32_t i = 0; i < 3; i++)
        ran |=
            expect_same(&load,
                        &(variant){.pool = {.slots = KEYS / 4, .chunk_bytes = 333}, .prefetch = i},
                        &reference);
    assert_int_equal(atomic_load(&load.bank.calls) > 0, ran);
    bank_model_close(&load.bank);
}

static void test_same_bits_over_tiers(void **state)
{
    (void)state;
    static const uint32_t forms[] = {1u << MOEPAGE_FORM_EXPH, 1u << MOEPAGE_FORM_DENSE,
                                     1u << MOEPAGE_FORM_EXPH | 1u << MOEPAGE_FORM_DENSE,
                                     1u << MOEPAGE_FORM_EXPH | 1u << MOEPAGE_FORM_DENSE};
    bank_shape shape = {.dtype = MOEPAGE_DTYPE_BF16, .bias = true, .seed = 51};
    reference_run(&shape, MOEPAGE_MATH_FP32);
    bank_model_close(&load.bank);
    for (uint32_t f = 0; f < 4; f++) {
        shape.pack_forms = forms[f];
        shape.cold_level = f == 3 ? 3 : 0;
        workload_open(&load, &shape);
        bool exph = shape.pack_forms & 1u << MOEPAGE_FORM_EXPH;
        for (uint32_t i = 0; i < 3 * 2 * 3 * 2; i++)
            expect_same(&load,
                        &(variant){.pool = {.slots = i % 2 ? KEYS / 4 : KEYS / 8,
                                            .threads = 1 + i % 2,
                                            .host_experts = i / 2 % 3 * 4,
                                            .compressed = exph ? i / 6 % 3 * 3 : 0,
                                            .bus_form = i / 18 ? MOEPAGE_FORM_DENSE : 0,
                                            .n_devices = 1 + i / 2 % 2,
                                            .staging = i % 5 ? 0 : 2,
                                            .chunk_bytes = i % 3 ? 0 : 200},
                                   .prefetch = i / 6 % 3},
                        &reference);
        bank_model_close(&load.bank);
    }
}

/* What is computed with integers is what a pool that holds every low version computes with, whatever is
 * resident: policies, guesses, tiers, devices, regimes and waves are those of any form. */
static void test_same_bits_of_integers_over_everything(void **state)
{
    (void)state;
    static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
    static const uint64_t slots[] = {KEYS, KEYS / 2, KEYS / 4, LAYERS};
    static const char *const policies[] = {"lru", "cycle", "lfu"};
    const bank_shape shape = {.dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT8 |
                                            1u << MOEPAGE_FORM_INT4 | 1u << MOEPAGE_FORM_INT2,
                              .seed = 71};
    workload_open(&load, &shape);
    for (uint32_t f = 0; f < 3; f++) {
        const moepage_precision_config all_low = {.struct_size = sizeof all_low,
                                                  .lo_form = forms[f],
                                                  .hi_experts = 1,
                                                  .interval_us = UINT32_MAX};
        const uint32_t math = f % 2;
        run(&load,
            &(variant){.pool = {.precision = &all_low, .arena_slots = 2 * KEYS}, .math = math},
            &reference);
        for (uint32_t i = 0; i < 4 * 3 * 3; i++)
            expect_same(&load,
                        &(variant){.pool = {.slot_form = forms[f],
                                            .slots = slots[i % 4],
                                            .policy = policies[i / 4 % 3],
                                            .scope = i / 2 % 2,
                                            .threads = 1 + i % 2,
                                            .n_devices = slots[i % 4] > LAYERS ? 1 + i / 4 % 2 : 1,
                                            .host_experts = i % 5 ? 0 : 4,
                                            .chunk_bytes = i % 3 ? 100 : 0},
                                   .math = math,
                                   .regime = i / 12,
                                   .prefetch = i % 3,
                                   .prefetch_depth = 2,
                                   .max_group_experts = i % 7 == 0 ? 3 : 0},
                        &reference);
    }
    bank_model_close(&load.bank);
}

static void test_same_bits_of_a_token_alone_and_in_a_batch(void **state)
{
    (void)state;
    for (uint32_t math = 0; math < 2; math++) {
        reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .bias = true, .seed = 31}, math);
        for (uint32_t i = 0; i < 4; i++)
            expect_same(&load,
                        &(variant){.pool = {.slots = i / 2 ? KEYS / 8 : KEYS, .threads = 1 + i % 2},
                                   .token_by_token = true,
                                   .math = math},
                        &reference);
        bank_model_close(&load.bank);
    }
}

/* Strides, dtypes and accumulation are the caller's business and touch nothing else. */
static void test_same_bits_with_strides_and_accumulation(void **state)
{
    (void)state;
    enum { STRIDE = HIDDEN + 3 };
    reference_run(&(bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .seed = 41}, MOEPAGE_MATH_FP32);
    pool_rig rig;
    pool_rig_open(&rig, &load.bank, &(pool_rig_config){.slots = KEYS / 4});
    bench b;
    bench_open(&b, &rig, &(moepage_session_config){.max_tokens = MAX_TOKENS});
    static float x[MAX_TOKENS * STRIDE], y[MAX_TOKENS * STRIDE];
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        memcpy(x + t * STRIDE, load.x[1] + t * HIDDEN, HIDDEN * sizeof *x);
        for (uint32_t i = 0; i < STRIDE; i++)
            y[t * STRIDE + i] = 0.5f;
    }
    device_rig_write(b.device, b.x, x, sizeof x);
    device_rig_write(b.device, b.y, y, sizeof y);
    pool_rig_begin(b.session, MAX_TOKENS, MOEPAGE_PHASE_DECODE);
    route(b.session, &load, 1, 0, 0, false);
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = b.x,
                       .y = b.y,
                       .x_stride = STRIDE,
                       .y_stride = STRIDE,
                       .accumulate = 1};
    assert_int_equal(moepage_session_ffn(b.session, 0, &ffn), MOEPAGE_OK);
    device_rig_read(b.device, b.y, y, sizeof y);
    for (uint32_t t = 0; t < MAX_TOKENS; t++)
        for (uint32_t i = 0; i < STRIDE; i++) {
            float added = i < HIDDEN ? reference.y[1][0][t * HIDDEN + i] : 0;
            assert_true(y[t * STRIDE + i] == 0.5f + added);
        }
    bench_close(&b);
    pool_rig_close(&rig);
    bank_model_close(&load.bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_over_capacity_policy_and_prefetch),
        cmocka_unit_test(test_same_bits_over_regimes),
        cmocka_unit_test(test_same_bits_over_threads_waves_and_chunks),
        cmocka_unit_test(test_same_bits_over_devices_and_scopes),
        cmocka_unit_test(test_same_bits_over_devices_of_any_size),
        cmocka_unit_test(test_same_bits_with_experts_in_host_memory),
        cmocka_unit_test(test_same_bits_of_a_clamped_activation),
        cmocka_unit_test(test_same_bits_over_layers_of_different_types),
        cmocka_unit_test(test_same_bits_over_open_layers_and_plans),
        cmocka_unit_test(test_same_bits_from_callback_as_from_pointers),
        cmocka_unit_test(test_same_bits_over_tiers),
        cmocka_unit_test(test_same_bits_of_integers_over_everything),
        cmocka_unit_test(test_same_bits_of_a_token_alone_and_in_a_batch),
        cmocka_unit_test(test_same_bits_with_strides_and_accumulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
