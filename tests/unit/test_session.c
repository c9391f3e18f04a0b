/* Sessions: what they refuse and in which words, what plans contain, how layers, sessions and
 * devices share slots, and what they count. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 6
#define EXPERTS 12
#define TOP_K 3
#define KEYS (LAYERS * EXPERTS)

static bank_model bank;
static pool_rig rig;

static void open_rig(const pool_rig_config *config)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 8,
                        .intermediate = 4,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .seed = 99};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, config);
}

static void close_rig(void)
{
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* The status, and a sentence that has the word in it. */
#define expect_refusal(call, status, word)                                            \
    do {                                                                              \
        assert_int_equal((call), (status));                                           \
        if (!strstr(moepage_last_error(), (word)))                                    \
            fail_msg("\"%s\" does not mention \"%s\"", moepage_last_error(), (word)); \
    } while (0)

static void destroy(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
}

/* ---- refusals ---- */

static void test_session_create_refuses_bad_configs(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session *session = NULL;
    moepage_session_config config = {.struct_size = sizeof config, .max_top_k = EXPERTS + 1};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "max_top_k is 13");
    config = (moepage_session_config){.struct_size = sizeof config, .math = 4};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "math 4");
    config = (moepage_session_config){.struct_size = sizeof config, .prefetch = 4};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "prefetch 4");
    config = (moepage_session_config){.struct_size = sizeof config, .grouping = 2};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "grouping 2");
    config = (moepage_session_config){.struct_size = sizeof config, .regime = 3};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "regime is 3");
    config = (moepage_session_config){.struct_size = 4};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_VERSION,
                   "struct_size");
    config = (moepage_session_config){.struct_size = sizeof config, .max_tokens = UINT32_MAX};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_ARGUMENT,
                   "too many rows");
    config = (moepage_session_config){.struct_size = sizeof config, .max_tokens = 1u << 20};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_E_BUDGET,
                   "workspace");
    expect_refusal(moepage_session_create(rig.pool, NULL, NULL, NULL), MOEPAGE_E_ARGUMENT, "out");
    assert_null(session);
    close_rig();
}

static void test_session_workspace_is_what_a_session_takes(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = 17,
                                     .math = MOEPAGE_MATH_BF16};
    uint64_t bytes = 0;
    assert_int_equal(moepage_session_workspace(bank.model, &config, &bytes), MOEPAGE_OK);
    moepage_device_info before = {.struct_size = sizeof before}, during = before, after = before;
    assert_int_equal(moepage_device_get_info(rig.devices[0], &before), MOEPAGE_OK);
    moepage_session *session = pool_rig_session(&rig, &config);
    assert_int_equal(moepage_device_get_info(rig.devices[0], &during), MOEPAGE_OK);
    destroy(session);
    assert_int_equal(moepage_device_get_info(rig.devices[0], &after), MOEPAGE_OK);
    assert_true(bytes > 0);
    assert_int_equal(during.used_bytes - before.used_bytes, bytes);
    assert_int_equal(after.used_bytes, before.used_bytes);
    close_rig();
}

static void test_session_refuses_calls_out_of_order(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session *session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 4});
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32};
    int32_t ids[TOP_K] = {0, 1, 2};
    expect_refusal(pool_rig_route(session, 0, ids, TOP_K, &plan), MOEPAGE_E_STATE, "step");
    expect_refusal(moepage_session_end(session, NULL), MOEPAGE_E_STATE, "step");
    expect_refusal(moepage_session_next_group(session, 0, &plan), MOEPAGE_E_STATE, "layer 0");
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_STATE, "layer 0");
    expect_refusal(moepage_session_retire(session, 0), MOEPAGE_E_STATE, "layer 0");
    expect_refusal(moepage_session_hint(session, 0, ids, TOP_K), MOEPAGE_E_STATE, "prefetch");
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);

    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_STATE, "open");
    assert_int_equal(pool_rig_route(session, 0, ids, TOP_K, &plan), MOEPAGE_OK);
    expect_refusal(pool_rig_route(session, 0, ids, TOP_K, &plan), MOEPAGE_E_STATE, "layer 0");
    expect_refusal(moepage_session_end(session, NULL), MOEPAGE_E_STATE, "layer 0");
    expect_refusal(moepage_session_next_group(session, 0, &plan), MOEPAGE_E_STATE, "last");
    for (uint32_t l = 1; l < 4; l++)
        assert_int_equal(pool_rig_route(session, l, ids, TOP_K, &plan), MOEPAGE_OK);
    expect_refusal(pool_rig_route(session, 4, ids, TOP_K, &plan), MOEPAGE_E_STATE, "4 layers");
    expect_refusal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_E_BUSY, "session");
    assert_int_equal(moepage_session_retire(session, 2), MOEPAGE_OK);
    expect_refusal(moepage_session_retire(session, 2), MOEPAGE_E_STATE, "layer 2");
    assert_int_equal(pool_rig_route(session, 4, ids, TOP_K, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    expect_refusal(moepage_session_retire(session, 4), MOEPAGE_E_STATE, "layer 4");
    pool_rig_check(&rig);
    destroy(session);
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_HANDLE, "destroyed");
    expect_refusal(moepage_session_destroy(session), MOEPAGE_E_HANDLE, "destroyed");
    close_rig();
}

