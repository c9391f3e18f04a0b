/* Engines: the same bits as the objects opened one by one, a budget that covers everything, and each
 * refusal. */
#include <stdio.h>
#include <string.h>

#include "bank_model.h"
#include "testing.h"

#define TINY "examples/models/tiny-qwen3moe"

enum { LAYERS = 4, EXPERTS = 16, TOP_K = 2, HIDDEN = 32, TOKENS = 5, STEPS = 6 };

static bank_model bank;

static void open_bank(void)
{
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = 48,
                                         .seed = 11});
}

#define expect_refusal(call, status, word)                                            \
    do {                                                                              \
        assert_int_equal((call), (status));                                           \
        if (!strstr(moepage_last_error(), (word)))                                    \
            fail_msg("\"%s\" does not mention \"%s\"", moepage_last_error(), (word)); \
    } while (0)

/* An engine on the bank's model. */
static moepage_status open_with(const char *options, moepage_engine_config config,
                                moepage_engine **out)
{
    config.model = bank.model;
    return moepage_engine_open(NULL, options, &config, out);
}

static moepage_engine *open_text(const char *options)
{
    moepage_engine *engine = NULL;
    moepage_status status = open_with(options, MOEPAGE_ENGINE_CONFIG(), &engine);
    if (status)
        fail_msg("\"%s\": %s", options, moepage_last_error());
    return engine;
}

static moepage_device_info device_of(const moepage_engine *engine)
{
    moepage_device_info info = MOEPAGE_DEVICE_INFO();
    assert_int_equal(moepage_device_get_info(moepage_engine_device(engine), &info), MOEPAGE_OK);
    return info;
}

static moepage_expert_pool_info pool_of(const moepage_engine *engine)
{
    moepage_expert_pool_info info = MOEPAGE_EXPERT_POOL_INFO();
    assert_int_equal(moepage_expert_pool_get_info(moepage_engine_expert_pool(engine), &info),
                     MOEPAGE_OK);
    return info;
}

static void close_engine(moepage_engine *engine)
{
    assert_int_equal(moepage_engine_close(engine), MOEPAGE_OK);
}

/* ---- values -------------------------------------------------------------------------------- */

typedef struct layer_case {
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
} layer_case;

static layer_case expected[STEPS][LAYERS];

static void make_inputs(void)
{
    uint64_t random = 99;
    memset(expected, 0, sizeof expected);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            layer_case *c = &expected[step][layer];
            bank_model_route(&bank, &random, TOKENS, TOP_K, false, c->ids, c->weights);
            for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
                c->x[i] = (float)bank_below(&random, 256) / 64 - 2;
        }
}

/* What the detailed stack, with every expert resident, computes. */
static void run_detailed_stack(void)
{
    moepage_device *device = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    const moepage_device_config all =
        MOEPAGE_DEVICE_CONFIG(.budget_bytes = 32 << 20, .workspace_bytes = 16 << 20);
    const moepage_session_config batch = MOEPAGE_SESSION_CONFIG(.max_tokens = TOKENS);
    assert_int_equal(moepage_device_open("host", &all, &device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, NULL, &pool), MOEPAGE_OK);
    assert_int_equal(moepage_session_create(pool, NULL, &batch, &session), MOEPAGE_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        assert_int_equal(moepage_session_begin(session, &MOEPAGE_STEP(TOKENS)), MOEPAGE_OK);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            layer_case *c = &expected[step][layer];
            const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, c->ids, c->weights);
            const moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, c->x, c->y);
            assert_int_equal(moepage_session_route(session, layer, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* Runs the steps and compares every bit; returns the misses. */
static uint64_t compare_steps(moepage_engine *engine)
{
    uint64_t misses = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        moepage_session_stats did = MOEPAGE_SESSION_STATS();
        assert_int_equal(moepage_engine_begin(engine, TOKENS), MOEPAGE_OK);
        for (uint32_t layer = 0; layer < moepage_engine_layers(engine); layer++) {
            layer_case *c = &expected[step][layer];
            float y[TOKENS * HIDDEN];
            assert_int_equal(moepage_engine_experts(engine, layer, TOP_K, c->ids, c->weights, c->x,
                                                    y),
                             MOEPAGE_OK);
            assert_memory_equal(y, c->y, sizeof y);
        }
        assert_int_equal(moepage_engine_end(engine, &did), MOEPAGE_OK);
        assert_int_equal(did.layers, LAYERS);
        assert_int_equal(did.tokens, TOKENS);
        misses += did.misses + did.late;
    }
    return misses;
}

static void test_engine_gives_the_bits_of_the_detailed_stack(void **state)
{
    (void)state;
    static const char *const options[] = {"budget=100% max_tokens=5",
                                          "budget=50% max_tokens=5 regime=cache",
                                          "budget=2% max_tokens=5 regime=cache",
                                          "slots=7 max_tokens=5 policy=cycle",
                                          "budget=4M",
                                          "budget=2M max_tokens=5 prefetch=previous",
                                          "budget=30% max_tokens=5 predictor=coactivation",
                                          "budget=25% scope=layer max_tokens=5"};
    uint64_t misses[8];
    open_bank();
    make_inputs();
    run_detailed_stack();
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        moepage_engine *engine = open_text(options[i]);
        assert_int_equal(moepage_engine_layers(engine), LAYERS);
        misses[i] = compare_steps(engine);
        close_engine(engine);
    }
    assert_true(misses[0] < misses[1] && misses[1] < misses[2]);
    bank_model_close(&bank);
}

