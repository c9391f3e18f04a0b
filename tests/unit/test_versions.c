/* Two versions of every expert: which experts become high and when; every plan shows a complete
 * version from the file, and no step waits for one. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack_maker.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define MOST_STEPS 200000 /* a promotion takes a few; transfers take their time */

static const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

/* The forms of all experts, as a step that does nothing else sees them. */
static void look(versions_rig *rig, moepage_session *session, uint8_t forms[LAYERS][EXPERTS])
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        versions_rig_layer(rig, session, l, all, EXPERTS, forms[l]);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
}

static void check_budget(versions_rig *rig)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_true(versions_rig_count_high(rig, l) <= rig->n_high);
}

/* Steps with these ids until all of them, or all but `less`, compute in the high version. */
static void heat(versions_rig *rig, moepage_session *session, const int32_t *ids, uint32_t n,
                 uint32_t less)
{
    for (uint32_t s = 0; s < MOST_STEPS; s++) {
        moepage_session_stats stats = versions_rig_step(rig, session, ids, n);
        check_budget(rig);
        if (stats.low_experts == less * LAYERS)
            return;
        assert_int_equal(stats.low_rows, stats.low_experts);
        sched_yield();
    }
    fail_msg("not all of %u experts have become high", n);
}

/* ---- what a pool does ---- */

static void test_versions_everything_is_low_at_first(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2});
    moepage_session *session = versions_rig_session(&rig, 4);
    uint8_t forms[LAYERS][EXPERTS];
    look(&rig, session, forms);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(forms[l][e], MOEPAGE_FORM_INT2);
    moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_int_equal(info.hi_form, MOEPAGE_FORM_DENSE);
    assert_int_equal(info.lo_form, MOEPAGE_FORM_INT2);
    assert_int_equal(info.hi_experts, 2);
    assert_int_equal(info.slots, 2 * LAYERS);
    assert_int_equal(info.compressed_bytes, 0);
    assert_true(info.lo_bytes > 0);
    assert_int_equal(info.hi_published, 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

/* Heats one set, then another; `other` of the first one's experts must have become low again. */
static void heat_and_shift(const moepage_precision_config *config)
{
    static const int32_t first[3] = {1, 4, 6}, second[3] = {0, 4, 7};
    versions_rig rig;
    uint8_t forms[LAYERS][EXPERTS];
    versions_rig_open(&rig, NULL, config);
    uint32_t hi_form = config->hi_form ? config->hi_form : MOEPAGE_FORM_DENSE;
    moepage_session *session = versions_rig_session(&rig, 4);
    heat(&rig, session, first, 3, 0);
    moepage_expert_pool_info before = versions_rig_info(&rig);
    assert_int_equal(before.hi_published, rig.n_high * LAYERS);
    heat(&rig, session, second, 3, 0);
    look(&rig, session, forms);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            bool hot = e == 0 || e == 4 || e == 7;
            assert_int_equal(forms[l][e], hot ? hi_form : rig.precision.lo_form);
        }
    moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_int_equal(info.hi_published, 3 * LAYERS);
    assert_int_equal(info.promotions - before.promotions, 2 * LAYERS);
    assert_int_equal(info.demotions - before.demotions, 2 * LAYERS);
    assert_true(info.decisions > 0 && info.windows > 0);
    assert_true(info.transition_bytes > 0);
    assert_int_equal(info.transitions_failed + info.failed_loads, 0);
    assert_int_equal(info.demand_bytes + info.prefetch_bytes, 0); /* no byte has two causes */
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

static void test_versions_what_is_hot_becomes_high_and_shifts(void **state)
{
    (void)state;
    heat_and_shift(&(moepage_precision_config){.hi_experts = 3});
}

static void test_versions_one_at_a_time_gets_there_too(void **state)
{
    (void)state;
    heat_and_shift(&(moepage_precision_config){.hi_experts = 3, .transitions = 1, .alpha = 0.9});
}

/* Of two experts in each layer, one that three tokens choose with little weight and one that a
 * single token chooses with much, the one that became high. */
static int32_t hotter_of_two(uint32_t hotness)
{
    static const int32_t often = 2, heavily = 5;
    static const int32_t ids[4] = {2, 2, 2, 5};
    static const float weights[4] = {0.1f, 0.1f, 0.1f, 0.9f};
    versions_rig rig;
    uint8_t forms[LAYERS][EXPERTS];
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 1, .hotness = hotness});
    moepage_session *session = versions_rig_session(&rig, 4);
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 4};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 1,
                               .ids = ids,
                               .weights = weights};
    for (uint32_t s = 0; versions_rig_info(&rig).hi_published < LAYERS; s++) {
        assert_true(s < MOST_STEPS);
        assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        sched_yield();
    }
    look(&rig, session, forms);
    const int32_t high = forms[0][often] == MOEPAGE_FORM_DENSE ? often : heavily;
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(forms[l][high], MOEPAGE_FORM_DENSE);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
    return high;
}

