/* Sessions that compute absent experts where they lie: the same bits as sessions that wait for them,
 * loading nothing on demand where the bytes lie in host memory, and waiting where they do not. */

#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "late_device.h"
#include "machine_rig.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "simulated/phantom.h"
#include "testing.h"

#define LAYERS 2
#define EXPERTS 12
#define TOP_K 3
#define TOKENS 7
#define HIDDEN 40
#define INTERMEDIATE 24
#define STEPS 12
#define ROWS (TOKENS * TOP_K)

typedef struct outputs {
    float y[STEPS][LAYERS][TOKENS * HIDDEN];
} outputs;

static uint32_t regime = MOEPAGE_REGIME_CACHE;

static moepage_session_stats run(bank_model *bank, const pool_rig_config *config, uint32_t math,
                                 uint32_t miss, bool plans, outputs *out)
{
    pool_rig rig;
    uint64_t random = 99;
    pool_rig_open(&rig, bank, config);
    const moepage_session_config how = {.max_tokens = TOKENS,
                                        .math = math,
                                        .miss = miss,
                                        .regime = regime};
    moepage_session *session = pool_rig_session(&rig, &how);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    memset(out, 0xff, sizeof *out);
    for (uint32_t s = 0; s < STEPS; s++) {
        float x[TOKENS * HIDDEN], weights[ROWS];
        int32_t ids[ROWS];
        moepage_session_stats step = {.struct_size = sizeof step};
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
            x[i] = (float)((int)bank_below(&random, 20001) - 10000) / 7919.0f;
        pool_rig_begin(session, TOKENS, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            bank_model_route(bank, &random, TOKENS, TOP_K, true, ids, weights);
            const moepage_routing routing = {.struct_size = sizeof routing,
                                             .top_k = TOP_K,
                                             .ids = ids,
                                             .weights = weights};
            const moepage_ffn ffn = {.struct_size = sizeof ffn,
                                     .dtype = MOEPAGE_DTYPE_F32,
                                     .x = x,
                                     .y = out->y[s][l]};
            moepage_plan plan = {.struct_size = sizeof plan};
            assert_int_equal(moepage_session_route(session, l, &routing, plans ? &plan : NULL),
                             MOEPAGE_OK);
            for (uint32_t e = 0; plans && e < plan.n_experts; e++)
                assert_true(pool_rig_holds(&rig, l, &plan.experts[e]));
            if (!plans || plan.n_groups == 1)
                assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, &step), MOEPAGE_OK);
        assert_int_equal(step.hits + step.late + step.misses + step.host_experts, step.routed);
        stats.host_experts += step.host_experts;
        stats.misses += step.misses;
        stats.late += step.late;
        stats.demand_bytes += step.demand_bytes;
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig); /* what was fetched for the next time is what it should be */
    return stats;
}

static void open_bank(bank_model *bank, bank_shape shape)
{
    shape.layers = LAYERS, shape.experts = EXPERTS, shape.top_k = TOP_K;
    shape.hidden = HIDDEN, shape.intermediate = INTERMEDIATE, shape.seed = 3;
    bank_model_open(bank, &shape);
}

static moepage_session_stats expect_same(bank_model *bank, const pool_rig_config *config,
                                         uint32_t math)
{
    static outputs waited, computed;
    run(bank, config, math, MOEPAGE_MISS_WAIT, false, &waited);
    moepage_session_stats stats = run(bank, config, math, MOEPAGE_MISS_HOST, false, &computed);
    assert_memory_equal(&waited, &computed, sizeof waited);
    return stats;
}

/* ---- where the bytes lie in host memory ---- */

static void test_miss_host_gives_the_bits_of_waiting_and_loads_nothing(void **state)
{
    (void)state;
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16};
    for (uint32_t i = 0; i < 12; i++) {
        bank_model bank;
        open_bank(&bank, (bank_shape){.dtype = dtypes[i % 3],
                                      .split = i & 1,
                                      .bias = i & 2,
                                      .clamped = i & 4});
        const pool_rig_config config = {.slots = i < 6 ? 9 : 24,
                                        .threads = 1 + i % 2,
                                        .n_devices = 1 + i / 3 % 2};
        moepage_session_stats stats =
            expect_same(&bank, &config, i & 4 ? MOEPAGE_MATH_BF16 : MOEPAGE_MATH_FP32);
        assert_true(stats.host_experts > 0);
        assert_int_equal(stats.misses, 0);
        assert_int_equal(stats.demand_bytes, 0);
        bank_model_close(&bank);
    }
}

