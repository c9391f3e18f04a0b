/* Replays of traces: exact miss counts against naive_cache.h, an exhaustive search for the bound,
 * and counts made outside this project's code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive_cache.h"
#include "route_rows.h"
#include "sim/miss_curve.h"
#include "sim/replay.h"
#include "sim/trace.h"
#include "slow.h"
#include "testing.h"

static const char *const policies[] = {"lru",    "lfu",  "lfu-aged", "sieve",
                                       "s3fifo", "lirs", "cycle",    "belady"};
enum { POLICIES = 8 };

static uint64_t random_state, seed;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* ---- Traces ---------------------------------------------------------------------------------- */

static sim_trace *make_trace(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t rows)
{
    sim_trace *trace = NULL;
    const sim_trace_shape shape = {layers, experts, top_k};
    assert_int_equal(sim_trace_new("made", &shape, &trace), 0);
    assert_int_equal(sim_trace_reserve(trace, rows, false), 0);
    assert_int_equal(sim_trace_add_request(trace, &(sim_request){.rows = rows}, NULL), 0);
    return trace;
}

static void close_trace(sim_trace *trace)
{
    trace->source.close(&trace->source);
}

/* Half of the choices are made again from row to row. */
static sim_trace *random_trace(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t rows)
{
    sim_trace *trace = make_trace(layers, experts, top_k, rows);
    uint64_t width = (uint64_t)layers * top_k;
    for (uint64_t i = 0; i < rows * width; i++) {
        bool again = i >= width && below(2);
        for (;;) {
            uint64_t first = i - i % top_k, at = first;
            uint16_t id = again ? trace->ids[i - width] : (uint16_t)below(1 + below(experts));
            while (at < i && trace->ids[at] != id)
                at++;
            trace->ids[i] = id;
            if (at == i)
                break;
            again = false;
        }
    }
    assert_int_equal(sim_trace_check("made", trace), 0);
    return trace;
}

static sim_trace *excerpt(uint32_t rows)
{
    route_rows found;
    route_rows_excerpt(&found, rows);
    sim_trace *trace = make_trace(ROUTE_LAYERS, ROUTE_EXPERTS, ROUTE_TOP_K, found.n);
    for (uint64_t i = 0; i < found.uses; i++)
        trace->ids[i] = (uint16_t)(found.keys[i] % ROUTE_EXPERTS);
    route_rows_free(&found);
    return trace;
}

/* ---- The same, naively ----------------------------------------------------------------------- */

static uint32_t key_at(const sim_trace *trace, uint64_t i)
{
    const sim_source *s = &trace->source;
    return (uint32_t)(i / s->top_k % s->layers) * s->experts + trace->ids[i];
}

/* For each access the position of the next one of its key, by looking for it. */
static uint64_t *look_ahead(const sim_trace *trace, bool sets)
{
    uint64_t n = trace->rows * trace->source.layers * trace->source.top_k;
    uint64_t *next = malloc(n * sizeof *next);
    assert_non_null(next);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i + 1;
        while (at < n && key_at(trace, at) != key_at(trace, i))
            at++;
        next[i] = at == n ? UINT64_MAX : sets ? at / trace->source.top_k : at;
    }
    return next;
}

typedef struct naive_result {
    uint64_t misses, first;
} naive_result;

static naive_result naive_replay(const sim_trace *trace, const sim_replay_config *config,
                                 const uint64_t *next)
{
    static naive_cache caches[ROUTE_LAYERS];
    static bool seen[NAIVE_KEYS];
    const sim_source *s = &trace->source;
    bool by_layer = config->scope == SIM_SCOPE_LAYER;
    uint32_t scopes = by_layer ? s->layers : 1, keys = s->layers * s->experts / scopes;
    uint32_t per_set = config->access == SIM_ACCESS_LAYER ? s->top_k : 1;
    naive_result result = {0};
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < scopes; i++)
        naive_open(&caches[i], config->policy, keys, s->experts);
    for (uint64_t i = 0; i < trace->rows * s->layers * s->top_k; i += per_set) {
        uint32_t set[16], victims[16], n_victims, scope = key_at(trace, i) / keys;
        for (uint32_t k = 0; k < per_set; k++) {
            uint32_t key = key_at(trace, i + k);
            result.first += !seen[key];
            seen[key] = true;
            set[k] = key % keys;
            caches[scope].next_use[set[k]] = next[i + k];
        }
        result.misses += naive_serve(&caches[scope], (uint32_t)(config->capacity / scopes), set,
                                     per_set, victims, &n_victims);
    }
    return result;
}