static void test_engine_opens_checkpoints_by_path(void **state)
{
    (void)state;
    moepage_engine *engine = NULL;
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_engine_open(TINY, "budget=50% max_tokens=2", NULL, &engine),
                     MOEPAGE_OK);
    assert_int_equal(moepage_model_get_info(moepage_engine_model(engine), &info), MOEPAGE_OK);
    assert_int_equal(moepage_engine_layers(engine), info.moe_layers);
    assert_int_equal(pool_of(engine).slots, info.moe_layers * info.experts / 2);
    close_engine(engine);
    engine = NULL;
    expect_refusal(moepage_engine_open("no-such-model", "budget=1G", NULL, &engine),
                   MOEPAGE_E_NOT_FOUND, "no-such-model");
    assert_null(engine);
}

static void test_engine_takes_x_and_y_in_its_dtype(void **state)
{
    (void)state;
    uint16_t x[HIDDEN], y[HIDDEN];
    float wide[HIDDEN], narrow[HIDDEN];
    const int32_t ids[TOP_K] = {3, 9};
    const float weights[TOP_K] = {0.5f, 0.25f};
    open_bank();
    for (uint32_t i = 0; i < HIDDEN; i++) {
        wide[i] = (float)(i % 7) - 3; /* exact in BF16 */
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    moepage_engine *engine = open_text("budget=100% dtype=bf16"), *plain = open_text("budget=100%");
    assert_int_equal(moepage_engine_begin(engine, 1), MOEPAGE_OK);
    assert_int_equal(moepage_engine_begin(plain, 1), MOEPAGE_OK);
    assert_int_equal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, y), MOEPAGE_OK);
    assert_int_equal(moepage_engine_experts(plain, 0, TOP_K, ids, weights, wide, narrow),
                     MOEPAGE_OK);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        uint32_t bits = (uint32_t)y[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        assert_true(value - narrow[i] <= 0.01f * (1 + (narrow[i] < 0 ? -narrow[i] : narrow[i])));
        assert_true(narrow[i] - value <= 0.01f * (1 + (narrow[i] < 0 ? -narrow[i] : narrow[i])));
    }
    close_engine(engine);
    close_engine(plain);
    bank_model_close(&bank);
}

/* ---- the budget ---------------------------------------------------------------------------- */

static uint64_t scratch_of(uint32_t max_tokens)
{
    const moepage_session_config config = MOEPAGE_SESSION_CONFIG(.max_tokens = max_tokens);
    uint64_t bytes;
    assert_int_equal(moepage_session_workspace(bank.model, &config, &bytes), MOEPAGE_OK);
    return bytes;
}

static uint64_t slots_bytes(uint64_t slots)
{
    const moepage_expert_pool_config config = MOEPAGE_EXPERT_POOL_CONFIG(.slots = slots);
    uint64_t bytes;
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &config, 1, NULL, &bytes), MOEPAGE_OK);
    return bytes;
}

