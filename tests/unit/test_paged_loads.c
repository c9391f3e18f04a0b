/* A PagedTensor's loads: where their bytes come from, and what happens when they fail. */
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "pack_maker.h"
#include "paged_case.h"
#include "paged_tensor/paged.h"
#include "testing.h"

/* ---- holding a device up ---- */

typedef struct blockage {
    sem_t gate;
    mp_stream *stream;
    unsigned char byte;
} blockage;

static moepage_status hold(const mp_copy *copy, void *out)
{
    (void)out;
    blockage *block = (blockage *)(uintptr_t)copy->fill_user;
    while (sem_wait(&block->gate))
        ;
    return MOEPAGE_OK;
}

/* Nothing of the class's kind, bus or compute, goes on until the blockage is removed. */
static void put_up(blockage *block, mp_stream_class cls)
{
    const mp_device_ops *ops = rig.device->device->ops;
    mp_copy copy = {.dst = &block->byte, .bytes = 1, .fill = hold, .fill_user = block};
    mp_tick tick;
    sem_init(&block->gate, 0, 0);
    OK(ops->stream_create(rig.device->device, cls, &block->stream));
    OK(ops->copy(block->stream, &copy, 1, &tick));
}

static void take_down(blockage *block)
{
    sem_post(&block->gate);
    rig.device->device->ops->stream_destroy(block->stream);
    sem_destroy(&block->gate);
}

/* ---- failures ---- */