static void compare(const sim_trace *trace, const uint64_t *capacities, uint32_t n)
{
    for (uint32_t access = 0; access < 2; access++) {
        uint64_t *next = look_ahead(trace, access == SIM_ACCESS_LAYER);
        for (uint32_t i = 0; i < 2 * n * POLICIES; i++) {
            sim_replay_config config = {.policy = policies[i % POLICIES],
                                        .capacity = capacities[i / POLICIES % n],
                                        .scope = i / POLICIES / n,
                                        .access = access};
            uint32_t scopes = config.scope == SIM_SCOPE_LAYER ? trace->source.layers : 1;
            uint32_t least = access == SIM_ACCESS_LAYER ? trace->source.top_k : 1;
            if (config.capacity < (uint64_t)least * scopes)
                continue;
            sim_replay_result found;
            assert_int_equal(sim_replay(trace, &config, &found), 0);
            naive_result expected = naive_replay(trace, &config, next);
            if (found.misses != expected.misses || found.first != expected.first)
                fail_msg(
                    "seed %llu: %s, capacity %llu, scope %s, access %s: %llu misses, %llu expected",
                    (unsigned long long)seed, config.policy, (unsigned long long)config.capacity,
                    sim_scope_name(config.scope), sim_access_name(config.access),
                    (unsigned long long)found.misses, (unsigned long long)expected.misses);
            assert_int_equal(found.accesses,
                             trace->rows * trace->source.layers * trace->source.top_k);
        }
        free(next);
    }
}

/* ---- Claims ---------------------------------------------------------------------------------- */

static void test_replay_counts_what_the_definitions_say_of_a_real_trace(void **state)
{
    (void)state;
    static const uint64_t capacities[] = {96, 192, 384, 576};
    sim_trace *trace = excerpt(getenv("MP_TEST_LONG") ? 6026 : slow_here() ? 30 : 250);
    compare(trace, capacities, 4);
    close_trace(trace);
}

static void test_replay_counts_what_the_definitions_say_of_any_trace(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 1}, {1, 7, 2}, {3, 8, 2}, {4, 16, 4}, {2, 40, 8}};
    uint32_t rounds = getenv("MP_TEST_LONG") ? 50 : slow_here() ? 1 : 3;
    for (uint32_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            random_state = seed = 1000 * round + i;
            sim_trace *trace = random_trace(shapes[i][0], shapes[i][1], shapes[i][2], 60);
            uint32_t keys = shapes[i][0] * shapes[i][1];
            uint64_t capacities[6];
            for (uint32_t c = 0; c < 6; c++)
                capacities[c] = 1 + below(keys + 2);
            compare(trace, capacities, 6);
            close_trace(trace);
        }
}

/* The fewest misses that any choice of victims gives, by trying all. */
static uint32_t least_misses(const sim_trace *trace, uint64_t at, uint32_t here, uint32_t capacity)
{
    uint64_t n = trace->rows;
    while (at < n && here >> key_at(trace, at) & 1)
        at++;
    if (at == n)
        return 0;
    uint32_t bit = 1u << key_at(trace, at);
    if ((uint32_t)__builtin_popcount(here) < capacity)
        return 1 + least_misses(trace, at + 1, here | bit, capacity);
    uint32_t best = UINT32_MAX;
    for (uint32_t left = here; left; left &= left - 1) {
        uint32_t victim = left & -left;
        uint32_t misses = least_misses(trace, at + 1, (here & ~victim) | bit, capacity);
        best = misses < best ? misses : best;
    }
    return 1 + best;
}

