/* Pins in a pool with two versions of every expert: a pinned expert becomes high before all others,
 * however cold it is, and stays so until it is unpinned. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "pack_maker.h"
#include "split/split.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define MOST_STEPS 200000

static const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

static void look(versions_rig *rig, moepage_session *session, uint8_t forms[LAYERS][EXPERTS])
{
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        versions_rig_layer(rig, session, l, all, EXPERTS, forms[l]);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
}

/* Steps with these ids until the expert is high in every layer, or low in every layer. */
static void step_until(versions_rig *rig, moepage_session *session, const int32_t *ids, uint32_t n,
                       uint32_t expert, bool high)
{
    uint8_t forms[LAYERS][EXPERTS];
    for (uint32_t s = 0; s < MOST_STEPS; s++) {
        uint32_t right = 0;
        versions_rig_step(rig, session, ids, n);
        look(rig, session, forms);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_true(versions_rig_count_high(rig, l) <= rig->n_high);
            right += (forms[l][expert] == MOEPAGE_FORM_DENSE) == high;
        }
        if (right == LAYERS)
            return;
        sched_yield();
    }
    fail_msg("expert %u has not become %s", expert, high ? "high" : "low");
}

static void pin(versions_rig *rig, uint32_t expert, bool on)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        moepage_status status = on ? moepage_expert_pool_pin(rig->pool, l, expert)
                                   : moepage_expert_pool_unpin(rig->pool, l, expert);
        if (status)
            fail_msg("%s", moepage_last_error());
    }
}

/* Nobody ever chooses expert 7. */
static void cold_but_pinned(const moepage_precision_config *precision)
{
    static const int32_t hot[4] = {1, 3, 4, 6};
    versions_rig rig;
    versions_rig_open(&rig, NULL, precision);
    moepage_session *session = versions_rig_session(&rig, 1);
    uint8_t forms[LAYERS][EXPERTS];
    step_until(&rig, session, hot, 2, 1, true);
    step_until(&rig, session, hot, 2, 3, true);
    pin(&rig, 7, true);
    assert_int_equal(versions_rig_info(&rig).pinned, LAYERS);
    step_until(&rig, session, hot, 2, 7, true);
    for (uint32_t s = 0; s < 500; s++) { /* others come and go */
        versions_rig_step(&rig, session, hot + s / 100 % 3, 2);
        look(&rig, session, forms);
        for (uint32_t l = 0; l < LAYERS; l++)
            assert_int_equal(forms[l][7], MOEPAGE_FORM_DENSE);
    }
    pin(&rig, 7, false);
    assert_int_equal(versions_rig_info(&rig).pinned, 0);
    step_until(&rig, session, hot, 4, 7, false);
    assert_int_equal(versions_rig_info(&rig).transitions_failed, 0);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

static void test_version_pins_keep_what_nobody_chooses(void **state)
{
    (void)state;
    cold_but_pinned(&(moepage_precision_config){.hi_experts = 2});
    cold_but_pinned(&(moepage_precision_config){.hi_experts = 3, .transitions = 1});
    cold_but_pinned(&(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1, .margin = -1});
}

/* Nothing has been chosen at all, and no decision is due for an hour. */
static void test_version_pins_need_no_decision(void **state)
{
    (void)state;
    versions_rig rig;
    static const int32_t one[1] = {0};
    versions_rig_open(&rig, NULL,
                      &(moepage_precision_config){.hi_experts = 2,
                                                  .interval_us = 3600u * 1000 * 1000});
    moepage_session *session = versions_rig_session(&rig, 1);
    pin(&rig, 5, true);
    pin(&rig, 2, true);
    step_until(&rig, session, one, 1, 5, true);
    step_until(&rig, session, one, 1, 2, true);
    assert_int_equal(versions_rig_info(&rig).decisions, 0);
    assert_int_equal(versions_rig_info(&rig).hi_published, 2 * LAYERS);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

static void test_version_pins_are_as_many_as_can_be_high(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2});
    pin(&rig, 0, true);
    pin(&rig, 1, true);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 2), MOEPAGE_E_BUDGET);
    assert_non_null(strstr(moepage_last_error(), "pinned"));
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 1), MOEPAGE_OK); /* once more */
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 1), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 2), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 2), MOEPAGE_E_STATE);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 1), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 1), MOEPAGE_E_STATE);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 2), MOEPAGE_OK);
    const moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_int_equal(info.pinned, 2 * LAYERS);
    assert_int_equal(info.pins_refused, 2);
    versions_rig_close(&rig);
}