static void test_session_begin_refuses_sequences_that_are_gone(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 4});
    const uint32_t bytes_per_token[] = {16};
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .layers = 1,
                                     .blocks = 2,
                                     .blocks_per_granule = 1,
                                     .bytes_per_token = bytes_per_token};
    moepage_kv_pool *kv;
    moepage_session *session;
    moepage_seq gone, live;
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &config, &kv), MOEPAGE_OK);
    assert_int_equal(moepage_session_create(rig.pool, kv, NULL, &session), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_kv_create(kv, &gone), MOEPAGE_OK);
    assert_int_equal(moepage_kv_free(kv, gone), MOEPAGE_OK);
    assert_int_equal(moepage_kv_create(kv, &live), MOEPAGE_OK);
    moepage_step_sequence sequences[] = {{.seq = live, .n_tokens = 1},
                                         {.seq = gone, .n_tokens = 1}};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = 2,
                         .n_sequences = 2,
                         .sequences = sequences};
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_HANDLE, "not live");
    sequences[1].seq = 0; /* one that keeps no KV here */
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    destroy(session);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    close_rig();
}

static void test_session_begin_refuses_bad_steps(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 4, .max_sequences = 2});
    moepage_step_sequence sequences[3] = {{.n_tokens = 2}, {.n_tokens = 2}, {.n_tokens = 0}};
    moepage_step step = {.struct_size = sizeof step};
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "n_tokens is 0");
    step.n_tokens = 5;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "n_tokens is 5");
    step.n_tokens = 4, step.n_sequences = 3, step.sequences = sequences;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "n_sequences is 3");
    step.n_sequences = 1;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "have 2 tokens");
    sequences[1].n_tokens = UINT32_MAX, sequences[0].n_tokens = 5, step.n_sequences = 2;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "tokens");
    sequences[0].n_tokens = sequences[1].n_tokens = 2, sequences[1].phase = 2;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "phase");
    step.sequences = NULL;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "sequences is NULL");
    step.n_sequences = 0, step.phase = 9;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "phase is 9");
    step.phase = 0, step.semantic_dim = 8;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "semantic");
    step.semantic_dim = 0, step.reserved = 7;
    expect_refusal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT, "reserved is 7");
    expect_refusal(moepage_session_begin(session, NULL), MOEPAGE_E_ARGUMENT, "NULL");
    destroy(session);
    close_rig();
}

static moepage_status route_raw(moepage_session *session, uint32_t layer, uint32_t top_k,
                                const int32_t *ids, const float *weights, moepage_plan *plan)
{
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = top_k,
                               .ids = ids,
                               .weights = weights};
    return moepage_session_route(session, layer, &routing, plan);
}

static void test_session_route_refuses_bad_routing_and_changes_nothing(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 8});
    moepage_session *session = pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 2});
    moepage_plan plan = {.struct_size = sizeof plan};
    int32_t good[2 * TOP_K] = {0, 1, 2, 3, 4, 5}, ids[2 * TOP_K];
    float fine[2 * TOP_K] = {1, 0, -1, 0.5f, 1e-40f, 3e38f}, weights[2 * TOP_K];
    static const int32_t bad_ids[] = {EXPERTS, -2, INT32_MAX, INT32_MIN};
    const float bad_weights[] = {NAN, INFINITY, -INFINITY, -NAN};
    pool_rig_begin(session, 2, MOEPAGE_PHASE_DECODE);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t at = 0; at < 2 * TOP_K; at++) {
            memcpy(ids, good, sizeof ids);
            memcpy(weights, fine, sizeof weights);
            ids[at] = bad_ids[i];
            expect_refusal(route_raw(session, 0, TOP_K, ids, fine, &plan), MOEPAGE_E_ARGUMENT,
                           "must be below 12");
            weights[at] = bad_weights[i];
            expect_refusal(route_raw(session, 0, TOP_K, good, weights, &plan), MOEPAGE_E_ARGUMENT,
                           "finite");
        }
    expect_refusal(route_raw(session, 0, 0, good, fine, &plan), MOEPAGE_E_ARGUMENT, "top_k is 0");
    expect_refusal(route_raw(session, 0, 4, good, fine, &plan), MOEPAGE_E_ARGUMENT, "top_k is 4");
    expect_refusal(route_raw(session, LAYERS, TOP_K, good, fine, &plan), MOEPAGE_E_ARGUMENT,
                   "layer is 6");
    expect_refusal(route_raw(session, 0, TOP_K, NULL, fine, &plan), MOEPAGE_E_ARGUMENT,
                   "routing ids are NULL");
    expect_refusal(route_raw(session, 0, TOP_K, NULL, NULL, NULL), MOEPAGE_E_ARGUMENT,
                   "routing ids are NULL");
    expect_refusal(route_raw(session, 0, TOP_K, good, NULL, NULL), MOEPAGE_E_ARGUMENT,
                   "layer 0: routing weights are NULL, and no plan is asked for");
    moepage_plan small = {.struct_size = 8};
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.hits + info.misses + info.late + info.resident, 0);
    expect_refusal(route_raw(session, 0, TOP_K, good, fine, &small), MOEPAGE_E_VERSION,
                   "struct_size");
    assert_int_equal(route_raw(session, 0, TOP_K, good, fine, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    destroy(session);
    close_rig();
}

static void test_session_hint_refuses_what_is_not_there(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
    int32_t ids[EXPERTS + 1] = {0, EXPERTS};
    expect_refusal(moepage_session_hint(session, 0, ids, 2), MOEPAGE_E_ARGUMENT, "expert 12");
    ids[1] = MOEPAGE_NO_EXPERT;
    expect_refusal(moepage_session_hint(session, 0, ids, 2), MOEPAGE_E_ARGUMENT, "expert -1");
    expect_refusal(moepage_session_hint(session, LAYERS, ids, 1), MOEPAGE_E_ARGUMENT, "layer is 6");
    expect_refusal(moepage_session_hint(session, 0, ids, EXPERTS + 1), MOEPAGE_E_ARGUMENT,
                   "13 experts");
    expect_refusal(moepage_session_hint(session, 0, NULL, 1), MOEPAGE_E_ARGUMENT, "NULL");
    assert_int_equal(moepage_session_hint(session, 0, NULL, 0), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig).prefetch_bytes, 0);
    assert_int_equal(moepage_session_hint(session, 0, ids, 1), MOEPAGE_OK);
    pool_rig_check(&rig); /* waits for it */
    assert_int_equal(pool_rig_state(&rig, 0, 0), MOEPAGE_EXPERT_RESIDENT);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.hint_experts, 1); /* between steps, too */
    destroy(session);
    close_rig();
}

