/* A host tier's creation with every allocation, mapping and stream failed in turn, and its life with
 * every submission refused in turn: the failing call says so and leaves nothing behind. */
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "cold_rig.h"
#include "testing.h"

static uint32_t fail_alloc_in; /* countdown: 1 = the next one fails; 0 = none */
static bool alloc_persistent;  /* and so do all later ones */

static bool alloc_strikes(size_t bytes)
{
    (void)bytes;
    if (!fail_alloc_in || --fail_alloc_in)
        return false;
    fail_alloc_in = alloc_persistent;
    return true;
}

enum { ENTRIES = 4, LANES = 3 };

static moepage_status create(cold_rig *rig, mp_host_tier **out)
{
    uint64_t bytes = ENTRIES * mp_model_image_room(rig->bank.model, MOEPAGE_FORM_DENSE);
    return mp_host_tier_create(&rig->home, rig->bank.model, MOEPAGE_FORM_DENSE, bytes, out);
}

/* Fails the 1st, 2nd, 3rd ... occurrence of what `countdown` counts until a creation sees none;
 * says how many there were. */
static uint32_t fail_each_creation(cold_rig *rig, uint32_t *countdown)
{
    for (uint32_t i = 1;; i++) {
        mp_host_tier *tier = NULL;
        *countdown = i;
        moepage_status status = create(rig, &tier);
        *countdown = 0;
        if (!status) {
            mp_host_tier_destroy(tier);
            return i - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_null(tier);
        assert_true(strlen(moepage_last_error()) > 0);
        assert_int_equal(rig->streams, 0);
        assert_int_equal(rig->mapped_bytes, 0);
    }
}

static void test_host_tier_alloc_failures_leave_no_tier(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, LANES);
    alloc_persistent = false;
    uint32_t once = fail_each_creation(&rig, &fail_alloc_in);
    assert_true(once >= 4); /* the tier and its three arrays */
    alloc_persistent = true;
    assert_int_equal(fail_each_creation(&rig, &fail_alloc_in), once);
    cold_rig_close(&rig);
}

static void test_host_tier_alloc_failed_mapping_leaves_no_tier(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, LANES);
    assert_int_equal(fail_each_creation(&rig, &rig.no_memory_in), 1);
    cold_rig_close(&rig);
}

static void test_host_tier_alloc_failed_streams_leave_no_tier(void **state)
{
    (void)state;
    cold_rig rig;
    cold_rig_open(&rig, LANES);
    assert_int_equal(fail_each_creation(&rig, &rig.no_stream_in), LANES);
    cold_rig_close(&rig);
}

/* Loads an expert as a pool does, once more if its read fails; says how often it failed. */
static uint32_t load(cold_rig *rig, mp_host_tier *tier, uint32_t key)
{
    for (uint32_t failures = 0;; failures++) {
        assert_true(failures < 2);
        uint32_t entry = mp_host_tier_find(tier, key);
        if (entry == MP_NO_ENTRY)
            entry = mp_host_tier_fetch(tier, key, false);
        assert_int_not_equal(entry, MP_NO_ENTRY);
        mp_host_tier_use(tier, entry);
        cold_rig_land_all(tier);
        mp_host_tier_settle(tier, entry);
        mp_entry_state state = tier->entries[entry].state;
        if (state == MP_ENTRY_VALID)
            assert_true(cold_rig_matches(&rig->bank, key, mp_host_tier_image(tier, entry)));
        else
            assert_int_equal(state, MP_ENTRY_FAILED);
        mp_host_tier_let_go(tier, entry);
        if (state == MP_ENTRY_VALID)
            return failures;
    }
}

/* A life of many loads, in which the n-th submission is refused or the n-th call of the read callback
 * fails (0: none); says how many loads met with that. */
static uint32_t live(uint32_t nth_refused, uint32_t nth_call_failed)
{
    cold_rig rig;
    mp_host_tier *tier = NULL;
    uint32_t failures = 0;
    cold_rig_open(&rig, LANES);
    assert_int_equal(create(&rig, &tier), MOEPAGE_OK);
    rig.refuse_in = nth_refused;
    atomic_store(&rig.bank.fail_call, nth_call_failed);
    fail_alloc_in = 1; /* reading allocates nothing */
    alloc_persistent = true;
    for (uint32_t i = 0; i < 2 * COLD_RIG_KEYS; i++)
        failures += load(&rig, tier, i * 4 % COLD_RIG_KEYS);
    fail_alloc_in = 0;
    assert_int_equal(tier->n_valid, ENTRIES);
    assert_int_equal(tier->n_empty, 0);
    mp_host_tier_destroy(tier);
    cold_rig_close(&rig);
    return failures;
}

static void test_host_tier_alloc_refused_submissions_cost_one_read_each(void **state)
{
    (void)state;
    uint32_t nth = 1;
    while (live(nth, 0))
        nth++;
    assert_int_equal(nth - 1, 2 * COLD_RIG_KEYS); /* every load reads: far more experts than room */
}

static void test_host_tier_alloc_failed_calls_cost_one_read_each(void **state)
{
    (void)state;
    uint32_t nth = 1;
    while (live(0, nth))
        nth++;
    assert_true(nth - 1 >= 2 * COLD_RIG_KEYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_tier_alloc_failures_leave_no_tier),
        cmocka_unit_test(test_host_tier_alloc_failed_mapping_leaves_no_tier),
        cmocka_unit_test(test_host_tier_alloc_failed_streams_leave_no_tier),
        cmocka_unit_test(test_host_tier_alloc_refused_submissions_cost_one_read_each),
        cmocka_unit_test(test_host_tier_alloc_failed_calls_cost_one_read_each),
    };
    alloc_fault_strikes = alloc_strikes;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
