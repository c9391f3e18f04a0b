/* Remapping in sessions: when it is done and when not, that plans and the FFN have what a trace has
 * not, what is counted, and what is refused in which words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/remap.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 12
#define TOP_K 3
#define TOKENS 8
#define ROWS (TOKENS * TOP_K)
#define HIDDEN 8

static bank_model bank;
static pool_rig rig;
static moepage_session *session;

/* What the callers' router says: the same for every layer. */
static float logits[TOKENS * EXPERTS], probabilities[TOKENS * EXPERTS];
static int32_t ids[ROWS];
static float weights[ROWS];
static uint8_t resident[EXPERTS]; /* as the law is told, where it asks */

static const moepage_remap_config coarse = {.struct_size = sizeof coarse, .alpha = 1, .beta = 2};

static void make_routing(uint64_t seed)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        float *z = logits + t * EXPERTS, sum = 0;
        bool taken[EXPERTS] = {0};
        for (uint32_t e = 0; e < EXPERTS; e++) {
            z[e] = (float)bank_below(&seed, 64) / 16;
            sum += expf(z[e]);
        }
        for (uint32_t e = 0; e < EXPERTS; e++)
            probabilities[t * EXPERTS + e] = expf(z[e]) / sum;
        for (uint32_t k = 0; k < TOP_K; k++) {
            int32_t best = -1;
            for (int32_t e = 0; e < EXPERTS; e++)
                if (!taken[e] && (best < 0 || z[e] > z[best]))
                    best = e;
            taken[best] = true;
            ids[t * TOP_K + k] = best;
            weights[t * TOP_K + k] = expf(z[best]) / sum;
        }
    }
}

static void open_rig_slots(uint64_t slots)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = HIDDEN,
                        .intermediate = 4,
                        .seed = 5};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = slots});
    session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS,
                                                               .regime = MOEPAGE_REGIME_CACHE});
    make_routing(11);
}

static void close_rig(void)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

#define expect_refusal(call, status, word)                                            \
    do {                                                                              \
        assert_int_equal((call), (status));                                           \
        if (!strstr(moepage_last_error(), (word)))                                    \
            fail_msg("\"%s\" does not mention \"%s\"", moepage_last_error(), (word)); \
    } while (0)

static void set_remap(const moepage_remap_config *config)
{
    assert_int_equal(moepage_session_set_remap(session, config), MOEPAGE_OK);
}

static moepage_routing routing_of(uint32_t top_k)
{
    return (moepage_routing){.struct_size = sizeof(moepage_routing),
                             .top_k = top_k,
                             .ids = ids,
                             .weights = weights,
                             .logits = logits};
}

/* What the law makes of the first n tokens. */
static mp_remap_result expect_of(const moepage_remap_config *config, uint32_t n, int32_t *out_ids,
                                 float *out_weights)
{
    mp_remap_law law = {.alpha = (float)config->alpha,
                        .beta = (float)config->beta,
                        .gate = config->gate,
                        .resident = (float)config->resident};
    mp_remap_batch batch = {.n_tokens = n,
                            .top_k = TOP_K,
                            .experts = EXPERTS,
                            .logits = logits,
                            .ids = ids,
                            .weights = weights,
                            .resident = resident};
    mp_remap_result result;
    void *scratch = aligned_alloc(64, mp_remap_scratch_bytes(n, TOP_K, EXPERTS));
    mp_remap(&law, &batch, scratch, out_ids, out_weights, &result);
    free(scratch);
    return result;
}

