/* Workspace memory and the two ledgers it is charged to. */
#include <string.h>

#include "fake_device.h"
#include "testing.h"

static void test_home_charges_workspace_to_its_share_and_to_the_whole(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open(&fake, 4096, 1000);
    void *memory;
    assert_int_equal(mp_home_workspace_alloc(home, 600, &memory), MOEPAGE_OK);
    memset(memory, 1, 600);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(atomic_load(&home->workspace.used), 600);
    assert_int_equal(atomic_load(&home->ledger.used), 600);
    mp_home_workspace_free(home, memory, 600);
    mp_home_workspace_free(home, NULL, 0);
    assert_int_equal(atomic_load(&home->workspace.used), 0);
    assert_int_equal(atomic_load(&home->ledger.used), 0);
    fake_home_close(home);
}

static void test_home_refuses_workspace_past_its_share_even_with_an_empty_arena(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open(&fake, 4096, 1000);
    void *memory, *other;
    assert_int_equal(mp_home_workspace_alloc(home, 600, &memory), MOEPAGE_OK);
    assert_int_equal(mp_home_workspace_alloc(home, 401, &other), MOEPAGE_E_BUDGET);
    assert_string_equal(moepage_last_error(),
                        "401 bytes of workspace are needed, but of the device's 1000 only 400 are "
                        "free: raise workspace_bytes");
    assert_int_equal(mp_home_workspace_alloc(home, 400, &other), MOEPAGE_OK);
    mp_home_workspace_free(home, memory, 600);
    mp_home_workspace_free(home, other, 400);
    fake_home_close(home);
}

static void test_home_charges_nothing_for_a_failed_allocation(void **state)
{
    (void)state;
    fake_device fake;
    fake_device_init(&fake);
    struct moepage_device *home = fake_home_open(&fake, 4096, 1000);
    void *memory = NULL;
    fake.faults.alloc = 1;
    assert_int_equal(mp_home_workspace_alloc(home, 600, &memory), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(atomic_load(&home->workspace.used), 0);
    assert_int_equal(atomic_load(&home->ledger.used), 0);
    assert_true(mp_ledger_try_reserve(&home->ledger, 4500));
    assert_int_equal(mp_home_workspace_alloc(home, 600, &memory), MOEPAGE_E_BUDGET);
    assert_int_equal(atomic_load(&home->workspace.used), 0);
    mp_ledger_release(&home->ledger, 4500);
    fake_home_close(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_home_charges_workspace_to_its_share_and_to_the_whole),
        cmocka_unit_test(test_home_refuses_workspace_past_its_share_even_with_an_empty_arena),
        cmocka_unit_test(test_home_charges_nothing_for_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
