/* A host that serves over the simulated machine: a step worked out by hand, everything that was asked
 * for is given and nothing is left behind, and what happens when KV does not fit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/arms.h"
#include "sim/uniform.h"
#include "testing.h"

/* Exit codes of common/fail.h, whose fail() is a macro of cmocka. */
enum { DONE = 0 };

/* One byte, and one operation, is a nanosecond everywhere. */
#define PROFILE                                                                                 \
    "{\"name\": \"slow\", \"comment\": \"for tests\", \"source\": \"none\", "                   \
    "\"memory_bytes\": 1000000000, \"memory_bytes_per_s\": 1000000000, "                        \
    "\"compute_flops\": 1000000000, \"bus_bytes_per_s\": 1000000000, \"bus_latency_ns\": 100, " \
    "\"decode_bytes_per_s\": 1000000000, \"decode_latency_ns\": 10, "                           \
    "\"cold_bytes_per_s\": 1000000000, \"cold_latency_ns\": 1000, \"launch_ns\": 10, "          \
    "\"host_memory_bytes\": 1000000000}"

enum {
    TOP_K = 2,
    HIDDEN = 64,
    WIDTH = 32,
    SLOT = 3 * HIDDEN * WIDTH * 2,
    KV_BYTES = 64,
    BLOCK = 4
};

typedef struct rig {
    sim_machine machine;
    sim_shape shape;
    sim_jobs jobs;
    sim_source *source;
    sim_serve_config config;
    sim_result result;
    moepage_kv_pool_info kv; /* at the end */
} rig;

static void open_machine(sim_machine *machine)
{
    char path[] = "/tmp/serve-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, PROFILE, strlen(PROFILE)), (ssize_t)strlen(PROFILE));
    close(file);
    snprintf(machine->path, sizeof machine->path, "%s", path);
    assert_int_equal(mp_sim_profile_read(path, &machine->profile), MOEPAGE_OK);
}

/* A hundredth of the bandwidth: steps stall for most of their time. */
static void slow_bus(sim_machine *machine)
{
    static const char key[] = "\"bus_bytes_per_s\": 1000000000";
    char profile[] = PROFILE;
    memset(strstr(profile, key) + sizeof key - 3, ' ', 2);
    FILE *file = fopen(machine->path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(profile, 1, strlen(profile), file), strlen(profile));
    assert_int_equal(fclose(file), 0);
    assert_int_equal(mp_sim_profile_read(machine->path, &machine->profile), MOEPAGE_OK);
}

/* So many layers of `experts`, with room for `slots` of them and `blocks` KV blocks. */
static void rig_open(rig *r, uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t slots,
                     uint64_t blocks)
{
    memset(r, 0, sizeof *r);
    open_machine(&r->machine);
    r->shape = (sim_shape){.name = "small",
                           .layers = layers,
                           .moe_layers = layers,
                           .experts = experts,
                           .top_k = top_k,
                           .hidden = HIDDEN,
                           .expert_intermediate = WIDTH,
                           .dtype = MOEPAGE_DTYPE_BF16,
                           .tp = 1,
                           .attention_every = 1,
                           .kv_token_bytes = KV_BYTES,
                           .expert_bytes = SLOT,
                           .attention_params = 1000,
                           .moe_params = 500,
                           .vocabulary_params = 1000,
                           .context_flops = 1};
    r->source = sim_uniform_open(layers, experts, top_k, 5);
    assert_non_null(r->source);
    uint64_t kv = blocks * BLOCK * KV_BYTES * layers;
    r->config =
        (sim_serve_config){.stack = {.machine = &r->machine,
                                     .shape = &r->shape,
                                     .arena_bytes = slots * SLOT + (kv + 4095) / 4096 * 4096,
                                     .expert_slots = slots,
                                     .regime = MOEPAGE_REGIME_CACHE,
                                     .step_tokens = 64,
                                     .block_tokens = BLOCK,
                                     .blocks_per_granule = 1},
                           .jobs = &r->jobs,
                           .source = r->source,
                           .concurrency = 1};
}

static void rig_close(rig *r)
{
    unlink(r->machine.path);
    sim_jobs_free(&r->jobs);
    r->source->close(r->source);
}

