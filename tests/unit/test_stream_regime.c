/* Layers that stream: what they keep, what comes through the window, and when.
 *
 * Layers are routed in turn, step after step, and the test waits for what is under way at the points
 * where a caller would compute. What must then have been loaded follows from the definition: every
 * layer keeps the same number of experts, the largest for which two layers' worth of the others
 * (with up to three layers: one's) fits beside them. */
#include <stdlib.h>
#include <string.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "session/inside.h"
#include "testing.h"

#define MAX_EXPERTS 32

static bank_model bank;
static pool_rig rig;

typedef struct shape {
    uint32_t layers, experts, slots;
} shape;

static void open_bank(const shape *s)
{
    bank_shape of = {.layers = s->layers,
                     .experts = s->experts,
                     .top_k = s->experts,
                     .hidden = 2,
                     .intermediate = 2,
                     .callback = true,
                     .seed = 31};
    bank_model_open(&bank, &of);
}

static void open_rig(const shape *s, const pool_rig_config *more)
{
    pool_rig_config config = more ? *more : (pool_rig_config){0};
    config.slots = s->slots;
    open_bank(s);
    pool_rig_open(&rig, &bank, &config);
}

static void close_rig(void)
{
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static moepage_session *open_session(uint32_t regime)
{
    return pool_rig_session(&rig, &(moepage_session_config){.regime = regime, .max_tokens = 1});
}

static void close_session(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
}

/* Routes `n` experts from `first` on, and lets everything land before the layer is retired, and
 * after. */
static void run_layer(moepage_session *session, uint32_t layer, uint32_t first, uint32_t n)
{
    int32_t ids[MAX_EXPERTS];
    moepage_plan plan = {.struct_size = sizeof plan};
    for (uint32_t e = 0; e < n; e++)
        ids[e] = (int32_t)((first + e) % bank.shape.experts);
    assert_int_equal(pool_rig_route(session, layer, ids, n, &plan), MOEPAGE_OK);
    pool_rig_wait(&rig);
    for (uint32_t i = 0; i < plan.n_experts; i++)
        assert_true(pool_rig_holds(&rig, layer, &plan.experts[i]));
    while (plan.group + 1 < plan.n_groups)
        assert_int_equal(moepage_session_next_group(session, layer, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    pool_rig_wait(&rig);
}

static moepage_session_stats run_step(moepage_session *session, uint32_t first, uint32_t n)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < bank.shape.layers; l++)
        run_layer(session, l, first, n);
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    return stats;
}

static moepage_session_stats run_dense(moepage_session *session, uint32_t steps)
{
    moepage_session_stats stats = {0};
    while (steps-- > 0)
        stats = run_step(session, 0, bank.shape.experts);
    return stats;
}

/* By trying: how many of its experts a layer of this shape keeps. */
static uint32_t keeps(const shape *s, uint32_t sessions)
{
    uint32_t keep = 0, at_once = s->layers > 3 * sessions ? 2 * sessions : sessions;
    while (at_once < s->layers && keep < s->experts &&
           (keep + 1) * s->layers + (s->experts - keep - 1) * at_once <= s->slots)
        keep++;
    return keep;
}

/* ---- dense layers in turn ---- */

/* What a step at rest costs. */
static void expect_steady(moepage_session *session, const shape *s, uint32_t keep)
{
    uint64_t all = (uint64_t)s->layers * s->experts;
    uint64_t streamed = (uint64_t)s->layers * (s->experts - keep);
    moepage_expert_pool_info before = pool_rig_info(&rig);
    moepage_session_stats stats = run_dense(session, 1);
    moepage_expert_pool_info after = pool_rig_info(&rig);
    assert_int_equal(stats.hits, all);
    assert_int_equal(stats.misses + stats.late, 0);
    assert_int_equal(stats.streamed_layers, s->layers);
    assert_int_equal(stats.regime_changes, 0);
    assert_int_equal(after.demand_bytes - before.demand_bytes, 0);
    assert_int_equal(after.prefetch_bytes - before.prefetch_bytes, streamed * bank.expert_bytes);
    assert_int_equal(after.prefetch_useful - before.prefetch_useful, streamed);
    assert_int_equal(after.evictions - before.evictions, streamed);
    assert_int_equal(after.prefetch_wasted - before.prefetch_wasted, 0);
    assert_int_equal(after.prefetch_refused - before.prefetch_refused, 0);
}

static const shape dense_shapes[] = {
    {6, 8, 16}, {6, 8, 20}, {6, 8, 28}, {6, 8, 33}, {6, 8, 40}, {6, 8, 47}, {12, 4, 9},
    {12, 4, 8}, {4, 8, 17}, {4, 8, 24}, {3, 8, 9},  {3, 8, 16}, {2, 8, 9},  {2, 8, 15},
};

static void test_stream_regime_brings_each_layer_before_its_turn(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof dense_shapes / sizeof *dense_shapes; i++) {
        const shape *s = &dense_shapes[i];
        open_rig(s, NULL);
        moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
        run_dense(session, 4);
        expect_steady(session, s, keeps(s, 1));
        close_session(session);
        close_rig();
    }
}