static void test_paged_loads_failed_read_is_the_layer_s_own(void **state)
{
    (void)state;
    bank_shape shape = plain;
    shape.callback = true;
    paged_rig_open(&rig, &shape, &(paged_rig_config){0});
    OK(materialise(0));
    visit(0);
    atomic_store(&rig.bank.fail_key, 1 * EXPERTS + 2);
    OK(materialise(1));
    for (uint32_t i = 0; i < 2; i++) { /* until it is materialised again */
        REFUSED(acquire(1), CALLBACK);
        SAYS("layer 1 could not be loaded: the read callback failed with -5");
        SAYS("expert 2");
        assert_int_equal(paged_rig_state(&rig, 1), MOEPAGE_PAGED_UNMAPPED);
    }
    REFUSED(release(1), STATE);
    paged_rig_check(&rig);
    visit(0); /* still there */
    atomic_store(&rig.bank.fail_key, UINT32_MAX);
    OK(materialise(1));
    visit(1);
    visit(0);
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_loads_failed_read_shows_without_an_acquire(void **state)
{
    (void)state;
    bank_shape shape = plain;
    shape.callback = true;
    paged_rig_open(&rig, &shape, &(paged_rig_config){0});
    atomic_store(&rig.bank.fail_key, 4 * EXPERTS);
    OK(materialise(4));
    do
        assert_int_not_equal(paged_rig_state(&rig, 4), MOEPAGE_PAGED_RESIDENT);
    while (paged_rig_state(&rig, 4) != MOEPAGE_PAGED_UNMAPPED);
    atomic_store(&rig.bank.fail_key, UINT32_MAX);
    REFUSED(acquire(4), CALLBACK);
    OK(materialise(4));
    visit(4);
    paged_rig_close(&rig);
}

/* Acquires layer 0, of whose load the device has refused a part, once it has given its buffer back. */
static moepage_status acquire_refused(void)
{
    paged_rig_await(&rig, 0, MOEPAGE_PAGED_UNMAPPED);
    moepage_status status = acquire(0);
    SAYS("layer 0 could not be loaded: the device was told to refuse this");
    return status;
}

static void load_again(void)
{
    OK(materialise(0));
    visit(0);
    visit(1);
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

/* What is still on its way into the buffer must not come upon the next load. */
static void test_paged_loads_failed_load_keeps_its_buffer_until_all_has_landed(void **state)
{
    (void)state;
    for (uint64_t n = 2; n <= 3; n++) { /* the views */
        blockage bus;
        open_rig(true, 0);
        put_up(&bus, MP_STREAM_DEMAND);
        late_fail(n, false);
        OK(materialise(0));
        paged_rig_idle(&rig);
        assert_int_equal(late_failures(), 1);
        assert_int_equal(paged_rig_state(&rig, 0), MOEPAGE_PAGED_EVICTING);
        REFUSED(materialise(0), BUSY);
        SAYS("still being taken back");
        OK(materialise(1));
        REFUSED(materialise(2), BUSY);
        SAYS("still giving its buffer back");
        take_down(&bus);
        assert_int_not_equal(acquire_refused(), MOEPAGE_OK);
        load_again();
    }
}

/* A load whose second submission is refused is not told of, and keeps its buffer, while the first is on its way. */
static void test_paged_loads_failed_part_of_a_load_waits_for_the_rest(void **state)
{
    (void)state;
    blockage bus;
    bank_shape many = plain;
    many.experts = 70; /* more copies than one submission takes */
    paged_rig_open(&rig, &many, &(paged_rig_config){.where = PAGED_LATE});
    put_up(&bus, MP_STREAM_DEMAND);
    late_fail(2, false);
    OK(materialise(0));
    paged_rig_idle(&rig);
    assert_int_equal(late_failures(), 1);
    assert_int_equal(paged_rig_state(&rig, 0), MOEPAGE_PAGED_LOADING);
    OK(materialise(1));
    REFUSED(materialise(2), BUSY);
    take_down(&bus);
    REFUSED(acquire_refused(), DEVICE);
    load_again();
}

/* A pass over the layers in which any call may be refused: whatever is refused is tried again. */
static uint32_t stubborn_pass(void)
{
    uint32_t refusals = 0;
    unsigned char *bytes = paged_rig_alloc(&rig);
    for (uint32_t i = 0; i < LAYERS; i++) {
        moepage_status status;
        do {
            do
                status = materialise(i);
            while (status == MOEPAGE_E_BUSY); /* a failed load is being taken back */
            assert_int_equal(status, MOEPAGE_OK);
            status = acquire(i);
            refusals += status != MOEPAGE_OK;
            if (status)
                assert_true(status == MOEPAGE_E_DEVICE || status == MOEPAGE_E_NO_MEMORY);
        } while (status);
        paged_rig_read(&rig, i, bytes);
        paged_rig_wait(&rig);
        assert_true(paged_rig_is_layer(&rig, i, bytes));
        while (release(i))
            refusals++;
        paged_rig_check(&rig);
    }
    paged_rig_free(&rig, bytes);
    return refusals;
}

static void refuse_each_call(const bank_shape *shape)
{
    paged_rig_open_device(&rig, shape, &(paged_rig_config){.where = PAGED_LATE});
    uint64_t failures = 1, n = 0;
    while (failures) {
        late_fail(0, false);
        OK(paged_rig_create(&rig, &(paged_rig_config){0}));
        late_fail(++n, false);
        uint32_t refusals = stubborn_pass();
        failures = late_failures();
        assert_int_equal(refusals, failures); /* each is told of, once */
        late_fail(0, false);
        assert_int_equal(stubborn_pass(), 0);
        OK(moepage_paged_destroy(rig.paged));
        rig.paged = NULL;
    }
    assert_true(n > 5 * LAYERS); /* copies, views, marks ... of every layer */
    paged_rig_close(&rig);
}

static void test_paged_loads_survives_a_refusal_of_any_call(void **state)
{
    (void)state;
    refuse_each_call(&plain);
}

static const bank_shape coded = {.layers = LAYERS,
                                 .experts = EXPERTS,
                                 .top_k = 2,
                                 .hidden = 64,
                                 .intermediate = 64,
                                 .bias = true,
                                 .dtype = MOEPAGE_DTYPE_BF16,
                                 .pack_forms = 1u << MOEPAGE_FORM_EXPH};

static void test_paged_loads_survives_a_refusal_of_any_call_with_coded_experts(void **state)
{
    (void)state;
    refuse_each_call(&coded);
}

static void test_paged_loads_survives_a_refusal_of_any_call_with_images_to_read(void **state)
{
    (void)state;
    bank_shape shape = coded;
    shape.pack_forms = 1u << MOEPAGE_FORM_DENSE;
    shape.cold_level = 1;
    refuse_each_call(&shape);
}

static void test_paged_loads_creation_refused_anywhere_leaves_nothing(void **state)
{
    (void)state;
    static const bank_shape *const shapes[] = {&plain, &coded};
    for (uint32_t s = 0; s < 2; s++) {
        paged_rig_open_device(&rig, shapes[s], &(paged_rig_config){.where = PAGED_LATE});
        uint64_t n = 1;
        for (;; n++) {
            late_fail(n, false);
            moepage_status status = paged_rig_create(&rig, &(paged_rig_config){0});
            if (!late_failures())
                break;
            assert_true(status == MOEPAGE_E_NO_MEMORY || status == MOEPAGE_E_DEVICE);
            assert_int_equal(rig.used_bytes, 0);
        }
        assert_true(n > 2 * rig.bank.n_tensors + 1); /* addresses and streams */
        late_fail(0, false);
        assert_int_equal(stubborn_pass(), 0);
        paged_rig_close(&rig);
    }
}

/* ---- where bytes come from ---- */

/* What crosses the bus, and whether it passes through host memory. */
typedef enum source { DENSE, CODED, READ } source;

static source source_of(const bank_shape *shape)
{
    moepage_paged_info info = {.struct_size = sizeof info};
    paged_rig_open(&rig, shape, &(paged_rig_config){0});
    OK(moepage_paged_get_info(rig.paged, &info));
    source found = info.host_tier_experts               ? READ
                   : info.bus_form == MOEPAGE_FORM_EXPH ? CODED
                                                        : DENSE;
    OK(materialise(0));
    for (uint32_t turn = 0; turn < 2 * LAYERS; turn++) {
        OK(materialise((turn + 1) % LAYERS));
        visit(turn % LAYERS);
    }
    paged_rig_check(&rig);
    paged_rig_close(&rig);
    return found;
}

static void test_paged_loads_bytes_come_from_every_kind_of_model(void **state)
{
    (void)state;
    bank_shape shape = coded;
    assert_int_equal(source_of(&shape), CODED);
    shape.pack_forms |= 1u << MOEPAGE_FORM_DENSE;
    assert_int_equal(source_of(&shape), CODED);
    shape.pack_forms = 1u << MOEPAGE_FORM_DENSE;
    assert_int_equal(source_of(&shape), DENSE);
    shape.cold_level = 1;
    assert_int_equal(source_of(&shape), READ);
    shape.pack_forms = 0;
    assert_int_equal(source_of(&shape), DENSE);
    shape.callback = true;
    assert_int_equal(source_of(&shape), DENSE);
}

/* An expert of such a size does not start where a decoder can write. */
static void test_paged_loads_coded_experts_of_odd_sizes_are_decoded_elsewhere(void **state)
{
    (void)state;
    bank_shape shape = coded;
    shape.intermediate = 61;
    assert_int_equal(source_of(&shape), READ);
    shape.pack_forms |= 1u << MOEPAGE_FORM_DENSE;
    assert_int_equal(source_of(&shape), DENSE);
}

/* Half of the staging takes one of these layers: with the decoder held up, three of them would be
 * in it at once. */
static void test_paged_loads_staging_is_kept_until_it_is_decoded(void **state)
{
    (void)state;
    blockage decoder;
    paged_rig_open(&rig, &coded, &(paged_rig_config){.buffers = 4});
    put_up(&decoder, MP_STREAM_COMPUTE);
    for (uint32_t i = 0; i < 4; i++)
        OK(materialise(i));
    paged_rig_quiesce(&rig);
    take_down(&decoder);
    for (uint32_t i = 0; i < 4; i++)
        visit(i);
    paged_rig_close(&rig);
}

/* A shrink is begun while images are on their way, and another call that fails takes it back. */
static void test_paged_loads_images_go_on_after_a_shrink_that_is_taken_back(void **state)
{
    (void)state;
    blockage bus;
    const uint32_t compressed = EXPERTS - 1;
    paged_rig_open(&rig, &coded,
                   &(paged_rig_config){.where = PAGED_LATE, .compressed = compressed});
    paged_rig_resize(&rig, 0);
    put_up(&bus, MP_STREAM_DEMAND);
    paged_rig_resize(&rig, compressed);
    paged_rig_idle(&rig);
    REFUSED(moepage_paged_resize(rig.paged, 0), BUSY);
    take_down(&bus);
    paged_rig_quiesce(&rig);
    paged_rig_idle(&rig); /* none is left to copy */
    assert_true(paged_rig_info(&rig).compressed_experts < compressed);
    REFUSED(moepage_paged_resize(rig.paged, EXPERTS), BUDGET);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) { /* several are copied at a time */
        paged_rig_idle(&rig);
        paged_rig_quiesce(&rig);
    }
    assert_int_equal(paged_rig_info(&rig).compressed_experts, compressed);
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_loads_damaged_images_are_never_shown(void **state)
{
    (void)state;
    static const uint32_t forms[] = {MOEPAGE_FORM_DENSE, MOEPAGE_FORM_EXPH};
    for (uint32_t f = 0; f < 2; f++) {
        bank_shape shape = coded;
        shape.pack_forms = 1u << forms[f];
        paged_rig_open(&rig, &shape, &(paged_rig_config){0});
        mp_image image;
        mp_model_find_image(rig.bank.model, 1, 2, forms[f], &image);
        pack_rot(rig.bank.model, 1, 2, forms[f], image.bytes / 2);
        OK(materialise(0));
        visit(0);
        OK(materialise(1));
        REFUSED(acquire(1), FORMAT);
        SAYS("layer 1, expert 2");
        assert_int_equal(paged_rig_state(&rig, 1), MOEPAGE_PAGED_UNMAPPED);
        OK(materialise(2));
        visit(2);
        visit(0);
        paged_rig_check(&rig);
        paged_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_loads_failed_read_is_the_layer_s_own),
        cmocka_unit_test(test_paged_loads_failed_read_shows_without_an_acquire),
        cmocka_unit_test(test_paged_loads_failed_load_keeps_its_buffer_until_all_has_landed),
        cmocka_unit_test(test_paged_loads_failed_part_of_a_load_waits_for_the_rest),
        cmocka_unit_test(test_paged_loads_survives_a_refusal_of_any_call),
        cmocka_unit_test(test_paged_loads_survives_a_refusal_of_any_call_with_coded_experts),
        cmocka_unit_test(test_paged_loads_survives_a_refusal_of_any_call_with_images_to_read),
        cmocka_unit_test(test_paged_loads_creation_refused_anywhere_leaves_nothing),
        cmocka_unit_test(test_paged_loads_bytes_come_from_every_kind_of_model),
        cmocka_unit_test(test_paged_loads_coded_experts_of_odd_sizes_are_decoded_elsewhere),
        cmocka_unit_test(test_paged_loads_staging_is_kept_until_it_is_decoded),
        cmocka_unit_test(test_paged_loads_images_go_on_after_a_shrink_that_is_taken_back),
        cmocka_unit_test(test_paged_loads_damaged_images_are_never_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
