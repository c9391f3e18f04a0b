/* Expert loads on a device whose transfers and submissions fail in turn, once and for good: the
 * routing that needs them says so, nothing half-loaded is ever served, no slot is lost, and once
 * the device works again so does the pool. */
#include <string.h>

#include "fake_device.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define EXPERTS 8
#define SLOTS 3

static bank_model bank;
static fake_device fake;
static pool_rig rig;

/* What stands behind the slots: nothing but the experts in memory, or a pack with its tiers. */
typedef struct tiers {
    uint32_t pack_forms;
    uint32_t host_tier_bytes;
    uint32_t compressed;
} tiers;

static moepage_session *open_tiered(uint32_t prefetch, uint32_t chunk_bytes, const tiers *behind)
{
    bank_shape shape = {.layers = 2,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 8,
                        .intermediate = 4,
                        .bias = true,
                        .pack_forms = behind->pack_forms,
                        .dtype = behind->pack_forms ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32,
                        .seed = 3};
    bank_model_open(&bank, &shape);
    fake_device_init(&fake);
    rig = (pool_rig){.bank = &bank, .n_devices = 1};
    rig.devices[0] = fake_home_open(&fake, 65536, 1u << 20);
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = SLOTS,
                                         .chunk_bytes = chunk_bytes,
                                         .host_tier_bytes = behind->host_tier_bytes,
                                         .compressed_experts = behind->compressed};
    assert_int_equal(moepage_expert_pool_create(rig.devices, 1, bank.model, &config, &rig.pool),
                     MOEPAGE_OK);
    return pool_rig_session(&rig, &(moepage_session_config){.prefetch = prefetch});
}

static moepage_session *open_rig(uint32_t prefetch, uint32_t chunk_bytes)
{
    return open_tiered(prefetch, chunk_bytes, &(tiers){0});
}

static void close_rig(moepage_session *session)
{
    fake_device_pump(&fake);
    pool_rig_check(&rig);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    fake_device_pump(&fake); /* a task may still be posted */
    fake_home_close(rig.devices[0]);
    bank_model_close(&bank);
}

/* Routes and reads one set; the step is ended either way. */
static moepage_status visit(moepage_session *session, uint32_t layer, int32_t first)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    int32_t ids[2] = {first % EXPERTS, (first + 1) % EXPERTS};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    moepage_status status = pool_rig_route(session, layer, ids, 2, &plan);
    for (uint32_t e = 0; !status && e < plan.n_experts; e++)
        assert_true(
            bank_model_matches(&bank, layer, plan.experts[e].expert, plan.experts[e].tensors));
    if (!status)
        assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    return status;
}

static void expect_recovery(moepage_session *session)
{
    fake.faults = (fake_faults){0};
    fake_device_pump(&fake);
    pool_rig_check(&rig);
    for (int32_t i = 0; i < 2 * EXPERTS; i++)
        assert_int_equal(visit(session, (uint32_t)i % 2, 2 * i), MOEPAGE_OK);
    fake_device_pump(&fake); /* layers that stream have asked ahead */
    pool_rig_check(&rig);
}

/* One visit with the n-th transfer or submission failing, from a cold pool. */
static void fail_nth(uint64_t n, bool submission, bool persistent)
{
    moepage_session *session = open_rig(MOEPAGE_PREFETCH_OFF, 0);
    fake.faults = (fake_faults){.persistent = persistent};
    *(submission ? &fake.faults.submit : &fake.faults.transfer) = n;
    moepage_status status = visit(session, 0, 0);
    /* All loads of a visit are one submission. */
    bool hit = submission ? n == 1 : n <= 2 * bank.n_tensors;
    assert_int_equal(status, hit ? MOEPAGE_E_DEVICE : MOEPAGE_OK);
    if (hit)
        assert_int_equal(visit(session, 0, 0), persistent ? MOEPAGE_E_DEVICE : MOEPAGE_OK);
    expect_recovery(session);
    close_rig(session);
}

static void test_pool_transfers_fail_one_by_one(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 10; n++)
        for (int persistent = 0; persistent < 2; persistent++)
            fail_nth(n, false, persistent);
}

static void test_pool_transfers_are_refused(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 2; n++)
        for (int persistent = 0; persistent < 2; persistent++)
            fail_nth(n, true, persistent);
}

/* A failing prefetch is reported to no call: demand loads the expert itself. */
static void test_pool_transfers_of_prefetches_fail_quietly(void **state)
{
    (void)state;
    for (uint32_t chunk = 16; chunk <= 4096; chunk *= 4)
        for (uint64_t n = 1; n <= 40; n += 3)
            for (int submission = 0; submission < 2; submission++) {
                moepage_session *session = open_rig(MOEPAGE_PREFETCH_HINT, chunk);
                *(submission ? &fake.faults.submit : &fake.faults.transfer) = n;
                assert_int_equal(moepage_session_hint(session, 1, (int32_t[]){0, 1, 2}, 3),
                                 MOEPAGE_OK);
                fake_device_pump(&fake);
                fake.faults = (fake_faults){0};
                assert_int_equal(visit(session, 1, 0), MOEPAGE_OK);
                expect_recovery(session);
                close_rig(session);
            }
}