static void test_versions_hot_is_what_is_chosen_often_or_with_weight(void **state)
{
    (void)state;
    assert_int_equal(hotter_of_two(MOEPAGE_HOTNESS_CHOICES), 2);
    assert_int_equal(hotter_of_two(MOEPAGE_HOTNESS_WEIGHTS), 5);
}

static void test_versions_low_ones_can_be_fetched(void **state)
{
    (void)state;
    heat_and_shift(&(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1});
}

static void test_versions_fetched_low_and_integer_high(void **state)
{
    (void)state;
    heat_and_shift(&(moepage_precision_config){.hi_experts = 3,
                                               .lo_fetched = 1,
                                               .transitions = 64,
                                               .hi_form = MOEPAGE_FORM_INT8,
                                               .lo_form = MOEPAGE_FORM_INT4});
}

static void test_versions_high_can_be_integers(void **state)
{
    (void)state;
    heat_and_shift(&(moepage_precision_config){.hi_experts = 3,
                                               .hi_form = MOEPAGE_FORM_INT4,
                                               .lo_form = MOEPAGE_FORM_INT2});
}

static void test_versions_cold_ones_stay_low_below_the_margin(void **state)
{
    (void)state;
    versions_rig rig;
    uint8_t forms[LAYERS][EXPERTS];
    static const int32_t hot[1] = {5}, both[2] = {5, 6};
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 1});
    moepage_session *session = versions_rig_session(&rig, 4);
    heat(&rig, session, hot, 1, 0);
    uint64_t promotions = versions_rig_info(&rig).promotions;
    for (uint32_t s = 0; s < 100; s++) /* as hot as the other one, and no hotter */
        assert_int_equal(versions_rig_step(&rig, session, both, 2).low_experts, LAYERS);
    look(&rig, session, forms);
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(forms[l][6], MOEPAGE_FORM_INT2);
    assert_int_equal(versions_rig_info(&rig).promotions, promotions);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

/* ---- windows ---- */

static void begin(moepage_session *session)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
}

/* A step that stays open sees the versions that it began with, whatever others bring about; what it
 * sees is not given away under it. */
static void open_step_keeps_its_versions(uint32_t lo_fetched)
{
    static const int32_t first[2] = {1, 2}, second[2] = {5, 6};
    versions_rig rig;
    uint8_t before[LAYERS][EXPERTS], now[EXPERTS], after[LAYERS][EXPERTS];
    versions_rig_open(&rig, NULL,
                      &(moepage_precision_config){.hi_experts = 2, .lo_fetched = lo_fetched});
    moepage_session *slow = versions_rig_session(&rig, 4), *busy = versions_rig_session(&rig, 4);
    heat(&rig, busy, first, 2, 0);
    look(&rig, slow, before);
    begin(slow);
    versions_rig_layer(&rig, slow, 0, all, EXPERTS, now);
    for (uint32_t s = 0; s < 500; s++)
        versions_rig_step(&rig, busy, second, 2);
    moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_true(info.demotions > 0); /* as far as it went: no slot could be had */
    for (uint32_t l = 0; l < LAYERS; l++) {
        versions_rig_layer(&rig, slow, l, all, EXPERTS, now);
        assert_memory_equal(now, before[l], EXPERTS);
        check_budget(&rig);
    }
    assert_int_equal(moepage_session_end(slow, NULL), MOEPAGE_OK);
    heat(&rig, busy, second, 2, 0);
    look(&rig, slow, after);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(after[l][1], MOEPAGE_FORM_INT2);
        assert_int_equal(after[l][5], MOEPAGE_FORM_DENSE);
    }
    moepage_session_destroy(slow);
    moepage_session_destroy(busy);
    versions_rig_close(&rig);
}

static void test_versions_an_open_step_keeps_what_it_began_with(void **state)
{
    (void)state;
    open_step_keeps_its_versions(0);
}

static void test_versions_an_open_step_keeps_fetched_places_too(void **state)
{
    (void)state;
    open_step_keeps_its_versions(1);
}

