/* PagedTensor: layout, the protocol's states and its target layer, late readers. */
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <unistd.h>

#include "paged_case.h"
#include "paged_tensor/paged.h"
#include "testing.h"

/* ---- layout and creation ---- */

static void test_paged_addresses_follow_equation_4(void **state)
{
    (void)state;
    open_rig(false, 0);
    assert_true(rig.bank.n_tensors >= 2);
    for (uint32_t t = 0; t < rig.bank.n_tensors; t++) {
        const moepage_paged_tensor *tensor = &rig.tensors[t];
        const moepage_expert_tensor *of = &rig.bank.tensors[t];
        uint64_t sigma = of->shape[0] * of->shape[1] * 4;
        assert_int_equal(tensor->role, of->role);
        assert_int_equal(tensor->dtype, MOEPAGE_DTYPE_F32);
        assert_int_equal(tensor->rank, 2);
        assert_memory_equal(tensor->shape, of->shape, sizeof tensor->shape);
        assert_int_equal(tensor->expert_stride, sigma);
        assert_true(tensor->layer_stride >= EXPERTS * sigma);
        assert_true(tensor->layer_stride < EXPERTS * sigma + 4096);
        assert_int_equal(tensor->layer_stride % 4096, 0);
        assert_int_equal((uintptr_t)tensor->base % 4096, 0);
    }
    moepage_paged_tensor tensor = {.struct_size = sizeof tensor};
    REFUSED(moepage_paged_get_tensor(rig.paged, rig.bank.n_tensors, &tensor), ARGUMENT);
    paged_rig_close(&rig);
}

static void test_paged_ranges_of_addresses_do_not_overlap(void **state)
{
    (void)state;
    open_rig(false, 0);
    for (uint32_t a = 0; a < rig.bank.n_tensors; a++)
        for (uint32_t b = 0; b < a; b++) {
            const char *at = rig.tensors[a].base, *other = rig.tensors[b].base;
            assert_true(at + LAYERS * rig.tensors[a].layer_stride <= other ||
                        other + LAYERS * rig.tensors[b].layer_stride <= at);
        }
    paged_rig_close(&rig);
}

/* What is less than a page in each layer. */
static void test_paged_small_tensors_share_a_range(void **state)
{
    (void)state;
    bank_shape shape = plain;
    shape.bias = shape.split = true;
    shape.experts = 6; /* gate, up and down: 3 * 19,200 bytes; biases: 480, 480 and 960 */
    uint64_t arena = 0;
    paged_rig_open(&rig, &shape, &(paged_rig_config){0});
    OK(moepage_paged_sizes(rig.device, rig.bank.model, NULL, NULL, &arena));
    assert_int_equal(arena, 2 * (3 * 20480 + 4096));
    const char *first = NULL;
    for (uint32_t t = 0; t < rig.bank.n_tensors; t++) {
        bool small = rig.bank.tensors[t].rank == 1;
        const char *at = rig.tensors[t].base;
        assert_int_equal(rig.tensors[t].layer_stride, small ? 4096 : 20480);
        assert_int_equal((uintptr_t)at % 256, 0);
        if (small && first)
            assert_true(at > first && at < first + 4096);
        first = small && !first ? at : first;
    }
    assert_non_null(first);
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        OK(materialise(i % LAYERS));
        visit(i % LAYERS);
    }
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_takes_exactly_what_it_says(void **state)
{
    (void)state;
    for (uint32_t buffers = 2; buffers <= LAYERS; buffers++) {
        uint64_t workspace = 1, arena = 0, one = 0;
        moepage_paged_config config = {.struct_size = sizeof config, .buffers = buffers};
        open_rig(false, buffers);
        OK(moepage_paged_sizes(rig.device, rig.bank.model, &config, &workspace, &arena));
        assert_int_equal(arena, rig.used_bytes);
        assert_int_equal(workspace, 0);
        for (uint32_t t = 0; t < rig.bank.n_tensors; t++)
            one += rig.tensors[t].layer_stride;
        assert_true(one > 0); /* no tensor shares its range */
        assert_int_equal(arena, buffers * one);
        OK(moepage_paged_sizes(rig.device, rig.bank.model, NULL, NULL, &arena));
        assert_int_equal(arena, 2 * one);
        paged_rig_close(&rig);
    }
}

