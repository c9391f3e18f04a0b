/* A controller's creation when memory runs out: every allocation fails in turn, once and for
 * good. It then says NO_MEMORY, leaves nothing behind, and the pools go on as if the call had
 * not been made. */
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "control_rig.h"
#include "testing.h"

enum { EXPERTS = 8 };

static const int32_t any_ids[2] = {1, 6};

static void open_rig(control_rig *rig, uint32_t scope, uint64_t blocks)
{
    control_rig_config config = {
        .bank = {.layers = 3, .experts = EXPERTS, .top_k = 2, .hidden = 16, .intermediate = 8},
        .pool = {.slots = 12, .arena_slots = 40, .scope = scope},
        .blocks = blocks,
        .block_tokens = 4,
        .blocks_per_slot = 1,
    };
    control_rig_open(rig, &config);
}

static void use(control_rig *rig)
{
    moepage_seq seq = rig->kv ? control_rig_sequence(rig, 2) : 0;
    control_rig_step(rig, 0, 3, any_ids, 2, &seq, seq != 0);
    if (seq)
        assert_int_equal(moepage_kv_free(rig->kv, seq), MOEPAGE_OK);
}

static uint64_t fail_each(control_rig *rig, bool for_good)
{
    moepage_controller_config config = {.struct_size = sizeof config,
                                        .mode = MOEPAGE_CONTROL_OBSERVE};
    for (uint64_t n = 1;; n++) {
        moepage_controller *controller = NULL;
        alloc_fault = (alloc_faults){.countdown = n, .for_good = for_good};
        moepage_status status =
            moepage_controller_create(rig->pools.pool, rig->kv, &config, &controller);
        uint64_t failures = alloc_fault.failures;
        alloc_fault = (alloc_faults){0};
        if (!failures) {
            assert_int_equal(status, MOEPAGE_OK);
            use(rig);
            assert_int_equal(moepage_controller_destroy(controller), MOEPAGE_OK);
            return n - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "no memory"));
        assert_null(controller);
        use(rig); /* nobody watches */
    }
}

static void test_controller_alloc_failed_creation_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t scope = MOEPAGE_SCOPE_GLOBAL; scope <= MOEPAGE_SCOPE_LAYER; scope++) {
        for (uint64_t blocks = 0; blocks <= 8; blocks += 8) {
            control_rig rig;
            open_rig(&rig, scope, blocks);
            uint64_t once = fail_each(&rig, false);
            assert_true(once >= (blocks ? 12 : 7)); /* itself, two watches, a scratch */
            assert_int_equal(fail_each(&rig, true), once);
            control_rig_close(&rig);
        }
    }
}

/* Between steps and in them nothing is allocated, whatever is seen. */
static void test_controller_alloc_watching_takes_no_memory(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, MOEPAGE_SCOPE_GLOBAL, 8);
    control_rig_attach(&rig, (moepage_controller_config){.burst_steps = 2,
                                                         .context_tokens = 4,
                                                         .max_samples = 16});
    moepage_seq seq = control_rig_sequence(&rig, 2);
    alloc_fault = (alloc_faults){.countdown = 1, .for_good = true};
    for (uint64_t i = 0; i < 200; i++) {
        int32_t ids[2] = {(int32_t)(i % EXPERTS), (int32_t)((i + 3) % EXPERTS)};
        control_rig_step(&rig, 0, 3, ids, 2, &seq, 1);
        assert_int_equal(moepage_controller_kv_use(rig.controller, i, 4 * (i % 7)), MOEPAGE_OK);
        control_rig_tick(&rig);
    }
    assert_int_equal(alloc_fault.failures, 0);
    alloc_fault = (alloc_faults){0};
    control_rig_close(&rig);
}

/* Naming users: after a failure those of before are served, and burst ends take no memory. */
static void test_controller_alloc_failed_sizing_leaves_the_users(void **state)
{
    (void)state;
    control_rig rig;
    moepage_predictor *predictors[2];
    open_rig(&rig, MOEPAGE_SCOPE_GLOBAL, 8);
    control_rig_attach(&rig, (moepage_controller_config){.burst_steps = 1, .context_tokens = 4});
    for (int i = 0; i < 2; i++)
        assert_int_equal(moepage_predictor_create(rig.bank.model,
                                                  &MOEPAGE_PREDICTOR_CONFIG(.name = "coactivation"),
                                                  &predictors[i]),
                         MOEPAGE_OK);
    assert_int_equal(moepage_controller_rightsize(rig.controller, predictors, 1, 0), MOEPAGE_OK);
    for (uint64_t n = 1;; n++) {
        alloc_fault = (alloc_faults){.countdown = n};
        moepage_status status = moepage_controller_rightsize(rig.controller, predictors, 2, 0);
        const uint64_t failures = alloc_fault.failures;
        alloc_fault = (alloc_faults){.countdown = 1, .for_good = true};
        control_rig_step(&rig, 0, 3, any_ids, 2, NULL, 0);
        control_rig_tick(&rig);
        assert_int_equal(alloc_fault.failures, 0);
        alloc_fault = (alloc_faults){0};
        assert_int_equal(control_rig_info(&rig).users, failures ? 1 : 2);
        assert_int_equal(status, failures ? MOEPAGE_E_NO_MEMORY : MOEPAGE_OK);
        assert_int_equal(moepage_predictor_destroy(predictors[0]), MOEPAGE_E_BUSY);
        if (!failures)
            break;
    }
    assert_int_equal(moepage_controller_rightsize(rig.controller, NULL, 0, 0), MOEPAGE_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(moepage_predictor_destroy(predictors[i]), MOEPAGE_OK);
    control_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_alloc_failed_creation_leaves_nothing),
        cmocka_unit_test(test_controller_alloc_watching_takes_no_memory),
        cmocka_unit_test(test_controller_alloc_failed_sizing_leaves_the_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