/* One layer of an open step: its plan's ids and weights are copied out. */
static void run_layer(uint32_t layer, const moepage_routing *routing, uint32_t n, int32_t *out_ids,
                      float *out_weights)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moepage_session_route(session, layer, routing, &plan), MOEPAGE_OK);
    memcpy(out_ids, plan.ids, sizeof(int32_t) * n * routing->top_k);
    memcpy(out_weights, plan.weights, sizeof(float) * n * routing->top_k);
    while (plan.group + 1 < plan.n_groups)
        assert_int_equal(moepage_session_next_group(session, layer, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
}

/* A step of one layer. */
static moepage_session_stats run_step(const moepage_step *step, const moepage_routing *routing,
                                      int32_t *out_ids, float *out_weights)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_begin(session, step), MOEPAGE_OK);
    run_layer(0, routing, step->n_tokens, out_ids, out_weights);
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    return stats;
}

static moepage_session_stats decode(uint32_t n, const moepage_routing *routing, int32_t *out_ids,
                                    float *out_weights)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = n};
    return run_step(&step, routing, out_ids, out_weights);
}

static bool is_own(uint32_t n, const int32_t *out_ids, const float *out_weights)
{
    return memcmp(out_ids, ids, sizeof(int32_t) * n * TOP_K) == 0 &&
           memcmp(out_weights, weights, sizeof(float) * n * TOP_K) == 0;
}

/* ---- when ---- */

static void test_remap_session_is_off_unless_it_is_asked_for(void **state)
{
    int32_t out_ids[ROWS];
    float out_weights[ROWS];
    (void)state;
    open_rig_slots(0);
    moepage_routing routing = routing_of(TOP_K);
    for (uint32_t pass = 0; pass < 2; pass++) {
        moepage_session_stats stats = decode(TOKENS, &routing, out_ids, out_weights);
        assert_true(is_own(TOKENS, out_ids, out_weights));
        assert_int_equal(stats.remap_layers + stats.remap_before + stats.remap_ns, 0);
        set_remap(&coarse); /* and off again */
        set_remap(NULL);
    }
    close_rig();
}

static void test_remap_session_plans_what_the_law_says_and_counts_it(void **state)
{
    int32_t out_ids[ROWS], want_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS];
    (void)state;
    open_rig_slots(0);
    set_remap(&coarse);
    moepage_routing routing = routing_of(TOP_K);
    mp_remap_result want = expect_of(&coarse, TOKENS, want_ids, want_weights);
    moepage_session_stats stats = decode(TOKENS, &routing, out_ids, out_weights);
    assert_true(want.experts_after < want.experts_before);
    assert_memory_equal(out_ids, want_ids, sizeof out_ids);
    assert_memory_equal(out_weights, want_weights, sizeof out_weights);
    assert_int_equal(stats.remap_layers, 1);
    assert_int_equal(stats.remap_before, want.experts_before);
    assert_int_equal(stats.remap_after, want.experts_after);
    assert_int_equal(stats.remap_tokens, want.tokens_changed);
    assert_int_equal(stats.remap_rows, want.rows_changed);
    assert_int_equal(stats.routed, want.experts_after);
    (void)decode(TOKENS, &routing, out_ids, out_weights);
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.remap_layers, 2);
    assert_int_equal(stats.remap_rows, 2 * want.rows_changed);
    assert_true(stats.remap_ns > 0);
    close_rig();
}