static void look(void *user, const sim_stack *stack, const sim_result *result)
{
    rig *r = user;
    (void)result;
    r->kv = (moepage_kv_pool_info){.struct_size = sizeof r->kv};
    assert_int_equal(moepage_kv_pool_get_info(stack->kv, &r->kv), MOEPAGE_OK);
}

static void serve(rig *r)
{
    assert_int_equal(sim_serve(&r->config, look, r, &r->result), DONE);
    assert_true(r->result.starts);
}

static void use_loop(rig *r, const sim_closed_loop *loop)
{
    sim_jobs_free(&r->jobs);
    assert_int_equal(sim_jobs_closed(loop, &r->jobs), DONE);
    assert_int_equal(sim_jobs_bind(&r->jobs, UINT32_MAX, NULL, 0), DONE);
}

/* All time is attributed; all tokens came; those of each prompt were computed, found
 * or computed again. */
static void expect_all_served(const rig *r)
{
    const sim_result *s = &r->result;
    uint64_t prompts = 0;
    for (uint32_t i = 0; i < r->jobs.n; i++)
        prompts += r->jobs.jobs[i].prompt_tokens;
    assert_int_equal(s->jobs, r->jobs.n);
    assert_int_equal(s->refused, 0);
    assert_int_equal(s->output_tokens, sim_jobs_output_tokens(&r->jobs));
    if (!s->preemptions)
        assert_int_equal(s->prompt_tokens + s->reused_tokens + s->again_tokens, prompts);
    assert_int_equal(s->routed, s->hits + s->misses + s->late);
    assert_int_equal(s->wall_ns,
                     s->compute_ns + s->stall_ns + s->swap_ns + s->again_ns + s->idle_ns);
}

/* ---- By hand ----------------------------------------------------------------------------- */

enum {
    LOAD = 100 + SLOT,
    ATTENTION = 3000, /* two bytes a weight, and two operations */
    FFN = 10 + SLOT + HIDDEN * (2 + 4) + 2 * WIDTH * 2,
    SUM = 10 + HIDDEN * 4 + HIDDEN * 2,
    HEAD = 2000
};

static void test_serve_takes_the_time_worked_out_by_hand(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 1, 1, 1, 4);
    assert_int_equal(sim_jobs_plain(1, 1, 2, 0, &r.jobs), DONE);
    serve(&r);
    /* One token is taken in: it writes and reads its KV, and its expert has to come. Then another. */
    uint64_t first = ATTENTION + 2 * KV_BYTES + LOAD + FFN + SUM + HEAD;
    uint64_t second = ATTENTION + 3 * KV_BYTES + FFN + SUM + HEAD;
    assert_int_equal(r.result.steps, 2);
    assert_int_equal(r.result.wall_ns, first + second);
    assert_int_equal(r.result.stall_ns, LOAD);
    assert_int_equal(r.result.misses, 1);
    assert_int_equal(r.result.hits, 1);
    assert_true(r.result.ttft_ns.p50 == (double)first);
    assert_true(r.result.token_ns.p50 == (double)second);
    assert_true(r.result.job_ns.mean == (double)(first + second));
    assert_true(sim_result_latency_ns(&r.result) == (double)(first + second));
    expect_all_served(&r);
    r.shape.context_flops =
        1000; /* attending to one token, then to two, takes longer than reading */
    serve(&r);
    assert_int_equal(r.result.wall_ns, 2 * (ATTENTION + FFN + SUM + HEAD) + LOAD + (1 + 2) * 1000);
    rig_close(&r);
}

static void test_serve_waits_for_jobs_that_have_not_arrived(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 1, 1, 1, 4);
    assert_int_equal(sim_jobs_plain(2, 1, 1, 1000, &r.jobs), DONE); /* a millisecond apart */
    serve(&r);
    uint64_t warm = ATTENTION + 2 * KV_BYTES + FFN + SUM + HEAD;
    assert_int_equal(r.result.idle_ns, 1000000 - warm - LOAD);
    assert_int_equal(r.result.wall_ns, 1000000 + warm);
    expect_all_served(&r);
    rig_close(&r);
}

