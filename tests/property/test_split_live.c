/* The split and the budget move while sessions use both sides: over random interleavings of routing, holding,
 * retiring, prefetching, pinning, of KV that is appended to, forked, freed and swapped, of moves,
 * compressions and what becomes of them, of budgets that grow and shrink, on a device that does everything late and in any order. At
 * every event bytes are within the budget, no operation touches bytes of the other side, and no
 * byte is written while in use; every byte that a step reads is right, and no KV is lost.
 *
 * A run that fails is made smaller, action by action, before it is shown. MP_SPLIT_SEED=n runs the
 * world of that seed alone. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "live_world.h"
#include "policy/policy.h"
#include "testing.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

/* Interleavings in one world, and actions in one interleaving at most. */
#define EPISODES 100
#define ACTIONS 50
#define MAX_ACTIONS (EPISODES * (ACTIONS + 1))
#define SETTLE UINT64_MAX /* in a list: everything ends, and is looked at */

/* The last two are read through a callback, which fails at times; layers of the last differ in type. */
static bank_model banks[4];
static uint64_t current_seed;

/* Every policy meets every kind of session. */
static live_config config_of(uint64_t seed)
{
    uint32_t policies = 0;
    while (mp_policy_name(policies))
        policies++;
    return (live_config){.sessions = 1 + (uint32_t)(seed % 3),
                         .scope = seed % 4 == 3 ? MOEPAGE_SCOPE_LAYER : MOEPAGE_SCOPE_GLOBAL,
                         .policy = mp_policy_name((uint32_t)(seed / 2 % policies)),
                         .chunk_bytes = seed % 5 ? 256 : 0,
                         .regime = (uint32_t)(seed / 3 % 3),
                         .dense = seed % 11 < 4,
                         .prefetch = seed % 13 ? MOEPAGE_PREFETCH_HINT + seed / 5 % 2
                                               : MOEPAGE_PREFETCH_OFF,
                         .max_group_experts = seed % 3 ? 1 + (uint32_t)(seed / 7 % 4) : 0,
                         .scan_percent = seed % 7 < 2 ? 40 : 0,
                         .part_bytes = 512u << seed / 2 % 4,
                         .arena_bytes = seed % 4 < 2 ? 0 : 20480 + seed / 4 % 5 * 4096,
                         .seed = seed};
}

static bank_model *bank_of(uint64_t seed)
{
    return &banks[seed % 9 == 4 ? 3 : seed % 5 == 1 ? 2 : seed % 3 == 0];
}

static uint32_t make_actions(uint64_t seed, uint64_t *actions)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15u;
    uint32_t n = 0;
    for (uint32_t e = 0; e < EPISODES; e++) {
        uint32_t length = 1 + bank_below(&random, ACTIONS);
        for (uint32_t i = 0; i < length; i++)
            actions[n++] = bank_random(&random) >> 1;
        actions[n++] = SETTLE;
    }
    return n;
}

/* Does the actions in a new world. True if all went well; else what went wrong is in `why`. */
static bool run(uint64_t seed, const uint64_t *actions, uint32_t n, char why[512],
                live_counts *counts)
{
    live_config config = config_of(seed);
    live_world *world = live_open(bank_of(seed), &config);
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++)
        ok = actions[i] == SETTLE ? live_settle(world, i + seed, i % 8 == 0)
                                  : live_act(world, actions[i]);
    ok = ok && live_settle(world, seed, true);
    snprintf(why, 512, "%s", live_failure(world));
    if (counts)
        live_count(world, counts);
    live_close(world);
    return ok;
}

/* Leaves out parts of this size, one after the other, as long as what is left fails. */
static uint32_t leave_out(uint64_t seed, uint64_t *actions, uint32_t n, uint32_t part)
{
    static uint64_t fewer[MAX_ACTIONS];
    char why[512];
    for (uint32_t from = 0; from < n;) {
        uint32_t size = part < n - from ? part : n - from;
        memcpy(fewer, actions, from * sizeof *fewer);
        memcpy(fewer + from, actions + from + size, (n - from - size) * sizeof *fewer);
        if (run(seed, fewer, n - size, why, NULL)) {
            from += size;
            continue;
        }
        n -= size;
        memcpy(actions, fewer, n * sizeof *fewer);
    }
    return n;
}

/* Ever smaller parts, until no single action can be left out. */
static uint32_t shrink(uint64_t seed, uint64_t *actions, uint32_t n, char why[512])
{
    for (uint32_t part = n / 2 + 1; part > 1; part /= 2)
        n = leave_out(seed, actions, n, part);
    for (uint32_t before = n + 1; n < before;) {
        before = n;
        n = leave_out(seed, actions, n, 1);
    }
    run(seed, actions, n, why, NULL);
    return n;
}