/* As a caller does whose header ends before the counts of streaming. */
static void test_session_stats_serve_older_callers(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){0});
    moepage_session *session = pool_rig_session(&rig, NULL);
    moepage_session_stats older;
    uint32_t bytes = offsetof(moepage_session_stats, streamed_layers);
    for (int i = 0; i < 2; i++) {
        memset(&older, 0x5a, sizeof older);
        older.struct_size = bytes;
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(moepage_session_end(session, i ? NULL : &older), MOEPAGE_OK);
        if (i)
            assert_int_equal(moepage_session_get_stats(session, &older), MOEPAGE_OK);
        assert_int_equal(older.steps, i + 1);
        assert_int_equal(older.struct_size, bytes);
        for (size_t at = bytes; at < sizeof older; at++)
            assert_int_equal(((unsigned char *)&older)[at], 0x5a);
    }
    older.struct_size = bytes - 1;
    expect_refusal(moepage_session_get_stats(session, &older), MOEPAGE_E_VERSION, "struct_size");
    destroy(session);
    close_rig();
}

static void test_session_ffn_refuses_bad_arguments(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 2});
    moepage_session *session = pool_rig_session(&rig, NULL);
    float x[8] = {0}, y[8];
    int32_t ids[TOP_K] = {0, 1, 2};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, ids, TOP_K, &plan), MOEPAGE_OK);
    moepage_ffn good = {.struct_size = sizeof good, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    moepage_ffn ffn = good;
    ffn.dtype = MOEPAGE_DTYPE_I8;
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_ARGUMENT, "dtype");
    ffn = good, ffn.x = NULL;
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_ARGUMENT, "NULL");
    ffn = good, ffn.y_stride = 7;
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_ARGUMENT, "stride");
    ffn = good, ffn.accumulate = 2;
    expect_refusal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_E_ARGUMENT, "accumulate is 2");
    assert_int_equal(plan.n_groups, 2);
    assert_int_equal(moepage_session_next_group(session, 0, &plan), MOEPAGE_OK);
    expect_refusal(moepage_session_ffn(session, 0, &good), MOEPAGE_E_STATE, "first group");
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    destroy(session);
    close_rig();
}

/* ---- plans ---- */

/* What one layer's groups have shown so far. */
typedef struct coverage {
    uint8_t rows[256]; /* how often each was seen */
    uint8_t tokens[64];
    uint32_t groups, experts;
} coverage;

static uint32_t device_of(uint32_t expert)
{
    return expert % rig.n_devices;
}

static void check_expert(const moepage_plan *plan, const moepage_plan_expert *expert)
{
    assert_true(expert->expert < EXPERTS);
    assert_int_equal(expert->device, device_of(expert->expert));
    assert_int_equal(expert->dtype, MOEPAGE_DTYPE_BF16);
    assert_int_equal(plan->expert_map[expert->expert], expert->slot);
    assert_true(bank_model_matches(&bank, plan->layer, expert->expert, expert->tensors));
    assert_true(expert->n_rows > 0);
    if (rig.n_devices > 1) {
        assert_null(plan->slot_base);
        return;
    }
    moepage_expert_tensor layout[MOEPAGE_MAX_EXPERT_TENSORS];
    assert_int_equal(moepage_model_get_expert_tensors(bank.model, layout, 8), MOEPAGE_OK);
    for (uint32_t t = 0; t < bank.n_tensors; t++)
        assert_ptr_equal(expert->tensors[t], (char *)plan->slot_base +
                                                 (uint64_t)expert->slot * plan->slot_stride_bytes +
                                                 layout[t].offset);
}

