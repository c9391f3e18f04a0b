/* The controller on live pools: what it sees equals the definition, what it decides is carried out,
 * and what is in use is never taken away. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "control_rig.h"
#include "controllers/controller.h"
#include "kv/kv.h"
#include "testing.h"

enum { LAYERS = 3, EXPERTS = 16, KEYS = LAYERS * EXPERTS, BLOCK_TOKENS = 4, MAX_USES = 4096 };

typedef control_rig fixture;

/* Room for every expert, and as much again; a block is as large as a slot, so that one unit of either
 * side is as many bytes. */
static void open_fixture(fixture *f, uint32_t scope, uint64_t slots, uint64_t blocks)
{
    control_rig_config config = {
        .bank = {.layers = LAYERS,
                 .experts = EXPERTS,
                 .top_k = 4,
                 .hidden = 16,
                 .intermediate = 8,
                 .seed = 5},
        .pool = {.slots = slots, .arena_slots = 2 * KEYS, .scope = scope},
        .blocks = blocks,
        .block_tokens = BLOCK_TOKENS,
        .blocks_per_slot = 1,
        .regime = MOEPAGE_REGIME_CACHE,
    };
    control_rig_open(f, &config);
}

/* A step of one token through one layer, over these KV sequences. */
static void step(fixture *f, uint32_t layer, const int32_t *ids, uint32_t n,
                 const moepage_seq *seqs, uint32_t n_seqs)
{
    control_rig_step(f, layer, 1, ids, n, seqs, n_seqs);
}

/* ---- what it sees ---- */

/* The definition: a list, most recent first, of keys and their sizes. */
typedef struct naive_stack {
    uint64_t keys[MAX_USES];
    uint64_t sizes[MAX_USES];
    uint32_t n;
} naive_stack;

/* Sizes of what lies above the key; UINT64_MAX at first sight. */
static uint64_t naive_distance(const naive_stack *stack, uint64_t key)
{
    uint64_t distance = 0;
    for (uint32_t i = 0; i < stack->n; i++) {
        if (stack->keys[i] == key)
            return distance;
        distance += stack->sizes[i];
    }
    return UINT64_MAX;
}

static void naive_move(naive_stack *stack, uint64_t key, uint64_t size)
{
    uint32_t at = 0;
    while (at < stack->n && stack->keys[at] != key)
        at++;
    stack->n += at == stack->n;
    memmove(stack->keys + 1, stack->keys, at * sizeof *stack->keys);
    memmove(stack->sizes + 1, stack->sizes, at * sizeof *stack->sizes);
    stack->keys[0] = key;
    stack->sizes[0] = size;
}

static void check_expert_curve(uint32_t scope)
{
    static fixture f;
    static naive_stack stacks[LAYERS];
    static uint64_t distances[MAX_USES];
    uint32_t n_distances = 0, first = 0;
    uint64_t random = 77;
    memset(stacks, 0, sizeof stacks);
    open_fixture(&f, scope, 24, 8);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .burst_steps = 100000});
    for (int i = 0; i < 400; i++) {
        uint32_t layer = bank_below(&random, LAYERS);
        int32_t ids[4];
        float weights[4];
        bank_model_route(&f.bank, &random, 1, 4, false, ids, weights);
        if (i % 3 == 0) /* runs of hits, which reach the pool by another way */
            memcpy(ids, (int32_t[]){1, 2, 3, 4}, sizeof ids);
        step(&f, layer, ids, 4, NULL, 0);
        naive_stack *stack = &stacks[scope == MOEPAGE_SCOPE_LAYER ? layer : 0];
        for (int k = 0; k < 4; k++) {
            uint64_t distance = naive_distance(stack, layer * EXPERTS + (uint32_t)ids[k]);
            if (distance == UINT64_MAX)
                first++;
            else
                distances[n_distances++] = distance;
        }
        for (int k = 0; k < 4; k++)
            naive_move(stack, layer * EXPERTS + (uint32_t)ids[k], 1);
    }
    uint32_t units = scope == MOEPAGE_SCOPE_LAYER ? EXPERTS : KEYS;
    uint32_t unit_slots = scope == MOEPAGE_SCOPE_LAYER ? LAYERS : 1;
    for (uint32_t c = 0; c <= units; c++) {
        uint32_t expected = 0;
        for (uint32_t i = 0; i < n_distances; i++)
            expected += distances[i] >= c;
        assert_true(control_rig_misses(&f, 0, (uint64_t)c * unit_slots) == expected);
    }
    assert_int_equal(control_rig_info(&f).expert_first, first);
    assert_int_equal(control_rig_info(&f).expert_accesses, n_distances + first);
    assert_int_equal(control_rig_info(&f).steps, 400);
    control_rig_close(&f);
}