/* Neither is a prefetch whose first half has failed: the demand begins anew. */
static void test_pool_transfers_of_half_failed_prefetches_begin_anew(void **state)
{
    (void)state;
    moepage_session *session = open_rig(MOEPAGE_PREFETCH_HINT, 64);
    fake.faults.transfer = 1;
    assert_int_equal(moepage_session_hint(session, 1, (int32_t[]){0}, 1), MOEPAGE_OK);
    mp_task *task = fake.first; /* one turn of the prefetcher only */
    fake.first = task->next;
    fake.last = &fake.first;
    task->run(task);
    assert_int_equal(pool_rig_state(&rig, 1, 0), MOEPAGE_EXPERT_LOADING);
    assert_int_equal(visit(session, 1, 0), MOEPAGE_OK);
    expect_recovery(session);
    close_rig(session);
}

/* The n-th submission (cold reads, copies, decodings) or transfer fails on the way through tiers:
 * the call that meets the failure returns DEVICE, and every expert served is right. */
static void test_pool_transfers_fail_one_by_one_in_every_tier(void **state)
{
    (void)state;
    const uint32_t exph = 1u << MOEPAGE_FORM_EXPH, dense = 1u << MOEPAGE_FORM_DENSE;
    const tiers behind[] = {{exph, 0, 0},       {exph, 8192, 0},  {exph, 65536, 0},
                            {exph, 0, EXPERTS}, {exph, 16384, 3}, {dense, 8192, 0},
                            {dense, 0, 0}};
    for (uint32_t t = 0; t < sizeof behind / sizeof *behind; t++)
        for (int submission = 0; submission < 2; submission++) {
            uint32_t failed = 0, n = 1, before;
            do { /* until no visit is late enough to fail */
                before = failed;
                for (int persistent = 0; persistent < 2; persistent++) {
                    moepage_session *session =
                        open_tiered(MOEPAGE_PREFETCH_HINT, n % 2 ? 64 : 0, &behind[t]);
                    fake.faults = (fake_faults){.persistent = persistent};
                    *(submission ? &fake.faults.submit : &fake.faults.transfer) = n;
                    for (int32_t i = 0; i < 4; i++) {
                        moepage_status status = visit(session, (uint32_t)i % 2, 3 * i);
                        assert_true(!status || status == MOEPAGE_E_DEVICE);
                        failed += status != MOEPAGE_OK;
                        assert_int_equal(moepage_session_hint(session, 1, (int32_t[]){i, 7}, 2),
                                         MOEPAGE_OK);
                        fake_device_pump(&fake);
                    }
                    expect_recovery(session);
                    close_rig(session);
                }
                n++;
            } while (failed > before);
            /* A pool without a bus has transfers that fail only where something crosses it. */
            assert_true(failed > 0 || (behind[t].compressed == EXPERTS && !submission));
        }
}

/* Reads fail side by side: a failure whose own sentence another's has replaced is explained by that one. */
static void test_pool_transfers_failures_are_explained(void **state)
{
    (void)state;
    moepage_session *session = open_rig(MOEPAGE_PREFETCH_HINT, 0);
    mp_transfer *transfer = rig.pool->transfers[0];
    char text[512];
    assert_string_equal(mp_transfer_explain(transfer, 1, MOEPAGE_E_IO, text, sizeof text),
                        "input/output error");
    mp_failure_note(&transfer->failure, 1, MOEPAGE_E_IO, "first");
    assert_string_equal(mp_transfer_explain(transfer, 1, MOEPAGE_E_IO, text, sizeof text), "first");
    mp_failure_note(&transfer->failure, 2, MOEPAGE_E_IO, "second");
    assert_string_equal(mp_transfer_explain(transfer, 2, MOEPAGE_E_IO, text, sizeof text),
                        "second");
    assert_string_equal(mp_transfer_explain(transfer, 1, MOEPAGE_E_IO, text, sizeof text),
                        "input/output error; the last such failure: second");
    assert_string_equal(mp_transfer_explain(transfer, 1, MOEPAGE_E_FORMAT, text, sizeof text),
                        moepage_status_text(MOEPAGE_E_FORMAT));
    close_rig(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_transfers_fail_one_by_one),
        cmocka_unit_test(test_pool_transfers_are_refused),
        cmocka_unit_test(test_pool_transfers_of_prefetches_fail_quietly),
        cmocka_unit_test(test_pool_transfers_of_half_failed_prefetches_begin_anew),
        cmocka_unit_test(test_pool_transfers_fail_one_by_one_in_every_tier),
        cmocka_unit_test(test_pool_transfers_failures_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