static void test_remap_session_leaves_prefill_and_single_tokens_alone(void **state)
{
    int32_t out_ids[ROWS];
    float out_weights[ROWS];
    moepage_step_sequence mixed[] = {{.n_tokens = 6, .phase = MOEPAGE_PHASE_DECODE},
                                     {.n_tokens = 2, .phase = MOEPAGE_PHASE_PREFILL}};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = TOKENS,
                         .n_sequences = 2,
                         .sequences = mixed};
    (void)state;
    open_rig_slots(0);
    set_remap(&coarse);
    moepage_routing routing = routing_of(TOP_K);
    routing.logits = NULL; /* nobody asks for them */
    assert_int_equal(run_step(&step, &routing, out_ids, out_weights).remap_layers, 0);
    assert_true(is_own(TOKENS, out_ids, out_weights));
    step.n_sequences = 0, step.sequences = NULL, step.phase = MOEPAGE_PHASE_PREFILL;
    assert_int_equal(run_step(&step, &routing, out_ids, out_weights).remap_layers, 0);
    assert_true(is_own(TOKENS, out_ids, out_weights));
    assert_int_equal(decode(1, &routing, out_ids, out_weights).remap_layers, 0);
    assert_true(is_own(1, out_ids, out_weights));

    mixed[1].phase = MOEPAGE_PHASE_DECODE; /* decode alone, in sequences */
    step.n_sequences = 2, step.sequences = mixed, step.phase = MOEPAGE_PHASE_DECODE;
    routing.logits = logits;
    assert_int_equal(run_step(&step, &routing, out_ids, out_weights).remap_layers, 1);
    assert_false(is_own(TOKENS, out_ids, out_weights));
    mixed[0].n_tokens = TOKENS; /* a sequence that prefills nothing in this step */
    mixed[1] = (moepage_step_sequence){.n_tokens = 0, .phase = MOEPAGE_PHASE_PREFILL};
    assert_int_equal(run_step(&step, &routing, out_ids, out_weights).remap_layers, 1);
    close_rig();
}

static void test_remap_session_has_laws_by_layer(void **state)
{
    int32_t out_ids[ROWS], want_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS];
    float alphas[LAYERS] = {0, 0.5f}, betas[LAYERS] = {0, 1.5f};
    moepage_remap_config config = {.struct_size = sizeof config, .alphas = alphas, .betas = betas};
    (void)state;
    open_rig_slots(0);
    set_remap(&config);
    (void)expect_of(&(moepage_remap_config){.alpha = 0.5, .beta = 1.5}, TOKENS, want_ids,
                    want_weights);
    alphas[0] = 1; /* it was copied */
    moepage_routing routing = routing_of(TOP_K);
    pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
    run_layer(0, &routing, TOKENS, out_ids, out_weights);
    assert_true(is_own(TOKENS, out_ids, out_weights));
    run_layer(1, &routing, TOKENS, out_ids, out_weights);
    assert_memory_equal(out_ids, want_ids, sizeof out_ids);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    close_rig();
}

static void test_remap_session_has_no_choice_where_every_expert_is_routed(void **state)
{
    int32_t all[TOKENS * EXPERTS], out_ids[TOKENS * EXPERTS];
    float shares[TOKENS * EXPERTS], out_weights[TOKENS * EXPERTS];
    (void)state;
    open_rig_slots(0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS,
                                                               .max_top_k = EXPERTS});
    set_remap(&coarse);
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++) {
        all[i] = (int32_t)(i % EXPERTS);
        shares[i] = 1.0f / EXPERTS;
    }
    moepage_routing routing = routing_of(EXPERTS);
    routing.ids = all, routing.weights = shares;
    assert_int_equal(decode(TOKENS, &routing, out_ids, out_weights).remap_layers, 0);
    assert_memory_equal(out_ids, all, sizeof all);
    close_rig();
}

/* ---- from what ---- */

/* A softmax's probabilities tell the logits but for a constant; 0 stands for very low. */
static void test_remap_session_takes_probabilities_for_logits(void **state)
{
    int32_t out_ids[ROWS], want_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS];
    (void)state;
    open_rig_slots(0);
    set_remap(&coarse);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        make_routing(seed);
        for (uint32_t t = 0; t < TOKENS; t++) /* exact powers of e^(1/16) are far from any tie */
            for (uint32_t e = 0; e < EXPERTS; e++)
                logits[t * EXPERTS + e] = logf(probabilities[t * EXPERTS + e]);
        moepage_routing routing = routing_of(TOP_K);
        (void)expect_of(&coarse, TOKENS, want_ids, want_weights);
        routing.logits = NULL, routing.probabilities = probabilities;
        (void)decode(TOKENS, &routing, out_ids, out_weights);
        assert_memory_equal(out_ids, want_ids, sizeof out_ids);
        assert_memory_equal(out_weights, want_weights, sizeof out_weights);
    }
    /* None is left but the token's own. */
    for (uint32_t e = 0; e < EXPERTS; e++)
        if ((int32_t)e != ids[0] && (int32_t)e != ids[1] && (int32_t)e != ids[2])
            probabilities[e] = 0;
    moepage_routing routing = routing_of(TOP_K);
    routing.logits = NULL, routing.probabilities = probabilities;
    (void)decode(TOKENS, &routing, out_ids, out_weights);
    assert_memory_equal(out_ids, ids, sizeof(int32_t) * TOP_K);
    close_rig();
}