static void test_serve_counts_whole_layers_that_the_host_brings(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 4, 1, 4, 4);
    assert_int_equal(sim_jobs_plain(1, 1, 1, 0, &r.jobs), DONE);
    r.config.warm_layers = 1;
    r.config.own_layers = 1;
    serve(&r);
    /* Layer 1's four experts come as one when it begins, and one of them is run. */
    uint64_t attention = ATTENTION + 2 * KV_BYTES, transfer = 100 + 4 * SLOT;
    assert_int_equal(r.result.wall_ns, attention + FFN + SUM + transfer + SLOT + HEAD);
    assert_int_equal(r.result.stall_ns, transfer - attention);
    r.config.own_ahead = true; /* it has all of layer 0 to come */
    serve(&r);
    assert_int_equal(r.result.wall_ns, transfer + SLOT + HEAD);
    rig_close(&r);
}

/* ---- Batches ----------------------------------------------------------------------------- */

static void test_serve_gives_every_job_its_tokens_and_keeps_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 3, 8, 2, 12, 200);
    sim_closed_loop loop = {
        .clients = 5, .sessions = 4, .turns = 1, .prompt_tokens = 37, .output_tokens = 9};
    use_loop(&r, &loop);
    for (r.config.concurrency = 1; r.config.concurrency <= 5; r.config.concurrency += 2) {
        serve(&r);
        expect_all_served(&r);
        assert_int_equal(sim_result_failures(&r.result), 0);
        assert_int_equal(r.kv.sequences, 0);
        assert_int_equal(r.kv.free_blocks, r.kv.blocks);
        assert_int_equal(r.kv.swap_bytes, 0);
    }
    rig_close(&r);
}

static void test_serve_is_the_same_every_time(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 3, 8, 2, 12, 60);
    sim_closed_loop loop = {.clients = 3,
                            .sessions = 3,
                            .turns = 3,
                            .prompt_tokens = 21,
                            .turn_tokens = 4,
                            .output_tokens = 6,
                            .order = SIM_ORDER_RANDOM};
    use_loop(&r, &loop);
    r.config.concurrency = 3;
    serve(&r);
    sim_result before = r.result;
    serve(&r);
    assert_int_equal(r.result.wall_ns, before.wall_ns);
    assert_int_equal(r.result.steps, before.steps);
    assert_int_equal(r.result.misses, before.misses);
    assert_int_equal(r.result.swapped_bytes, before.swapped_bytes);
    assert_int_equal(r.result.kv_swapped, before.kv_swapped);
    assert_true(r.result.job_ns.p90 == before.job_ns.p90);
    rig_close(&r);
}

static void test_serve_takes_prompts_in_chunks_beside_decoding(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 4, 1, 4, 100);
    assert_int_equal(sim_jobs_plain(2, 100, 3, 0, &r.jobs), DONE);
    r.config.concurrency = 2;
    serve(&r);
    /* 64; 36 of the first and 28 of the second; one decodes, 63 more; both, then one: */
    assert_int_equal(r.result.steps, 6);
    expect_all_served(&r);
    r.jobs.n = 1;
    serve(&r); /* 64, 36, and two */
    assert_int_equal(r.result.steps, 4);
    rig_close(&r);
}

/* ---- Prefixes ---------------------------------------------------------------------------- */

/* Two sessions of three turns, in turn: 22, 28 and 34 tokens at the ends of a session's turns, 6, 7
 * and 9 blocks. */
static const sim_closed_loop two_sessions = {.clients = 1,
                                             .sessions = 2,
                                             .turns = 3,
                                             .prompt_tokens = 20,
                                             .turn_tokens = 3,
                                             .output_tokens = 3,
                                             .order = SIM_ORDER_TURNS};
enum { FIRST_PREFIX = 22, SECOND_PREFIX = 28 };