static bool token_in_plan(const moepage_plan *plan, uint32_t token)
{
    for (uint32_t i = 0; i < plan->n_tokens && plan->tokens; i++)
        if (plan->tokens[i] == token)
            return true;
    return !plan->tokens;
}

static void check_group(const moepage_plan *plan, uint32_t step_tokens, coverage *seen)
{
    uint32_t rows = 0, mapped = 0;
    assert_int_equal(plan->group, seen->groups++);
    seen->experts += plan->n_experts;
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        const moepage_plan_expert *expert = &plan->experts[e];
        check_expert(plan, expert);
        assert_int_equal(expert->first_row, rows);
        for (uint32_t i = 0; i < expert->n_rows; i++) {
            uint32_t row = plan->rows[expert->first_row + i];
            assert_true(i == 0 || row > plan->rows[expert->first_row + i - 1]);
            assert_int_equal(plan->ids[row], expert->expert);
            assert_true(token_in_plan(plan, row / plan->top_k));
            seen->rows[row]++;
        }
        rows += expert->n_rows;
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        mapped += plan->expert_map[e] != -1;
    assert_int_equal(mapped, plan->n_experts);
    assert_int_equal(rows, plan->n_rows);
    if (!plan->tokens)
        assert_int_equal(plan->n_tokens, step_tokens);
    for (uint32_t i = 0; i < plan->n_tokens && plan->tokens; i++) {
        assert_true(i == 0 || plan->tokens[i] > plan->tokens[i - 1]);
        seen->tokens[plan->tokens[i]]++;
    }
}

/* Routes a layer, looks at all groups, and retires it; returns the number of groups. Without weights the
 * plan's are 1. */
static uint32_t check_layer(moepage_session *session, uint32_t layer, uint32_t n_tokens,
                            uint32_t top_k, const int32_t *ids, const float *weights)
{
    coverage seen = {0};
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(route_raw(session, layer, top_k, ids, weights, &plan), MOEPAGE_OK);
    check_group(&plan, n_tokens, &seen);
    bool by_tokens = plan.tokens != NULL;
    while (seen.groups < plan.n_groups) {
        assert_int_equal(moepage_session_next_group(session, layer, &plan), MOEPAGE_OK);
        assert_int_equal(plan.tokens != NULL, by_tokens);
        check_group(&plan, n_tokens, &seen);
    }
    expect_refusal(moepage_session_next_group(session, layer, &plan), MOEPAGE_E_STATE, "last");
    for (uint32_t r = 0; r < n_tokens * top_k; r++)
        assert_int_equal(seen.rows[r], ids[r] != MOEPAGE_NO_EXPERT);
    for (uint32_t t = 0; t < n_tokens && by_tokens; t++)
        assert_int_equal(seen.tokens[t], 1);
    assert_memory_equal(plan.ids, ids, n_tokens * top_k * sizeof *ids);
    for (uint32_t r = 0; r < n_tokens * top_k; r++)
        assert_true(plan.weights[r] == (weights ? weights[r] : 1));
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    return seen.groups;
}

/* Random steps; returns the most groups that a layer took. */
static uint32_t check_plans(const pool_rig_config *pool, const moepage_session_config *given,
                            uint32_t steps)
{
    enum { MAX_TOKENS = 20 };
    int32_t ids[MAX_TOKENS * TOP_K];
    float weights[MAX_TOKENS * TOP_K];
    uint64_t random = pool->slots * 31 + given->grouping;
    moepage_session_config config = *given;
    config.max_tokens = MAX_TOKENS;
    open_rig(pool);
    moepage_session *session = pool_rig_session(&rig, &config);
    uint32_t most = 0;
    for (uint32_t s = 0; s < steps; s++) {
        uint32_t n_tokens = 1 + bank_below(&random, MAX_TOKENS);
        uint32_t top_k = 1 + bank_below(&random, TOP_K);
        moepage_session_stats stats = {.struct_size = sizeof stats};
        uint64_t groups = 0;
        pool_rig_begin(session, n_tokens, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            bank_model_route(&bank, &random, n_tokens, top_k, true, ids, weights);
            if (s % 3 == 0) /* the same expert twice in a token counts twice */
                ids[top_k - 1] = ids[0];
            uint32_t n =
                check_layer(session, l, n_tokens, top_k, ids, (s + l) % 4 ? weights : NULL);
            groups += n;
            most = n > most ? n : most;
        }
        assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.groups, groups);
        assert_int_equal(stats.layers, LAYERS);
        assert_int_equal(stats.tokens, n_tokens);
        assert_int_equal(stats.hits + stats.misses + stats.late, stats.routed);
    }
    destroy(session);
    close_rig();
    return most;
}

static void test_session_plans_cover_every_row_once(void **state)
{
    (void)state;
    static const uint64_t slots[] = {1, 2, 5, KEYS / 2, KEYS};
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t most =
            check_plans(&(pool_rig_config){.slots = slots[i]}, &(moepage_session_config){0}, 20);
        assert_int_equal(most == 1, slots[i] >= EXPERTS);
    }
    check_plans(&(pool_rig_config){.slots = KEYS},
                &(moepage_session_config){.max_group_experts = 2}, 10);
    check_plans(&(pool_rig_config){.slots = 3 * LAYERS, .scope = MOEPAGE_SCOPE_LAYER},
                &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_PREVIOUS}, 20);
}