static void test_replay_of_belady_is_the_least_there_is(void **state)
{
    (void)state;
    for (seed = 0; seed < 60; seed++) {
        random_state = seed;
        uint32_t keys = 3 + below(3), capacity = 1 + below(3);
        sim_trace *trace = random_trace(1, keys, 1, 14);
        sim_replay_config config = {.policy = "belady",
                                    .capacity = capacity,
                                    .access = SIM_ACCESS_SEQUENTIAL};
        sim_replay_result found;
        assert_int_equal(sim_replay(trace, &config, &found), 0);
        assert_int_equal(found.misses, least_misses(trace, 0, 0, capacity));
        close_trace(trace);
    }
}

static void check_bound(const sim_trace *trace, const uint64_t *capacities, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++) {
        sim_replay_result least, found;
        sim_replay_config config = {.policy = "belady",
                                    .capacity = capacities[c],
                                    .access = SIM_ACCESS_SEQUENTIAL};
        assert_int_equal(sim_replay(trace, &config, &least), 0);
        for (uint32_t p = 0; p + 1 < POLICIES; p++) {
            config.policy = policies[p];
            assert_int_equal(sim_replay(trace, &config, &found), 0);
            assert_true(least.misses <= found.misses);
        }
    }
}

static void test_replay_of_belady_is_below_every_policy(void **state)
{
    (void)state;
    static const uint64_t capacities[] = {1, 17, 96, 192, 384, 576, 767, 768};
    sim_trace *trace = excerpt(1000);
    check_bound(trace, capacities, 8);
    close_trace(trace);
}

/* Counted outside this project's code. */
static void test_replay_counts_the_excerpt_as_others_do(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        sim_access access;
        uint64_t misses[3];
    } known[] = {{"lru", SIM_ACCESS_SEQUENTIAL, {369199, 213957, 47561}},
                 {"lru", SIM_ACCESS_LAYER, {315254, 213282, 47506}},
                 {"lfu", SIM_ACCESS_SEQUENTIAL, {546560, 359874, 175081}},
                 {"lfu", SIM_ACCESS_LAYER, {539115, 360425, 176127}}};
    const sim_trace_shape shape = {24, 32, 4};
    sim_trace *trace = sim_trace_open_as("tests/data/gpt-oss-20b-20requests.u8", &shape);
    assert_non_null(trace);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (uint32_t c = 0; c < 3; c++) {
            sim_replay_config config = {.policy = known[i].policy,
                                        .capacity = UINT64_C(96) << c,
                                        .access = known[i].access};
            sim_replay_result found;
            assert_int_equal(sim_replay(trace, &config, &found), 0);
            assert_int_equal(found.misses, known[i].misses[c]);
        }
    close_trace(trace);
}

static int64_t per_mille(const sim_replay_result *r)
{
    return (int64_t)((r->misses * 1000 + r->accesses / 2) / r->accesses);
}

/* The whole published trace, read as it is published; the figures that came with it are of a larger
 * set for all but LRU and LFU. */
static void test_replay_counts_the_whole_trace(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        int64_t per_mille[3], within;
    } known[] = {{"lru", {652, 388, 91}, 0},
                 {"lfu", {938, 616, 320}, 0},
                 {"lirs", {584, 340, 85}, 6},
                 {"s3fifo", {608, 361, 79}, 6},
                 {"belady", {370, 172, 34}, 6}};
    slow_skip_sanitized(__func__);
    route_rows rows;
    const char *shared = getenv("MOEPAGE_SHARED");
    char path[4096];
    if (!route_rows_whole(&rows, 1, "test_replay_counts_the_whole_trace"))
        skip();
    route_rows_free(&rows);
    snprintf(path, sizeof path, "%s/traces/gpt-oss-20b", shared ? shared : "../shared");
    sim_trace *trace = sim_trace_open(path);
    assert_non_null(trace);
    assert_int_equal(trace->source.layers, 24);
    assert_int_equal(trace->source.experts, 32);
    assert_int_equal(trace->source.top_k, 4);
    assert_int_equal(trace->rows, 70947);
    assert_int_equal(trace->source.n_requests, 221);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (uint32_t c = 0; c < 3; c++) {
            sim_replay_config config = {.policy = known[i].policy,
                                        .capacity = UINT64_C(96) << c,
                                        .access = SIM_ACCESS_SEQUENTIAL};
            sim_replay_result found;
            assert_int_equal(sim_replay(trace, &config, &found), 0);
            assert_in_range(per_mille(&found), known[i].per_mille[c] - known[i].within,
                            known[i].per_mille[c] + known[i].within);
        }
    close_trace(trace);
}