static void test_miss_host_goes_with_layers_that_stream(void **state)
{
    (void)state;
    static const uint32_t regimes[] = {MOEPAGE_REGIME_AUTO, MOEPAGE_REGIME_STREAM};
    bank_model bank;
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16});
    for (uint32_t i = 0; i < 2; i++) {
        regime = regimes[i];
        moepage_session_stats stats =
            expect_same(&bank, &(pool_rig_config){.slots = 9}, MOEPAGE_MATH_FP32);
        assert_true(stats.host_experts > 0);
        assert_int_equal(stats.demand_bytes, 0);
    }
    regime = MOEPAGE_REGIME_CACHE;
    bank_model_close(&bank);
}

static void test_miss_host_reads_mapped_images_of_a_pack(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        bank_model bank;
        open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16,
                                      .bias = i & 1,
                                      .pack_forms = 1u << MOEPAGE_FORM_DENSE |
                                                    (i & 2 ? 1u << MOEPAGE_FORM_EXPH : 0)});
        moepage_session_stats stats =
            expect_same(&bank, &(pool_rig_config){.slots = 9}, MOEPAGE_MATH_BF16);
        assert_true(stats.host_experts > 0);
        assert_int_equal(stats.demand_bytes, 0);
        bank_model_close(&bank);
    }
}

/* ---- where they do not ---- */

static void test_miss_host_waits_for_what_does_not_lie_there(void **state)
{
    (void)state;
    const bank_shape shapes[] = {
        {.dtype = MOEPAGE_DTYPE_BF16, .callback = true},
        {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_EXPH},
    };
    for (size_t i = 0; i < 2; i++) {
        bank_model bank;
        open_bank(&bank, shapes[i]);
        moepage_session_stats stats =
            expect_same(&bank, &(pool_rig_config){.slots = 9}, MOEPAGE_MATH_BF16);
        assert_int_equal(stats.host_experts, 0);
        assert_true(stats.misses > 0 && stats.demand_bytes > 0);
        bank_model_close(&bank);
    }
}

/* Of a pool with a host tier: what the tier holds is computed there, the rest is on storage. */
static void test_miss_host_finds_what_the_host_tier_holds(void **state)
{
    (void)state;
    const bank_shape shapes[] = {
        {.dtype = MOEPAGE_DTYPE_BF16},
        {.dtype = MOEPAGE_DTYPE_BF16, .callback = true, .split = true},
        {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_DENSE, .cold_level = 1},
    };
    for (size_t i = 0; i < 3; i++) {
        bank_model bank;
        open_bank(&bank, shapes[i]);
        const pool_rig_config config = {.slots = 9, .host_experts = 24, .io_threads = 2};
        moepage_session_stats stats = expect_same(&bank, &config, MOEPAGE_MATH_BF16);
        assert_true(stats.misses + stats.late > 0); /* the first of each */
        assert_true(stats.host_experts > 0);
        bank_model_close(&bank);
    }
}

static void test_miss_host_readers_of_plans_get_slots(void **state)
{
    (void)state;
    static outputs out;
    bank_model bank;
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16});
    moepage_session_stats stats = run(&bank, &(pool_rig_config){.slots = 24}, MOEPAGE_MATH_BF16,
                                      MOEPAGE_MISS_HOST, true, &out);
    assert_int_equal(stats.host_experts, 0);
    assert_true(stats.misses > 0);
    bank_model_close(&bank);
}

/* Has a session compute so many experts of layer 0, in order; what the step says. */
static moepage_status compute(moepage_session *session, uint32_t n, uint32_t phase)
{
    static float x[EXPERTS * HIDDEN], y[EXPERTS * HIDDEN], weights[EXPERTS];
    int32_t ids[EXPERTS];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = 1,
                                     .ids = ids,
                                     .weights = weights};
    const moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    pool_rig_begin(session, n, phase);
    assert_int_equal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_OK);
    return moepage_session_ffn(session, 0, &ffn);
}

/* All that a small tier holds lies there and nowhere else: the next one is to be read through it. */
static void test_miss_host_leaves_the_host_tier_room_for_reads(void **state)
{
    (void)state;
    bank_model bank;
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .callback = true});
    for (uint32_t held = 1; held < 4; held++) {
        pool_rig rig;
        moepage_session_stats stats = {.struct_size = sizeof stats};
        pool_rig_open(&rig, &bank,
                      &(pool_rig_config){.slots = 6, .host_experts = held, .io_threads = 1});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.max_tokens = EXPERTS,
                                                             .max_top_k = 1,
                                                             .regime = MOEPAGE_REGIME_CACHE,
                                                             .miss = MOEPAGE_MISS_HOST});
        assert_int_equal(compute(session, held, MOEPAGE_PHASE_DECODE), MOEPAGE_OK);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        pool_rig_wait(&rig);
        pthread_mutex_lock(&rig.pool->lock); /* as when a pool shrinks */
        while (mp_shard_evict(&rig.pool->cache->shards[0], &rig.pool->cache->shards[0].scopes[0],
                              MP_FOR_DECODE, false))
            ;
        pthread_mutex_unlock(&rig.pool->lock);
        assert_int_equal(compute(session, held + 1, MOEPAGE_PHASE_DECODE), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
        assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.host_experts, held - 1);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_close(&rig);
    }
    bank_model_close(&bank);
}