static void test_session_token_groups_are_complete_and_disjoint(void **state)
{
    (void)state;
    moepage_session_config by_tokens = {.grouping = MOEPAGE_GROUP_TOKENS};
    static const uint64_t slots[] = {TOP_K, 5, 7, KEYS / 2, KEYS};
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t most = check_plans(&(pool_rig_config){.slots = slots[i]}, &by_tokens, 20);
        assert_int_equal(most == 1, slots[i] >= EXPERTS);
    }
    check_plans(&(pool_rig_config){.slots = 8, .n_devices = 2}, &by_tokens, 20);
}

static void test_session_plans_name_the_device(void **state)
{
    (void)state;
    static const uint64_t slots[] = {2, 3, 12, KEYS};
    for (uint32_t i = 0; i < 4; i++)
        check_plans(&(pool_rig_config){.slots = slots[i], .n_devices = 2},
                    &(moepage_session_config){.prefetch = i % 3}, 20);
}

static void test_session_refuses_a_token_too_big_for_its_group(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = TOP_K - 1});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.grouping = MOEPAGE_GROUP_TOKENS});
    moepage_plan plan = {.struct_size = sizeof plan};
    int32_t ids[TOP_K] = {0, 1, 2};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    expect_refusal(pool_rig_route(session, 0, ids, TOP_K, &plan), MOEPAGE_E_BUDGET, "single token");
    assert_int_equal(pool_rig_route(session, 0, ids, TOP_K - 1, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    destroy(session);
    close_rig();
}

static void test_session_routes_tokens_without_experts(void **state)
{
    (void)state;
    for (uint32_t grouping = 0; grouping < 2; grouping++) {
        open_rig(&(pool_rig_config){.slots = 1});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.grouping = grouping});
        int32_t ids[2 * TOP_K] = {-1, -1, -1, -1, -1, -1};
        float weights[2 * TOP_K] = {0}, x[2 * 8] = {0}, y[2 * 8];
        moepage_plan plan = {.struct_size = sizeof plan};
        pool_rig_begin(session, 2, MOEPAGE_PHASE_DECODE);
        assert_int_equal(route_raw(session, 0, TOP_K, ids, weights, &plan), MOEPAGE_OK);
        assert_int_equal(plan.n_groups, 1);
        assert_int_equal(plan.n_experts + plan.n_rows, 0);
        memset(y, 0x55, sizeof y);
        moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
        assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
        for (uint32_t i = 0; i < 16; i++)
            assert_true(y[i] == 0);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        destroy(session);
        close_rig();
    }
}

/* All but the weights is the same, and the layer can be computed. */
static void test_session_routes_without_weights_for_a_plan(void **state)
{
    (void)state;
    enum { TOKENS = 3, ROWS = TOKENS * TOP_K, HIDDEN = 8 };
    const float ones[ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, bad[ROWS] = {1, NAN};
    const int32_t ids[ROWS] = {3, 1, MOEPAGE_NO_EXPERT, 7, 3, 3, 0, 11, 2};
    float weights[ROWS], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    double expected[TOKENS * HIDDEN], bound[TOKENS * HIDDEN];
    int32_t map[EXPERTS];
    uint32_t rows[ROWS];
    moepage_plan plan = MOEPAGE_PLAN();
    moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y);
    for (uint32_t r = 0; r < ROWS; r++)
        weights[r] = 0.25f * (float)r;
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(i % 7) - 3;
    open_rig(&(pool_rig_config){0});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS});
    for (uint32_t pass = 0; pass < 2; pass++) {
        pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
        assert_int_equal(route_raw(session, 2, TOP_K, ids, weights, &plan), MOEPAGE_OK);
        assert_int_equal(plan.n_rows, ROWS - 1);
        memcpy(map, plan.expert_map, sizeof map);
        memcpy(rows, plan.rows, (ROWS - 1) * sizeof *rows);
        assert_int_equal(moepage_session_retire(session, 2), MOEPAGE_OK);
        assert_int_equal(route_raw(session, 2, TOP_K, ids, NULL, &plan), MOEPAGE_OK);
        assert_memory_equal(plan.expert_map, map, sizeof map);
        assert_int_equal(plan.n_rows, ROWS - 1);
        assert_memory_equal(plan.rows, rows, (ROWS - 1) * sizeof *rows);
        assert_memory_equal(plan.ids, ids, sizeof ids);
        assert_memory_equal(plan.weights, ones, sizeof ones);
        bank_model_reference(&bank, 2, TOKENS, TOP_K, ids, ones, x, MOEPAGE_MATH_FP32, expected,
                             bound);
        assert_int_equal(moepage_session_ffn(session, 2, &ffn), MOEPAGE_OK);
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
            assert_true(fabs(y[i] - expected[i]) <= bound[i]);
        assert_int_equal(moepage_session_retire(session, 2), MOEPAGE_OK);
        expect_refusal(route_raw(session, 2, TOP_K, ids, bad, &plan), MOEPAGE_E_ARGUMENT, "finite");
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    destroy(session);
    close_rig();
}