static void test_replay_refuses_what_cannot_be(void **state)
{
    (void)state;
    sim_trace *trace = make_trace(2, 8, 2, 1);
    for (uint32_t i = 0; i < 4; i++)
        trace->ids[i] = (uint16_t)i;
    static const struct {
        sim_replay_config config;
        int code;
    } cases[] = {
        {{"lru", 2, SIM_SCOPE_GLOBAL, SIM_ACCESS_LAYER, 0}, 0},
        {{"lru", 1, SIM_SCOPE_GLOBAL, SIM_ACCESS_LAYER, 0}, 2},
        {{"lru", 1, SIM_SCOPE_GLOBAL, SIM_ACCESS_SEQUENTIAL, 0}, 0},
        {{"lru", 0, SIM_SCOPE_GLOBAL, SIM_ACCESS_SEQUENTIAL, 0}, 2},
        {{"lru", 4, SIM_SCOPE_LAYER, SIM_ACCESS_LAYER, 0}, 0},
        {{"lru", 3, SIM_SCOPE_LAYER, SIM_ACCESS_LAYER, 0}, 2},
        {{"LRU", 4, SIM_SCOPE_GLOBAL, SIM_ACCESS_LAYER, 0}, 2},
        {{"", 4, SIM_SCOPE_GLOBAL, SIM_ACCESS_LAYER, 0}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sim_replay_result found;
        assert_int_equal(sim_replay(trace, &cases[i].config, &found), cases[i].code);
    }
    close_trace(trace);
}

/* ---- Curves ---------------------------------------------------------------------------------- */

static void check_curve(const sim_trace *trace, sim_scope scope, sim_access access)
{
    sim_miss_curve curve;
    assert_int_equal(sim_miss_curve_measure(trace, scope, access, 0, 1, &curve), 0);
    uint32_t least = access == SIM_ACCESS_LAYER ? trace->source.top_k : 1;
    assert_int_equal((uint64_t)curve.n * curve.step, trace->source.layers * trace->source.experts);
    for (uint32_t c = least; c <= curve.n; c++) {
        sim_replay_result found;
        sim_replay_config config = {"lru", (uint64_t)c * curve.step, scope, access, 0};
        assert_int_equal(sim_replay(trace, &config, &found), 0);
        assert_int_equal(curve.misses[c], found.misses);
        assert_int_equal(curve.first, found.first);
        assert_int_equal(curve.accesses, found.accesses);
    }
    assert_true(sim_miss_curve_error(&curve) < 1e-9); /* all keys are in the sample */
    sim_miss_curve_free(&curve);
}

static void test_replay_of_lru_is_its_curve_at_every_capacity(void **state)
{
    (void)state;
    sim_trace *trace = excerpt(60);
    for (int i = 0; i < 4; i++)
        check_curve(trace, i / 2, i % 2);
    close_trace(trace);
    random_state = 5;
    trace = random_trace(3, 20, 5, 300);
    for (int i = 0; i < 4; i++)
        check_curve(trace, i / 2, i % 2);
    close_trace(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_counts_what_the_definitions_say_of_a_real_trace),
        cmocka_unit_test(test_replay_counts_what_the_definitions_say_of_any_trace),
        cmocka_unit_test(test_replay_of_belady_is_the_least_there_is),
        cmocka_unit_test(test_replay_of_belady_is_below_every_policy),
        cmocka_unit_test(test_replay_counts_the_excerpt_as_others_do),
        cmocka_unit_test(test_replay_counts_the_whole_trace),
        cmocka_unit_test(test_replay_refuses_what_cannot_be),
        cmocka_unit_test(test_replay_of_lru_is_its_curve_at_every_capacity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