/* The same turns, cached: while a layer's worth is missing, whatever comes next has just gone. */
static void test_stream_regime_is_needed_where_recency_finds_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof dense_shapes / sizeof *dense_shapes; i++) {
        const shape *s = &dense_shapes[i];
        open_rig(s, NULL);
        moepage_session *session = open_session(MOEPAGE_REGIME_CACHE);
        moepage_session_stats stats = run_dense(session, 4);
        uint32_t lacking = s->layers * s->experts - s->slots;
        uint32_t missed = lacking < s->experts ? lacking : s->experts;
        assert_int_equal(stats.misses, s->layers * missed);
        assert_int_equal(stats.streamed_layers, 0);
        assert_int_equal(pool_rig_info(&rig).prefetch_bytes, 0);
        close_session(session);
        close_rig();
    }
}

/* Which ones are kept does not change, and every layer keeps as many. */
static void test_stream_regime_keeps_the_same_experts_of_every_layer(void **state)
{
    (void)state;
    shape s = {6, 8, 28};
    uint32_t before[6 * 8];
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 3);
    for (uint32_t key = 0; key < 48; key++)
        before[key] = atomic_load(&bank.loads[key]);
    run_dense(session, 5);
    for (uint32_t l = 0; l < 6; l++) {
        uint32_t kept = 0;
        for (uint32_t e = 0; e < 8; e++) {
            uint32_t loads = atomic_load(&bank.loads[l * 8 + e]) - before[l * 8 + e];
            assert_true(loads == 0 || loads == 5);
            kept += loads == 0;
        }
        assert_int_equal(kept, 3);
    }
    close_session(session);
    close_rig();
}

static void test_stream_regime_holds_on_two_devices(void **state)
{
    (void)state;
    shape s = {8, 8, 40}, half = {8, 4, 20};
    open_rig(&s, &(pool_rig_config){.n_devices = 2});
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 4);
    expect_steady(session, &s, 2 * keeps(&half, 1));
    close_session(session);
    close_rig();
}