/* ---- sharing slots ---- */

/* A layer keeps room for its later groups, whatever is routed meanwhile. */
static void test_session_open_layers_share_its_slots(void **state)
{
    (void)state;
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    float x[8] = {1}, y[8];
    moepage_session_config config = {.max_top_k = 8};
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    open_rig(&(pool_rig_config){.slots = 6});
    moepage_session *session = pool_rig_session(&rig, &config);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, ids, 8, NULL), MOEPAGE_OK); /* two at a time */
    expect_refusal(pool_rig_route(session, 1, ids, 1, NULL), MOEPAGE_E_BUSY, "retire a layer");
    assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);

    assert_int_equal(pool_rig_route(session, 1, ids, 4, NULL), MOEPAGE_OK);
    assert_int_equal(pool_rig_route(session, 2, ids, 8, NULL), MOEPAGE_OK); /* in what is left */
    assert_int_equal(moepage_session_ffn(session, 2, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, 1, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 1), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 2), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    destroy(session);
    close_rig();
}

/* On two devices groups are uneven; the first one may need less of a device than the next. */
static void test_session_open_layers_share_uneven_groups(void **state)
{
    (void)state;
    int32_t first[5] = {0, 2, 1, 3, 5}, second[2] = {1, 3};
    float x[8] = {1}, y[8];
    open_rig(&(pool_rig_config){.slots = 4, .n_devices = 2}); /* 2 on each */
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_top_k = 5, .max_group_experts = 2});
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, first, 5, &plan), MOEPAGE_OK); /* 0 and 2 */
    moepage_status second_status = pool_rig_route(session, 1, second, 2, NULL);
    while (plan.group + 1 < plan.n_groups)
        assert_int_equal(moepage_session_next_group(session, 0, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    if (second_status)
        assert_int_equal(pool_rig_route(session, 1, second, 2, NULL), MOEPAGE_OK);
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    assert_int_equal(moepage_session_ffn(session, 1, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    destroy(session);
    close_rig();
}

static void test_session_several_share_a_pool(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 6});
    moepage_session *sessions[6], *one_more = NULL;
    for (uint32_t i = 0; i < 6; i++)
        sessions[i] = pool_rig_session(&rig, NULL);
    moepage_session_config config = {.struct_size = sizeof config};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &one_more), MOEPAGE_E_BUDGET,
                   "7 sessions");
    /* All hold their share at once, on different layers; each still gets its experts in turn. */
    moepage_plan plans[6];
    int32_t ids[TOP_K] = {1, 5, 9};
    for (uint32_t i = 0; i < 6; i++) {
        plans[i] = (moepage_plan){.struct_size = sizeof plans[i]};
        pool_rig_begin(sessions[i], 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(pool_rig_route(sessions[i], i, ids, TOP_K, &plans[i]), MOEPAGE_OK);
        assert_int_equal(plans[i].n_groups, TOP_K);
    }
    for (uint32_t g = 1; g < TOP_K; g++)
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(moepage_session_next_group(sessions[i], i, &plans[i]), MOEPAGE_OK);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(
            bank_model_matches(&bank, i, plans[i].experts->expert, plans[i].experts->tensors));
        destroy(sessions[i]); /* with the step open */
    }
    close_rig();
}