static void test_controller_sees_the_exact_reuse_of_a_global_pool(void **state)
{
    (void)state;
    check_expert_curve(MOEPAGE_SCOPE_GLOBAL);
}

static void test_controller_sees_the_exact_reuse_of_each_layers_share(void **state)
{
    (void)state;
    check_expert_curve(MOEPAGE_SCOPE_LAYER);
}

static const int32_t any_ids[4] = {0, 1, 2, 3};

/* A sequence misses where the pool cannot hold what came after it and itself. */
static void check_kv_curve(bool named)
{
    static fixture f;
    static naive_stack stack;
    static uint64_t needs[MAX_USES], sizes[MAX_USES];
    uint32_t n = 0;
    uint64_t random = 3;
    stack.n = 0;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 24, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .burst_steps = 100000});
    moepage_seq seqs[8];
    uint32_t blocks[8];
    for (uint32_t i = 0; i < 8; i++)
        seqs[i] = control_rig_sequence(&f, blocks[i] = 1 + i % 4);
    uint32_t last = 8;
    for (int i = 0; i < 300; i++) {
        uint32_t s = bank_below(&random, 8);
        s = s == last ? (s + 1) % 8 : s; /* the same again need not be told */
        last = s;
        if (named)
            assert_int_equal(moepage_controller_kv_use(f.controller, 1000 + s,
                                                       blocks[s] * BLOCK_TOKENS - 1),
                             MOEPAGE_OK);
        step(&f, 0, any_ids, 4, &seqs[s], 1);
        uint64_t distance = naive_distance(&stack, s);
        if (distance != UINT64_MAX) {
            needs[n] = distance + blocks[s];
            sizes[n++] = blocks[s];
        }
        naive_move(&stack, s, blocks[s]);
    }
    for (uint64_t c = 0; c <= 20; c++) {
        uint64_t expected = 0;
        for (uint32_t i = 0; i < n; i++)
            expected += needs[i] > c ? sizes[i] : 0;
        assert_true(control_rig_misses(&f, 1, c) == (double)expected);
    }
    assert_int_equal(control_rig_info(&f).kv_first, 8 + 12);
    control_rig_close(&f);
}

static void test_controller_sees_the_exact_reuse_of_sequences(void **state)
{
    (void)state;
    check_kv_curve(false);
}

static void test_controller_counts_the_hosts_own_prefixes_instead(void **state)
{
    (void)state;
    check_kv_curve(true);
}

static void test_controller_forgets_sequences_that_are_freed(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 24, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .burst_steps = 1000});
    moepage_seq a = control_rig_sequence(&f, 2), b = control_rig_sequence(&f, 5);
    step(&f, 0, any_ids, 4, &a, 1);
    step(&f, 0, any_ids, 4, &b, 1);
    assert_int_equal(moepage_kv_free(f.kv, b), MOEPAGE_OK);
    step(&f, 0, any_ids, 4, &a, 1);
    assert_true(control_rig_misses(&f, 1, 1) == 2);
    assert_true(control_rig_misses(&f, 1, 2) ==
                0); /* b's five blocks are not in between any more */
    control_rig_close(&f);
}

/* ---- what it decides ---- */

static void test_controller_dual_resize_gives_kv_its_peak_and_experts_the_rest(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 20, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE,
                                                       .burst_steps = 4,
                                                       .context_tokens = 6 * BLOCK_TOKENS,
                                                       .headroom_permille = 250});
    moepage_seq seq = control_rig_sequence(&f, 16);
    assert_int_equal(moepage_kv_truncate(f.kv, seq, BLOCK_TOKENS), MOEPAGE_OK);
    for (int i = 0; i < 3; i++) {
        step(&f, 0, any_ids, 4, &seq, 1);
        assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_WAITS);
    }
    step(&f, 0, any_ids, 4, &seq, 1);
    moepage_controller_report report = control_rig_tick(&f);
    /* 2 * 48 units in the arena; ceil(1.25 * 16) = 20 blocks, every expert, the rest to KV again. */
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&f, KEYS, KEYS);
    assert_int_equal(control_rig_info(&f).peak_blocks, 16);
    control_rig_close(&f);
}

