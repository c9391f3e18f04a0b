/* The simulated device and models without weights, with every allocation failed in turn: the call
 * says so and has changed nothing, and succeeds when it is made again. */

#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"
#include "machine_rig.h"
#include "simulated/phantom.h"
#include "testing.h"

/* Calls `call(context)` with its 1st, 2nd ... allocation failed until it succeeds with none left to
 * fail; returns how many there were. */
static uint32_t fail_each(moepage_status (*call)(void *context), void *context)
{
    for (uint32_t nth = 1;; nth++) {
        alloc_fault = (alloc_faults){.countdown = nth};
        moepage_status status = call(context);
        uint64_t failures = alloc_fault.failures;
        alloc_fault = (alloc_faults){0};
        if (!failures) {
            assert_int_equal(status, MOEPAGE_OK);
            return nth - 1;
        }
        assert_int_equal(status, MOEPAGE_E_NO_MEMORY);
        assert_true(strlen(moepage_last_error()) > 10);
    }
}

static moepage_status open_device(void *context)
{
    mp_sim_profile profile = machine_profile();
    moepage_device_config config = {.struct_size = sizeof config};
    mp_device **out = context;
    moepage_status status = mp_sim_open(&profile, &config, out);
    if (status)
        assert_null(*out);
    return status;
}

static moepage_status open_shape(void *context)
{
    const mp_phantom_shape shape = {.name = "x",
                                    .layers = 2,
                                    .moe_layers = 2,
                                    .experts = 4,
                                    .top_k = 2,
                                    .hidden = 32,
                                    .expert_intermediate = 32,
                                    .dtype = MOEPAGE_DTYPE_BF16};
    moepage_model **out = context;
    moepage_status status = mp_model_open_phantom(&shape, out);
    if (status)
        assert_null(*out);
    return status;
}

static void test_sim_alloc_opening_fails_whole(void **state)
{
    (void)state;
    mp_device *device = NULL;
    moepage_model *model = NULL;
    assert_true(fail_each(open_device, &device) >= 3); /* itself and its own streams */
    device->ops->close(device);
    assert_true(fail_each(open_shape, &model) >= 3);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static moepage_status read_profile(void *context)
{
    return mp_sim_profile_read("examples/machines/host.json", context);
}

static void test_sim_alloc_profiles_are_read_or_not(void **state)
{
    (void)state;
    mp_sim_profile profile;
    assert_true(fail_each(read_profile, &profile) >= 1);
    assert_string_equal(profile.name, "host");
}

typedef struct queue {
    mp_device *device;
    mp_stream *stream, *other;
    mp_copy copies[100];
    mp_tick tick;
} queue;

static moepage_status create_stream(void *context)
{
    queue *q = context;
    return q->device->ops->stream_create(q->device, MP_STREAM_COLD, &q->stream);
}

static moepage_status submit_many(void *context)
{
    queue *q = context;
    mp_tick before = q->tick;
    moepage_status status = q->device->ops->copy(q->stream, q->copies, 100, &q->tick);
    if (status)
        assert_int_equal(q->tick, before);
    return status;
}

/* Single submissions, until the queue has to grow. */
static moepage_status submit_one_by_one(void *context)
{
    queue *q = context;
    const mp_device_ops *ops = q->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < 100 && !status; i++) {
        mp_kernel_convert_args args = {.x_dtype = MOEPAGE_DTYPE_F32, .n_tokens = 1, .hidden = 1};
        mp_tick tick = 0;
        status = ops->wait(q->other, q->stream, q->tick);
        if (!status)
            status = ops->launch(q->other, MP_KERNEL_CONVERT, &args, &tick);
        if (!status)
            status = ops->mark(q->other, &tick);
    }
    return status;
}

static void test_sim_alloc_refused_submissions_leave_the_queue(void **state)
{
    (void)state;
    queue *q = calloc(1, sizeof *q);
    assert_non_null(q);
    assert_int_equal(open_device(&q->device), MOEPAGE_OK);
    for (uint32_t i = 0; i < 100; i++)
        q->copies[i].bytes = i;
    assert_true(fail_each(create_stream, q) >= 3);
    assert_int_equal(q->device->ops->stream_create(q->device, MP_STREAM_COMPUTE, &q->other),
                     MOEPAGE_OK);
    assert_int_equal(q->device->ops->copy(q->stream, q->copies, 3, &q->tick), MOEPAGE_OK);
    assert_true(fail_each(submit_many, q) >= 2);
    assert_int_equal(q->tick, 103); /* what was refused has no tick */
    assert_true(fail_each(submit_one_by_one, q) >= 2);
    assert_int_equal(q->device->ops->sync(q->stream, q->tick), MOEPAGE_OK);
    mp_sim_usage usage;
    mp_sim_get_usage(q->device, &usage);
    assert_int_equal(usage.cold_bytes, 1 + 2 + 99 * 100 / 2);
    q->device->ops->stream_destroy(q->other);
    q->device->ops->stream_destroy(q->stream);
    q->device->ops->close(q->device);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_alloc_opening_fails_whole),
        cmocka_unit_test(test_sim_alloc_profiles_are_read_or_not),
        cmocka_unit_test(test_sim_alloc_refused_submissions_leave_the_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