static void test_versions_change_only_where_a_window_ends(void **state)
{
    (void)state;
    versions_rig rig;
    uint64_t random = 5;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2, .window_steps = 4});
    moepage_session *session = versions_rig_session(&rig, 4);
    uint64_t published = 0, changes = 0;
    for (uint32_t s = 0; s < 2000; s++) {
        int32_t ids[2] = {(int32_t)bank_below(&random, 4), 0};
        ids[1] = ids[0] + 4;
        versions_rig_step(&rig, session, ids, 2);
        moepage_expert_pool_info info = versions_rig_info(&rig);
        uint64_t now = info.promotions + info.demotions;
        if (now != published) {
            assert_int_equal(s % 4, 0);
            changes++;
        }
        published = now;
        assert_int_equal(info.windows, changes);
    }
    assert_true(changes > 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

/* ---- sources that fail ---- */

#define PACK_LAYERS 2

/* A pack of 2 layers of 3 experts in which one record is damaged. */
static moepage_model *open_damaged(uint32_t form, uint32_t layer, uint32_t expert)
{
    pack_source source;
    uint64_t bytes;
    pack_source_init(&source);
    pack_source_open(&source);
    unsigned char *file = pack_make(source.model, PACK_FORM(DENSE) | PACK_FORM(INT2), 0, &bytes);
    pack_find_record(file, form, layer, expert)[5] ^= 1;
    moepage_model *model = pack_open(pack_memory_file(file, bytes));
    free(file);
    pack_source_close(&source);
    return model;
}

static void step_to(versions_rig *rig, moepage_session *session, int32_t id)
{
    begin(session);
    for (uint32_t l = 0; l < PACK_LAYERS; l++)
        versions_rig_layer(rig, session, l, &id, 1, NULL);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static void test_versions_a_high_version_that_cannot_be_had_leaves_the_low_one(void **state)
{
    (void)state;
    moepage_model *model = open_damaged(MOEPAGE_FORM_DENSE, 1, 2);
    versions_rig rig = {0};
    versions_rig_open_over(&rig, model, &(moepage_precision_config){.hi_experts = 1}, 0);
    moepage_session *session = versions_rig_session(&rig, 4);
    moepage_expert_pool_info info;
    uint32_t s = 0;
    do {
        step_to(&rig, session, 2);
        info = versions_rig_info(&rig);
        sched_yield();
    } while ((info.transitions_failed == 0 || info.hi_published == 0) && s++ < MOST_STEPS);
    assert_true(info.transitions_failed > 0);
    assert_int_equal(info.hi_published, 1); /* layer 0's */
    /* The place is for whoever is hot next. */
    for (s = 0; versions_rig_info(&rig).hi_published < 2 && s < MOST_STEPS; s++) {
        step_to(&rig, session, 1);
        sched_yield();
    }
    assert_int_equal(versions_rig_info(&rig).hi_published, 2);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void test_versions_a_low_version_that_cannot_be_had_is_refused_at_the_start(void **state)
{
    (void)state;
    moepage_model *model = open_damaged(MOEPAGE_FORM_INT2, 1, 2);
    moepage_device *device;
    moepage_expert_pool *pool = NULL;
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 8u << 20};
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_OK);
    moepage_precision_config precision = {.struct_size = sizeof precision,
                                          .lo_form = MOEPAGE_FORM_INT2};
    moepage_expert_pool_config pools = {.struct_size = sizeof pools, .precision = &precision};
    assert_int_equal(moepage_expert_pool_create(&device, 1, model, &pools, &pool),
                     MOEPAGE_E_FORMAT);
    assert_non_null(strstr(moepage_last_error(), "expert 2 of layer 1"));
    assert_null(pool);
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.arena_expert_bytes, 0);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* Of three experts the first begins high, and its low version cannot be fetched: it stays. */
static void test_versions_a_low_version_that_cannot_be_fetched_leaves_the_high_one(void **state)
{
    (void)state;
    moepage_model *model = open_damaged(MOEPAGE_FORM_INT2, 1, 0);
    versions_rig rig = {0};
    versions_rig_open_over(&rig, model,
                           &(moepage_precision_config){.hi_experts = 1, .lo_fetched = 1}, 0);
    moepage_session *session = versions_rig_session(&rig, 4);
    moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_int_equal(info.hi_published, PACK_LAYERS);
    uint32_t s = 0;
    do {
        step_to(&rig, session, 2);
        info = versions_rig_info(&rig);
        sched_yield();
    } while ((info.transitions_failed < 2 || info.promotions == 0) && s++ < MOST_STEPS);
    assert_true(info.transitions_failed >= 2);
    assert_int_equal(info.promotions, 1); /* layer 0's */
    begin(session);
    const int32_t ids[3] = {0, 1, 2};
    uint8_t forms[3];
    versions_rig_layer(&rig, session, 1, ids, 3, forms);
    assert_int_equal(forms[0], MOEPAGE_FORM_DENSE);
    assert_int_equal(forms[2], MOEPAGE_FORM_INT2);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

/* ---- a cache with substitutes ---- */

static void test_versions_a_miss_computes_low_and_is_fetched(void **state)
{
    (void)state;
    versions_rig rig = {0};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(INT4)};
    bank_model_open(&rig.bank, &shape);
    moepage_precision_config precision = {.serve = MOEPAGE_SERVE_CACHE,
                                          .lo_form = MOEPAGE_FORM_INT4};
    versions_rig_open_over(&rig, rig.bank.model, &precision, 12);
    moepage_session *session = NULL, *exact = versions_rig_session(&rig, 4);
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_top_k = EXPERTS,
                                     .miss = MOEPAGE_MISS_LOW};
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_OK);
    static const int32_t ids[2] = {3, 5}, others[2] = {1, 2};
    assert_int_equal(versions_rig_step(&rig, session, ids, 2).low_experts, 2 * LAYERS);
    uint32_t s = 0;
    while (versions_rig_step(&rig, session, ids, 2).low_experts > 0 && s++ < MOST_STEPS)
        sched_yield();
    assert_true(s < MOST_STEPS);
    /* 12 slots do for two sets, and what is not used goes for what is. */
    for (uint32_t turn = 0; turn < 20; turn++) {
        const int32_t set[4] = {(int32_t)(turn % 8), (int32_t)((turn + 1) % 8),
                                (int32_t)((turn + 2) % 8), (int32_t)((turn + 3) % 8)};
        for (s = 0; s < MOST_STEPS; s++) {
            if (versions_rig_step(&rig, session, set, 4).low_experts == 0)
                break;
            sched_yield();
        }
        assert_true(s < MOST_STEPS);
    }
    assert_int_equal(versions_rig_info(&rig).demand_bytes, 0);
    moepage_session_stats sums = {.struct_size = sizeof sums};
    assert_int_equal(moepage_expert_pool_get_stats(rig.pool, &sums), MOEPAGE_OK);
    assert_int_equal(versions_rig_info(&rig).hits, sums.hits);
    assert_int_equal(versions_rig_info(&rig).misses, sums.low_experts); /* none waited */
    /* A session that waits finds everything in the high version. */
    uint8_t forms[2];
    begin(exact);
    versions_rig_layer(&rig, exact, 0, others, 2, forms);
    assert_int_equal(forms[0], MOEPAGE_FORM_DENSE);
    assert_int_equal(forms[1], MOEPAGE_FORM_DENSE);
    moepage_session_destroy(session);
    moepage_session_destroy(exact);
    versions_rig_close(&rig);
}