static void test_engine_budget_covers_workspaces_and_gives_the_rest_to_experts(void **state)
{
    (void)state;
    char options[96];
    open_bank();
    const uint64_t budget = scratch_of(8) + slots_bytes(9);
    snprintf(options, sizeof options, "max_tokens=8 budget=%llu", (unsigned long long)budget);
    moepage_engine *engine = open_text(options);
    moepage_device_info device = device_of(engine);
    assert_int_equal(device.budget_bytes, budget);
    assert_int_equal(device.workspace_bytes, scratch_of(8));
    const uint64_t slot_bytes = pool_of(engine).slot_bytes;
    assert_int_equal(pool_of(engine).slots, slots_bytes(9) / slot_bytes);
    close_engine(engine);

    /* What all experts take is all that is asked for. */
    engine = open_text("max_tokens=8 budget=1T");
    device = device_of(engine);
    assert_int_equal(pool_of(engine).slots, LAYERS * EXPERTS);
    assert_int_equal(device.budget_bytes, scratch_of(8) + slots_bytes(LAYERS * EXPERTS));
    close_engine(engine);

    engine = open_text("max_tokens=8 slots=3 sessions=3 workspace=8K");
    assert_int_equal(device_of(engine).workspace_bytes, 3 * scratch_of(8) + 8192);
    assert_int_equal(pool_of(engine).slots, 3);
    close_engine(engine);

    assert_int_equal(open_with("slots=3 max_tokens=8",
                               MOEPAGE_ENGINE_CONFIG(.extra_arena_bytes = 8193), &engine),
                     MOEPAGE_OK);
    assert_int_equal(device_of(engine).arena_bytes, slots_bytes(3) + 3 * 4096);
    assert_int_equal(pool_of(engine).slots, 3);
    close_engine(engine);

    engine = open_text("budget=40.7% max_tokens=8");
    assert_int_equal(pool_of(engine).slots, 26); /* of 64 */
    close_engine(engine);
    engine = open_text("budget=40.7% max_tokens=8 scope=layer");
    assert_int_equal(pool_of(engine).slots, 24);
    close_engine(engine);
    bank_model_close(&bank);
}

/* Experts that the library cannot run need no scratch; a device would take that for its default. */
static void test_engine_without_scratch_keeps_no_workspace_to_speak_of(void **state)
{
    (void)state;
    static const int8_t bytes[64];
    const void *const data[2] = {bytes, bytes};
    const moepage_expert_tensor tensor = {.role = MOEPAGE_ROLE_DOWN,
                                          .dtype = MOEPAGE_DTYPE_I8,
                                          .rank = 2,
                                          .shape = {8, 8}};
    const moepage_banks banks =
        MOEPAGE_BANKS(.moe_layers = 1, .experts = 2, .top_k = 1, .hidden = 8,
                      .expert_intermediate = 8, .n_tensors = 1, .tensors = &tensor, .data = data);
    moepage_engine *engine = NULL;
    moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.budget_percent = 100);
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &config.model), MOEPAGE_OK);
    assert_int_equal(moepage_engine_open(NULL, NULL, &config, &engine), MOEPAGE_OK);
    assert_int_equal(device_of(engine).workspace_bytes, 4096);
    close_engine(engine);
    assert_int_equal(moepage_model_close(config.model), MOEPAGE_OK);
}