static void test_controller_fixed_moves_once(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 40, 8);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                                       .burst_steps = 1,
                                                       .context_tokens = BLOCK_TOKENS,
                                                       .expert_percent = 25});
    step(&f, 0, any_ids, 4, NULL, 0);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&f, 24, 72);
    step(&f, 0, any_ids, 4, NULL, 0);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_STAYS);
    control_rig_close(&f);
}

/* Cycles through `n` experts of all layers: a working set of exactly that many slots. */
static void cycle_experts(fixture *f, uint32_t n, uint32_t steps, const moepage_seq *seqs,
                          uint32_t n_seqs)
{
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = i * 4 % n;
        int32_t ids[4];
        for (uint32_t k = 0; k < 4; k++)
            ids[k] = (int32_t)((at + k) % EXPERTS);
        step(f, at / EXPERTS, ids, 4, n_seqs ? &seqs[i % n_seqs] : NULL, n_seqs ? 1 : 0);
    }
}

static void test_controller_mv_wsa_follows_what_the_load_needs(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 80);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_MV_WSA,
                                                       .burst_steps = 64,
                                                       .context_tokens = 4 * BLOCK_TOKENS,
                                                       .rate_permille = 1000});
    moepage_seq seq = control_rig_sequence(&f, 2);
    for (int burst = 0; burst < 8; burst++) { /* all experts come back, one short sequence does */
        cycle_experts(&f, KEYS, 64, &seq, 1);
        control_rig_tick(&f);
    }
    assert_int_equal(pool_rig_info(&f.pools).slots, KEYS);
    uint64_t moved = control_rig_info(&f).moves;
    assert_true(moved >= 1);
    for (int burst = 0; burst < 4; burst++) {
        cycle_experts(&f, KEYS, 64, &seq, 1);
        assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_STAYS);
    }
    assert_int_equal(control_rig_info(&f).moves, moved);
    assert_int_equal(control_rig_info(&f).bursts, 8 + 4);
    control_rig_close(&f);
}

static void test_controller_waits_for_the_host_to_make_room_in_kv(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 80);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                                       .burst_steps = 1,
                                                       .context_tokens = BLOCK_TOKENS,
                                                       .expert_percent = 50});
    moepage_seq idle = control_rig_sequence(&f, 60);
    step(&f, 0, any_ids, 4, NULL, 0);
    moepage_controller_report report = control_rig_tick(&f);
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_DRAINING);
    assert_int_equal(report.target_blocks, 48);
    control_rig_expect(&f, 16, 80);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_DRAINING);
    assert_int_equal(moepage_kv_swap_out(f.kv, idle, NULL), MOEPAGE_OK);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&f, 48, 48);
    control_rig_close(&f);
}

/* Routes experts 0..3 of layer 2 and keeps the plan open. */
static void hold_a_plan(fixture *f, moepage_session *other)
{
    float weights[4] = {0};
    moepage_step begin = {.struct_size = sizeof begin, .n_tokens = 1};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 4,
                               .ids = any_ids,
                               .weights = weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    (void)f;
    assert_int_equal(moepage_session_begin(other, &begin), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(other, 2, &routing, &plan), MOEPAGE_OK);
}

