/* Controllers over pools with two versions of every expert: what they see of the routing equals the
 * definition, bytes above the low versions are divided as between any experts and KV, and the number of
 * high versions per layer follows. */
#include <sched.h>
#include <string.h>

#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define KEYS (LAYERS * EXPERTS)
#define TOP_K 2
#define BLOCK_TOKENS 4
#define MOST_USES 4096
#define MOST_TICKS 20000

typedef struct fixture {
    versions_rig rig;
    moepage_kv_pool *kv;
    moepage_session *session;
    moepage_controller *controller;
    uint64_t slot_bytes;
} fixture;

/* Beside what the pool begins with the arena has `spare` slots, which are KV's. A block is as large as a
 * slot. */
static void open_fixture(fixture *f, const moepage_precision_config *precision, uint64_t slots,
                         uint32_t spare, moepage_controller_config control)
{
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = TOP_K,
                              .hidden = 64,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT2};
    moepage_model_info info = {.struct_size = sizeof info};
    *f = (fixture){0};
    bank_model_open(&f->rig.bank, &shape);
    assert_int_equal(moepage_model_get_info(f->rig.bank.model, &info), MOEPAGE_OK);
    f->slot_bytes = info.slot_bytes;
    f->rig.spare_bytes = spare * f->slot_bytes;
    versions_rig_open_over(&f->rig, f->rig.bank.model, precision, slots);
    const uint32_t bytes_per_token = (uint32_t)(f->slot_bytes / BLOCK_TOKENS);
    const moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                       .block_tokens = BLOCK_TOKENS,
                                       .layers = 1,
                                       .blocks_per_granule = 1,
                                       .bytes_per_token = &bytes_per_token};
    assert_int_equal(moepage_kv_pool_create(f->rig.device, &kv, &f->kv), MOEPAGE_OK);
    const moepage_session_config session = {.struct_size = sizeof session,
                                            .max_tokens = 1,
                                            .max_top_k = EXPERTS,
                                            .miss = precision->serve == MOEPAGE_SERVE_CACHE
                                                        ? MOEPAGE_MISS_LOW
                                                        : MOEPAGE_MISS_WAIT};
    assert_int_equal(moepage_session_create(f->rig.pool, f->kv, &session, &f->session), MOEPAGE_OK);
    control.struct_size = sizeof control;
    if (moepage_controller_create(f->rig.pool, f->kv, &control, &f->controller))
        fail_msg("no controller: %s", moepage_last_error());
}

static void close_fixture(fixture *f)
{
    assert_int_equal(moepage_controller_destroy(f->controller), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(f->session), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(f->kv), MOEPAGE_OK);
    versions_rig_close(&f->rig);
}

static uint64_t blocks_of(fixture *f)
{
    moepage_kv_pool_info kv = {.struct_size = sizeof kv};
    assert_int_equal(moepage_kv_pool_get_info(f->kv, &kv), MOEPAGE_OK);
    return kv.blocks;
}