static void test_engine_budget_too_small_names_what_is_needed(void **state)
{
    (void)state;
    unsigned long long needed = 0;
    char options[96];
    moepage_engine *engine = NULL;
    open_bank();
    expect_refusal(open_with("max_tokens=8 budget=1K", MOEPAGE_ENGINE_CONFIG(), &engine),
                   MOEPAGE_E_BUDGET, "workspaces take");
    const char *at = strstr(moepage_last_error(), "at least ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "at least %llu are needed", &needed), 1);
    assert_int_equal(needed, scratch_of(8) + slots_bytes(1));
    snprintf(options, sizeof options, "max_tokens=8 budget=%llu", needed - 1);
    expect_refusal(open_with(options, MOEPAGE_ENGINE_CONFIG(), &engine), MOEPAGE_E_BUDGET,
                   "at least");
    snprintf(options, sizeof options, "max_tokens=8 budget=%llu", needed);
    engine = open_text(options);
    assert_true(pool_of(engine).slots >= 1);
    close_engine(engine);
    expect_refusal(open_with("max_tokens=8", MOEPAGE_ENGINE_CONFIG(), &engine), MOEPAGE_E_BUDGET,
                   "budget=8G");
    expect_refusal(open_with("budget=1%", MOEPAGE_ENGINE_CONFIG(), &engine), MOEPAGE_E_BUDGET,
                   "0 of 64 experts");
    expect_refusal(open_with("budget=5% scope=layer", MOEPAGE_ENGINE_CONFIG(), &engine),
                   MOEPAGE_E_BUDGET, "at least 4 are needed");
    bank_model_close(&bank);
}

/* ---- parts --------------------------------------------------------------------------------- */

static const uint32_t token_bytes[2] = {96, 100}; /* of which layers pad the second */

static void test_engine_gives_kv_its_blocks_first(void **state)
{
    (void)state;
    const moepage_kv_pool_config kv =
        MOEPAGE_KV_POOL_CONFIG(.layers = 2, .bytes_per_token = token_bytes, .blocks = 10,
                               .blocks_per_granule = 1);
    const moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.kv = &kv);
    moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
    moepage_engine *engine = NULL;
    uint64_t kv_bytes;
    open_bank();
    assert_int_equal(moepage_kv_pool_sizes(&kv, &kv_bytes), MOEPAGE_OK);
    assert_int_equal(open_with("budget=50%", config, &engine), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(moepage_engine_kv_pool(engine), &info), MOEPAGE_OK);
    assert_int_equal(info.blocks, 10);
    assert_int_equal(device_of(engine).arena_kv_bytes, kv_bytes);
    assert_int_equal(pool_of(engine).slots, LAYERS * EXPERTS / 2);
    close_engine(engine);

    assert_int_equal(open_with("budget=2M max_tokens=4 kv_blocks=7", config, &engine), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(moepage_engine_kv_pool(engine), &info), MOEPAGE_OK);
    assert_int_equal(info.blocks, 7);
    close_engine(engine);

    /* With the slots given, KV has the rest. */
    assert_int_equal(open_with("budget=2M max_tokens=4 slots=6 kv_blocks=0", config, &engine),
                     MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_get_info(moepage_engine_kv_pool(engine), &info), MOEPAGE_OK);
    assert_int_equal(pool_of(engine).slots, 6);
    assert_true(info.blocks > 50);
    close_engine(engine);

    engine = NULL;
    expect_refusal(open_with("budget=50% kv_blocks=0", config, &engine), MOEPAGE_E_ARGUMENT,
                   "blocks is 0");
    expect_refusal(open_with("budget=200K max_tokens=4 kv_blocks=100", config, &engine),
                   MOEPAGE_E_BUDGET, "its KV");
    expect_refusal(open_with("budget=50% kv_blocks=3", MOEPAGE_ENGINE_CONFIG(), &engine),
                   MOEPAGE_E_ARGUMENT, "config->kv is NULL");
    bank_model_close(&bank);
}

static void test_engine_kv_sizes_are_those_of_the_pool(void **state)
{
    (void)state;
    moepage_kv_pool_config kv = MOEPAGE_KV_POOL_CONFIG(.layers = 2, .bytes_per_token = token_bytes);
    const moepage_device_config room =
        MOEPAGE_DEVICE_CONFIG(.budget_bytes = 4 << 20, .workspace_bytes = 4096);
    for (uint32_t run = 0; run <= 3; run++)
        for (kv.blocks = 1; kv.blocks < 200; kv.blocks += 6) {
            moepage_device *device = NULL;
            moepage_kv_pool *pool = NULL;
            moepage_device_info info = MOEPAGE_DEVICE_INFO();
            uint64_t bytes;
            kv.blocks_per_granule = run;
            assert_int_equal(moepage_device_open("host", &room, &device), MOEPAGE_OK);
            assert_int_equal(moepage_kv_pool_create(device, &kv, &pool), MOEPAGE_OK);
            assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
            assert_int_equal(moepage_kv_pool_sizes(&kv, &bytes), MOEPAGE_OK);
            assert_int_equal(bytes, info.arena_kv_bytes);
            assert_int_equal(moepage_kv_pool_destroy(pool), MOEPAGE_OK);
            assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
        }
    uint64_t bytes = 77;
    kv.blocks = 0;
    expect_refusal(moepage_kv_pool_sizes(&kv, &bytes), MOEPAGE_E_ARGUMENT, "blocks is 0");
    kv.blocks = UINT64_MAX;
    expect_refusal(moepage_kv_pool_sizes(&kv, &bytes), MOEPAGE_E_ARGUMENT, "overflows");
    expect_refusal(moepage_kv_pool_sizes(NULL, &bytes), MOEPAGE_E_ARGUMENT, "layers is 0");
    kv.blocks = 1;
    expect_refusal(moepage_kv_pool_sizes(&kv, NULL), MOEPAGE_E_ARGUMENT, "arena_bytes is NULL");
    assert_int_equal(bytes, 77);
}