/* What a failed FFN was going to compute where it lies, a plan that comes after it has in slots. */
static void test_miss_host_plans_after_a_failed_ffn_get_slots(void **state)
{
    (void)state;
    bank_model bank;
    pool_rig rig;
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16, .callback = true});
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4, .host_experts = 24});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = EXPERTS,
                                                         .max_top_k = 1,
                                                         .regime = MOEPAGE_REGIME_CACHE,
                                                         .miss = MOEPAGE_MISS_HOST});
    for (uint32_t s = 0; s < 3; s++) { /* the tier has all of the first 11 */
        assert_int_equal(compute(session, EXPERTS - 1, MOEPAGE_PHASE_DECODE), MOEPAGE_OK);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        pool_rig_wait(&rig);
    }
    atomic_store(&bank.fail_key, EXPERTS - 1);
    assert_int_equal(compute(session, EXPERTS, MOEPAGE_PHASE_DECODE), MOEPAGE_E_CALLBACK);
    atomic_store(&bank.fail_key, UINT32_MAX);
    moepage_plan plan = {.struct_size = sizeof plan};
    do {
        assert_int_equal(moepage_session_next_group(session, 0, &plan), MOEPAGE_OK);
        for (uint32_t e = 0; e < plan.n_experts; e++) {
            moepage_residency where = {.struct_size = sizeof where};
            assert_true(pool_rig_holds(&rig, 0, &plan.experts[e]));
            assert_int_equal(moepage_expert_pool_lookup(rig.pool, 0, plan.experts[e].expert,
                                                        &where),
                             MOEPAGE_OK);
            assert_int_equal(where.slot, plan.experts[e].slot);
        }
    } while (plan.group + 1 < plan.n_groups);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* Prefill that computes where experts lie takes no slot from what decode uses. */
static void test_miss_host_respects_protection_against_scans(void **state)
{
    (void)state;
    bank_model bank;
    pool_rig rig;
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16});
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4, .scan_percent = 50});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.max_tokens = EXPERTS,
                                                         .max_top_k = 1,
                                                         .regime = MOEPAGE_REGIME_CACHE,
                                                         .miss = MOEPAGE_MISS_HOST});
    for (uint32_t s = 0; s < 6; s++) { /* experts 0 to 3 in decode, then all of them in prefill */
        uint32_t n = s < 3 ? 4 : EXPERTS;
        assert_int_equal(compute(session, n, s < 3 ? MOEPAGE_PHASE_DECODE : MOEPAGE_PHASE_PREFILL),
                         MOEPAGE_OK);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        pool_rig_wait(&rig);
    }
    for (uint32_t e = 0; e < 4; e++)
        assert_int_equal(pool_rig_state(&rig, 0, e), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* What lies in host memory stays as it is while a plan holds it, which is too short where a device's
 * work outlasts the call that submits it. */
static void test_miss_host_is_for_devices_whose_work_ends_with_the_call(void **state)
{
    (void)state;
    bank_model bank;
    moepage_session *session = NULL;
    moepage_expert_pool *pool = NULL;
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .workspace_bytes = 1 << 20,
                                          .budget_bytes = 4 << 20};
    const moepage_expert_pool_config slots = {.struct_size = sizeof slots, .slots = 4};
    const moepage_session_config how = {.struct_size = sizeof how,
                                        .max_tokens = 1,
                                        .miss = MOEPAGE_MISS_HOST};
    open_bank(&bank, (bank_shape){.dtype = MOEPAGE_DTYPE_BF16});
    moepage_device *home = late_home_open(&config, true);
    assert_int_equal(moepage_expert_pool_create(&home, 1, bank.model, &slots, &pool), MOEPAGE_OK);
    assert_int_equal(moepage_session_create(pool, NULL, &how, &session), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "MOEPAGE_MISS_HOST"));
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    late_home_close(home);
    bank_model_close(&bank);
}

/* ---- what it costs ---- */

/* H 100, I 50: 15000 weights of 2 bytes. The device's memory and compute are as in machine_rig.h; the
 * host reads 2 bytes per ns and does 1 operation. */
