/* Which regime a layer gets by itself, on a device whose clock the test moves and whose loads run when
 * the test says. */
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define MAX_EXPERTS 32
#define LOAD_NS 1000

static bank_model bank;
static pool_rig rig;

typedef struct shape {
    uint32_t layers, experts, slots;
} shape;

static fake_device fake;

/* A pool on a device whose clock the test moves; the bus takes `load_ns` for an expert. */
static moepage_session *open_fake(const shape *s, uint64_t load_ns, uint32_t regime)
{
    bank_model_open(&bank, &(bank_shape){.layers = s->layers,
                                         .experts = s->experts,
                                         .top_k = s->experts,
                                         .hidden = 2,
                                         .intermediate = 2,
                                         .seed = 32});
    fake_device_init(&fake);
    rig = (pool_rig){.bank = &bank, .n_devices = 1};
    rig.devices[0] = fake_home_open(&fake, 65536, 1u << 20);
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = s->slots};
    assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                     MOEPAGE_OK);
    rig.pool->cache->shards[0].transfer->rates.bus = rig.pool->slot_bytes * 1000000000u / load_ns;
    return pool_rig_session(&rig, &(moepage_session_config){.regime = regime, .max_tokens = 1});
}

static void close_fake(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    fake_home_close(rig.devices[0]);
    bank_model_close(&bank);
}

/* A step of layers that each use n experts from `first` on and compute for a time. */
static moepage_session_stats run_fake(moepage_session *session, uint32_t phase, uint32_t first,
                                      uint32_t n, uint64_t compute_ns)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    int32_t ids[MAX_EXPERTS];
    for (uint32_t e = 0; e < n; e++)
        ids[e] = (int32_t)(first + e);
    pool_rig_begin(session, 1, phase);
    for (uint32_t l = 0; l < bank.shape.layers; l++) {
        fake.now_ns += compute_ns / 2; /* attention */
        assert_int_equal(pool_rig_route(session, l, ids, n, NULL), MOEPAGE_OK);
        fake_device_pump(&fake);
        fake.now_ns += compute_ns / 2;
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        fake_device_pump(&fake);
    }
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    return stats;
}

/* The i-th of steps of few tokens: two experts of each layer, the pairs of one half of its eight by
 * turns, and after a while those of the other. The last turn's set tells nothing, what is used most
 * little; what was used of late fits. */
static moepage_session_stats run_pair(moepage_session *session, uint32_t i)
{
    return run_fake(session, MOEPAGE_PHASE_DECODE, i / 20 % 2 * 4 + i % 2 * 2, 2, LOAD_NS / 100);
}

static moepage_session_stats run_fakes(moepage_session *session, uint32_t steps, uint32_t n,
                                       uint64_t compute_ns)
{
    moepage_session_stats before = {.struct_size = sizeof before}, after = before;
    assert_int_equal(moepage_session_get_stats(session, &before), MOEPAGE_OK);
    for (uint32_t i = 0; i < steps; i++)
        run_fake(session, MOEPAGE_PHASE_DECODE, 0, n, compute_ns);
    assert_int_equal(moepage_session_get_stats(session, &after), MOEPAGE_OK);
    after.streamed_layers -= before.streamed_layers;
    after.regime_changes -= before.regime_changes;
    after.misses -= before.misses;
    return after;
}

#define SETTLING 40 /* steps within which a steady load has found its regime */

/* What of the next layer's set is still there from its last turn makes no room for the rest. Loads
 * get no time but while layers compute. */
static void test_stream_auto_spares_what_comes_next(void **state)
{
    (void)state;
    shape s = {6, 8, 24};
    int32_t ids[] = {0, 1, 2, 3, 4};
    moepage_session *session = open_fake(&s, LOAD_NS, MOEPAGE_REGIME_STREAM);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    for (uint32_t step = 0; step < 6; step++) {
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < 6; l++) { /* 14 that are not kept, for a window of 12 */
            assert_int_equal(pool_rig_route(session, l, ids, l % 3 ? 4 : 5, NULL), MOEPAGE_OK);
            fake_device_pump(&fake);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    }
    assert_int_equal(stats.misses + stats.late, 0);
    close_fake(session);
}

static void test_stream_auto_is_chosen_for_dense_layers(void **state)
{
    (void)state;
    moepage_session *session = open_fake(&(shape){6, 8, 28}, LOAD_NS, MOEPAGE_REGIME_AUTO);
    moepage_session_stats stats = run_fakes(session, SETTLING, 8, 6 * LOAD_NS);
    assert_int_equal(stats.regime_changes, 6);
    stats = run_fakes(session, 10, 8, 6 * LOAD_NS);
    assert_int_equal(stats.streamed_layers, 60);
    assert_int_equal(stats.misses, 0);
    /* Few tokens again: cached again, and found there. */
    uint64_t changes = 0;
    for (uint32_t i = 0; i < 60; i++) {
        stats = run_pair(session, i);
        changes += stats.regime_changes;
        if (i >= SETTLING)
            assert_int_equal(stats.streamed_layers, 0);
        if (i >= SETTLING + 2) /* both pairs have been used */
            assert_int_equal(stats.misses, 0);
    }
    assert_int_equal(changes, 6);
    close_fake(session);
}