static void step(fixture *f, moepage_seq seq, const int32_t *ids, uint32_t n)
{
    const moepage_step_sequence named = {.seq = seq, .n_tokens = 1};
    const moepage_step step = {.struct_size = sizeof step,
                               .n_tokens = 1,
                               .n_sequences = seq ? 1 : 0,
                               .sequences = seq ? &named : NULL};
    assert_int_equal(moepage_session_begin(f->session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++) /* looks at every byte */
        versions_rig_layer(&f->rig, f->session, l, ids, n, NULL);
    assert_int_equal(moepage_session_end(f->session, NULL), MOEPAGE_OK);
    sched_yield();
}

static moepage_controller_report tick(fixture *f)
{
    moepage_controller_report report = {.struct_size = sizeof report};
    assert_int_equal(moepage_controller_tick(f->controller, NULL, &report), MOEPAGE_OK);
    return report;
}

/* Ticks between steps until a move has ended. */
static uint32_t carry_on(fixture *f, moepage_seq seq, const int32_t *ids, uint32_t n)
{
    uint32_t outcome = MOEPAGE_CONTROL_DRAINING;
    for (uint32_t i = 0; i < 200 && outcome == MOEPAGE_CONTROL_DRAINING; i++) {
        step(f, seq, ids, n);
        outcome = tick(f).outcome;
    }
    return outcome;
}

/* ---- what they see ---- */

typedef struct naive_stack {
    uint32_t keys[KEYS];
    uint32_t n;
} naive_stack;

/* Keys used since the last use of this one; UINT32_MAX at its first. */
static uint32_t naive_distance(const naive_stack *stack, uint32_t key)
{
    for (uint32_t i = 0; i < stack->n; i++)
        if (stack->keys[i] == key)
            return i;
    return UINT32_MAX;
}

static void naive_use(naive_stack *stack, uint32_t key)
{
    uint32_t at = naive_distance(stack, key);
    at = at == UINT32_MAX ? stack->n++ : at;
    memmove(stack->keys + 1, stack->keys, at * sizeof *stack->keys);
    stack->keys[0] = key;
}

/* The curve of steps of one token; layers that do not compete have stacks of their own. */
static void check_curve(const moepage_precision_config *precision, uint64_t slots, bool apart)
{
    static naive_stack stacks[LAYERS];
    static uint32_t distances[MOST_USES];
    uint32_t n = 0, first = 0;
    uint64_t random = 9;
    fixture f;
    memset(stacks, 0, sizeof stacks);
    open_fixture(&f, precision, slots, 8,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                             .burst_steps = 100000});
    for (uint32_t s = 0; s < 300; s++) {
        int32_t ids[TOP_K] = {(int32_t)bank_below(&random, EXPERTS), 0};
        ids[1] = (ids[0] + 1 + (int32_t)bank_below(&random, EXPERTS - 1)) % EXPERTS;
        step(&f, 0, ids, TOP_K);
        for (uint32_t l = 0; l < LAYERS; l++) {
            naive_stack *stack = &stacks[apart ? l : 0];
            for (uint32_t k = 0; k < TOP_K; k++) {
                uint32_t distance = naive_distance(stack, l * EXPERTS + (uint32_t)ids[k]);
                if (distance == UINT32_MAX)
                    first++;
                else
                    distances[n++] = distance;
            }
            for (uint32_t k = 0; k < TOP_K; k++)
                naive_use(stack, l * EXPERTS + (uint32_t)ids[k]);
        }
    }
    const uint32_t unit = apart ? LAYERS : 1;
    for (uint32_t c = 0; c <= KEYS / unit; c++) {
        uint64_t size = (uint64_t)c * unit;
        uint32_t expected = 0;
        double misses;
        for (uint32_t i = 0; i < n; i++)
            expected += distances[i] >= c;
        assert_int_equal(moepage_controller_get_curve(f.controller, 0, &size, 1, &misses),
                         MOEPAGE_OK);
        if (misses != expected)
            fail_msg("%g misses of %u slots, not %u", misses, c * unit, expected);
    }
    moepage_controller_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_controller_get_info(f.controller, &info), MOEPAGE_OK);
    assert_int_equal(info.expert_first, first);
    assert_int_equal(info.expert_accesses, n + first);
    assert_int_equal(info.steps, 300);
    close_fixture(&f);
}

static void test_version_control_sees_every_use_of_either_version(void **state)
{
    (void)state;
    check_curve(&(moepage_precision_config){.hi_experts = 3}, 0, true);
    check_curve(&(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1}, 0, true);
}