static void test_controller_gives_a_move_up_that_an_open_plan_holds(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, KEYS, 40);
    moepage_session *other = pool_rig_session(&f.pools, NULL);
    cycle_experts(&f, 2 * EXPERTS, 8, NULL, 0);
    hold_a_plan(&f, other); /* in the highest slots in use */
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                                       .burst_steps = 1,
                                                       .context_tokens = BLOCK_TOKENS,
                                                       .expert_percent = 25});
    step(&f, 0, any_ids, 4, NULL, 0);
    uint32_t outcome = control_rig_tick(&f).outcome;
    assert_int_equal(outcome, MOEPAGE_CONTROL_DRAINING);
    for (int i = 0; i < 300 && outcome == MOEPAGE_CONTROL_DRAINING; i++)
        outcome = control_rig_tick(&f).outcome;
    assert_int_equal(outcome, MOEPAGE_CONTROL_REFUSED);
    control_rig_expect(&f, KEYS, 40);
    assert_int_equal(moepage_session_retire(other, 2), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(other, NULL), MOEPAGE_OK);
    step(&f, 0, any_ids, 4, NULL, 0);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&f, 24, 72);
    assert_int_equal(control_rig_info(&f).refused, 1);
    assert_int_equal(pool_rig_info(&f.pools).resizes_refused, 1);
    assert_int_equal(pool_rig_info(&f.pools).resizes, 1);
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    control_rig_close(&f);
}

static void test_controller_says_when_no_split_is_feasible(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 80);
    control_rig_attach(&f, (moepage_controller_config){.burst_steps = 1,
                                                       .context_tokens = 95 * BLOCK_TOKENS,
                                                       .concurrency = 1});
    step(&f, 0, any_ids, 4, NULL, 0);
    assert_int_equal(control_rig_tick(&f).outcome, MOEPAGE_CONTROL_INFEASIBLE);
    control_rig_expect(&f, 16, 80);
    control_rig_close(&f);
}

/* ---- what it refuses ---- */

static moepage_kv_admission ask(fixture *f, uint32_t n)
{
    const uint64_t none[4] = {0};
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    assert_int_equal(moepage_kv_admit(f->kv, none, n, &answer), MOEPAGE_OK);
    return answer;
}

/* Those of the last step run, and those that have come since; not those that idle, are swapped out or gone. */
static void test_controller_target_limits_what_is_admitted(void **state)
{
    (void)state;
    fixture f;
    const int32_t ids[] = {0, 1};
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .admission = 1});
    moepage_seq seqs[4];
    for (uint32_t i = 0; i < 4; i++)
        seqs[i] = control_rig_sequence(&f, 1);
    assert_int_equal(ask(&f, 4).target_running, 0);
    assert_int_equal(ask(&f, 4).fits, 1);
    mp_kv_pool_set_target(f.kv, 4, UINT64_MAX);
    assert_int_equal(ask(&f, 1).running, 4); /* none has been in a step, all have come */
    assert_int_equal(ask(&f, 1).fits, 0);
    assert_int_equal(ask(&f, 0).fits, 1);
    control_rig_step(&f, 0, 1, ids, 2, seqs, 3);
    assert_int_equal(ask(&f, 1).running, 4); /* the fourth still waits for its first step */
    control_rig_step(&f, 0, 1, ids, 2, seqs, 4);
    control_rig_step(&f, 0, 1, ids, 2, seqs, 2);
    assert_int_equal(ask(&f, 2).running, 2); /* two idle */
    assert_int_equal(ask(&f, 2).fits, 1);
    assert_int_equal(ask(&f, 3).fits, 0);
    assert_int_equal(moepage_kv_swap_out(f.kv, seqs[0], NULL), MOEPAGE_OK);
    assert_int_equal(ask(&f, 3).running, 1);
    assert_int_equal(moepage_kv_swap_in(f.kv, seqs[0], NULL), MOEPAGE_OK);
    assert_int_equal(ask(&f, 3).running, 2);
    assert_int_equal(moepage_kv_free(f.kv, seqs[1]), MOEPAGE_OK);
    assert_int_equal(ask(&f, 3).running, 1);
    assert_int_equal(ask(&f, 3).target_running, 4);
    assert_int_equal(moepage_controller_destroy(f.controller), MOEPAGE_OK);
    f.controller = NULL;
    assert_int_equal(ask(&f, 4).target_running, 0); /* the limit goes with its controller */
    assert_int_equal(ask(&f, 4).fits, 1);
    control_rig_close(&f);
}