static void test_serve_goes_on_from_what_is_there(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 2, 1, 2, 64);
    use_loop(&r, &two_sessions);
    serve(&r);
    assert_int_equal(r.result.kv_hits, 4);
    assert_int_equal(r.result.kv_swapped + r.result.kv_gone, 0);
    assert_int_equal(r.result.reused_tokens, 2 * (FIRST_PREFIX + SECOND_PREFIX));
    assert_int_equal(r.kv.sequences, 2); /* the sessions, which may go on */
    expect_all_served(&r);
    rig_close(&r);

    sim_closed_loop one = two_sessions;
    one.sessions = 1;
    rig_open(&r, 1, 2, 1, 2, 10); /* a session has no need of its prefix twice */
    use_loop(&r, &one);
    r.config.stack.blocks_per_granule = 10;
    serve(&r);
    assert_int_equal(r.result.kv_hits, 2);
    rig_close(&r);
}

static void test_serve_computes_again_what_had_to_go(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 2, 1, 2, 16); /* one session, not two */
    use_loop(&r, &two_sessions);
    r.config.recompute = true;
    r.config.stack.blocks_per_granule = 10;
    serve(&r);
    assert_int_equal(r.result.first_blocks, 10);
    assert_int_equal(r.result.kv_gone, 4);
    assert_int_equal(r.result.again_tokens, 2 * (FIRST_PREFIX + SECOND_PREFIX));
    assert_int_equal(r.result.swap_ns, 0);
    assert_true(r.result.again_ns > 0);
    assert_int_equal(r.kv.sequences, 1);
    expect_all_served(&r);

    r.config.recompute = false; /* or brings it back over the bus */
    serve(&r);
    assert_int_equal(r.result.kv_swapped, 4);
    assert_int_equal(r.result.again_tokens, 0);
    assert_int_equal(r.result.reused_tokens, 2 * (FIRST_PREFIX + SECOND_PREFIX));
    /* Out go 6, 6, 7, 7 and 9 blocks, and all but the last come back. */
    enum { MOVED = 2 * (6 + 6 + 7 + 7) + 9 };
    assert_int_equal(r.result.swapped_bytes, MOVED * BLOCK * KV_BYTES);
    assert_int_equal(r.result.swap_ns, MOVED * (100 + BLOCK * KV_BYTES));
    assert_int_equal(r.kv.sequences, 2);
    expect_all_served(&r);
    rig_close(&r);
}

static void test_serve_gives_up_the_prefix_used_longest_ago(void **state)
{
    (void)state;
    rig r;
    sim_closed_loop loop = two_sessions;
    loop.sessions = 3;
    rig_open(&r, 1, 2, 1, 2, 16); /* room for two: the third finds the one it needs gone, always */
    use_loop(&r, &loop);
    r.config.recompute = true;
    serve(&r);
    assert_int_equal(r.result.first_blocks, 16);
    assert_int_equal(r.result.kv_gone, 6);
    rig_close(&r);
    rig_open(&r, 1, 2, 1, 2, 32); /* for three */
    use_loop(&r, &loop);
    serve(&r);
    assert_int_equal(r.result.kv_hits, 6);
    rig_close(&r);
}

static void test_serve_shares_a_prefix_between_branches(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 2, 1, 2, 64);
    assert_int_equal(sim_jobs_plain(3, 40, 3, 0, &r.jobs), DONE);
    for (uint32_t i = 0; i < 3; i++)
        r.jobs.jobs[i].kept = true;
    for (uint32_t i = 1; i < 3; i++) {
        r.jobs.jobs[i].parent = 0;
        r.jobs.jobs[i].prefix_tokens = 32;
    }
    serve(&r);
    assert_int_equal(r.result.kv_hits, 2);
    assert_int_equal(r.result.reused_tokens, 64);
    assert_int_equal(r.kv.sequences, 3);
    /* 11 blocks each, of which 8 are the same */
    assert_int_equal(r.kv.blocks - r.kv.free_blocks, 8 + 3 * 3);
    expect_all_served(&r);
    rig_close(&r);
}

/* ---- Too little room --------------------------------------------------------------------- */

