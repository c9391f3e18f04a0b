/* Eviction policies against naive models, reuse distances and an outside count.
 *
 * `cache` drives a policy exactly as policy.h says a pool does. naive_cache.h is written from the
 * definitions alone. Both must evict the same keys in the same order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive_cache.h"
#include "policy/policy.h"
#include "slow.h"
#include "testing.h"

#define MAX_KEYS 1024
#define MAX_SET 64

/* ---- A pool of slots that does nothing but ask its policy ------------------------------- */

typedef struct cache {
    const mp_policy *policy;
    void *state;
    uint32_t capacity, used;
    bool resident[MAX_KEYS], refused[MAX_KEYS];
} cache;

static bool may_evict(void *ctx, uint32_t key)
{
    const cache *c = ctx;
    assert_true(c->resident[key]);
    return !c->refused[key];
}

static void cache_open(cache *c, const char *policy, uint32_t keys, uint32_t experts,
                       uint32_t capacity)
{
    memset(c, 0, sizeof *c);
    c->policy = mp_policy_find(policy);
    assert_non_null(c->policy);
    c->capacity = capacity;
    c->state = malloc(c->policy->state_bytes(keys, experts));
    assert_non_null(c->state);
    memset(c->state, 0xA5, c->policy->state_bytes(keys, experts)); /* init may assume nothing */
    c->policy->init(c->state, keys, experts);
}

static void cache_close(cache *c)
{
    free(c->state);
}

/* Routes a set of distinct keys; returns the misses, and the victims in order. */
static uint32_t cache_route(cache *c, const uint32_t *set, uint32_t n, uint32_t *victims,
                            uint32_t *n_victims)
{
    bool was_refused[MAX_SET];
    uint32_t misses = 0;
    *n_victims = 0;
    for (uint32_t i = 0; i < n; i++) {
        was_refused[i] = c->refused[set[i]];
        c->refused[set[i]] = true;
        misses += !c->resident[set[i]];
    }
    if (c->policy->route)
        c->policy->route(c->state, set, n);
    while (c->used + misses > c->capacity) {
        uint32_t key = c->policy->victim(c->state, may_evict, c);
        assert_int_not_equal(key, MP_NO_KEY);
        c->policy->remove(c->state, key);
        c->resident[key] = false;
        c->used--;
        victims[(*n_victims)++] = key;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (c->resident[set[i]])
            c->policy->touch(c->state, set[i]);
        else
            c->policy->insert(c->state, set[i]);
        c->resident[set[i]] = true;
        c->refused[set[i]] = was_refused[i];
    }
    c->used += misses;
    return misses;
}

/* ---- Random traces ----------------------------------------------------------------------- */

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

enum { SHAPE_UNIFORM, SHAPE_SKEWED, SHAPE_SCAN, SHAPE_PHASES, SHAPES };

static uint32_t draw_key(int shape, uint32_t keys, uint32_t step)
{
    switch (shape) {
    case SHAPE_SKEWED: return below(below(below(keys) + 1) + 1);
    case SHAPE_SCAN: return below(8) ? (step * 3 + below(3)) % keys : below(keys);
    case SHAPE_PHASES:
        return below(10) ? (step / 100 * 7 + below(keys / 4 + 1)) % keys : below(keys);
    default: return below(keys);
    }
}

static bool in_set(const uint32_t *set, uint32_t n, uint32_t key)
{
    for (uint32_t i = 0; i < n; i++)
        if (set[i] == key)
            return true;
    return false;
}

static uint32_t draw_set(int shape, uint32_t keys, uint32_t step, uint32_t most, uint32_t *set)
{
    uint32_t n = 0, wanted = 1 + below(most);
    for (uint32_t tries = 0; n < wanted && tries < 4 * wanted; tries++) {
        uint32_t key = draw_key(shape, keys, step);
        if (!in_set(set, n, key))
            set[n++] = key;
    }
    return n;
}

/* Pins or unpins a resident key, leaving `room` slots that can be evicted. */
static void move_a_pin(cache *c, naive_cache *m, uint32_t room)
{
    uint32_t pins = 0, key;
    do
        key = below(m->keys);
    while (!m->here[key]);
    for (uint32_t k = 0; k < m->keys; k++)
        pins += m->here[k] && m->refused[k];
    if (m->refused[key] || pins + room < c->capacity)
        c->refused[key] = m->refused[key] = !m->refused[key];
}