/* Two sessions, a layer apart: each has its part of the window. */
static void test_stream_regime_serves_two_sessions(void **state)
{
    (void)state;
    shape s = {8, 4, 22};
    open_rig(&s, NULL);
    moepage_session *a = open_session(MOEPAGE_REGIME_STREAM);
    moepage_session *b = open_session(MOEPAGE_REGIME_STREAM);
    uint64_t bytes = 0;
    for (uint32_t step = 0; step < 6; step++) {
        moepage_session_stats stats = {.struct_size = sizeof stats};
        uint64_t before = pool_rig_info(&rig).demand_bytes;
        pool_rig_begin(a, 1, MOEPAGE_PHASE_DECODE);
        pool_rig_begin(b, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < 8; l++) {
            run_layer(a, l, 0, 4);
            run_layer(b, (l + 4) % 8, 0, 4);
        }
        assert_int_equal(moepage_session_end(a, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_end(b, &stats), MOEPAGE_OK);
        assert_int_equal(stats.streamed_layers, 8);
        bytes = pool_rig_info(&rig).demand_bytes - before;
    }
    assert_int_equal(keeps(&s, 2), 1);
    assert_int_equal(bytes, 0);
    for (uint32_t l = 0; l < 8; l++)
        assert_int_equal(rig.pool->cache->shards[0].kept[l], 1);
    close_session(a);
    run_dense(b, 3);
    expect_steady(b, &s, keeps(&s, 1));
    close_session(b);
    close_rig();
}

/* ---- sets ---- */

/* Half of each layer's experts, always the same: the others are never touched. */
static void test_stream_regime_brings_the_set_of_the_last_turn(void **state)
{
    (void)state;
    shape s = {8, 8, 24};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    moepage_session_stats stats = {0};
    for (uint32_t step = 0; step < 4; step++)
        stats = run_step(session, 2, 4);
    assert_int_equal(stats.hits, 8 * 4);
    moepage_expert_pool_info before = pool_rig_info(&rig);
    run_step(session, 2, 4);
    uint64_t moved = pool_rig_info(&rig).prefetch_bytes - before.prefetch_bytes;
    assert_int_equal(moved, (uint64_t)8 * (4 - keeps(&s, 1)) * bank.expert_bytes);
    for (uint32_t key = 0; key < 64; key++)
        assert_int_equal(atomic_load(&bank.loads[key]) > 0, key % 8 >= 2 && key % 8 < 6);
    close_session(session);
    close_rig();
}

/* A batch that uses nearly all of one layer, but not the same, uses nearly all of the next. */
static void test_stream_regime_brings_the_rest_of_dense_layers_too(void **state)
{
    (void)state;
    shape s = {6, 8, 20};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    for (uint32_t step = 0; step < 12; step++) {
        moepage_session_stats stats = run_step(session, step, 7);
        assert_true(step < 3 || stats.misses + stats.late == 0);
    }
    close_session(session);
    close_rig();
}

/* What was brought for nothing goes first, what is kept stays. */
static void test_stream_regime_drops_wrong_guesses_first(void **state)
{
    (void)state;
    shape s = {8, 8, 24};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    for (uint32_t step = 0; step < 4; step++)
        run_step(session, 0, 4);
    uint64_t wasted = pool_rig_info(&rig).prefetch_wasted;
    moepage_session_stats stats =
        run_step(session, 4, 4); /* other experts: all guesses are wrong */
    assert_int_equal(stats.misses, 8 * 4);
    stats = run_step(session, 4, 4);
    stats = run_step(session, 4, 4);
    assert_int_equal(stats.misses + stats.late, 0);
    assert_int_equal(pool_rig_info(&rig).prefetch_wasted - wasted, 8 * (4 - keeps(&s, 1)));
    for (uint32_t l = 0; l < 8; l++)
        assert_int_equal(rig.pool->cache->shards[0].kept[l], keeps(&s, 1));
    close_session(session);
    close_rig();
}

/* Counts a layer's set by the definition: all counts are halved when they add up to 16 for each
 * expert. */
static void count_uses(uint32_t *uses, uint32_t experts, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sum = 0;
        uses[ids[i]]++;
        for (uint32_t e = 0; e < experts; e++)
            sum += uses[e];
        for (uint32_t e = 0; e < experts && sum >= 16 * experts; e++)
            uses[e] /= 2;
    }
}

static bool is_kept(uint32_t key)
{
    uint32_t slot = atomic_load(&rig.pool->cache->entry[key]);
    return slot != MP_NO_SLOT && rig.pool->cache->shards[0].slots[slot].place == MP_PLACE_KEPT;
}

/* Of a layer's turn, no expert that is not kept has been used more than any that is, but for the one
 * use by which they differ while the turn is counted. */
static void expect_most_used(uint64_t seed, const uint32_t *uses, uint32_t layer,
                             const int32_t *ids, uint32_t n, uint32_t keep)
{
    uint32_t least = UINT32_MAX, kept = 0, experts = bank.shape.experts;
    pthread_mutex_lock(&rig.pool->lock);
    mp_cache_drain_touches(rig.pool->cache);
    pthread_mutex_unlock(&rig.pool->lock);
    for (uint32_t e = 0; e < experts; e++) {
        if (!is_kept(layer * experts + e))
            continue;
        kept++;
        least = uses[e] < least ? uses[e] : least;
    }
    assert_in_range(kept, 0, keep);
    for (uint32_t i = 0; i < n && kept == keep; i++)
        if (!is_kept(layer * experts + (uint32_t)ids[i]) && uses[ids[i]] > least + 1)
            fail_msg("seed %llu: expert %d of layer %u was used %u times and is not kept, one used "
                     "%u times is",
                     (unsigned long long)seed, ids[i], layer, uses[ids[i]], least);
}