/* A step of decode with three tokens for each sequence, as when drafts are verified. */
static void step_of_three(fixture *f, const moepage_seq *seqs, uint32_t n)
{
    moepage_step_sequence sequences[4];
    const int32_t ids[12] = {0};
    const float weights[12] = {0};
    for (uint32_t i = 0; i < n; i++)
        sequences[i] = (moepage_step_sequence){.seq = seqs[i], .n_tokens = 3};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = 3 * n,
                         .n_sequences = n,
                         .sequences = sequences};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 1,
                               .ids = ids,
                               .weights = weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moepage_session_begin(f->session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(f->session, 0, &routing, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(f->session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(f->session, NULL), MOEPAGE_OK);
}

/* What is measured is by the number that admission counts. */
static void test_controller_measures_by_sequences_not_tokens(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .admission = 1});
    const moepage_seq seqs[] = {control_rig_sequence(&f, 1), control_rig_sequence(&f, 1)};
    for (uint32_t i = 0; i < 8; i++)
        step_of_three(&f, seqs, 2);
    assert_true(mp_admission_rate(&f.controller->admission, 2) > 0);
    assert_true(mp_admission_rate(&f.controller->admission, 6) == 0);
    control_rig_close(&f);
}

/* A step of one sequence in one phase. */
static void step_in_phase(fixture *f, moepage_seq seq, uint32_t phase, uint32_t tokens)
{
    const moepage_step_sequence of = {.seq = seq, .n_tokens = tokens, .phase = phase};
    const moepage_step step = {.struct_size = sizeof step,
                               .n_tokens = tokens,
                               .n_sequences = 1,
                               .sequences = &of};
    assert_int_equal(moepage_session_begin(f->session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(f->session, NULL), MOEPAGE_OK);
}

/* A turn ends with the next prefill behind a decode, or with its sequence. */
static void test_controller_counts_the_tokens_of_turns(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .admission = 1});
    const mp_turn_work *work = &f.controller->turn.work;
    const moepage_seq a = control_rig_sequence(&f, 4), b = control_rig_sequence(&f, 4);
    step_in_phase(&f, a, MOEPAGE_PHASE_PREFILL, 4);
    step_in_phase(&f, a, MOEPAGE_PHASE_PREFILL, 3);
    for (uint32_t i = 0; i < 5; i++)
        step_in_phase(&f, a, MOEPAGE_PHASE_DECODE, 1);
    step_in_phase(&f, b, MOEPAGE_PHASE_PREFILL, 2);
    assert_true(work->turns == 0);
    step_in_phase(&f, a, MOEPAGE_PHASE_PREFILL, 2);
    assert_true(work->turns == 1 && work->prefilled == 7 && work->decoded == 5);
    assert_true(work->prefilled_squares == 49 && work->decoded_squares == 25);
    assert_true(work->products == 35);
    step_in_phase(&f, a, MOEPAGE_PHASE_DECODE, 1);
    assert_int_equal(moepage_kv_free(f.kv, b), MOEPAGE_OK); /* has decoded nothing: no turn */
    assert_true(work->turns == 1);
    assert_int_equal(moepage_kv_free(f.kv, a), MOEPAGE_OK);
    assert_true(fabs(work->turns - 1.98) < 1e-12);
    assert_true(fabs(work->prefilled - (7 * 0.98 + 2)) < 1e-12);
    assert_true(fabs(work->products - (35 * 0.98 + 2)) < 1e-12);
    control_rig_close(&f);
}

/* Observes bursts of steps of one sequence, 10 ms each, and of two, 15 ms; returns how many should run. */
static uint32_t running_with(uint64_t target_tpot_ns, moepage_controller_info *info)
{
    fixture f;
    const int32_t ids[] = {0, 1};
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 40);
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                       .burst_steps = 64,
                                                       .admission = 1,
                                                       .target_tpot_ns = target_tpot_ns});
    const moepage_seq seqs[] = {control_rig_sequence(&f, 1), control_rig_sequence(&f, 1)};
    control_rig_step(&f, 0, 1, ids, 2, seqs, 2); /* sequences of one block */
    uint64_t at = f.controller->turn.ended_ns;
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t n = 1 + i % 2;
        const uint64_t ns = n == 1 ? 10000000 : 15000000;
        f.controller->watch.step(&f.controller->watch, &(mp_watch_step){.tokens = n,
                                                                        .layers = 1,
                                                                        .decode = true,
                                                                        .decodes = n,
                                                                        .routed = 2,
                                                                        .ended_ns = at += ns,
                                                                        .wall_ns = ns});
    }
    const uint32_t running = control_rig_tick(&f).target_running;
    assert_int_equal(moepage_controller_get_info(f.controller, info), MOEPAGE_OK);
    control_rig_close(&f);
    return running;
}