/* The size that an engine finds by itself has room for its pools, also where KV's granules have several blocks. */
static void test_engine_opens_in_the_size_it_asks_for(void **state)
{
    (void)state;
    moepage_kv_pool_config kv = MOEPAGE_KV_POOL_CONFIG(.layers = 2, .bytes_per_token = token_bytes);
    const moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.kv = &kv);
    open_bank();
    for (kv.blocks = 60; kv.blocks < 260; kv.blocks += 5) {
        moepage_kv_pool_info info = MOEPAGE_KV_POOL_INFO();
        moepage_engine *engine = NULL;
        assert_int_equal(open_with("slots=6 max_tokens=4", config, &engine), MOEPAGE_OK);
        assert_int_equal(pool_of(engine).slots, 6);
        assert_int_equal(moepage_kv_pool_get_info(moepage_engine_kv_pool(engine), &info),
                         MOEPAGE_OK);
        assert_in_range(info.blocks, kv.blocks, kv.blocks + info.blocks_per_granule - 1);
        close_engine(engine);
    }
    bank_model_close(&bank);
}

static void test_engine_shows_the_objects_it_is_made_of(void **state)
{
    (void)state;
    open_bank();
    moepage_engine *engine = open_text("budget=50% predictor=hit-count host_tier=1M threads=1");
    moepage_predictor_info predictor = MOEPAGE_PREDICTOR_INFO();
    assert_ptr_equal(moepage_engine_model(engine), bank.model);
    assert_null(moepage_engine_kv_pool(engine));
    assert_int_equal(moepage_predictor_get_info(moepage_engine_predictor(engine), &predictor),
                     MOEPAGE_OK);
    assert_string_equal(predictor.name, "hit-count");
    assert_true(pool_of(engine).host_tier_bytes > 0);
    assert_int_equal(device_of(engine).threads, 1);
    assert_int_equal(moepage_session_hint(moepage_engine_session(engine), 0, NULL, 0),
                     MOEPAGE_OK); /* which a session without prefetch would refuse */
    close_engine(engine);
    bank_model_close(&bank);

    assert_int_equal(moepage_engine_layers(NULL), 0);
    assert_null(moepage_engine_session(NULL));
    assert_null(moepage_engine_device((const moepage_engine *)&bank));
    assert_int_equal(moepage_engine_close(NULL), MOEPAGE_OK);
}

static void test_engine_text_takes_precedence_over_the_config(void **state)
{
    (void)state;
    const moepage_expert_pool_config experts =
        MOEPAGE_EXPERT_POOL_CONFIG(.slots = 9, .policy = "no-such-policy");
    const moepage_device_config device = MOEPAGE_DEVICE_CONFIG(.threads = 2);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.experts = &experts, .device = &device);
    moepage_engine *engine = NULL;
    open_bank();
    expect_refusal(open_with(NULL, config, &engine), MOEPAGE_E_NOT_FOUND, "no-such-policy");
    assert_int_equal(open_with("policy=lru threads=1", config, &engine), MOEPAGE_OK);
    assert_int_equal(pool_of(engine).slots, 9);
    assert_int_equal(device_of(engine).threads, 1);
    close_engine(engine);
    assert_int_equal(open_with("budget=25%",
                               MOEPAGE_ENGINE_CONFIG(.budget_bytes = 1 << 20, .device = &device),
                               &engine),
                     MOEPAGE_OK);
    assert_int_equal(pool_of(engine).slots, LAYERS * EXPERTS / 4);
    close_engine(engine);
    bank_model_close(&bank);
}