/* Few of a layer's experts, and they do not fit: a cache misses them all. One of four loads while the
 * layer before computes. */
static void test_stream_auto_is_chosen_where_a_part_of_the_loads_hides(void **state)
{
    (void)state;
    moepage_session *session = open_fake(&(shape){6, 8, 12}, LOAD_NS, MOEPAGE_REGIME_AUTO);
    moepage_session_stats stats = run_fakes(session, SETTLING, 4, LOAD_NS);
    assert_int_equal(stats.regime_changes, 6);
    stats = run_fakes(session, 10, 4, LOAD_NS);
    assert_int_equal(stats.streamed_layers, 60);
    close_fake(session);
}

/* A layer that was routed under the other regime says nothing about this one. */
static void test_stream_auto_changes_once_where_two_layers_are_open(void **state)
{
    (void)state;
    moepage_session *session = open_fake(&(shape){6, 8, 28}, LOAD_NS, MOEPAGE_REGIME_AUTO);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (uint32_t step = 0; step < SETTLING; step++) {
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l <= 6; l++) {
            fake.now_ns += 6 * LOAD_NS;
            if (l < 6)
                assert_int_equal(pool_rig_route(session, l, ids, 8, NULL), MOEPAGE_OK);
            fake_device_pump(&fake);
            if (l > 0)
                assert_int_equal(moepage_session_retire(session, l - 1), MOEPAGE_OK);
            fake_device_pump(&fake);
        }
        assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    }
    assert_int_equal(stats.streamed_layers, 6);
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.regime_changes, 6);
    close_fake(session);
}

/* Prompts use all experts and stream; the steps between two of them are cached. */
static void test_stream_auto_is_chosen_for_each_kind_of_step(void **state)
{
    (void)state;
    moepage_session *session = open_fake(&(shape){6, 8, 28}, LOAD_NS, MOEPAGE_REGIME_AUTO);
    for (uint32_t i = 0; i < 400; i++) {
        moepage_session_stats stats;
        if (i % 40 == 0) {
            stats = run_fake(session, MOEPAGE_PHASE_PREFILL, 0, 8, 6 * LOAD_NS);
            assert_true(i < 200 || stats.streamed_layers == 6);
        }
        stats = run_pair(session, i);
        assert_true(i < 200 || stats.streamed_layers == 0);
    }
    close_fake(session);
}

static void test_stream_auto_is_not_chosen_where_it_gains_nothing(void **state)
{
    (void)state;
    static const struct {
        uint32_t slots, n;
        uint64_t compute_ns;
    } loads[] = {
        {28, 4, LOAD_NS},       /* few of a layer's experts, and they fit */
        {12, 4, LOAD_NS / 100}, /* few, they do not fit, and nothing computes behind the loads */
        {44, 7, LOAD_NS},       /* nearly all, and they fit */
        {16, 8, LOAD_NS / 100}, /* nothing could be kept, and nothing computes behind the loads */
        {28, 8, 400 * LOAD_NS}, /* loads are next to nothing */
    };
    for (uint32_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        moepage_session *session =
            open_fake(&(shape){6, 8, loads[i].slots}, LOAD_NS, MOEPAGE_REGIME_AUTO);
        moepage_session_stats stats = run_fakes(session, SETTLING, loads[i].n, loads[i].compute_ns);
        assert_int_equal(stats.regime_changes + stats.streamed_layers, 0);
        close_fake(session);
    }
}

static void test_stream_auto_forced_to_cache_never_changes(void **state)
{
    (void)state;
    moepage_session *session = open_fake(&(shape){6, 8, 28}, LOAD_NS, MOEPAGE_REGIME_CACHE);
    moepage_session_stats stats = run_fakes(session, SETTLING, 8, 6 * LOAD_NS);
    assert_int_equal(stats.regime_changes + stats.streamed_layers + stats.hint_experts, 0);
    assert_int_equal(stats.misses, SETTLING * 6 * 8);
    close_fake(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_auto_spares_what_comes_next),
        cmocka_unit_test(test_stream_auto_is_chosen_for_dense_layers),
        cmocka_unit_test(test_stream_auto_is_chosen_where_a_part_of_the_loads_hides),
        cmocka_unit_test(test_stream_auto_changes_once_where_two_layers_are_open),
        cmocka_unit_test(test_stream_auto_is_chosen_for_each_kind_of_step),
        cmocka_unit_test(test_stream_auto_is_not_chosen_where_it_gains_nothing),
        cmocka_unit_test(test_stream_auto_forced_to_cache_never_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
