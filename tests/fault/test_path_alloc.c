/* Device-driven paths when host memory runs out: every allocation of a creation fails in turn, once
 * and for good. The creation then says NO_MEMORY and leaves everything as it was. */
#include <stdlib.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "path_rig.h"
#include "sim_cuda.h"
#include "testing.h"

static void fail_each(path_rig *r)
{
    moepage_device_info before = {.struct_size = sizeof before}, after = before;
    assert_int_equal(moepage_device_get_info(r->caller.home, &before), MOEPAGE_OK);
    uint64_t pinned = sim_cuda_get_stats().pinned;
    for (uint64_t nth = 1;; nth++) {
        alloc_fault.failures = 0;
        alloc_fault.countdown = nth;
        moepage_status status = moepage_cuda_path_create(r->session, NULL, &r->path);
        alloc_fault.countdown = 0;
        if (!alloc_fault.failures) {
            assert_int_equal(status, MOEPAGE_OK);
            assert_true(nth > 5);
            return;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_int_equal(moepage_device_get_info(r->caller.home, &after), MOEPAGE_OK);
        assert_int_equal(after.used_bytes, before.used_bytes);
        assert_int_equal(sim_cuda_get_stats().pinned, pinned);
    }
}

static void test_path_alloc_failure_leaves_nothing_behind(void **state)
{
    (void)state;
    path_rig r;
    path_rig_open(&r, &(path_rig_config){0}, 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(moepage_cuda_path_destroy(r.path), MOEPAGE_OK);
        alloc_fault.for_good = i == 1;
        fail_each(&r);
        path_rig_run(&r, &r.steps[0], PATH_LAYERS);
    }
    path_rig_close(&r);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_alloc_failure_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