static void test_engine_lives_until_nothing_else_uses_its_parts(void **state)
{
    (void)state;
    moepage_session *second = NULL;
    const int32_t ids[TOP_K] = {0, 1};
    const float weights[TOP_K] = {1, 1};
    float x[HIDDEN] = {0}, y[HIDDEN];
    open_bank();
    moepage_engine *engine = open_text("budget=50% sessions=2 max_tokens=4");
    assert_int_equal(moepage_session_create(moepage_engine_expert_pool(engine), NULL,
                                            &MOEPAGE_SESSION_CONFIG(.max_tokens = 4), &second),
                     MOEPAGE_OK);
    assert_int_equal(moepage_engine_begin(engine, 1), MOEPAGE_OK);
    expect_refusal(moepage_engine_close(engine), MOEPAGE_E_BUSY, "1 session");
    expect_refusal(moepage_engine_begin(engine, 1), MOEPAGE_E_STATE, "closed");
    expect_refusal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, y), MOEPAGE_E_STATE,
                   "closed");
    expect_refusal(moepage_engine_end(engine, NULL), MOEPAGE_E_STATE, "closed");
    assert_null(moepage_engine_session(engine));
    assert_int_equal(moepage_session_destroy(second), MOEPAGE_OK);
    close_engine(engine);
    bank_model_close(&bank); /* which the engine did not close */
}

/* ---- steps --------------------------------------------------------------------------------- */

static void test_engine_layer_that_failed_can_be_run_again(void **state)
{
    (void)state;
    const int32_t ids[TOP_K] = {2, 5}, wrong[TOP_K] = {2, EXPERTS};
    const float weights[TOP_K] = {1, 1};
    float x[HIDDEN] = {1}, y[HIDDEN];
    open_bank();
    moepage_engine *engine = open_text("budget=50% max_tokens=4");
    expect_refusal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, y), MOEPAGE_E_STATE,
                   "step");
    expect_refusal(moepage_engine_begin(engine, 5), MOEPAGE_E_ARGUMENT, "4");
    assert_int_equal(moepage_engine_begin(engine, 1), MOEPAGE_OK);
    expect_refusal(moepage_engine_begin(engine, 1), MOEPAGE_E_STATE, "open");
    expect_refusal(moepage_engine_experts(engine, 0, TOP_K, wrong, weights, x, y),
                   MOEPAGE_E_ARGUMENT, "16");
    expect_refusal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, NULL),
                   MOEPAGE_E_ARGUMENT, "y");
    assert_int_equal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, y), MOEPAGE_OK);
    assert_int_equal(moepage_engine_end(engine, NULL), MOEPAGE_OK);
    expect_refusal(moepage_engine_end(engine, NULL), MOEPAGE_E_STATE, "step");
    close_engine(engine);
    bank_model_close(&bank);
}

/* ---- a budget that follows memory ---------------------------------------------------------- */

static void test_engine_budget_that_follows_memory_is_all_that_the_parts_can_use(void **state)
{
    (void)state;
    open_bank();
    moepage_engine *engine = open_text("max_tokens=8 budget=auto");
    moepage_device_info device = device_of(engine);
    const uint64_t all = scratch_of(8) + slots_bytes(LAYERS * EXPERTS);
    assert_int_equal(device.max_budget_bytes, all);
    assert_int_equal(device.budget_bytes, all); /* as much is free on any machine */
    assert_int_equal(device.reserve_bytes, all / 16);
    assert_int_equal(pool_of(engine).slots, LAYERS * EXPERTS);
    close_engine(engine);
    engine = open_text("max_tokens=8 budget=auto max_budget=1M reserve=64K");
    device = device_of(engine);
    assert_int_equal(device.max_budget_bytes, all < 1 << 20 ? all : 1 << 20);
    assert_int_equal(device.reserve_bytes, 64 << 10);
    close_engine(engine);
    bank_model_close(&bank);
}

