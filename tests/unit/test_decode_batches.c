/* Images that are decoded together: how many launches a layer takes, what bounds a launch, and that an
 * image which cannot be read takes no other down. */
#include "fake_device.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define EXPERTS 8
#define ALL                    \
    {                          \
        0, 1, 2, 3, 4, 5, 6, 7 \
    }

static bank_model bank;
static fake_device fake;
static pool_rig rig;
static moepage_session *session;

/* `compressed` of a layer's experts are in device memory, the others in the pack. */
static mp_transfer *open_slots(uint32_t compressed, uint32_t staging, uint64_t slots)
{
    bank_shape shape = {.layers = 2,
                        .experts = EXPERTS,
                        .top_k = EXPERTS,
                        .hidden = 8,
                        .intermediate = 4,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                        .seed = 5};
    bank_model_open(&bank, &shape);
    fake_device_init(&fake);
    rig = (pool_rig){.bank = &bank, .n_devices = 1};
    rig.devices[0] = fake_home_open(&fake, 65536, 1u << 20);
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = slots,
                                         .staging_experts = staging,
                                         .compressed_experts = compressed};
    assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                     MOEPAGE_OK);
    session = pool_rig_session(&rig, &(moepage_session_config){.max_top_k = EXPERTS,
                                                               .regime = MOEPAGE_REGIME_CACHE});
    fake.launches = 0;
    return rig.pool->transfers[0];
}

static mp_transfer *open_rig(uint32_t compressed, uint32_t staging)
{
    return open_slots(compressed, staging, 2 * EXPERTS);
}

static void close_rig(void)
{
    fake_device_pump(&fake);
    pool_rig_check(&rig);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    fake_device_pump(&fake);
    fake_home_close(rig.devices[0]);
    bank_model_close(&bank);
}

/* Routes all experts of a layer and looks at their bytes. Returns the launches that it took. */
static uint64_t visit(uint32_t layer)
{
    static const int32_t ids[] = ALL;
    const uint64_t before = fake.launches;
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, layer, ids, EXPERTS, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_experts, EXPERTS);
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_true(
            bank_model_matches(&bank, layer, plan.experts[e].expert, plan.experts[e].tensors));
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    return fake.launches - before;
}

/* Nothing holds a launch back here: the fake's clock stands, so that its rates have no end. */
static void test_decode_batches_are_one_for_a_layer(void **state)
{
    (void)state;
    open_rig(EXPERTS, 0);
    for (uint32_t layer = 0; layer < 2; layer++)
        assert_int_equal(visit(layer), 1);
    assert_int_equal(pool_rig_info(&rig).compressed_loads, 2 * EXPERTS);
    assert_int_equal(pool_rig_info(&rig).decodes, 2 * EXPERTS);
    close_rig();
}

/* A launch ends with the staging buffers, the last of which is for prefetches. */
static void test_decode_batches_end_with_the_staging_buffers(void **state)
{
    (void)state;
    static const uint32_t buffers[] = {2, 4, 5, 9}, launches[] = {8, 3, 2, 1};
    for (uint32_t i = 0; i < 4; i++) {
        open_rig(0, buffers[i]);
        assert_int_equal(visit(1), launches[i]);
        assert_int_equal(pool_rig_info(&rig).decodes, EXPERTS);
        close_rig();
    }
}

/* Images in device memory do not wait for those that cross the bus. */
static void test_decode_batches_wait_for_one_bus_or_none(void **state)
{
    (void)state;
    open_rig(EXPERTS / 2, EXPERTS + 1);
    assert_int_equal(visit(0), 2);
    assert_int_equal(pool_rig_info(&rig).compressed_loads, EXPERTS / 2);
    close_rig();
}

/* In device memory: 100 us of decoding. From the bus: 5 us of waiting for others. */
static void test_decode_batches_are_bounded_by_time(void **state)
{
    (void)state;
    static const uint32_t per_launch[] = {1, 2, 3, 8};
    for (uint32_t i = 0; i < 4; i++) {
        const uint64_t n = per_launch[i], launches = (EXPERTS + n - 1) / n;
        mp_transfer *transfer = open_rig(EXPERTS, 0);
        transfer->rates.decode = n * transfer->slot_bytes * 10000;
        assert_int_equal(visit(0), launches);
        close_rig();
        transfer = open_rig(0, EXPERTS + 1);
        transfer->rates.bus = (n - 1) * transfer->slot_bytes * 200000;
        assert_int_equal(visit(0), launches);
        close_rig();
    }
}

/* The rows of jobs are a ring, one for each slot: launches go on when each has been used, and none wraps. */
static void test_decode_batches_go_on(void **state)
{
    (void)state;
    mp_transfer *transfer = open_slots(EXPERTS, 0, EXPERTS + 1);
    transfer->rates.decode = 3 * transfer->slot_bytes * 10000;
    for (uint32_t i = 0; i < 20; i++) {
        const uint64_t launches = visit(i % 2);
        assert_true(launches == 3 || launches == 4);
    }
    close_rig();
}

/* One transfer of a launch fails, or the launch itself: those loads have failed, and no others. */
static void test_decode_batches_fail_by_the_image(void **state)
{
    (void)state;
    static const int32_t ids[] = ALL;
    moepage_plan plan = {.struct_size = sizeof plan};
    for (uint64_t n = 1; n <= EXPERTS; n++) {
        open_rig(0, EXPERTS + 1);
        fake.faults.transfer = n;
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(pool_rig_route(session, 1, ids, EXPERTS, &plan), MOEPAGE_E_DEVICE);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        fake_device_pump(&fake);
        pool_rig_check(&rig); /* compares the bytes of all that are resident */
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(pool_rig_state(&rig, 1, e) == MOEPAGE_EXPERT_RESIDENT, e + 1 != n);
        assert_int_equal(visit(1), 1);
        assert_int_equal(pool_rig_info(&rig).decodes, EXPERTS + 1);
        close_rig();
    }
    open_rig(0, EXPERTS + 1);
    fake.faults.submit = 2; /* the copies are one submission */
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 1, ids, EXPERTS, &plan), MOEPAGE_E_DEVICE);
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    pool_rig_check(&rig);
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_int_not_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(visit(1), 1);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_batches_are_one_for_a_layer),
        cmocka_unit_test(test_decode_batches_end_with_the_staging_buffers),
        cmocka_unit_test(test_decode_batches_wait_for_one_bus_or_none),
        cmocka_unit_test(test_decode_batches_are_bounded_by_time),
        cmocka_unit_test(test_decode_batches_go_on),
        cmocka_unit_test(test_decode_batches_fail_by_the_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