static void test_paged_creation_is_refused_with_a_reason(void **state)
{
    (void)state;
    moepage_paged_config config = {.struct_size = sizeof config};
    moepage_paged *paged = NULL;
    moepage_expert_pool *pool = NULL;
    paged_rig_open_device(&rig, &plain, &(paged_rig_config){0});
    config.buffers = 1;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), ARGUMENT);
    config.buffers = LAYERS + 1;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), ARGUMENT);
    SAYS("buffers is 6");
    config.buffers = 3; /* the arena has room for two */
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), BUDGET);
    uint64_t view_bytes = rig.device->device->view_bytes;
    rig.device->device->view_bytes = 0;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, NULL, &paged), UNSUPPORTED);
    rig.device->device->view_bytes = view_bytes;
    OK(moepage_expert_pool_create(&rig.device, 1, rig.bank.model, NULL, &pool));
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, NULL, &paged), BUSY);
    OK(moepage_expert_pool_destroy(pool));
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, NULL, NULL), ARGUMENT);
    REFUSED(moepage_paged_create(rig.device, (moepage_model *)(void *)rig.device, NULL, &paged),
            HANDLE);
    assert_null(paged);
    OK(paged_rig_create(&rig, &(paged_rig_config){0}));
    REFUSED(moepage_expert_pool_create(&rig.device, 1, rig.bank.model, NULL, &pool), BUSY);
    REFUSED(moepage_model_close(rig.bank.model), BUSY);
    REFUSED(moepage_device_close(rig.device), BUSY);
    paged_rig_close(&rig);
}

static void test_paged_of_one_layer_has_one_buffer(void **state)
{
    (void)state;
    bank_shape shape = plain;
    shape.layers = 1;
    paged_rig_open(&rig, &shape, &(paged_rig_config){0});
    for (uint32_t i = 0; i < 3; i++) {
        OK(materialise(0));
        visit(0);
    }
    paged_rig_close(&rig);
}

static void test_paged_handle_is_checked(void **state)
{
    (void)state;
    uint32_t number;
    open_rig(false, 0);
    REFUSED(materialise(LAYERS), ARGUMENT);
    REFUSED(acquire(LAYERS), ARGUMENT);
    REFUSED(release(LAYERS), ARGUMENT);
    REFUSED(moepage_paged_get_state(rig.paged, LAYERS, &number), ARGUMENT);
    REFUSED(moepage_paged_get_state(rig.paged, 0, NULL), ARGUMENT);
    REFUSED(moepage_paged_materialise(NULL, 0), ARGUMENT);
    REFUSED(moepage_paged_destroy((moepage_paged *)(void *)rig.device), HANDLE);
    OK(moepage_paged_destroy(NULL));
    OK(moepage_paged_destroy(rig.paged));
    REFUSED(materialise(0), HANDLE);
    rig.paged = NULL;
    paged_rig_close(&rig);
}

/* ---- the protocol ---- */

static uint32_t buffer_of(uint32_t layer)
{
    pthread_mutex_lock(&rig.paged->lock);
    uint32_t buffer = rig.paged->layers[layer].buffer;
    pthread_mutex_unlock(&rig.paged->lock);
    return buffer;
}