static void compare_on_random_trace(const char *policy, int shape, uint32_t layers,
                                    uint32_t experts, uint32_t capacity, uint32_t most)
{
    static cache c;
    static naive_cache m;
    uint32_t set[MAX_SET], victims[MAX_SET], expected[MAX_SET], n_victims, n_expected;
    cache_open(&c, policy, layers * experts, experts, capacity);
    naive_open(&m, policy, layers * experts, experts);
    uint32_t steps =
        strcmp(policy, "cycle") ? 1500 : 400; /* takes all pairs of experts each time */
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t n = draw_set(shape, experts, step / layers, most, set);
        uint32_t layer = below(16) ? step % layers : below(layers); /* as a rule in turn */
        for (uint32_t i = 0; i < n; i++)
            set[i] += layer * experts;
        uint32_t misses = cache_route(&c, set, n, victims, &n_victims);
        assert_int_equal(misses, naive_serve(&m, capacity, set, n, expected, &n_expected));
        assert_int_equal(n_victims, n_expected);
        assert_memory_equal(victims, expected, n_victims * sizeof *victims);
        if (below(4) == 0)
            move_a_pin(&c, &m, most);
    }
    cache_close(&c);
}

static void compare_on_many_shapes(const char *policy)
{
    static const uint32_t key_counts[] = {1, 2, 3, 8, 32, 97, 768};
    random_state = 20240607;
    for (size_t i = 0; i < sizeof key_counts / sizeof *key_counts; i++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (int round = 0; round < 2; round++) {
                uint32_t keys = key_counts[i];
                uint32_t capacity = 1 + below(keys < 200 ? keys : 200);
                uint32_t most = 1 + below(capacity < MAX_SET ? capacity : MAX_SET);
                compare_on_random_trace(policy, shape, 1, keys, capacity, most);
            }
    static const uint32_t stacks[][2] = {{2, 3}, {12, 8}, {5, 200}, {24, 32}}; /* layers, experts */
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        for (int shape = 0; shape < SHAPES; shape++) {
            uint32_t layers = stacks[i][0], experts = stacks[i][1];
            uint32_t most = 1 + below(experts < 12 ? experts : 12);
            uint32_t capacity = most + below(layers * experts - most + 1);
            compare_on_random_trace(policy, shape, layers, experts, capacity, most);
        }
}

static void test_policy_evicts_what_the_definition_says(void **state)
{
    (void)state;
    for (uint32_t p = 0; mp_policy_name(p); p++)
        compare_on_many_shapes(mp_policy_name(p));
}

/* Slots also leave without being victims (a shrinking pool, a failed load), victims are asked for
 * and then kept, and any subset of the keys may be refused, all of them included. */
static void compare_under_any_calls(const char *policy, uint32_t keys, uint32_t experts)
{
    static cache c;
    static naive_cache m;
    cache_open(&c, policy, keys, experts, keys);
    naive_open(&m, policy, keys, experts);
    for (uint32_t step = 0; step < 4000; step++) {
        uint32_t key = below(keys);
        if (below(3) == 0) { /* whatever then comes of it */
            naive_cache_route(&m, &key, 1);
            if (c.policy->route)
                c.policy->route(c.state, &key, 1);
        }
        if (m.here[key] && below(3) == 0) {
            c.policy->remove(c.state, key);
            naive_remove(&m, key);
        } else {
            (m.here[key] ? c.policy->touch : c.policy->insert)(c.state, key);
            (m.here[key] ? naive_touch : naive_insert)(&m, key);
        }
        c.resident[key] = m.here[key];
        uint32_t odds = 1 + below(4);
        for (uint32_t k = 0; k < keys; k++)
            c.refused[k] = m.refused[k] = below(4) < odds;
        uint32_t worst = m.resident ? naive_victim(&m) : NAIVE_NONE;
        assert_int_equal(c.policy->victim(c.state, may_evict, &c), worst);
        assert_int_equal(c.policy->victim(c.state, may_evict, &c), worst);
    }
    cache_close(&c);
}

static void test_policy_ranks_right_after_any_calls(void **state)
{
    (void)state;
    random_state = 77;
    for (uint32_t keys = 1; keys <= 12; keys++)
        for (uint32_t p = 0; mp_policy_name(p); p++)
            compare_under_any_calls(mp_policy_name(p), keys, keys % 3 ? keys : 3);
}

/* The states of a per-layer pool lie side by side and must not reach into each other. */
static void test_policy_scopes_are_independent(void **state)
{
    (void)state;
    enum { LAYERS = 5, EXPERTS = 7, SLOTS = 3 };
    for (uint32_t p = 0; mp_policy_name(p); p++) {
        static cache c[LAYERS];
        static naive_cache m[LAYERS];
        const mp_policy *policy = mp_policy_find(mp_policy_name(p));
        uint64_t bytes = policy->state_bytes(EXPERTS, EXPERTS);
        assert_int_equal(bytes % 8, 0);
        unsigned char *block = malloc(LAYERS * bytes);
        assert_non_null(block);
        memset(c, 0, sizeof c);
        for (uint32_t l = 0; l < LAYERS; l++) {
            c[l].policy = policy;
            c[l].state = block + l * bytes;
            c[l].capacity = SLOTS;
            naive_open(&m[l], policy->name, EXPERTS, EXPERTS);
            policy->init(c[l].state, EXPERTS, EXPERTS);
        }
        for (uint32_t step = 0; step < 5000; step++) {
            uint32_t set[MAX_SET], victims[MAX_SET], expected[MAX_SET], nv, ne, l = below(LAYERS);
            uint32_t n = draw_set(SHAPE_SKEWED, EXPERTS, step, SLOTS, set);
            assert_int_equal(cache_route(&c[l], set, n, victims, &nv),
                             naive_serve(&m[l], SLOTS, set, n, expected, &ne));
            assert_int_equal(nv, ne);
            assert_memory_equal(victims, expected, nv * sizeof *victims);
        }
        free(block);
    }
}

static bool is_nineteen(void *ctx, uint32_t key)
{
    (void)ctx;
    return key == 19;
}

static bool is_any(void *ctx, uint32_t key)
{
    (void)ctx;
    (void)key;
    return true;
}

/* All of S3-FIFO's main queue refused, and nothing in the small one that would not have to go there
 * first: that is then the victim. */
static void test_policy_s3fifo_finds_the_only_key_that_may_go(void **state)
{
    (void)state;
    const mp_policy *policy = mp_policy_find("s3fifo");
    void *memory = malloc(policy->state_bytes(20, 20));
    assert_non_null(memory);
    policy->init(memory, 20, 20);
    for (uint32_t key = 0; key < 20; key++)
        policy->insert(memory, key);
    for (uint32_t key = 0; key < 19; key++) {
        policy->touch(memory, key);
        policy->touch(memory, key);
    }
    assert_int_equal(policy->victim(memory, is_any, NULL), 0); /* and all but 19 have moved */
    policy->touch(memory, 19);
    policy->touch(memory, 19);
    assert_int_equal(policy->victim(memory, is_nineteen, NULL), 19);
    free(memory);
}

static void test_policy_is_found_by_name(void **state)
{
    (void)state;
    assert_string_equal(mp_policy_find(NULL)->name, "lru");
    static const char *const names[] = {"lru",    "lfu",  "lfu-aged", "sieve",
                                        "s3fifo", "lirs", "finemoe",  "cycle"};
    uint32_t n = sizeof names / sizeof *names;
    for (uint32_t i = 0; i < n; i++) {
        assert_string_equal(mp_policy_find(names[i])->name, names[i]);
        assert_string_equal(mp_policy_name(i), names[i]);
    }
    assert_null(mp_policy_name(n));
    assert_null(mp_policy_find(""));
    assert_null(mp_policy_find("LRU"));
    assert_null(mp_policy_find("lru2"));
}

/* ---- A real trace ------------------------------------------------------------------------ */

#define TRACE_LAYERS 24
#define TRACE_EXPERTS 32
#define TRACE_TOP_K 4
#define TRACE_KEYS (TRACE_LAYERS * TRACE_EXPERTS)

static const uint32_t capacities[3] = {96, 192, 384};

typedef struct rows {
    uint8_t *ids; /* [n][TRACE_LAYERS][TRACE_TOP_K] */
    size_t n;
} rows;

static bool rows_load(rows *r, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    r->n = bytes / (TRACE_LAYERS * TRACE_TOP_K);
    r->ids = malloc(bytes);
    assert_non_null(r->ids);
    assert_int_equal(fread(r->ids, 1, bytes, file), bytes);
    assert_int_equal(r->n * TRACE_LAYERS * TRACE_TOP_K, bytes);
    fclose(file);
    return true;
}

/* Set number i of `per_set` keys: 4 when a layer's routed set comes at once, 1 when its experts
 * come one after another. */
static void rows_set(const rows *r, size_t i, uint32_t per_set, uint32_t *set)
{
    for (uint32_t k = 0; k < per_set; k++) {
        size_t at = i * per_set + k;
        set[k] = (uint32_t)(at / TRACE_TOP_K % TRACE_LAYERS) * TRACE_EXPERTS + r->ids[at];
    }
}

static size_t rows_sets(const rows *r, uint32_t per_set)
{
    return r->n * TRACE_LAYERS * TRACE_TOP_K / per_set;
}

static uint64_t policy_misses(const rows *r, const char *policy, uint32_t capacity,
                              uint32_t per_set)
{
    static cache c;
    uint32_t set[TRACE_TOP_K], victims[TRACE_TOP_K], n_victims;
    uint64_t misses = 0;
    cache_open(&c, policy, TRACE_KEYS, TRACE_EXPERTS, capacity);
    for (size_t i = 0; i < rows_sets(r, per_set); i++) {
        rows_set(r, i, per_set, set);
        misses += cache_route(&c, set, per_set, victims, &n_victims);
    }
    cache_close(&c);
    return misses;
}

static uint64_t naive_misses(const rows *r, const char *policy, uint32_t capacity, uint32_t per_set)
{
    static naive_cache m;
    uint32_t set[TRACE_TOP_K], victims[TRACE_TOP_K], n_victims;
    uint64_t misses = 0;
    naive_open(&m, policy, TRACE_KEYS, TRACE_EXPERTS);
    for (size_t i = 0; i < rows_sets(r, per_set); i++) {
        rows_set(r, i, per_set, set);
        misses += naive_serve(&m, capacity, set, per_set, victims, &n_victims);
    }
    return misses;
}

/* LRU misses of every capacity in one pass (Mattson's stack): a key hits in every cache larger
 * than its distance, the number of keys used more recently, measured before the set moves. */
static void reuse_distances(const rows *r, uint32_t per_set, uint64_t misses[3])
{
    uint16_t stack[TRACE_KEYS];
    uint32_t depth = 0, set[TRACE_TOP_K];
    memset(misses, 0, 3 * sizeof *misses);
    for (size_t i = 0; i < rows_sets(r, per_set); i++) {
        rows_set(r, i, per_set, set);
        uint32_t found[TRACE_TOP_K];
        for (uint32_t k = 0; k < per_set; k++) {
            for (found[k] = 0; found[k] < depth && stack[found[k]] != set[k]; found[k]++)
                ;
            uint32_t distance = found[k] < depth ? found[k] : UINT32_MAX;
            for (int c = 0; c < 3; c++)
                misses[c] += distance >= capacities[c];
        }
        for (uint32_t k = 0; k < per_set; k++) {
            uint32_t at = 0;
            while (at < depth && stack[at] != set[k])
                at++;
            depth += at == depth;
            memmove(stack + 1, stack, at * sizeof *stack);
            stack[0] = (uint16_t)set[k];
        }
    }
}

static void print_misses(const char *what, const uint64_t misses[3], const rows *r)
{
    double percent = 100.0 / (double)(r->n * TRACE_LAYERS * TRACE_TOP_K);
    print_message("%s: %.2f / %.2f / %.2f %% (%llu / %llu / %llu) misses at 96 / 192 / 384\n", what,
                  (double)misses[0] * percent, (double)misses[1] * percent,
                  (double)misses[2] * percent, (unsigned long long)misses[0],
                  (unsigned long long)misses[1], (unsigned long long)misses[2]);
}

static void test_policy_lru_counts_a_real_trace(void **state)
{
    (void)state;
    rows r;
    assert_true(rows_load(&r, "tests/data/gpt-oss-20b-20requests.u8"));
    assert_int_equal(r.n, 6026);
    /* Counted outside this project's code: an ordered dictionary. */
    static const uint64_t known[2][3] = {{369199, 213957, 47561}, {315254, 213282, 47506}};
    for (int sets = 0; sets < 2; sets++) {
        uint32_t per_set = sets ? TRACE_TOP_K : 1;
        uint64_t misses[3], distances[3];
        reuse_distances(&r, per_set, distances);
        for (int c = 0; c < 3; c++) {
            misses[c] = policy_misses(&r, "lru", capacities[c], per_set);
            assert_int_equal(misses[c], known[sets][c]);
            assert_int_equal(misses[c], distances[c]);
        }
        print_misses(sets ? "lru, routed sets" : "lru, one by one", misses, &r);
    }
    free(r.ids);
}

static void test_policy_lfu_counts_a_real_trace(void **state)
{
    (void)state;
    rows r;
    assert_true(rows_load(&r, "tests/data/gpt-oss-20b-20requests.u8"));
    /* Counted outside this project's code: a dictionary and a heap. */
    static const uint64_t known[2][3] = {{546560, 359874, 175081}, {539115, 360425, 176127}};
    for (int sets = 0; sets < 2; sets++) {
        uint32_t per_set = sets ? TRACE_TOP_K : 1;
        uint64_t misses[3];
        for (int c = 0; c < 3; c++) {
            misses[c] = policy_misses(&r, "lfu", capacities[c], per_set);
            assert_int_equal(misses[c], known[sets][c]);
        }
        print_misses(sets ? "lfu, routed sets" : "lfu, one by one", misses, &r);
    }
    free(r.ids);
}

static void test_policy_counts_a_real_trace_by_its_definition(void **state)
{
    (void)state;
    rows r;
    assert_true(rows_load(&r, "tests/data/gpt-oss-20b-20requests.u8"));
    for (uint32_t p = 0; mp_policy_name(p); p++) {
        r.n = strcmp(mp_policy_name(p), "cycle") ? 1000 : 200; /* every visit takes all pairs */
        r.n = slow_here() ? r.n / 5 : r.n;
        for (uint32_t per_set = 1; per_set <= TRACE_TOP_K; per_set += TRACE_TOP_K - 1)
            for (int c = 0; c < 3; c++)
                assert_int_equal(policy_misses(&r, mp_policy_name(p), capacities[c], per_set),
                                 naive_misses(&r, mp_policy_name(p), capacities[c], per_set));
    }
    free(r.ids);
}

static int64_t per_mille(uint64_t misses, const rows *r)
{
    uint64_t accesses = r->n * TRACE_LAYERS * TRACE_TOP_K;
    return (int64_t)((misses * 1000 + accesses / 2) / accesses);
}

/* The whole published trace: the percentages that came with it, for experts one by one. */
static void test_policy_counts_the_whole_trace(void **state)
{
    (void)state;
    static const int64_t published[2][3] = {{652, 388, 91}, {938, 616, 320}};
    static const char *const names[2] = {"lru", "lfu"};
    slow_skip_sanitized(__func__);
    const char *shared = getenv("MOEPAGE_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/traces/gpt-oss-20b/experts.u8", shared ? shared : "../shared");
    rows r;
    if (!rows_load(&r, path)) {
        print_message("test_policy_counts_the_whole_trace: skipped, %s is not here "
                      "(set MOEPAGE_SHARED)\n",
                      path);
        skip();
    }
    uint64_t misses[3], distances[3];
    for (int p = 0; p < 2; p++) {
        for (int c = 0; c < 3; c++) {
            misses[c] = policy_misses(&r, names[p], capacities[c], 1);
            assert_int_equal(per_mille(misses[c], &r), published[p][c]);
        }
        print_misses(p ? "whole trace, lfu, one by one" : "whole trace, lru, one by one", misses,
                     &r);
    }
    reuse_distances(&r, TRACE_TOP_K, distances);
    for (int c = 0; c < 3; c++) {
        misses[c] = policy_misses(&r, "lru", capacities[c], TRACE_TOP_K);
        assert_int_equal(misses[c], distances[c]);
    }
    print_misses("whole trace, lru, routed sets", misses, &r);
    assert_in_range(per_mille(misses[0], &r), 555, 565);
    free(r.ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_is_found_by_name),
        cmocka_unit_test(test_policy_evicts_what_the_definition_says),
        cmocka_unit_test(test_policy_ranks_right_after_any_calls),
        cmocka_unit_test(test_policy_s3fifo_finds_the_only_key_that_may_go),
        cmocka_unit_test(test_policy_scopes_are_independent),
        cmocka_unit_test(test_policy_lru_counts_a_real_trace),
        cmocka_unit_test(test_policy_lfu_counts_a_real_trace),
        cmocka_unit_test(test_policy_counts_a_real_trace_by_its_definition),
        cmocka_unit_test(test_policy_counts_the_whole_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