/* Misses that compute low are uses as well. */
static void test_version_control_sees_every_use_of_a_cache_with_substitutes(void **state)
{
    (void)state;
    check_curve(&(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 8, false);
}

/* ---- what they do ---- */

static const int32_t hot[TOP_K] = {2, 5};

/* Of 12 slots above the low versions, which no split counts, three quarters. */
static void test_version_control_divides_what_low_versions_leave(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &(moepage_precision_config){.hi_experts = 1}, 0, 9,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                             .burst_steps = 1,
                                             .context_tokens = BLOCK_TOKENS,
                                             .expert_percent = 75});
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_device_get_info(f.rig.device, &device), MOEPAGE_OK);
    const uint64_t lo_bytes = versions_rig_info(&f.rig).lo_bytes, blocks = blocks_of(&f);
    assert_true(blocks >= 9 && blocks <= 10); /* an arena is whole pages */
    assert_int_equal(carry_on(&f, 0, hot, TOP_K), MOEPAGE_CONTROL_MOVED);
    assert_int_equal(versions_rig_info(&f.rig).hi_experts, 3);
    assert_int_equal(versions_rig_info(&f.rig).lo_bytes, lo_bytes);
    assert_int_equal(blocks_of(&f), blocks - 6);
    assert_int_equal(carry_on(&f, 0, hot, TOP_K), MOEPAGE_CONTROL_STAYS);
    close_fixture(&f);
}

/* KV has what it uses, and experts the rest; as it uses more, high versions leave, never the fewest. */
static void follow_kv(uint32_t lo_fetched, uint32_t least)
{
    fixture f;
    open_fixture(&f, &(moepage_precision_config){.hi_experts = 2, .lo_fetched = lo_fetched}, 0, 24,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE,
                                             .burst_steps = 2,
                                             .context_tokens = BLOCK_TOKENS,
                                             .headroom_permille = 1});
    moepage_seq seq;
    assert_int_equal(moepage_kv_create(f.kv, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.kv, seq, BLOCK_TOKENS, NULL), MOEPAGE_OK);
    uint32_t fewest = EXPERTS;
    for (uint32_t round = 0; round < 60; round++) {
        /* Another block each time, as far as there is room; then all but one are given up. */
        if (round < 40)
            (void)moepage_kv_append(f.kv, seq, BLOCK_TOKENS, NULL);
        else
            assert_int_equal(moepage_kv_truncate(f.kv, seq, BLOCK_TOKENS), MOEPAGE_OK);
        for (uint32_t s = 0; s < 3; s++) {
            step(&f, seq, hot, TOP_K);
            assert_int_not_equal(tick(&f).outcome, MOEPAGE_CONTROL_REFUSED);
        }
        const moepage_expert_pool_info info = versions_rig_info(&f.rig);
        fewest = info.hi_experts < fewest ? info.hi_experts : fewest;
    }
    assert_int_equal(fewest, least);
    (void)carry_on(&f, seq, hot, TOP_K);
    assert_int_equal(versions_rig_info(&f.rig).hi_experts, EXPERTS);
    close_fixture(&f);
}

static void test_version_control_gives_kv_what_it_uses(void **state)
{
    (void)state;
    follow_kv(0, 1);
    follow_kv(1, 2);
}

/* All of a layer's experts come back, and one short sequence does: high versions are worth more. */
static void buys_experts(const moepage_precision_config *precision, uint64_t slots)
{
    fixture f;
    open_fixture(&f, precision, slots, KEYS,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_MV_WSA,
                                             .burst_steps = 32,
                                             .context_tokens = 2 * BLOCK_TOKENS,
                                             .rate_permille = 1000});
    moepage_seq seq;
    assert_int_equal(moepage_kv_create(f.kv, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(f.kv, seq, BLOCK_TOKENS, NULL), MOEPAGE_OK);
    for (uint32_t s = 0; s < MOST_TICKS && versions_rig_info(&f.rig).slots < KEYS; s++) {
        const int32_t ids[TOP_K] = {(int32_t)(s * TOP_K % EXPERTS),
                                    (int32_t)((s * TOP_K + 1) % EXPERTS)};
        step(&f, seq, ids, TOP_K);
        (void)tick(&f);
    }
    assert_int_equal(versions_rig_info(&f.rig).slots, KEYS);
    moepage_controller_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_controller_get_info(f.controller, &info), MOEPAGE_OK);
    assert_true(info.moves > 0 && info.expert_miss_ns > 0);
    close_fixture(&f);
}