static void test_serve_preempts_and_brings_back(void **state)
{
    (void)state;
    for (uint32_t recompute = 0; recompute <= 1; recompute++) {
        rig r;
        rig_open(&r, 1, 4, 1, 4, 16);
        assert_int_equal(sim_jobs_plain(4, 8, 40, 0, &r.jobs), DONE); /* 12 blocks each */
        r.config.concurrency = 2;
        r.config.recompute = recompute;
        serve(&r);
        assert_int_equal(r.result.first_blocks, 16);
        assert_true(r.result.preemptions > 0);
        assert_true(recompute ? r.result.again_tokens > 0 : r.result.swapped_bytes > 0);
        assert_int_equal(r.kv.free_blocks, r.kv.blocks);
        assert_int_equal(r.kv.sequences, 0);
        expect_all_served(&r);
        rig_close(&r);
    }
}

static void test_serve_refuses_what_can_never_fit(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 4, 1, 4, 16);
    assert_int_equal(sim_jobs_plain(3, 8, 4, 0, &r.jobs), DONE);
    r.jobs.jobs[1].prompt_tokens = 100;
    r.jobs.jobs[2].after = 1;
    serve(&r);
    assert_int_equal(r.result.refused, 1);
    assert_int_equal(r.result.jobs, 2);
    assert_int_equal(r.result.output_tokens, 8);
    r.jobs.jobs[1].prompt_tokens = 8; /* admitted, and outgrows the pool */
    r.jobs.jobs[1].output_tokens = 100;
    serve(&r);
    assert_int_equal(r.result.refused, 1);
    assert_int_equal(r.result.jobs, 2);
    assert_int_equal(r.kv.free_blocks, r.kv.blocks);
    rig_close(&r);
}

static void test_serve_says_what_does_not_start(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 4, 1, 4, 16);
    assert_int_equal(sim_jobs_plain(1, 8, 4, 0, &r.jobs), DONE);
    r.config.stack.arena_bytes = 4 * SLOT; /* no KV at all */
    r.config.quiet = true;
    assert_int_equal(sim_serve(&r.config, NULL, NULL, &r.result), DONE);
    assert_false(r.result.starts);
    rig_close(&r);
}

/* ---- Splits ------------------------------------------------------------------------------ */

/* The oracle's points as they were, and nothing better among them; the configurator close to it, and
 * far from the worst. */
static void expect_configured(rig *r)
{
    static sim_arm_run best, configured;
    double worst = 0;
    assert_int_equal(sim_oracle_run(&r->config, &best), DONE);
    assert_true(best.feasible && best.n_points > SIM_ORACLE_GRID / 2);
    double least = sim_result_latency_ns(&best.result);
    for (uint32_t i = 0; i < best.n_points; i++) {
        const sim_point *p = &best.points[i];
        assert_true(p->failures || p->latency_ns >= least);
        worst = p->latency_ns > worst ? p->latency_ns : worst;
    }
    sim_split_option split = {.kind = SIM_SPLIT_MV_WSA};
    assert_int_equal(sim_split_run(&r->config, &split, &configured), DONE);
    assert_int_equal(sim_result_failures(&configured.result), 0);
    double ours = sim_result_latency_ns(&configured.result);
    assert_true(worst > 1.2 * least);
    assert_true(ours < 1.05 * least);
    sim_arm_run_free(&configured);
}

static void test_serve_configures_what_the_oracle_finds(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 4, 16, 2, 40, 100);
    r.config.recompute = true;
    r.config.stack.blocks_per_granule = 4;
    sim_closed_loop tools = {.clients = 1, /* experts are what counts */
                             .sessions = 1,
                             .turns = 10,
                             .prompt_tokens = 20,
                             .turn_tokens = 2,
                             .output_tokens = 20};
    use_loop(&r, &tools);
    expect_configured(&r);
    sim_closed_loop talks = {.clients = 1, /* KV is */
                             .sessions = 6,
                             .turns = 8,
                             .prompt_tokens = 600,
                             .turn_tokens = 4,
                             .output_tokens = 4,
                             .order = SIM_ORDER_RANDOM};
    use_loop(&r, &talks);
    r.config.stack.arena_bytes += 6 * 700 * KV_BYTES * 4;
    expect_configured(&r);
    rig_close(&r);
}