/* To a session that waits such a pool is a cache like any other, and all layers stream through it. */
static void
test_versions_a_session_that_waits_streams_through_a_cache_with_substitutes(void **state)
{
    (void)state;
    versions_rig rig = {0};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(INT4)};
    bank_model_open(&rig.bank, &shape);
    versions_rig_open_over(&rig, rig.bank.model,
                           &(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE,
                                                       .lo_form = MOEPAGE_FORM_INT4},
                           20);
    moepage_session *session = NULL;
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_top_k = EXPERTS,
                                     .regime = MOEPAGE_REGIME_STREAM,
                                     .miss = MOEPAGE_MISS_LOW};
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &session),
                     MOEPAGE_E_UNSUPPORTED);
    config.miss = MOEPAGE_MISS_WAIT;
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &session), MOEPAGE_OK);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    for (uint32_t s = 0; s < 30; s++) {
        uint8_t forms[EXPERTS];
        begin(session);
        for (uint32_t l = 0; l < LAYERS; l++) {
            versions_rig_layer(&rig, session, l, all, EXPERTS, forms);
            for (uint32_t e = 0; e < EXPERTS; e++)
                assert_int_equal(forms[e], MOEPAGE_FORM_DENSE);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_true(stats.streamed_layers > 0);
    assert_int_equal(stats.low_experts, 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_everything_is_low_at_first),
        cmocka_unit_test(test_versions_what_is_hot_becomes_high_and_shifts),
        cmocka_unit_test(test_versions_one_at_a_time_gets_there_too),
        cmocka_unit_test(test_versions_hot_is_what_is_chosen_often_or_with_weight),
        cmocka_unit_test(test_versions_low_ones_can_be_fetched),
        cmocka_unit_test(test_versions_fetched_low_and_integer_high),
        cmocka_unit_test(test_versions_high_can_be_integers),
        cmocka_unit_test(test_versions_cold_ones_stay_low_below_the_margin),
        cmocka_unit_test(test_versions_an_open_step_keeps_what_it_began_with),
        cmocka_unit_test(test_versions_an_open_step_keeps_fetched_places_too),
        cmocka_unit_test(test_versions_change_only_where_a_window_ends),
        cmocka_unit_test(test_versions_a_high_version_that_cannot_be_had_leaves_the_low_one),
        cmocka_unit_test(test_versions_a_low_version_that_cannot_be_had_is_refused_at_the_start),
        cmocka_unit_test(test_versions_a_low_version_that_cannot_be_fetched_leaves_the_high_one),
        cmocka_unit_test(test_versions_a_miss_computes_low_and_is_fetched),
        cmocka_unit_test(
            test_versions_a_session_that_waits_streams_through_a_cache_with_substitutes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