static uint32_t count_odd(const int32_t *of)
{
    bool odd[EXPERTS] = {0};
    uint32_t n = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        n += of[r] % 2 && !odd[of[r]];
        odd[of[r]] = true;
    }
    return n;
}

/* The even ones are. */
static void test_remap_session_prefers_what_is_on_the_device(void **state)
{
    int32_t out_ids[ROWS], want_ids[ROWS], plain_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS];
    moepage_remap_config config = {.struct_size = sizeof config, .alpha = 4, .beta = 12};
    uint32_t plain = 0, preferring = 0;
    (void)state;
    open_rig_slots(EXPERTS / 2);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        make_routing(seed);
        moepage_routing routing = routing_of(TOP_K);
        for (int32_t e = 0; e < EXPERTS; e += 2)
            pool_rig_visit(session, 0, &e, 1);
        for (uint32_t e = 0; e < EXPERTS; e++)
            resident[e] = e % 2 == 0;
        config.resident = 0;
        (void)expect_of(&config, TOKENS, plain_ids, want_weights);
        config.resident = 2;
        (void)expect_of(&config, TOKENS, want_ids, want_weights);
        set_remap(&config);
        (void)decode(TOKENS, &routing, out_ids, out_weights);
        set_remap(NULL);
        assert_memory_equal(out_ids, want_ids, sizeof out_ids);
        plain += count_odd(plain_ids);
        preferring += count_odd(out_ids);
    }
    assert_true(preferring < plain);
    close_rig();
}

/* ---- what is computed ---- */

/* Few slots, many groups: the sum is that of the effective ids, computed naively in memory. */
static void test_remap_session_computes_what_it_plans(void **state)
{
    int32_t want_ids[ROWS];
    float want_weights[ROWS], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    double want[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
    (void)state;
    for (uint64_t slots = 4; slots <= LAYERS * EXPERTS; slots += 10) {
        open_rig_slots(slots);
        set_remap(&coarse);
        uint64_t random = slots;
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
            x[i] = (float)bank_below(&random, 64) / 32 - 1;
        moepage_routing routing = routing_of(TOP_K);
        moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
        (void)expect_of(&coarse, TOKENS, want_ids, want_weights);
        pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
            bank_model_reference(&bank, l, TOKENS, TOP_K, want_ids, want_weights, x,
                                 MOEPAGE_MATH_FP32, want, bound);
            for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
                assert_true(fabs((double)y[i] - want[i]) <= bound[i]);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        close_rig();
    }
}

static void test_remap_session_records_what_the_router_chose(void **state)
{
    char path[512];
    const char *base = getenv("TMPDIR");
    int32_t out_ids[ROWS];
    float out_weights[ROWS];
    moepage_trace *trace;
    (void)state;
    open_rig_slots(0);
    snprintf(path, sizeof path, "%s/moepage-remap-%d.trace", base ? base : P_tmpdir, (int)getpid());
    moepage_trace_info info = {.struct_size = sizeof info,
                               .moe_layers = LAYERS,
                               .experts = EXPERTS,
                               .max_top_k = TOP_K};
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_session_record(session, trace), MOEPAGE_OK);
    set_remap(&coarse);
    moepage_routing routing = routing_of(TOP_K);
    pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++)
        run_layer(l, &routing, TOKENS, out_ids, out_weights);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    assert_false(is_own(TOKENS, out_ids, out_weights));
    assert_int_equal(moepage_session_record(session, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);

    moepage_trace_step step = {.struct_size = sizeof step};
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_OK);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t k = 0; k < TOP_K; k++)
            assert_int_equal(step.ids[t * TOP_K + k], ids[t * TOP_K + k]);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(unlink(path), 0);
    close_rig();
}