static void test_version_control_buys_high_versions_that_are_used(void **state)
{
    (void)state;
    buys_experts(&(moepage_precision_config){.hi_experts = 2}, 0);
    buys_experts(&(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 8);
}

/* An open step keeps what it began with, and a controller waits for it. */
static void test_version_control_drains(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &(moepage_precision_config){.hi_experts = 4}, 0, 4,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                             .burst_steps = 400,
                                             .context_tokens = BLOCK_TOKENS,
                                             .expert_percent = 20});
    static const int32_t four[4] = {1, 3, 4, 6};
    for (uint32_t s = 0; s < 399 || versions_rig_info(&f.rig).hi_published < 4 * LAYERS; s++)
        step(&f, 0, four, 4);
    moepage_session *slow = versions_rig_session(&f.rig, 1);
    const moepage_step open = {.struct_size = sizeof open, .n_tokens = 1};
    uint8_t forms[4];
    assert_int_equal(moepage_session_begin(slow, &open), MOEPAGE_OK);
    step(&f, 0, four, 4);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(tick(&f).outcome, MOEPAGE_CONTROL_DRAINING);
        step(&f, 0, four, 4);
        assert_int_equal(versions_rig_info(&f.rig).slots, 4 * LAYERS);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        versions_rig_layer(&f.rig, slow, l, four, 4, forms);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(forms[i], MOEPAGE_FORM_DENSE);
    }
    assert_int_equal(moepage_session_end(slow, NULL), MOEPAGE_OK);
    assert_int_equal(carry_on(&f, 0, four, 4), MOEPAGE_CONTROL_MOVED);
    assert_int_equal(versions_rig_info(&f.rig).hi_experts, 1);
    assert_int_equal(moepage_session_destroy(slow), MOEPAGE_OK);
    close_fixture(&f);
}

/* A plan of what to load and when says nothing of a pool in which no step loads. */
static void test_version_control_has_no_planner_without_loads(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &(moepage_precision_config){.hi_experts = 2}, 0, 4,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE});
    assert_int_equal(moepage_controller_destroy(f.controller), MOEPAGE_OK);
    const moepage_controller_config planner = {.struct_size = sizeof planner,
                                               .mode = MOEPAGE_CONTROL_PLANNER};
    assert_int_equal(moepage_controller_create(f.rig.pool, f.kv, &planner, &f.controller),
                     MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "MOEPAGE_SERVE_VERSIONS"));
    f.controller = NULL;
    close_fixture(&f);
    /* In a cache misses are loaded: it has one. */
    open_fixture(&f, &(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 6, 20,
                 (moepage_controller_config){.mode = MOEPAGE_CONTROL_PLANNER, .burst_steps = 4});
    for (uint32_t s = 0; s < 100; s++) {
        const int32_t ids[TOP_K] = {(int32_t)(s % EXPERTS), (int32_t)((s + 3) % EXPERTS)};
        step(&f, 0, ids, TOP_K);
        (void)tick(&f);
    }
    assert_true(versions_rig_info(&f.rig).slots > 6);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_control_sees_every_use_of_either_version),
        cmocka_unit_test(test_version_control_sees_every_use_of_a_cache_with_substitutes),
        cmocka_unit_test(test_version_control_divides_what_low_versions_leave),
        cmocka_unit_test(test_version_control_gives_kv_what_it_uses),
        cmocka_unit_test(test_version_control_buys_high_versions_that_are_used),
        cmocka_unit_test(test_version_control_drains),
        cmocka_unit_test(test_version_control_has_no_planner_without_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