/* Each layer prefers some of its experts, and others after a while. */
static void test_stream_regime_keeps_what_is_used_most(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint64_t random = seed;
        shape s = {6, 16, 46};
        uint32_t uses[6][16] = {0}, kept_favourites = 0, keep = keeps(&s, 1);
        open_rig(&s, NULL);
        moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
        for (uint32_t step = 0; step < 300; step++) {
            pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
            for (uint32_t l = 0; l < 6; l++) {
                int32_t ids[16];
                uint32_t n = 0, favourite = step < 150 ? l : l + 8;
                for (uint32_t e = 0; e < 16; e++)
                    if (bank_below(&random, 8) < ((e + 16 - favourite) % 16 < keep ? 6 : 1))
                        ids[n++] = (int32_t)e;
                if (n == 0)
                    ids[n++] = 0;
                assert_int_equal(pool_rig_route(session, l, ids, n, NULL), MOEPAGE_OK);
                pool_rig_wait(&rig);
                assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
                pool_rig_wait(&rig);
                count_uses(uses[l], 16, ids, n);
                expect_most_used(seed, uses[l], l, ids, n, keep);
                for (uint32_t i = 0; i < keep && step % 150 == 149; i++)
                    kept_favourites += is_kept(l * 16 + (favourite + i) % 16);
            }
            assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        }
        assert_int_equal(kept_favourites, 2 * 6 * keep);
        close_session(session);
        close_rig();
    }
}

/* ---- where there is nothing to stream ---- */

static void expect_no_loads(moepage_session *session, uint32_t n)
{
    uint64_t calls = atomic_load(&bank.calls);
    moepage_expert_pool_info before = pool_rig_info(&rig);
    for (uint32_t step = 0; step < 3; step++)
        assert_int_equal(run_step(session, 0, n).misses, 0);
    moepage_expert_pool_info after = pool_rig_info(&rig);
    assert_int_equal(atomic_load(&bank.calls), calls);
    assert_int_equal(after.evictions, before.evictions);
    assert_int_equal(after.prefetch_refused, before.prefetch_refused);
}

static void test_stream_regime_leaves_a_whole_model_alone(void **state)
{
    (void)state;
    shape s = {4, 8, 32};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 1);
    expect_no_loads(session, 8);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.streamed_layers + stats.regime_changes + stats.hint_experts, 0);
    close_session(session);
    close_rig();
}

/* The pool is smaller than the model, not than what is used of it. */
static void test_stream_regime_loads_nothing_where_nothing_misses(void **state)
{
    (void)state;
    shape s = {4, 8, 29};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    for (uint32_t step = 0; step < 3; step++)
        run_step(session, 0, 7); /* nearly all of a layer, so that all of the next may be wanted */
    expect_no_loads(session, 7);
    close_session(session);
    close_rig();
}

/* Slots of their own: waves find as many experts as there are, whatever the regime. */
static void test_stream_regime_does_not_touch_layers_with_slots_of_their_own(void **state)
{
    (void)state;
    shape s = {3, 16, 24};
    moepage_session_stats of[2];
    for (uint32_t i = 0; i < 2; i++) {
        open_rig(&s, &(pool_rig_config){.scope = MOEPAGE_SCOPE_LAYER});
        moepage_session *session = open_session(i ? MOEPAGE_REGIME_STREAM : MOEPAGE_REGIME_CACHE);
        of[i] = run_dense(session, 4);
        close_session(session);
        close_rig();
    }
    assert_int_equal(of[0].hits, 3 * 8);
    assert_int_equal(of[1].hits, of[0].hits);
    assert_int_equal(of[1].groups, of[0].groups);
    assert_int_equal(of[1].streamed_layers, 0);
}

/* ---- changes of size, pins, the other regime ---- */

static void resize(uint64_t slots)
{
    assert_int_equal(moepage_split_set(rig.pool, NULL, slots, 0, NULL), MOEPAGE_OK);
}

static void test_stream_regime_follows_the_pools_size(void **state)
{
    (void)state;
    shape s = {6, 8, 40};
    static const uint32_t sizes[] = {28, 16, 9, 5, 33, 40, 20};
    open_rig(&s, &(pool_rig_config){.arena_slots = 48});
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 3);
    for (uint32_t i = 0; i < 7; i++) {
        resize(s.slots = sizes[i]);
        run_dense(session, 3);
        pool_rig_check(&rig);
        if (s.slots >= s.experts)
            expect_steady(session, &s, keeps(&s, 1));
    }
    resize(48);
    run_dense(session, 1);
    expect_no_loads(session, 8);
    assert_int_equal(run_dense(session, 1).streamed_layers, 0);
    resize(28);
    s.slots = 28;
    run_dense(session, 3);
    expect_steady(session, &s, keeps(&s, 1));
    close_session(session);
    close_rig();
}