static void test_paged_takes_over_from_the_paper_s_target_layer(void **state)
{
    (void)state;
    open_rig(false, 0);
    for (uint32_t iteration = 1; iteration <= 3; iteration++)
        for (uint32_t i = 1; i <= LAYERS; i++) {
            uint32_t target = (i - 3 + LAYERS) % LAYERS + 1; /* the paper's layers count from 1 */
            bool cold = iteration == 1 && i <= 2;
            uint32_t buffer = cold ? MP_PAGED_NONE : buffer_of(target - 1);
            OK(materialise(i - 1));
            if (cold) {
                assert_int_equal(buffer_of(i - 1), i - 1);
            } else {
                assert_int_equal(buffer_of(i - 1), buffer);
                uint32_t evicted = paged_rig_state(&rig, target - 1);
                assert_true(evicted == MOEPAGE_PAGED_EVICTING || evicted == MOEPAGE_PAGED_UNMAPPED);
            }
            visit(i - 1);
            assert_int_equal(paged_rig_state(&rig, i - 1), MOEPAGE_PAGED_RESIDENT);
        }
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_forward_passes_read_every_layer_right(void **state)
{
    (void)state;
    for (uint32_t buffers = 2; buffers <= LAYERS; buffers++) {
        open_rig(false, buffers);
        for (uint32_t i = 0; i < buffers; i++)
            OK(materialise(i));
        for (uint32_t turn = 0; turn < 4 * LAYERS; turn++) {
            visit(turn % LAYERS);
            OK(materialise((turn + buffers) % LAYERS));
        }
        paged_rig_check(&rig);
        paged_rig_close(&rig);
    }
}

/* Only the loads of the first two layers wait for nothing. */
static void test_paged_cold_start_waits_for_nobody(void **state)
{
    (void)state;
    open_rig(true, 0);
    late_fail(0, false);
    OK(materialise(0));
    OK(materialise(1));
    paged_rig_quiesce(&rig);
    assert_int_equal(late_waits(), 0);
    unsigned char *bytes = paged_rig_alloc(&rig);
    OK(acquire(0));
    paged_rig_shut(&rig);
    paged_rig_read(&rig, 0, bytes);
    OK(release(0));
    OK(materialise(2));
    paged_rig_idle(&rig);
    assert_int_equal(late_waits(), 2); /* the bus, and that behind cold reads */
    paged_rig_wait(&rig);
    assert_true(paged_rig_is_layer(&rig, 0, bytes));
    paged_rig_free(&rig, bytes);
    paged_rig_close(&rig);
}

static void test_paged_layer_becomes_resident_by_itself(void **state)
{
    (void)state;
    open_rig(false, 0);
    assert_int_equal(paged_rig_state(&rig, 3), MOEPAGE_PAGED_UNMAPPED);
    assert_true(paged_rig_none_readable(&rig, 3));
    OK(materialise(3));
    paged_rig_await(&rig, 3, MOEPAGE_PAGED_RESIDENT);
    assert_true(paged_rig_all_readable(&rig, 3));
    visit(3);
    paged_rig_close(&rig);
}

static void test_paged_calls_out_of_order_are_refused(void **state)
{
    (void)state;
    open_rig(false, 0);
    REFUSED(acquire(0), STATE);
    SAYS("materialise it first");
    REFUSED(release(0), STATE);
    OK(materialise(0));
    REFUSED(release(0), STATE);
    OK(acquire(0));
    REFUSED(acquire(0), STATE);
    SAYS("release it first");
    REFUSED(moepage_paged_destroy(rig.paged), BUSY);
    OK(release(0));
    REFUSED(release(0), STATE);
    visit(0); /* it is still there */
    paged_rig_close(&rig);
}

static void test_paged_layer_that_is_needed_keeps_its_buffer(void **state)
{
    (void)state;
    open_rig(false, 0);
    OK(materialise(0));
    OK(materialise(1));
    REFUSED(materialise(2), BUSY);
    SAYS("layer 0 has the buffer and has not been acquired yet");
    assert_int_equal(paged_rig_state(&rig, 2), MOEPAGE_PAGED_UNMAPPED);
    OK(acquire(0));
    REFUSED(materialise(2), BUSY);
    SAYS("layer 0 has the buffer and has not been released yet");
    OK(release(0));
    OK(materialise(0)); /* promised anew: behind 1 */
    REFUSED(materialise(2), BUSY);
    SAYS("layer 1");
    visit(1);
    OK(materialise(2)); /* of 1 */
    REFUSED(acquire(1), STATE);
    visit(0);
    visit(2);
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_destroy_takes_loads_under_way_along(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        open_rig(i % 2, 3);
        for (uint32_t layer = 0; layer < 3; layer++)
            OK(materialise(layer));
        if (i % 3 == 0)
            visit(0);
        if (i % 3 == 0)
            OK(materialise(4));
        paged_rig_close(&rig);
    }
}

/* ---- late readers ---- */

static void test_paged_late_readers_keep_bytes_and_addresses(void **state)
{
    (void)state;
    open_rig(true, 0);
    unsigned char *early = paged_rig_alloc(&rig), *late = paged_rig_alloc(&rig);
    OK(materialise(0));
    OK(materialise(1));
    OK(acquire(0));
    paged_rig_shut(&rig);
    paged_rig_read(&rig, 0, early);
    OK(release(0));
    OK(materialise(2)); /* takes layer 0's buffer over */
    paged_rig_quiesce(&rig);
    assert_int_equal(paged_rig_state(&rig, 0), MOEPAGE_PAGED_EVICTING);
    assert_int_equal(paged_rig_state(&rig, 2), MOEPAGE_PAGED_LOADING);
    assert_true(paged_rig_all_readable(&rig, 0));
    OK(acquire(2)); /* its addresses are mapped, and nobody waited for layer 0's readers */
    assert_true(paged_rig_all_readable(&rig, 2));
    assert_int_equal(paged_rig_state(&rig, 2), MOEPAGE_PAGED_LOADING);
    paged_rig_read(&rig, 2, late);
    OK(release(2));
    paged_rig_open_gate(&rig);
    paged_rig_wait(&rig);
    assert_true(paged_rig_is_layer(&rig, 0, early));
    assert_true(paged_rig_is_layer(&rig, 2, late));
    paged_rig_await(&rig, 0, MOEPAGE_PAGED_UNMAPPED);
    paged_rig_await(&rig, 2, MOEPAGE_PAGED_RESIDENT);
    paged_rig_check(&rig);
    paged_rig_free(&rig, early);
    paged_rig_free(&rig, late);
    paged_rig_close(&rig);
}

static void test_paged_comes_back_only_when_its_old_view_has_gone(void **state)
{
    (void)state;
    open_rig(true, 3);
    unsigned char *bytes = paged_rig_alloc(&rig);
    for (uint32_t i = 0; i < 3; i++)
        OK(materialise(i));
    visit(1);
    OK(acquire(0));
    paged_rig_shut(&rig);
    paged_rig_read(&rig, 0, bytes);
    OK(release(0));
    OK(materialise(3)); /* takes 0's */
    OK(materialise(0)); /* takes 1's */
    paged_rig_quiesce(&rig);
    assert_int_equal(paged_rig_state(&rig, 0), MOEPAGE_PAGED_LOADING);
    paged_rig_open_gate(&rig);
    paged_rig_wait(&rig);
    assert_true(paged_rig_is_layer(&rig, 0, bytes));
    visit(0);
    visit(2);
    visit(3);
    paged_rig_check(&rig);
    paged_rig_free(&rig, bytes);
    paged_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_addresses_follow_equation_4),
        cmocka_unit_test(test_paged_ranges_of_addresses_do_not_overlap),
        cmocka_unit_test(test_paged_small_tensors_share_a_range),
        cmocka_unit_test(test_paged_takes_exactly_what_it_says),
        cmocka_unit_test(test_paged_creation_is_refused_with_a_reason),
        cmocka_unit_test(test_paged_of_one_layer_has_one_buffer),
        cmocka_unit_test(test_paged_handle_is_checked),
        cmocka_unit_test(test_paged_takes_over_from_the_paper_s_target_layer),
        cmocka_unit_test(test_paged_forward_passes_read_every_layer_right),
        cmocka_unit_test(test_paged_cold_start_waits_for_nobody),
        cmocka_unit_test(test_paged_layer_becomes_resident_by_itself),
        cmocka_unit_test(test_paged_calls_out_of_order_are_refused),
        cmocka_unit_test(test_paged_layer_that_is_needed_keeps_its_buffer),
        cmocka_unit_test(test_paged_destroy_takes_loads_under_way_along),
        cmocka_unit_test(test_paged_late_readers_keep_bytes_and_addresses),
        cmocka_unit_test(test_paged_comes_back_only_when_its_old_view_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