/* Long prefixes after short ones: the controller gives KV what it then needs. */
static void test_serve_online_follows_a_shift(void **state)
{
    (void)state;
    static sim_arm_run best, online;
    static sim_configured first;
    rig r;
    sim_jobs later;
    rig_open(&r, 4, 16, TOP_K, 40, 100);
    r.config.recompute = true;
    r.config.stack.blocks_per_granule = 4;
    r.config.stack.arena_bytes += 200000;
    sim_closed_loop tools = {.clients = 1,
                             .sessions = 1,
                             .turns = 100,
                             .prompt_tokens = 20,
                             .turn_tokens = 1,
                             .output_tokens = 4};
    sim_closed_loop talks = {.clients = 1,
                             .sessions = 6,
                             .turns = 80,
                             .prompt_tokens = 300,
                             .turn_tokens = 1,
                             .output_tokens = 1,
                             .order = SIM_ORDER_RANDOM};
    use_loop(&r, &tools);
    assert_int_equal(sim_configure(&r.config, &first), DONE);
    assert_int_equal(sim_jobs_closed(&talks, &later), DONE);
    assert_int_equal(sim_jobs_append(&r.jobs, &later), DONE);
    sim_jobs_free(&later);
    assert_int_equal(sim_jobs_bind(&r.jobs, UINT32_MAX, NULL, 0), DONE);
    assert_int_equal(sim_oracle_run(&r.config, &best), DONE);
    assert_int_equal(sim_online_run(&r.config, &first.split, MOEPAGE_CONTROL_MV_WSA, &online),
                     DONE);
    assert_int_equal(sim_result_failures(&online.result), 0);
    assert_true(online.result.moves > 0);
    assert_true(best.split.experts + 20 < first.split.experts); /* or there is nothing to follow */
    assert_in_range(online.result.last_slots, TOP_K, best.split.experts + 8);
    assert_int_equal(online.result.jobs, r.jobs.n);
    sim_configured_free(&first);
    rig_close(&r);
}

/* Sessions that have ended a turn are in the last step, and stay: the next turn begins all the same. */
static void test_serve_admits_a_turn_when_none_runs(void **state)
{
    (void)state;
    static sim_arm_run online;
    rig r;
    rig_open(&r, 4, 16, TOP_K, 12, 200);
    moepage_controller_config control = {.struct_size = sizeof control, .burst_steps = 8};
    sim_closed_loop loop = {.clients = 4,
                            .sessions = 1,
                            .turns = 12,
                            .prompt_tokens = 20,
                            .turn_tokens = 1,
                            .output_tokens = 20,
                            .think_ns = 1000000000};
    use_loop(&r, &loop);
    r.config.concurrency = 4;
    r.config.admission = true;
    r.config.stack.controller = &control;
    slow_bus(&r.machine);
    const mp_split start = {.experts = 12, .kv = 200};
    assert_int_equal(sim_online_run(&r.config, &start, MOEPAGE_CONTROL_OBSERVE, &online), DONE);
    assert_true(online.result.control.target_running > 0);
    assert_int_equal(online.result.jobs, r.jobs.n);
    sim_arm_run_free(&online);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_takes_the_time_worked_out_by_hand),
        cmocka_unit_test(test_serve_waits_for_jobs_that_have_not_arrived),
        cmocka_unit_test(test_serve_counts_whole_layers_that_the_host_brings),
        cmocka_unit_test(test_serve_gives_every_job_its_tokens_and_keeps_nothing),
        cmocka_unit_test(test_serve_is_the_same_every_time),
        cmocka_unit_test(test_serve_takes_prompts_in_chunks_beside_decoding),
        cmocka_unit_test(test_serve_goes_on_from_what_is_there),
        cmocka_unit_test(test_serve_computes_again_what_had_to_go),
        cmocka_unit_test(test_serve_gives_up_the_prefix_used_longest_ago),
        cmocka_unit_test(test_serve_shares_a_prefix_between_branches),
        cmocka_unit_test(test_serve_preempts_and_brings_back),
        cmocka_unit_test(test_serve_refuses_what_can_never_fit),
        cmocka_unit_test(test_serve_says_what_does_not_start),
        cmocka_unit_test(test_serve_configures_what_the_oracle_finds),
        cmocka_unit_test(test_serve_online_follows_a_shift),
        cmocka_unit_test(test_serve_admits_a_turn_when_none_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