/* After every 64th step; until then a smaller budget stays. */
static void test_engine_budget_follows_memory_between_steps(void **state)
{
    (void)state;
    const int32_t ids[TOP_K] = {2, 5};
    const float weights[TOP_K] = {1, 1};
    float x[HIDDEN] = {1}, y[HIDDEN];
    open_bank();
    moepage_engine *engine = open_text("max_tokens=1 budget=auto");
    moepage_device *on = moepage_engine_device(engine);
    const uint64_t all = device_of(engine).budget_bytes, less = scratch_of(1) + slots_bytes(5);
    for (uint32_t step = 0; step < 64; step++) {
        if (step == 10)
            assert_int_equal(moepage_device_set_budget(on, less, NULL), MOEPAGE_OK);
        assert_int_equal(device_of(engine).budget_bytes, step < 10 ? all : less);
        assert_int_equal(moepage_engine_begin(engine, 1), MOEPAGE_OK);
        assert_int_equal(moepage_engine_experts(engine, 0, TOP_K, ids, weights, x, y), MOEPAGE_OK);
        assert_int_equal(moepage_engine_end(engine, NULL), MOEPAGE_OK);
    }
    assert_int_equal(device_of(engine).budget_bytes, all);
    assert_int_equal(pool_of(engine).slots, LAYERS * EXPERTS);
    close_engine(engine);
    bank_model_close(&bank);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void test_engine_options_are_read_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"budget=50% polcy=lru", "there is no \"polcy\"; there are: budget device policy"},
        {"budget", "\"budget\" is not key=value"},
        {"=5", "there is no \"\""},
        {"budget=", "budget=: expected a value"},
        {"budget=8X", "budget=8X: expected bytes, such as 8G, or a percentage"},
        {"budget=0", "above 0"},
        {"budget=-1", "budget=-1: expected"},
        {"budget=0%", "above 0"},
        {"budget=101%", "budget=101%: expected"},
        {"budget=5%%", "budget=5%%: expected"},
        {"budget=1e3%", "budget=1e3%: expected"},
        {"budget=.5%", "budget=.5%: expected"},
        {"budget=5.%", "budget=5.%: expected"},
        {"budget=99999999999T", "expected bytes"},
        {"budget=18446744073709551616", "expected bytes"},
        {"budget=1G budget=2G", "budget is given twice"},
        {"budget=1G max_tokens=4294967296", "max_tokens=4294967296: expected a whole number up to"},
        {"budget=1G max_tokens=x", "max_tokens=x: expected"},
        {"budget=1G math=fp16", "math=fp16: expected fp32|bf16|bf16-fast"},
        {"budget=1G math=fp", "math=fp: expected"},
        {"budget=1G host_tier=1Gb", "host_tier=1Gb: expected bytes"},
        {"budget=25% slots=4", "give one of them"},
        {"budget=1G sessions=65", "sessions is 65"},
        {"budget=1G dtype=int8", "dtype=int8: expected f32|f16|bf16"},
    };
    moepage_engine *engine = NULL;
    open_bank();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refusal(open_with(cases[i].text, MOEPAGE_ENGINE_CONFIG(), &engine),
                       MOEPAGE_E_ARGUMENT, cases[i].word);
        assert_null(engine);
    }
    close_engine(open_text("  budget=50%\n\tmax_tokens=4  "));
    bank_model_close(&bank);
}

