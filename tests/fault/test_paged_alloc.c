/* PagedTensor when memory runs out: every allocation of a creation fails in turn, once and for
 * good, and nothing is left behind; once it is created, it allocates no more. */
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "paged_rig.h"
#include "testing.h"

/* Of any thread: the background allocates nothing either. */
static _Atomic uint64_t countdown; /* 1: the next one fails; 0: none */
static _Atomic uint64_t failures;
static bool for_good;

static bool strikes(size_t bytes)
{
    (void)bytes;
    uint64_t left = atomic_load(&countdown);
    while (left &&
           !atomic_compare_exchange_weak(&countdown, &left, left == 1 ? for_good : left - 1))
        ;
    if (left != 1)
        return false;
    atomic_fetch_add(&failures, 1);
    return true;
}

static const bank_shape shapes[] = {
    {.layers = 3, .experts = 2, .top_k = 1, .hidden = 16, .intermediate = 8},
    {.layers = 3, /* decoded on the device */
     .experts = 2,
     .top_k = 1,
     .hidden = 64,
     .intermediate = 64,
     .dtype = MOEPAGE_DTYPE_BF16,
     .pack_forms = 1u << MOEPAGE_FORM_EXPH},
    {.layers = 3, /* read on the host */
     .experts = 2,
     .top_k = 1,
     .hidden = 16,
     .intermediate = 8,
     .dtype = MOEPAGE_DTYPE_BF16,
     .pack_forms = 1u << MOEPAGE_FORM_DENSE,
     .cold_level = 1},
};

static paged_rig rig;

/* Fails the 1st, 2nd, ... allocation until a creation needs fewer than that. One that `reads` unpacks images to
 * see how long it takes, and does without if it cannot. */
static uint64_t fail_each(bool persistent, bool reads)
{
    for (uint64_t n = 1;; n++) {
        for_good = persistent;
        atomic_store(&failures, 0);
        atomic_store(&countdown, n);
        moepage_status status = paged_rig_create(&rig, &(paged_rig_config){0});
        atomic_store(&countdown, 0);
        if (!atomic_load(&failures)) {
            assert_int_equal(status, MOEPAGE_OK);
            return n - 1;
        }
        if (reads && status == MOEPAGE_OK) {
            assert_int_equal(moepage_paged_destroy(rig.paged), MOEPAGE_OK);
            rig.paged = NULL;
            continue;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "no memory"));
        assert_null(rig.paged);
        assert_int_equal(rig.used_bytes, 0);
    }
}

static void test_paged_alloc_creation_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        paged_rig_open_device(&rig, &shapes[s], &(paged_rig_config){0});
        bool reads = shapes[s].cold_level > 0;
        uint64_t once = fail_each(false, reads);
        assert_int_equal(moepage_paged_destroy(rig.paged), MOEPAGE_OK);
        rig.paged = NULL;
        uint64_t all = fail_each(true, reads);
        assert_true(reads || all == once); /* what could not be unpacked is not tried again */
        assert_true(once >= 6);            /* itself, layers, buffers, streams */
        paged_rig_close(&rig);
    }
}

static void test_paged_alloc_steps_need_no_memory(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < 2; s++) { /* unpacking needs some: a load may fail for it */
        paged_rig_open(&rig, &shapes[s], &(paged_rig_config){0});
        unsigned char *bytes = paged_rig_alloc(&rig);
        for_good = true;
        atomic_store(&failures, 0);
        atomic_store(&countdown, 1);
        for (uint32_t turn = 0; turn < 9; turn++) {
            assert_int_equal(moepage_paged_materialise(rig.paged, turn % 3), MOEPAGE_OK);
            assert_int_equal(moepage_paged_acquire(rig.paged, turn % 3, NULL), MOEPAGE_OK);
            paged_rig_read(&rig, turn % 3, bytes);
            assert_true(paged_rig_is_layer(&rig, turn % 3, bytes));
            assert_int_equal(moepage_paged_release(rig.paged, turn % 3, NULL), MOEPAGE_OK);
        }
        paged_rig_idle(&rig);
        atomic_store(&countdown, 0);
        assert_int_equal(atomic_load(&failures), 0);
        paged_rig_free(&rig, bytes);
        paged_rig_close(&rig);
    }
}

/* An image that cannot be unpacked for want of memory is the layer's failure. The first ones were unpacked when the
 * PagedTensor was created. */
#define LAST 2
static void test_paged_alloc_unpacking_fails_for_its_layer(void **state)
{
    (void)state;
    paged_rig_open(&rig, &shapes[2], &(paged_rig_config){0});
    for_good = false;
    atomic_store(&countdown, 1);
    assert_int_equal(moepage_paged_materialise(rig.paged, LAST), MOEPAGE_OK);
    assert_int_equal(moepage_paged_acquire(rig.paged, LAST, NULL), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "layer 2 could not be loaded: no memory"));
    assert_int_equal(atomic_load(&countdown), 0);
    assert_int_equal(moepage_paged_materialise(rig.paged, LAST), MOEPAGE_OK);
    assert_int_equal(moepage_paged_acquire(rig.paged, LAST, NULL), MOEPAGE_OK);
    unsigned char *bytes = paged_rig_alloc(&rig);
    paged_rig_read(&rig, LAST, bytes);
    assert_true(paged_rig_is_layer(&rig, LAST, bytes));
    assert_int_equal(moepage_paged_release(rig.paged, LAST, NULL), MOEPAGE_OK);
    paged_rig_free(&rig, bytes);
    paged_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_alloc_creation_leaves_nothing),
        cmocka_unit_test(test_paged_alloc_steps_need_no_memory),
        cmocka_unit_test(test_paged_alloc_unpacking_fails_for_its_layer),
    };
    alloc_fault_strikes = strikes;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