static void open_machine(mp_sim_profile *profile, moepage_device **home, moepage_model **model)
{
    const mp_phantom_shape shape = {.name = "by hand",
                                    .layers = 1,
                                    .moe_layers = 1,
                                    .experts = 4,
                                    .top_k = 2,
                                    .hidden = 100,
                                    .expert_intermediate = 50,
                                    .dtype = MOEPAGE_DTYPE_BF16};
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .budget_bytes = 4 << 20,
                                          .workspace_bytes = 1 << 20};
    mp_device *device = NULL;
    assert_int_equal(mp_model_open_phantom(&shape, model), MOEPAGE_OK);
    assert_int_equal(mp_sim_open(profile, &config, &device), MOEPAGE_OK);
    assert_int_equal(mp_home_open(device, &config, home), MOEPAGE_OK);
}

static moepage_status try_machine(mp_sim_profile profile, uint64_t *step_ns,
                                  moepage_session_stats *stats)
{
    moepage_device *home = NULL;
    moepage_model *model = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    open_machine(&profile, &home, &model);
    const moepage_expert_pool_config pool_config = {.struct_size = sizeof pool_config, .slots = 2};
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_tokens = 1,
                                           .math = MOEPAGE_MATH_BF16,
                                           .regime = MOEPAGE_REGIME_CACHE,
                                           .miss = MOEPAGE_MISS_HOST};
    assert_int_equal(moepage_expert_pool_create(&home, 1, model, &pool_config, &pool), MOEPAGE_OK);
    moepage_status status = moepage_session_create(pool, NULL, &config, &session);
    if (!status) {
        static const int32_t ids[] = {0, 1};
        static const float weights[2];
        static uint16_t x[100], y[100];
        const moepage_step begin = {.struct_size = sizeof begin, .n_tokens = 1};
        const moepage_routing routing = {.struct_size = sizeof routing,
                                         .top_k = 2,
                                         .ids = ids,
                                         .weights = weights};
        const moepage_ffn ffn = {.struct_size = sizeof ffn,
                                 .dtype = MOEPAGE_DTYPE_BF16,
                                 .x = x,
                                 .y = y};
        uint64_t began = home->device->ops->now_ns(home->device);
        assert_int_equal(moepage_session_begin(session, &begin), MOEPAGE_OK);
        assert_int_equal(moepage_session_route(session, 0, &routing, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_ffn(session, 0, &ffn), MOEPAGE_OK);
        *step_ns = home->device->ops->now_ns(home->device) - began;
        assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
        *stats = (moepage_session_stats){.struct_size = sizeof *stats};
        assert_int_equal(moepage_session_end(session, stats), MOEPAGE_OK);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    }
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(home), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    return status;
}

static void test_miss_host_costs_what_the_hosts_memory_takes(void **state)
{
    (void)state;
    mp_sim_profile profile = machine_profile();
    uint64_t step_ns = 0;
    moepage_session_stats stats;
    assert_int_equal(try_machine(profile, &step_ns, &stats), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "MOEPAGE_MISS_HOST"));

    profile.host_memory_bytes_per_s = 2000000000;
    profile.host_compute_flops = 1000000000000;
    assert_int_equal(try_machine(profile, &step_ns, &stats), MOEPAGE_OK);
    assert_int_equal(stats.host_experts, 2);
    assert_int_equal(stats.demand_bytes, 0);
    /* Two rows of x and two results over the bus: 2 * (200 + 400) bytes and twice its latency. Two
     * experts of 30000 bytes, those rows, and 2 * 2 * 100 of products, at 2 bytes per ns. Then the
     * device sums up: 2 * 400 bytes, and 200 of y. */
    const uint64_t moved = 2 * 100 + 1200;
    const uint64_t computed = (2 * 30000 + 1200 + 400) / 2;
    assert_int_equal(step_ns, moved + computed + 10 + (800 + 200) / 4);

    profile.host_compute_flops = 1000000000; /* 2 * 6 * 5000 operations take longer */
    assert_int_equal(try_machine(profile, &step_ns, &stats), MOEPAGE_OK);
    assert_int_equal(step_ns, moved + 60000 + 10 + (800 + 200) / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_miss_host_gives_the_bits_of_waiting_and_loads_nothing),
        cmocka_unit_test(test_miss_host_goes_with_layers_that_stream),
        cmocka_unit_test(test_miss_host_reads_mapped_images_of_a_pack),
        cmocka_unit_test(test_miss_host_waits_for_what_does_not_lie_there),
        cmocka_unit_test(test_miss_host_finds_what_the_host_tier_holds),
        cmocka_unit_test(test_miss_host_readers_of_plans_get_slots),
        cmocka_unit_test(test_miss_host_leaves_the_host_tier_room_for_reads),
        cmocka_unit_test(test_miss_host_plans_after_a_failed_ffn_get_slots),
        cmocka_unit_test(test_miss_host_respects_protection_against_scans),
        cmocka_unit_test(test_miss_host_is_for_devices_whose_work_ends_with_the_call),
        cmocka_unit_test(test_miss_host_costs_what_the_hosts_memory_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