static void test_session_does_not_count_pinned_slots_as_shared(void **state)
{
    (void)state;
    open_rig(&(pool_rig_config){.slots = 6});
    for (uint32_t e = 0; e < 3; e++) /* top-k slots stay free */
        assert_int_equal(moepage_expert_pool_pin(rig.pool, 0, e), MOEPAGE_OK);
    moepage_session *sessions[3], *one_more = NULL;
    int32_t ids[TOP_K] = {1, 5, 9};
    for (uint32_t i = 0; i < 3; i++)
        sessions[i] = pool_rig_session(&rig, NULL);
    moepage_session_config config = {.struct_size = sizeof config};
    expect_refusal(moepage_session_create(rig.pool, NULL, &config, &one_more), MOEPAGE_E_BUDGET,
                   "pinned");
    for (uint32_t i = 0; i < 3; i++) {
        pool_rig_begin(sessions[i], 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(pool_rig_route(sessions[i], 1 + i, ids, TOP_K, NULL), MOEPAGE_OK);
    }
    for (uint32_t i = 0; i < 3; i++)
        destroy(sessions[i]);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(moepage_expert_pool_unpin(rig.pool, 0, e), MOEPAGE_OK);
    close_rig();
}

/* No KV pool, all tokens in every step, many passes: what a diffusion host does. */
static void test_session_without_kv_runs_many_passes(void **state)
{
    (void)state;
    enum { TOKENS = 20, PASSES = 30 };
    int32_t ids[LAYERS][TOKENS * TOP_K];
    float weights[LAYERS][TOKENS * TOP_K];
    static float x[TOKENS * 8], y[LAYERS][TOKENS * 8], first[LAYERS][TOKENS * 8];
    uint64_t random = 4;
    open_rig(&(pool_rig_config){.slots = KEYS / 3});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = TOKENS,
                                                         .prefetch = MOEPAGE_PREFETCH_PREVIOUS});
    for (uint32_t i = 0; i < TOKENS * 8; i++)
        x[i] = (float)bank_below(&random, 100) / 64.0f;
    for (uint32_t l = 0; l < LAYERS; l++)
        bank_model_route(&bank, &random, TOKENS, TOP_K, false, ids[l], weights[l]);
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_PREFILL);
        for (uint32_t l = 0; l < LAYERS; l++) {
            moepage_ffn ffn = {.struct_size = sizeof ffn,
                               .dtype = MOEPAGE_DTYPE_F32,
                               .x = x,
                               .y = y[l]};
            assert_int_equal(route_raw(session, l, TOP_K, ids[l], weights[l], NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        if (pass == 0)
            memcpy(first, y, sizeof y);
        assert_memory_equal(first, y, sizeof y);
    }
    destroy(session);
    close_rig();
}

/* ---- scans ---- */

/* Decode uses four experts per layer; between two decode steps a long prefill uses all others.
 * Returns decode's misses after that. */
static uint64_t decode_misses_after_prefill(uint32_t scan_percent)
{
    static const int32_t working_set[4] = {0, 1, 2, 3};
    moepage_session_stats stats = {.struct_size = sizeof stats};
    open_rig(&(pool_rig_config){.slots = 5 * LAYERS, .scan_percent = scan_percent});
    moepage_session *session =
        pool_rig_session(&rig,
                         &(moepage_session_config){.max_top_k = 4, .regime = MOEPAGE_REGIME_CACHE});
    for (uint32_t l = 0; l < LAYERS; l++)
        pool_rig_visit(session, l, working_set, 4);
    for (uint32_t first = 4; first < EXPERTS; first += 4) {
        int32_t others[4];
        for (int32_t i = 0; i < 4; i++)
            others[i] = (int32_t)first + i;
        for (uint32_t l = 0; l < LAYERS; l++) {
            moepage_plan plan = {.struct_size = sizeof plan};
            pool_rig_begin(session, 1, MOEPAGE_PHASE_PREFILL);
            assert_int_equal(pool_rig_route(session, l, others, 4, &plan), MOEPAGE_OK);
            while (plan.group + 1 < plan.n_groups)
                assert_int_equal(moepage_session_next_group(session, l, &plan), MOEPAGE_OK);
            assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        }
    }
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++) {
        moepage_plan plan = {.struct_size = sizeof plan};
        assert_int_equal(pool_rig_route(session, l, working_set, 4, &plan), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.routed, 4 * LAYERS);
    destroy(session);
    close_rig();
    return stats.misses;
}

static void test_session_prefill_spares_what_decode_uses(void **state)
{
    (void)state;
    /* 30 slots, 24 in decode's use: with a fifth for scans, 6, prefill fits beside it. */
    assert_int_equal(decode_misses_after_prefill(20), 0);
    assert_int_equal(decode_misses_after_prefill(0), 4 * LAYERS);
}

/* A load that no one waited for is as evictable as any expert once it has landed. */
static void test_session_cancelled_loads_can_be_evicted(void **state)
{
    (void)state;
    int32_t cancelled[4] = {0, 1, 2, 3}, others[4] = {4, 5, 6, 7};
    open_rig(&(pool_rig_config){.slots = 6});
    moepage_session *session =
        pool_rig_session(&rig,
                         &(moepage_session_config){.max_top_k = 4, .regime = MOEPAGE_REGIME_CACHE});
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, cancelled, 4, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    mp_shard *shard = &rig.pool->cache->shards[0];
    const mp_pipe *pipe = &shard->transfer->pipes[MP_PIPE_DEMAND];
    assert_int_equal(shard->transfer->home->device->ops->sync(pipe->bus, pipe->last_bus),
                     MOEPAGE_OK);
    pool_rig_visit(session, 1, others, 2);     /* into the free slots */
    pool_rig_visit(session, 2, others + 2, 2); /* the oldest are 0 and 1 of layer 0 */
    for (uint32_t e = 0; e < 4; e++)
        assert_int_equal(pool_rig_state(&rig, 0, e) == MOEPAGE_EXPERT_ABSENT, e < 2);
    for (uint32_t e = 4; e < 6; e++)
        assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_info(&rig).evictions, 2);
    destroy(session);
    close_rig();
}

/* ---- after errors ---- */

/* A failed load fails the call that needs it; the layer can be tried again, and the weights it
 * then runs with are the right ones. */