/* Two serve more together, and one does not keep up, so that up to twice as many may run; but a token of two takes longer
 * than the target. */
static void test_controller_lets_as_many_run_as_meet_the_target(void **state)
{
    (void)state;
    moepage_controller_info info = {.struct_size = sizeof info};
    assert_int_equal(running_with(0, &info), 4);
    assert_true(info.predicted_tpot_ns > 12e6 && info.predicted_tpot_ns <= 15e6);
    assert_int_equal(running_with(12000000, &info), 1);
    assert_int_equal(info.target_running, 1);
    assert_true(fabs(info.predicted_tpot_ns - 10e6) < 1);
    assert_true(info.predicted_ttft_ns == 0); /* no turn has ended */
}

static void test_controller_refuses_what_cannot_be(void **state)
{
    (void)state;
    fixture f;
    moepage_controller *second;
    open_fixture(&f, MOEPAGE_SCOPE_GLOBAL, 16, 40);
    moepage_controller_config bad[] = {
        {.mode = MOEPAGE_CONTROL_FLUX + 1},
        {.kv_miss = MOEPAGE_KV_MISS_RECOMPUTE + 1},
        {.mode = MOEPAGE_CONTROL_FIXED},
        {.mode = MOEPAGE_CONTROL_FIXED, .expert_percent = 100},
        {.decay_permille = 1001},
        {.theta_permille = 1001},
        {.max_samples = 15},
        {.admission = 2},
        {.target_ttft_ns = 1},
        {.mode = MOEPAGE_CONTROL_PLANNER, .admission = 1, .target_tpot_ns = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i].struct_size = sizeof bad[i];
        assert_int_equal(moepage_controller_create(f.pools.pool, f.kv, &bad[i], &f.controller),
                         MOEPAGE_E_ARGUMENT);
    }
    control_rig_attach(&f, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE});
    assert_int_equal(moepage_controller_create(f.pools.pool, f.kv, NULL, &second), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_expert_pool_destroy(f.pools.pool), MOEPAGE_E_BUSY);
    double misses;
    uint64_t size = 1;
    assert_int_equal(moepage_controller_get_curve(f.controller, 2, &size, 1, &misses),
                     MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_controller_get_curve(f.controller, 0, NULL, 1, &misses),
                     MOEPAGE_E_ARGUMENT);
    moepage_controller *stale = f.controller;
    assert_int_equal(moepage_controller_destroy(f.controller), MOEPAGE_OK);
    f.controller = NULL;
    assert_int_equal(moepage_controller_tick(stale, NULL, NULL), MOEPAGE_E_HANDLE);
    control_rig_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_sees_the_exact_reuse_of_a_global_pool),
        cmocka_unit_test(test_controller_sees_the_exact_reuse_of_each_layers_share),
        cmocka_unit_test(test_controller_sees_the_exact_reuse_of_sequences),
        cmocka_unit_test(test_controller_counts_the_hosts_own_prefixes_instead),
        cmocka_unit_test(test_controller_forgets_sequences_that_are_freed),
        cmocka_unit_test(test_controller_dual_resize_gives_kv_its_peak_and_experts_the_rest),
        cmocka_unit_test(test_controller_fixed_moves_once),
        cmocka_unit_test(test_controller_mv_wsa_follows_what_the_load_needs),
        cmocka_unit_test(test_controller_waits_for_the_host_to_make_room_in_kv),
        cmocka_unit_test(test_controller_gives_a_move_up_that_an_open_plan_holds),
        cmocka_unit_test(test_controller_says_when_no_split_is_feasible),
        cmocka_unit_test(test_controller_target_limits_what_is_admitted),
        cmocka_unit_test(test_controller_measures_by_sequences_not_tokens),
        cmocka_unit_test(test_controller_counts_the_tokens_of_turns),
        cmocka_unit_test(test_controller_lets_as_many_run_as_meet_the_target),
        cmocka_unit_test(test_controller_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