static void show(uint64_t seed, const uint64_t *actions, uint32_t n, const char *why)
{
    fprintf(stderr, "seed %llu fails with these %u actions: %s\n", (unsigned long long)seed, n,
            why);
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "  %3u %#018llx %s\n", i, (unsigned long long)actions[i],
                actions[i] == SETTLE ? "settle" : live_name(actions[i]));
}

/* What the library's own assertions find cannot be made smaller. */
static void on_abort(int number)
{
    char text[64];
    int n = snprintf(text, sizeof text, "aborted at seed %llu\n", (unsigned long long)current_seed);
    if (write(2, text, (size_t)n) < 0)
        _exit(1);
    signal(number, SIG_DFL);
}

static uint32_t count_worlds(void)
{
    if (getenv("MP_TEST_LONG"))
        return 20000;
    return SANITIZED ? 150 : 1000;
}

static void test_split_live_moves_take_nothing_that_is_in_use(void **state)
{
    (void)state;
    static uint64_t actions[MAX_ACTIONS];
    const char *only = getenv("MP_SPLIT_SEED");
    live_counts counts = {0};
    char why[512];
    uint32_t worlds = only ? 1 : count_worlds();
    uint64_t first = only ? strtoull(only, NULL, 0) : 1;
    signal(SIGABRT, on_abort);
    for (uint64_t seed = first; seed < first + worlds; seed++) {
        current_seed = seed;
        uint32_t n = make_actions(seed, actions);
        if (run(seed, actions, n, why, &counts))
            continue;
        n = shrink(seed, actions, n, why);
        show(seed, actions, n, why);
        fail_msg("seed %llu: %s", (unsigned long long)seed, why);
    }
    print_message(
        "%llu budgets shrunk by %llu slots and %llu blocks in all, %llu waits, %llu refused; "
        "%llu grown, %llu without memory\n",
        (unsigned long long)counts.shrunk, (unsigned long long)counts.slots_taken,
        (unsigned long long)counts.blocks_taken, (unsigned long long)counts.budget_waits,
        (unsigned long long)counts.budget_refused, (unsigned long long)counts.grown,
        (unsigned long long)counts.memory_refused);
    print_message("%u interleavings: %llu experts held, %llu moves, %llu compressions, %llu waits, "
                  "%llu abandoned, %llu blocks copied, %llu layers streamed, %llu regimes changed, "
                  "%llu loads failed, %llu sessions came, %llu experts asked for by paths\n",
                  worlds * EPISODES, (unsigned long long)counts.routed,
                  (unsigned long long)counts.moves, (unsigned long long)counts.compressions,
                  (unsigned long long)counts.busy, (unsigned long long)counts.abandoned,
                  (unsigned long long)counts.relocated, (unsigned long long)counts.streamed,
                  (unsigned long long)counts.changes, (unsigned long long)counts.failed,
                  (unsigned long long)counts.joined, (unsigned long long)counts.asked);
    /* The runs were about something. */
    assert_true(only || (counts.routed > 1000 && counts.moves > 100 && counts.busy > 100 &&
                         counts.compressions > 10 && counts.abandoned > 10 &&
                         counts.relocated > 10 && counts.overlaps > 1000 && counts.drained > 10 &&
                         counts.streamed > 100 && counts.changes > 10 && counts.failed > 10 &&
                         counts.joined > 10 && counts.asked > 100 && counts.shrunk > 100 &&
                         counts.grown > 100 && counts.budget_waits > 100 &&
                         counts.budget_refused > 10 && counts.memory_refused > 10 &&
                         counts.slots_taken > 100 && counts.blocks_taken > 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_live_moves_take_nothing_that_is_in_use),
    };
    bank_shape shape = {.layers = 3,
                        .experts = 6,
                        .top_k = 3,
                        .hidden = 16,
                        .intermediate = 8,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                        .seed = 1};
    bank_model_open(&banks[0], &shape);
    shape.pack_forms |= 1u << MOEPAGE_FORM_DENSE;
    bank_model_open(&banks[1], &shape);
    shape.pack_forms = 0;
    shape.callback = true;
    bank_model_open(&banks[2], &shape);
    shape.odd_dtype = MOEPAGE_DTYPE_F32;
    bank_model_open(&banks[3], &shape);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t b = 0; b < 4; b++)
        bank_model_close(&banks[b]);
    return failed;
}
