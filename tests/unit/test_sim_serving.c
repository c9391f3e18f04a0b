/* Serving over a simulated machine: misses against a cache written from its definition, the same run
 * twice, and a model that no machine of ours could hold. */

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bank_model.h"
#include "stack_rig.h"
#include "testing.h"

/* ---- beside a naive cache ---- */

enum { SLOT = 3 * 64 * 32 * 2 }; /* bytes */
enum { LAYERS = 6, EXPERTS = 32, TOP_K = 4, TOKENS = 3, SLOTS = 70 };

/* Least recently used first. */
typedef struct naive_lru {
    uint32_t keys[SLOTS];
    uint32_t n;
} naive_lru;

static int32_t place_of(const naive_lru *cache, uint32_t key)
{
    for (uint32_t i = 0; i < cache->n; i++)
        if (cache->keys[i] == key)
            return (int32_t)i;
    return -1;
}

static void take_out(naive_lru *cache, uint32_t place)
{
    cache->n--;
    memmove(&cache->keys[place], &cache->keys[place + 1], (cache->n - place) * sizeof(uint32_t));
}

static bool is_among(const uint32_t *set, uint32_t n, uint32_t key)
{
    for (uint32_t i = 0; i < n; i++)
        if (set[i] == key)
            return true;
    return false;
}

/* A set at once: no member is a victim; then recency in the set's order. Returns the misses. */
static uint32_t serve_set(naive_lru *cache, const uint32_t *set, uint32_t n)
{
    uint32_t misses = 0;
    for (uint32_t i = 0; i < n; i++)
        misses += place_of(cache, set[i]) < 0;
    while (cache->n + misses > SLOTS) {
        uint32_t victim = 0;
        while (is_among(set, n, cache->keys[victim]))
            victim++;
        take_out(cache, victim);
    }
    for (uint32_t i = 0; i < n; i++) {
        int32_t place = place_of(cache, set[i]);
        if (place >= 0)
            take_out(cache, (uint32_t)place);
        cache->keys[cache->n++] = set[i];
    }
    return misses;
}

static uint32_t distinct_of(const int32_t *ids, uint32_t layer, uint32_t *set)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < TOKENS * TOP_K; r++)
        if (!is_among(set, n, layer * EXPERTS + (uint32_t)ids[r]))
            set[n++] = layer * EXPERTS + (uint32_t)ids[r];
    return n;
}

/* Skewed, and distinct per token. */
static void draw_ids(uint64_t *random, int32_t *ids)
{
    for (uint32_t r = 0; r < TOKENS * TOP_K; r++) {
        bool again;
        do {
            uint32_t a = bank_below(random, EXPERTS), b = bank_below(random, EXPERTS);
            ids[r] = (int32_t)(a < b ? a : b);
            again = false;
            for (uint32_t j = r / TOP_K * TOP_K; j < r; j++)
                again |= ids[j] == ids[r];
        } while (again);
    }
}

static mp_phantom_shape grid_shape(void)
{
    return (mp_phantom_shape){
        .name = "grid",
        .layers = LAYERS,
        .moe_layers = LAYERS,
        .experts = EXPERTS,
        .top_k = TOP_K,
        .hidden = 64,
        .expert_intermediate = 32,
        .dtype = MOEPAGE_DTYPE_BF16,
    };
}

static void test_sim_serving_misses_are_those_of_a_naive_cache(void **state)
{
    (void)state;
    const uint32_t steps = getenv("MP_TEST_LONG") ? 20000 : 1500;
    mp_phantom_shape shape = grid_shape();
    mp_sim_profile profile = machine_profile();
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = SLOTS};
    naive_lru cache = {.n = 0};
    uint64_t random = 11, missed = 0;
    stack s;
    stack_open_shape(&s, &shape);
    stack_open_device(&s, &profile, 1 << 20, 1 << 20);
    stack_open_pool(&s, &config, TOKENS);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t expected = 0, routed = 0;
        stack_begin(&s, TOKENS);
        for (uint32_t l = 0; l < LAYERS; l++) {
            int32_t ids[TOKENS * TOP_K];
            uint32_t set[TOKENS * TOP_K];
            draw_ids(&random, ids);
            uint32_t n = distinct_of(ids, l, set);
            expected += serve_set(&cache, set, n);
            routed += n;
            stack_layer(&s, l, ids);
        }
        moepage_session_stats stats = stack_end(&s);
        assert_int_equal(stats.misses, expected);
        assert_int_equal(stats.hits, routed - expected);
        missed += expected;
    }
    mp_sim_usage usage;
    mp_sim_get_usage(s.device, &usage);
    assert_int_equal(usage.bus_bytes, missed * SLOT);
    assert_true(missed > steps);
    stack_close(&s);
}

/* ---- the same every time ---- */

typedef struct outcome {
    mp_sim_usage usage;
    moepage_session_stats stats;
    uint64_t useful, wasted, late, cold_reads;
} outcome;