/* The split leaves room for what is pinned, and takes no slot of it. */
static void test_version_pins_hold_when_the_split_moves(void **state)
{
    (void)state;
    versions_rig rig;
    static const int32_t hot[4] = {0, 1, 2, 3};
    uint8_t forms[LAYERS][EXPERTS];
    versions_rig_open_wide(&rig, NULL, &(moepage_precision_config){.hi_experts = 2}, 1u << 20);
    moepage_session *session = versions_rig_session(&rig, 1);
    pin(&rig, 7, true);
    step_until(&rig, session, hot, 1, 7, true);
    pin(&rig, 6, true);
    assert_int_equal(moepage_split_set(rig.pool, NULL, LAYERS, 0, NULL), MOEPAGE_E_BUDGET);
    assert_non_null(strstr(moepage_last_error(), "pinned"));
    pin(&rig, 6, false);
    /* Its slots are the lowest: everything else may go. */
    for (uint32_t n = 4; n > 0; n--) {
        rig.n_high = n;
        assert_int_equal(moepage_split_set(rig.pool, NULL, n * LAYERS, 0, NULL), MOEPAGE_OK);
        for (uint32_t s = 0; s < 50; s++) {
            versions_rig_step(&rig, session, hot, 4);
            look(&rig, session, forms);
            for (uint32_t l = 0; l < LAYERS; l++)
                assert_int_equal(forms[l][7], MOEPAGE_FORM_DENSE);
        }
    }
    /* With room for others below it, an expert has slots that are to go. */
    rig.n_high = 3;
    assert_int_equal(moepage_split_set(rig.pool, NULL, 3 * LAYERS, 0, NULL), MOEPAGE_OK);
    step_until(&rig, session, hot, 1, 0, true);
    pin(&rig, 5, true);
    step_until(&rig, session, hot, 1, 5, true);
    pin(&rig, 7, false);
    const uint64_t demotions = versions_rig_info(&rig).demotions;
    assert_int_equal(moepage_split_set(rig.pool, NULL, LAYERS, 0, NULL), MOEPAGE_E_BUSY);
    assert_non_null(strstr(moepage_last_error(), "pinned"));
    assert_int_equal(versions_rig_info(&rig).demotions, demotions);
    assert_int_equal(mp_split_move(rig.pool, NULL, LAYERS, 0, NULL), MOEPAGE_E_BUSY);
    versions_rig_step(&rig, session, hot, 4);
    look(&rig, session, forms);
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(forms[l][5], MOEPAGE_FORM_DENSE);
    pin(&rig, 5, false);
    moepage_status status = MOEPAGE_E_BUSY;
    for (uint32_t s = 0; s < MOST_STEPS && status == MOEPAGE_E_BUSY; s++)
        status = mp_split_move(rig.pool, NULL, LAYERS, 0, NULL);
    assert_int_equal(status, MOEPAGE_OK);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
}

/* A pinned expert whose high version cannot be had stays low, and its place is there for it. */
static void test_version_pins_of_what_cannot_be_had_leave_the_low_version(void **state)
{
    (void)state;
    pack_source source;
    uint64_t bytes;
    pack_source_init(&source);
    pack_source_open(&source);
    unsigned char *file = pack_make(source.model, PACK_FORM(DENSE) | PACK_FORM(INT2), 0, &bytes);
    pack_find_record(file, MOEPAGE_FORM_DENSE, 1, 2)[5] ^= 1;
    moepage_model *model = pack_open(pack_memory_file(file, bytes));
    free(file);
    pack_source_close(&source);
    versions_rig rig = {0};
    versions_rig_open_over(&rig, model, &(moepage_precision_config){.hi_experts = 2}, 0);
    moepage_session *session = versions_rig_session(&rig, 1);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 2), MOEPAGE_OK);
    static const int32_t ids[2] = {0, 2};
    for (uint32_t s = 0;
         versions_rig_info(&rig).transitions_failed < 3 || versions_rig_info(&rig).hi_published < 3;
         s++) {
        assert_true(s < MOST_STEPS);
        (void)versions_rig_step(&rig, session, ids, 2); /* looks at every byte */
        sched_yield();
    }
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 2), MOEPAGE_OK);
    moepage_session_destroy(session);
    versions_rig_close(&rig);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_pins_keep_what_nobody_chooses),
        cmocka_unit_test(test_version_pins_need_no_decision),
        cmocka_unit_test(test_version_pins_are_as_many_as_can_be_high),
        cmocka_unit_test(test_version_pins_hold_when_the_split_moves),
        cmocka_unit_test(test_version_pins_of_what_cannot_be_had_leave_the_low_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