static void test_engine_configs_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    const moepage_device_config sized = MOEPAGE_DEVICE_CONFIG(.budget_bytes = 1 << 20);
    const moepage_predictor_config maps = MOEPAGE_PREDICTOR_CONFIG();
    const moepage_session_config predicted =
        MOEPAGE_SESSION_CONFIG(.predictor = (moepage_predictor *)&sized);
    const moepage_device_config short_config = {.struct_size = 8};
    const struct {
        moepage_engine_config config;
        const char *word;
        moepage_status status;
    } cases[] = {
        {MOEPAGE_ENGINE_CONFIG(.budget_bytes = 1, .budget_percent = 1), "give one of them",
         MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = -1), "-1 %", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 100.5), "100.5 %", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 0.0 / 0.0), "nan", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_bytes = 1 << 20, .device = &sized), "config->device",
         MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .dtype = MOEPAGE_DTYPE_I8),
         "dtype of x and y is 8", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_bytes = 1 << 20, .extra_arena_bytes = 1),
         "extra_arena_bytes is 1", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .reserved = 1), "reserved",
         MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .predictor = &maps, .session = &predicted),
         "give one of them", MOEPAGE_E_ARGUMENT},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .device = &short_config), "config->device",
         MOEPAGE_E_VERSION},
        {MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .device_name = "abacus"), "abacus",
         MOEPAGE_E_NOT_FOUND},
    };
    moepage_engine *engine = NULL;
    open_bank();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(open_with(NULL, cases[i].config, &engine), cases[i].status, cases[i].word);
    moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.budget_percent = 50, .model = bank.model);
    expect_refusal(moepage_engine_open(TINY, NULL, &config, &engine), MOEPAGE_E_ARGUMENT,
                   "both set");
    expect_refusal(moepage_engine_open(NULL, "budget=50%", NULL, &engine), MOEPAGE_E_ARGUMENT,
                   "path is NULL");
    expect_refusal(moepage_engine_open(TINY, "budget=50%", NULL, NULL), MOEPAGE_E_ARGUMENT,
                   "out is NULL");
    config.struct_size = 4;
    expect_refusal(moepage_engine_open(NULL, NULL, &config, &engine), MOEPAGE_E_VERSION,
                   "struct_size");
    expect_refusal(moepage_engine_begin((moepage_engine *)&sized, 1), MOEPAGE_E_HANDLE, "");
    assert_null(engine);
    bank_model_close(&bank);
}

/* Each part is opened, and the next one refused: sanitizers see what would be left. */
static void test_engine_that_fails_half_way_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        moepage_status status;
    } cases[] = {
        {"budget=50% device=cuda:77", MOEPAGE_E_NOT_FOUND},
        {"budget=50% policy=none-such", MOEPAGE_E_NOT_FOUND},
        {"budget=50% predictor=none-such", MOEPAGE_E_NOT_FOUND},
        {"budget=50% bus_form=exph", MOEPAGE_E_UNSUPPORTED},
        {"budget=50% max_tokens=4 prefetch=predictor", MOEPAGE_E_ARGUMENT},
        {"budget=50% max_tokens=4 miss=low", MOEPAGE_E_UNSUPPORTED},
    };
    open_bank();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moepage_engine *engine = NULL;
        moepage_status status = open_with(cases[i].text, MOEPAGE_ENGINE_CONFIG(), &engine);
        if (status != cases[i].status && !strstr(cases[i].text, "cuda"))
            fail_msg("%s: %d, %s", cases[i].text, status, moepage_last_error());
        assert_true(status < 0 && moepage_last_error()[0]);
        assert_null(engine);
    }
    bank_model_close(&bank); /* BUSY if a pool were left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_gives_the_bits_of_the_detailed_stack),
        cmocka_unit_test(test_engine_opens_checkpoints_by_path),
        cmocka_unit_test(test_engine_takes_x_and_y_in_its_dtype),
        cmocka_unit_test(test_engine_budget_covers_workspaces_and_gives_the_rest_to_experts),
        cmocka_unit_test(test_engine_without_scratch_keeps_no_workspace_to_speak_of),
        cmocka_unit_test(test_engine_budget_too_small_names_what_is_needed),
        cmocka_unit_test(test_engine_gives_kv_its_blocks_first),
        cmocka_unit_test(test_engine_kv_sizes_are_those_of_the_pool),
        cmocka_unit_test(test_engine_opens_in_the_size_it_asks_for),
        cmocka_unit_test(test_engine_shows_the_objects_it_is_made_of),
        cmocka_unit_test(test_engine_text_takes_precedence_over_the_config),
        cmocka_unit_test(test_engine_lives_until_nothing_else_uses_its_parts),
        cmocka_unit_test(test_engine_layer_that_failed_can_be_run_again),
        cmocka_unit_test(test_engine_budget_that_follows_memory_is_all_that_the_parts_can_use),
        cmocka_unit_test(test_engine_budget_follows_memory_between_steps),
        cmocka_unit_test(test_engine_options_are_read_strictly),
        cmocka_unit_test(test_engine_configs_that_contradict_themselves_are_refused),
        cmocka_unit_test(test_engine_that_fails_half_way_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