static void test_stream_regime_keeps_what_is_pinned(void **state)
{
    (void)state;
    shape s = {6, 8, 28};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 3);
    for (uint32_t e = 0; e < 6; e++)
        assert_int_equal(moepage_expert_pool_pin(rig.pool, 2, e), MOEPAGE_OK);
    run_dense(session, 3);
    uint32_t loads[6];
    for (uint32_t e = 0; e < 6; e++)
        loads[e] = atomic_load(&bank.loads[2 * 8 + e]);
    moepage_session_stats stats = run_dense(session, 2);
    assert_int_equal(stats.misses + stats.late, 0);
    for (uint32_t e = 0; e < 6; e++) {
        uint32_t slot = atomic_load(&rig.pool->cache->entry[2 * 8 + e]);
        assert_int_equal(rig.pool->cache->shards[0].slots[slot].place, MP_PLACE_KEPT);
        assert_int_equal(atomic_load(&bank.loads[2 * 8 + e]), loads[e]);
        assert_int_equal(moepage_expert_pool_unpin(rig.pool, 2, e), MOEPAGE_OK);
    }
    run_dense(session, 3);
    expect_steady(session, &s, keeps(&s, 1));
    close_session(session);
    close_rig();
}

/* Other sessions' experts take the place of what a streaming one has left in the window, before they
 * take that of what it has kept: of each layer the first. */
static void test_stream_regime_leaves_nothing_behind(void **state)
{
    (void)state;
    shape s = {6, 8, 28};
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    run_dense(session, 3);
    close_session(session);
    assert_true(rig.pool->cache->shards[0].scopes[0].transients > 0);
    session = open_session(MOEPAGE_REGIME_CACHE);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 1; l < 5; l++) /* 8 experts; the window has 5 that are past and 5 ahead */
        run_layer(session, l, 6, 2);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    expect_no_loads(session, keeps(&s, 1));
    close_session(session);
    close_rig();
}

/* Four layers stream, the other four do not: neither takes what the other has. */
static void test_stream_regime_lives_beside_the_other(void **state)
{
    (void)state;
    shape s = {8, 8, 40};
    uint32_t before[64], keep = keeps(&s, 1);
    open_rig(&s, NULL);
    moepage_session *session = open_session(MOEPAGE_REGIME_STREAM);
    for (uint32_t l = 4; l < 8; l++)
        mp_client_stream(session->step.client, l, false);
    for (uint32_t step = 0; step < 12; step++) {
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < 8; l++) /* from step 8 on, the others miss, and miss again */
            run_layer(session, l, l < 4 || step < 8 ? 0 : step, l < 4 ? 8 : step < 8 ? 4 : 5);
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        for (uint32_t key = 0; key < 64; key++) {
            uint32_t loads = atomic_load(&bank.loads[key]);
            if (step == 7 && key >= 32) /* those that do not stream are found again */
                assert_int_equal(loads, before[key]);
            before[key] = step == 3 || step == 7 ? loads : before[key];
        }
    }
    assert_int_equal(keep, 4);
    for (uint32_t l = 0; l < 4; l++) {
        uint32_t kept = 0;
        for (uint32_t e = 0; e < 8; e++)
            kept += atomic_load(&bank.loads[l * 8 + e]) == before[l * 8 + e];
        assert_int_equal(kept, keep);
    }
    close_session(session);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_regime_brings_each_layer_before_its_turn),
        cmocka_unit_test(test_stream_regime_is_needed_where_recency_finds_nothing),
        cmocka_unit_test(test_stream_regime_keeps_the_same_experts_of_every_layer),
        cmocka_unit_test(test_stream_regime_holds_on_two_devices),
        cmocka_unit_test(test_stream_regime_serves_two_sessions),
        cmocka_unit_test(test_stream_regime_brings_the_set_of_the_last_turn),
        cmocka_unit_test(test_stream_regime_brings_the_rest_of_dense_layers_too),
        cmocka_unit_test(test_stream_regime_drops_wrong_guesses_first),
        cmocka_unit_test(test_stream_regime_keeps_what_is_used_most),
        cmocka_unit_test(test_stream_regime_leaves_a_whole_model_alone),
        cmocka_unit_test(test_stream_regime_loads_nothing_where_nothing_misses),
        cmocka_unit_test(test_stream_regime_does_not_touch_layers_with_slots_of_their_own),
        cmocka_unit_test(test_stream_regime_follows_the_pools_size),
        cmocka_unit_test(test_stream_regime_keeps_what_is_pinned),
        cmocka_unit_test(test_stream_regime_leaves_nothing_behind),
        cmocka_unit_test(test_stream_regime_lives_beside_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