static void test_session_ffn_can_be_tried_again_after_a_failed_load(void **state)
{
    (void)state;
    enum { N = 9 };
    int32_t ids[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    float weights[N] = {1, 0.5f, 2, 1, 1, 1, 0.25f, 1, 1}, x[8] = {1, 2, -1, 0.5f, 3, -2, 1, 1};
    float y[8];
    double expected[8], bound[8];
    bank_shape shape = {.layers = 2,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 8,
                        .intermediate = 4,
                        .callback = true,
                        .seed = 5};
    for (uint64_t slots = 1; slots <= N; slots++)
        for (uint32_t failing = 0; failing < N; failing++) {
            bank_model_open(&bank, &shape);
            pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = slots});
            moepage_session *session =
                pool_rig_session(&rig, &(moepage_session_config){.max_top_k = N});
            bank_model_reference(&bank, 1, 1, N, ids, weights, x, MOEPAGE_MATH_FP32, expected,
                                 bound);
            moepage_ffn ffn = {.struct_size = sizeof ffn,
                               .dtype = MOEPAGE_DTYPE_F32,
                               .x = x,
                               .y = y};
            pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
            atomic_store(&bank.fail_key, EXPERTS + failing);
            assert_int_equal(route_raw(session, 1, N, ids, weights, NULL), MOEPAGE_OK);
            for (uint32_t tries = 0; tries < 3; tries++)
                expect_refusal(moepage_session_ffn(session, 1, &ffn), MOEPAGE_E_CALLBACK,
                               "of layer 1");
            atomic_store(&bank.fail_key, UINT32_MAX);
            assert_int_equal(moepage_session_ffn(session, 1, &ffn), MOEPAGE_OK);
            for (uint32_t i = 0; i < 8; i++)
                assert_true(fabs(y[i] - expected[i]) <= bound[i]);
            assert_int_equal(moepage_session_retire(session, 1), MOEPAGE_OK);
            moepage_session_stats stats = {.struct_size = sizeof stats};
            assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
            assert_int_equal(stats.hits + stats.misses + stats.late, stats.routed);
            moepage_expert_pool_info info = pool_rig_info(&rig);
            assert_int_equal(info.hits + info.misses + info.late, stats.routed);
            destroy(session);
            pool_rig_close(&rig);
            bank_model_close(&bank);
        }
}

static void test_session_next_group_can_be_tried_again_after_a_failed_load(void **state)
{
    (void)state;
    int32_t ids[6] = {0, 1, 2, 3, 4, 5};
    float weights[6] = {1, 1, 1, 1, 1, 1};
    bank_shape shape = {.layers = 1,
                        .experts = EXPERTS,
                        .top_k = 6,
                        .hidden = 8,
                        .intermediate = 4,
                        .callback = true,
                        .dtype = MOEPAGE_DTYPE_BF16};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 2});
    moepage_session *session = pool_rig_session(&rig, NULL);
    coverage seen = {0};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(route_raw(session, 0, 6, ids, weights, &plan), MOEPAGE_OK);
    check_group(&plan, 1, &seen);
    for (uint32_t g = 1; g < 3; g++) {
        atomic_store(&bank.fail_key, 2 * g);
        moepage_plan other = {.struct_size = sizeof other};
        expect_refusal(moepage_session_next_group(session, 0, &other), MOEPAGE_E_CALLBACK,
                       "of layer 0");
        atomic_store(&bank.fail_key, UINT32_MAX);
        other.struct_size = 1;
        expect_refusal(moepage_session_next_group(session, 0, &other), MOEPAGE_E_VERSION, "size");
        assert_int_equal(moepage_session_next_group(session, 0, &plan), MOEPAGE_OK);
        check_group(&plan, 1, &seen);
    }
    for (uint32_t r = 0; r < 6; r++)
        assert_int_equal(seen.rows[r], 1);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    destroy(session);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_create_refuses_bad_configs),
        cmocka_unit_test(test_session_workspace_is_what_a_session_takes),
        cmocka_unit_test(test_session_refuses_calls_out_of_order),
        cmocka_unit_test(test_session_begin_refuses_sequences_that_are_gone),
        cmocka_unit_test(test_session_begin_refuses_bad_steps),
        cmocka_unit_test(test_session_route_refuses_bad_routing_and_changes_nothing),
        cmocka_unit_test(test_session_hint_refuses_what_is_not_there),
        cmocka_unit_test(test_session_stats_serve_older_callers),
        cmocka_unit_test(test_session_ffn_refuses_bad_arguments),
        cmocka_unit_test(test_session_plans_cover_every_row_once),
        cmocka_unit_test(test_session_token_groups_are_complete_and_disjoint),
        cmocka_unit_test(test_session_plans_name_the_device),
        cmocka_unit_test(test_session_refuses_a_token_too_big_for_its_group),
        cmocka_unit_test(test_session_routes_tokens_without_experts),
        cmocka_unit_test(test_session_routes_without_weights_for_a_plan),
        cmocka_unit_test(test_session_open_layers_share_its_slots),
        cmocka_unit_test(test_session_open_layers_share_uneven_groups),
        cmocka_unit_test(test_session_several_share_a_pool),
        cmocka_unit_test(test_session_does_not_count_pinned_slots_as_shared),
        cmocka_unit_test(test_session_without_kv_runs_many_passes),
        cmocka_unit_test(test_session_prefill_spares_what_decode_uses),
        cmocka_unit_test(test_session_cancelled_loads_can_be_evicted),
        cmocka_unit_test(test_session_ffn_can_be_tried_again_after_a_failed_load),
        cmocka_unit_test(test_session_next_group_can_be_tried_again_after_a_failed_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
