/* Expert pools and sessions when memory runs out: every allocation of a creation fails in turn,
 * once and for good. The creation then says NO_MEMORY and leaves everything as it was. */
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"
#include "base/alloc.h"
#include "pool_rig.h"
#include "testing.h"

static bank_model bank;
static pool_rig rig;

static bool tiered;   /* pools have a host tier, staging and compressed experts */
static bool no_peers; /* what crosses between GPUs goes by host memory */
static uint32_t miss; /* of sessions */

static void open_rig(uint32_t n_devices)
{
    bank_shape shape = {.layers = 3, .experts = 8, .top_k = 2, .hidden = 8, .intermediate = 4};
    if (tiered) {
        shape.dtype = MOEPAGE_DTYPE_BF16;
        shape.pack_forms = 1u << MOEPAGE_FORM_EXPH;
    }
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank,
                  &(pool_rig_config){.n_devices = n_devices, .slots = 12, .no_peers = no_peers});
}

static void close_rig(void)
{
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static uint64_t used_bytes(void)
{
    uint64_t sum = 0;
    for (uint32_t d = 0; d < rig.n_devices; d++) {
        moepage_device_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_device_get_info(rig.devices[d], &info), MOEPAGE_OK);
        sum += info.used_bytes;
    }
    return sum;
}

static moepage_status create_pool(void)
{
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = 12,
                                         .scope = MOEPAGE_SCOPE_LAYER,
                                         .host_tier_bytes = tiered ? 1u << 20 : 0,
                                         .compressed_experts = tiered ? 3 : 0};
    moepage_expert_pool *pool = NULL;
    moepage_status status =
        moepage_expert_pool_create(rig.devices, rig.n_devices, bank.model, &config, &pool);
    assert_int_equal(pool != NULL, status == MOEPAGE_OK);
    alloc_fault.countdown = 0;
    if (!status)
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    return status;
}

static moepage_status create_session(void)
{
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = 4,
                                     .prefetch = MOEPAGE_PREFETCH_PREVIOUS,
                                     .miss = miss};
    moepage_session *session = NULL;
    moepage_status status = moepage_session_create(rig.pool, NULL, &config, &session);
    assert_int_equal(session != NULL, status == MOEPAGE_OK);
    alloc_fault.countdown = 0;
    if (!status)
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    return status;
}

/* Fails the 1st, 2nd, ... allocation until one creation needs fewer than that. */
static uint64_t fail_each(moepage_status (*create)(void), bool persistent)
{
    uint64_t before = used_bytes(), n = 1;
    for (;; n++) {
        alloc_fault.countdown = n;
        alloc_fault.for_good = persistent;
        alloc_fault.failures = 0;
        moepage_status status = create();
        if (!alloc_fault.failures) {
            assert_int_equal(status, MOEPAGE_OK);
            break;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_non_null(strstr(moepage_last_error(), "no memory"));
        assert_int_equal(used_bytes(), before);
    }
    assert_int_equal(create(), MOEPAGE_OK);
    return n - 1;
}

static void test_session_alloc_pool_creation_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t n_devices = 1; n_devices <= 2; n_devices++) {
        open_rig(n_devices);
        assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
        uint64_t once = fail_each(create_pool, false);
        assert_int_equal(fail_each(create_pool, true), once);
        assert_true(once >= 10 * n_devices); /* tables, queues, policies, streams */
        moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 12};
        assert_int_equal(moepage_expert_pool_create(rig.devices, n_devices, bank.model, &config,
                                                    &rig.pool),
                         MOEPAGE_OK);
        close_rig();
    }
}

static void test_session_alloc_tiered_pool_creation_leaves_nothing(void **state)
{
    tiered = true;
    test_session_alloc_pool_creation_leaves_nothing(state);
    tiered = false;
}

static void test_session_alloc_session_creation_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t n_devices = 1; n_devices <= 2; n_devices++) {
        open_rig(n_devices);
        uint64_t once = fail_each(create_session, false);
        assert_int_equal(fail_each(create_session, true), once);
        assert_true(once >= 50); /* four flights of ten arrays, and more */
        close_rig();
    }
}

static moepage_session *remapped;

static moepage_status turn_on_remap(void)
{
    moepage_remap_config config = {.struct_size = sizeof config, .alpha = 1, .beta = 2};
    moepage_status status = moepage_session_set_remap(remapped, &config);
    alloc_fault.countdown = 0;
    if (!status)
        assert_int_equal(moepage_session_set_remap(remapped, NULL), MOEPAGE_OK);
    return status;
}

static void test_session_alloc_remapping_that_fails_stays_off(void **state)
{
    (void)state;
    open_rig(1);
    remapped = pool_rig_session(&rig, NULL);
    uint64_t once = fail_each(turn_on_remap, false);
    assert_int_equal(fail_each(turn_on_remap, true), once);
    assert_true(once >= 7);
    assert_int_equal(moepage_session_destroy(remapped), MOEPAGE_OK);
    close_rig();
}

/* Once it is created, a session allocates no more. */
static void test_session_alloc_steps_need_no_memory(void **state)
{
    (void)state;
    open_rig(1);
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_PREVIOUS});
    float x[8] = {1}, y[8];
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    alloc_fault.countdown = 1;
    alloc_fault.for_good = true, alloc_fault.failures = 0;
    for (int32_t pass = 0; pass < 10; pass++) {
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < 3; l++) {
            int32_t ids[2] = {pass % 8, (pass + 3) % 8};
            assert_int_equal(pool_rig_route(session, l, ids, 2, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
    assert_int_equal(alloc_fault.failures, 0);
    alloc_fault.countdown = 0;
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    close_rig();
}

/* Of several GPUs, with access to each other's memory or without, and the host beside them. */
static void test_session_alloc_creations_over_gpus_leave_nothing(void **state)
{
    setenv("MP_TEST_DEVICE", "sim", 1);
    for (uint32_t i = 0; i < 3; i++) {
        no_peers = i == 1;
        miss = i == 2 ? MOEPAGE_MISS_HOST : MOEPAGE_MISS_WAIT;
        test_session_alloc_session_creation_leaves_nothing(state);
    }
    test_session_alloc_pool_creation_leaves_nothing(state);
    miss = MOEPAGE_MISS_WAIT;
    unsetenv("MP_TEST_DEVICE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_alloc_pool_creation_leaves_nothing),
        cmocka_unit_test(test_session_alloc_tiered_pool_creation_leaves_nothing),
        cmocka_unit_test(test_session_alloc_session_creation_leaves_nothing),
        cmocka_unit_test(test_session_alloc_creations_over_gpus_leave_nothing),
        cmocka_unit_test(test_session_alloc_remapping_that_fails_stays_off),
        cmocka_unit_test(test_session_alloc_steps_need_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