/* ---- refusals ---- */

/* Remapping and recording see weights of 1, and so does the plan where nothing was remapped. */
static void test_remap_session_without_weights_counts_every_row_as_1(void **state)
{
    int32_t out_ids[ROWS], want_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS], ones[ROWS];
    char path[64];
    moepage_trace *trace;
    (void)state;
    snprintf(path, sizeof path, "/tmp/moepage-ones-%d.trace", (int)getpid());
    for (uint32_t r = 0; r < ROWS; r++)
        ones[r] = 1;
    open_rig_slots(4);
    memcpy(weights, ones, sizeof ones); /* for the law */
    (void)expect_of(&coarse, TOKENS, want_ids, want_weights);
    assert_memory_not_equal(want_weights, ones, sizeof ones);
    memset(weights, 0xff, sizeof weights);
    const moepage_trace_info info =
        MOEPAGE_TRACE_INFO(.moe_layers = LAYERS, .experts = EXPERTS, .max_top_k = TOP_K);
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_session_record(session, trace), MOEPAGE_OK);
    moepage_routing routing = routing_of(TOP_K);
    routing.weights = NULL;
    for (uint32_t pass = 0; pass < 4; pass++) {
        set_remap(pass % 2 ? NULL : &coarse);
        (void)decode(TOKENS, &routing, out_ids, out_weights);
        assert_memory_equal(out_ids, pass % 2 ? ids : want_ids, sizeof out_ids);
        assert_memory_equal(out_weights, pass % 2 ? ones : want_weights, sizeof out_weights);
    }
    assert_int_equal(moepage_session_record(session, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    moepage_trace_step step = MOEPAGE_TRACE_STEP();
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    for (uint32_t pass = 0; pass < 4; pass++) {
        assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_OK);
        assert_memory_equal(step.ids, ids, sizeof ids);
        assert_memory_equal(step.weights, ones, sizeof ones);
    }
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(unlink(path), 0);
    close_rig();
}

static void expect_config_refusal(moepage_remap_config config, const char *word)
{
    config.struct_size = sizeof config;
    expect_refusal(moepage_session_set_remap(session, &config), MOEPAGE_E_ARGUMENT, word);
}

static void test_remap_session_refuses_bad_configs(void **state)
{
    static const float alphas[LAYERS] = {0.1f, 1}, betas[LAYERS] = {0.3f, 4};
    int32_t out_ids[ROWS], want_ids[ROWS];
    float out_weights[ROWS], want_weights[ROWS];
    (void)state;
    open_rig_slots(0);
    set_remap(&coarse);
    expect_config_refusal((moepage_remap_config){.beta = 1}, "alpha 0");
    expect_config_refusal((moepage_remap_config){.alpha = 1}, "beta 0");
    expect_config_refusal((moepage_remap_config){.alpha = -1, .beta = 1}, "alpha -1");
    expect_config_refusal((moepage_remap_config){.alpha = NAN, .beta = 1}, "alpha");
    expect_config_refusal((moepage_remap_config){.alpha = 1, .beta = INFINITY}, "beta inf");
    expect_config_refusal((moepage_remap_config){.alpha = 1, .beta = 3.1}, "beta is 3.1");
    expect_config_refusal((moepage_remap_config){.alpha = 1e-60, .beta = 1e-60}, "alpha 1e-60");
    expect_config_refusal((moepage_remap_config){.alpha = 1e60, .beta = 1}, "alpha 1e+60");
    expect_config_refusal((moepage_remap_config){.alpha = 1, .beta = 2, .resident = 1e60},
                          "resident is 1e+60");
    expect_config_refusal((moepage_remap_config){.alpha = 1, .beta = 2, .gate = 2}, "gate is 2");
    expect_config_refusal((moepage_remap_config){.alpha = 1, .beta = 2, .resident = -1},
                          "resident is -1");
    expect_config_refusal((moepage_remap_config){.alphas = alphas}, "together");
    expect_config_refusal((moepage_remap_config){.alphas = alphas, .betas = betas},
                          "layer 1: beta is 4");
    moepage_remap_config small = {.struct_size = 8};
    expect_refusal(moepage_session_set_remap(session, &small), MOEPAGE_E_VERSION, "struct_size");
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    expect_refusal(moepage_session_set_remap(session, NULL), MOEPAGE_E_STATE, "open");
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);

    moepage_routing routing = routing_of(TOP_K); /* it is as it was */
    (void)expect_of(&coarse, TOKENS, want_ids, want_weights);
    (void)decode(TOKENS, &routing, out_ids, out_weights);
    assert_memory_equal(out_ids, want_ids, sizeof out_ids);
    close_rig();
}

