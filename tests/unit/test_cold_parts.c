/* An image that is copied in parts while its read of the cold tier ends: between two parts, well or badly. */
#include <string.h>

#include "fake_device.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define EXPERTS 4
#define LAYER 1
#define EXPERT 2
#define PASSAGE 1
#define PART_BYTES 64

static bank_model bank;
static fake_device fake;
static pool_rig rig;
static mp_transfer *transfer;
static unsigned char place[4096] __attribute__((aligned(256)));

/* The fake's streams, but that one of them may seem not to have come to anything yet. */
static const mp_device_ops *plain_ops;
static mp_device_ops ops;
static const mp_stream *held;

static mp_tick completed(const mp_stream *stream)
{
    return stream == held ? 0 : plain_ops->completed(stream);
}

static moepage_status wait_for(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    assert_true(tick <= plain_ops->completed(other)); /* what is waited for has been submitted */
    return plain_ops->wait(stream, other, tick);
}

static void open_rig(void)
{
    bank_shape shape = {.layers = 2,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 8,
                        .intermediate = 4,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                        .seed = 11};
    bank_model_open(&bank, &shape);
    fake_device_init(&fake);
    plain_ops = fake.device.ops;
    ops = *plain_ops;
    ops.completed = completed;
    ops.wait = wait_for;
    fake.device.ops = &ops;
    rig = (pool_rig){.bank = &bank, .n_devices = 1};
    rig.devices[0] = fake_home_open(&fake, 65536, 1u << 20);
    assert_int_equal(moepage_expert_pool_create(
                         rig.devices, 1, bank.model,
                         &MOEPAGE_EXPERT_POOL_CONFIG(.slots = 2, .host_tier_bytes = 65536),
                         &rig.pool),
                     MOEPAGE_OK);
    transfer = rig.pool->transfers[0];
    pthread_mutex_lock(transfer->lock);
}

static void close_rig(void)
{
    mp_passage_end(transfer, PASSAGE);
    pthread_mutex_unlock(transfer->lock);
    fake_device_pump(&fake);
    assert_int_equal(moepage_expert_pool_destroy(rig.pool), MOEPAGE_OK);
    fake_home_close(rig.devices[0]);
    bank_model_close(&bank);
}

/* Its first part is behind the read; the others come when the read has ended. */
static void load_across_the_end_of_its_read(void)
{
    const uint32_t key = LAYER * EXPERTS + EXPERT;
    const mp_host_tier *tier = transfer->tier;
    assert_int_equal(mp_transfer_may_start(transfer, key, MP_PIPE_DEMAND), MP_START_NOW);
    mp_passage_begin(transfer, PASSAGE, key, place, MP_PIPE_DEMAND);
    held = tier->lanes[tier->entries[tier->entry_of[key]].lane].stream;
    assert_int_equal(mp_passage_advance(transfer, PASSAGE, MP_PIPE_DEMAND, PART_BYTES), PART_BYTES);
    assert_true(mp_passage_waits_for_cold(transfer, PASSAGE));
    assert_false(mp_passage_is_submitted(transfer, PASSAGE));
    held = NULL;
    while (!mp_passage_is_submitted(transfer, PASSAGE))
        mp_passage_advance(transfer, PASSAGE, MP_PIPE_DEMAND, PART_BYTES);
    mp_transfer_flush(transfer);
    assert_true(mp_passage_has_landed(transfer, PASSAGE));
}

static void test_cold_parts_are_decoded_behind_all_of_them(void **state)
{
    (void)state;
    const void *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    open_rig();
    load_across_the_end_of_its_read();
    assert_int_equal(mp_passage_result(transfer, PASSAGE), MOEPAGE_OK);
    for (uint32_t t = 0; t < bank.n_tensors; t++)
        tensors[t] = place + mp_model_layout(bank.model, LAYER)->tensors[t].offset;
    assert_true(bank_model_matches(&bank, LAYER, EXPERT, tensors));
    close_rig();
}

/* The next load of a staging buffer may only wait for a decoding. */
static void test_cold_parts_of_a_failed_read_give_their_staging_back(void **state)
{
    (void)state;
    open_rig();
    fake.faults.transfer = 1;
    load_across_the_end_of_its_read();
    assert_int_equal(mp_passage_result(transfer, PASSAGE), MOEPAGE_E_DEVICE);
    for (uint32_t i = 0; i < transfer->staging.n; i++)
        assert_int_equal(transfer->staging.buffers[i].passage, MP_NO_PASSAGE);
    assert_int_equal(transfer->counters.decodes, 1);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cold_parts_are_decoded_behind_all_of_them),
        cmocka_unit_test(test_cold_parts_of_a_failed_read_give_their_staging_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