/* Everything at once: cold coded experts, a small tier, hints that are often wrong. */
static outcome run_mixed(uint64_t seed)
{
    mp_phantom_shape shape = grid_shape();
    shape.exph_ratio = 0.7;
    shape.cold = true;
    mp_sim_profile profile = machine_profile();
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = SLOTS,
                                         .host_tier_bytes = 80 * 9000,
                                         .compressed_experts = 4,
                                         .chunk_bytes = 2000};
    stack s;
    stack_open_shape(&s, &shape);
    stack_open_device(&s, &profile, 2 << 20, 1 << 20);
    stack_open_pool(&s, &config, TOKENS);
    for (uint32_t i = 0; i < 150; i++) {
        stack_begin(&s, TOKENS);
        for (uint32_t l = 0; l < LAYERS; l++) {
            int32_t ids[TOKENS * TOP_K], hint[TOKENS * TOP_K];
            draw_ids(&seed, hint);
            MUST(moepage_session_hint(s.session, (l + 1) % LAYERS, hint, TOP_K));
            mp_sim_work(s.device, bank_below(&seed, 100000), 0);
            draw_ids(&seed, ids);
            stack_layer(&s, l, ids);
        }
        stack_end(&s);
    }
    outcome out = {.stats = {.struct_size = sizeof out.stats}};
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_session_get_stats(s.session, &out.stats));
    MUST(moepage_expert_pool_get_info(s.pool, &info));
    assert_int_equal(info.failed_loads, 0);
    mp_sim_get_usage(s.device, &out.usage);
    out.useful = info.prefetch_useful;
    out.wasted = info.prefetch_wasted;
    out.late = info.prefetch_late;
    out.cold_reads = info.cold_reads;
    stack_close(&s);
    return out;
}

static void test_sim_serving_runs_are_equal(void **state)
{
    (void)state;
    outcome first = run_mixed(3), second = run_mixed(3), other = run_mixed(4);
    assert_memory_equal(&first, &second, sizeof first);
    assert_memory_not_equal(&first, &other, sizeof first);
    assert_true(first.useful > 0 && first.late > 0 && first.cold_reads > 0 &&
                first.usage.decode_bytes > 0);
    assert_int_equal(first.stats.steps, 150);
}

/* ---- a model that this machine could not hold ---- */

static uint64_t resident_bytes(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* 61 layers of 256 experts, 671 G parameters, with a host tier and KV, on a machine that is big
 * enough; the process stays small. */
static void test_sim_serving_holds_671b_parameters_in_little_memory(void **state)
{
    (void)state;
    enum { SESSIONS = 4, SEEN = 8 };
    const mp_phantom_shape shape = {.name = "deepseek-v3",
                                    .layers = 61,
                                    .moe_layers = 61,
                                    .experts = 256,
                                    .top_k = 8,
                                    .hidden = 7168,
                                    .expert_intermediate = 2048,
                                    .dtype = MOEPAGE_DTYPE_F8_E4M3,
                                    .exph_ratio = 0.9,
                                    .cold = true};
    mp_sim_profile profile = machine_profile();
    moepage_kv_pool_config kv_config = {.struct_size = sizeof kv_config, .layers = 61};
    uint32_t per_token[61];
    for (uint32_t i = 0; i < 61; i++)
        per_token[i] = 1152;
    kv_config.bytes_per_token = per_token;
    stack s;
    stack_open_shape(&s, &shape);
    assert_true(s.shape.routed_bytes > 650000000000);
    const uint64_t slots = 61 * 64, gib = 1ull << 30;
    stack_open_device(&s, &profile, slots * s.shape.slot_bytes + 400 * gib, 16 * gib);
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = slots,
                                         .compressed_experts = 16,
                                         .host_tier_bytes = 400 * gib};
    stack_open_pool(&s, &config, 64);
    moepage_kv_pool *kv;
    kv_config.blocks = 100000;
    MUST(moepage_kv_pool_create(s.home, &kv_config, &kv));
    moepage_session *others[SESSIONS];
    moepage_session_config session = {.struct_size = sizeof session, .max_tokens = 256};
    for (int i = 0; i < SESSIONS; i++)
        MUST(moepage_session_create(s.pool, kv, &session, &others[i]));

    uint64_t random = 1;
    for (int i = 0; i < 3; i++) {
        stack_begin(&s, 4);
        for (uint32_t l = 0; l < 61; l++) {
            int32_t ids[4 * SEEN];
            for (uint32_t r = 0; r < 4 * SEEN; r++)
                ids[r] = (int32_t)(bank_below(&random, 32) * 8 + r % SEEN);
            stack_layer(&s, l, ids);
        }
        moepage_session_stats stats = stack_end(&s);
        assert_true(stats.misses > 0 && stats.wall_ns > 0);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident_bytes() < 2 * gib);
#else
    assert_true(resident_bytes() > 0); /* what a sanitizer takes says nothing */
#endif
    for (int i = 0; i < SESSIONS; i++)
        MUST(moepage_session_destroy(others[i]));
    MUST(moepage_kv_pool_destroy(kv));
    stack_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_serving_misses_are_those_of_a_naive_cache),
        cmocka_unit_test(test_sim_serving_runs_are_equal),
        cmocka_unit_test(test_sim_serving_holds_671b_parameters_in_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
