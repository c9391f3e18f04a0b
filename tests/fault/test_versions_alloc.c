/* Pools with two versions of their experts when memory runs out: every allocation of a creation fails
 * in turn, and leaves everything as it was; steps, and what goes on behind them, need none. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"
#include "testing.h"
#include "versions_rig.h"

static uint64_t used_bytes(const versions_rig *rig)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(rig->device, &info), MOEPAGE_OK);
    return info.used_bytes;
}

static moepage_status create_pool(versions_rig *rig)
{
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .precision = &rig->precision};
    moepage_status status =
        moepage_expert_pool_create(&rig->device, 1, rig->bank.model, &config, &rig->pool);
    alloc_fault.countdown = 0;
    assert_int_equal(rig->pool != NULL, status == MOEPAGE_OK);
    return status;
}

static void fail_each_allocation_of_a_creation(void)
{
    for (uint32_t fetched = 0; fetched < 2; fetched++) {
        versions_rig rig;
        versions_rig_open(&rig, NULL,
                          &(moepage_precision_config){.hi_experts = 2, .lo_fetched = fetched});
        uint64_t n = 1;
        for (;; n++) {
            assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
            rig.pool = NULL;
            assert_int_equal(used_bytes(&rig), 0);
            alloc_fault = (alloc_faults){.countdown = n};
            moepage_status status = create_pool(&rig);
            if (!alloc_fault.failures)
                break;
            assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
            assert_non_null(strstr(moepage_last_error(), "no memory"));
        }
        assert_non_null(rig.pool);
        assert_true(n > 20); /* ten of them are the versions' */
        versions_rig_close(&rig);
    }
}

static void test_versions_alloc_pool_creation_leaves_nothing(void **state)
{
    (void)state;
    fail_each_allocation_of_a_creation();
}

/* Which knows the readers of slots, and of places that are written to again. */
static void test_versions_alloc_pool_creation_leaves_nothing_on_a_gpu(void **state)
{
    (void)state;
    setenv("MP_TEST_DEVICE", "sim", 1);
    fail_each_allocation_of_a_creation();
    unsetenv("MP_TEST_DEVICE");
}

static void test_versions_alloc_steps_need_no_memory(void **state)
{
    (void)state;
    versions_rig rig;
    versions_rig_open(&rig, NULL, &(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1});
    moepage_session *session = versions_rig_session(&rig, 1);
    alloc_fault = (alloc_faults){.countdown = 1, .for_good = true};
    for (uint32_t s = 0; versions_rig_info(&rig).promotions < 8 && s < 200000; s++) {
        const int32_t ids[2] = {(int32_t)(s / 64 % 8), (int32_t)((s / 64 + 3) % 8)};
        versions_rig_step(&rig, session, ids, 2);
        sched_yield();
    }
    assert_int_equal(alloc_fault.failures, 0);
    alloc_fault.countdown = 0;
    assert_true(versions_rig_info(&rig).promotions >= 8);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_alloc_pool_creation_leaves_nothing),
        cmocka_unit_test(test_versions_alloc_pool_creation_leaves_nothing_on_a_gpu),
        cmocka_unit_test(test_versions_alloc_steps_need_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