static void test_remap_session_refuses_routings_it_cannot_remap(void **state)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    moepage_remap_config sigmoid = coarse;
    int32_t out_ids[ROWS];
    float out_weights[ROWS];
    (void)state;
    open_rig_slots(0);
    set_remap(&coarse);
    moepage_routing routing = routing_of(TOP_K);
    pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
    routing.logits = NULL;
    expect_refusal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "layer 0: remapping is on and needs the router's logits, or its probabilities");
    routing.logits = logits;
    logits[EXPERTS + 4] = NAN;
    expect_refusal(moepage_session_route(session, 1, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "layer 1: the logit of expert 4 for token 1 is nan");
    logits[EXPERTS + 4] = -INFINITY;
    expect_refusal(moepage_session_route(session, 1, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "is -inf");
    logits[EXPERTS + 4] = 0;
    routing.logits = NULL, routing.probabilities = probabilities;
    probabilities[TOKENS * EXPERTS - 1] = -0.5f;
    expect_refusal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "the probability of expert 11 for token 7 is -0.5");
    probabilities[TOKENS * EXPERTS - 1] = 0;
    routing.logits = logits;
    ids[5] = EXPERTS; /* the sentence is that of any routing */
    expect_refusal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "id 2 of token 1 is 12");
    ids[5] = ids[3] ? 0 : 1;
    weights[7] = NAN;
    expect_refusal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_E_ARGUMENT, "finite");
    weights[7] = 0.25f;
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.remap_layers, 0);

    sigmoid.gate = MOEPAGE_GATE_SIGMOID;
    set_remap(&sigmoid);
    pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
    routing.logits = NULL;
    expect_refusal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_E_ARGUMENT,
                   "sigmoid gate's probabilities cannot replace them");
    routing.logits = logits;
    run_layer(0, &routing, TOKENS, out_ids, out_weights);
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.remap_layers, 1);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remap_session_is_off_unless_it_is_asked_for),
        cmocka_unit_test(test_remap_session_plans_what_the_law_says_and_counts_it),
        cmocka_unit_test(test_remap_session_leaves_prefill_and_single_tokens_alone),
        cmocka_unit_test(test_remap_session_has_laws_by_layer),
        cmocka_unit_test(test_remap_session_has_no_choice_where_every_expert_is_routed),
        cmocka_unit_test(test_remap_session_takes_probabilities_for_logits),
        cmocka_unit_test(test_remap_session_prefers_what_is_on_the_device),
        cmocka_unit_test(test_remap_session_computes_what_it_plans),
        cmocka_unit_test(test_remap_session_records_what_the_router_chose),
        cmocka_unit_test(test_remap_session_without_weights_counts_every_row_as_1),
        cmocka_unit_test(test_remap_session_refuses_bad_configs),
        cmocka_unit_test(test_remap_session_refuses_routings_it_cannot_remap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
