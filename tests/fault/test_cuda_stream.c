/* Streams of the CUDA device when any one call of the driver fails, for a passing reason or for
 * good: nothing hangs, every transfer either brings its bytes or says that it has not, ticks
 * complete, and all of it can be taken down. */
#include <stdio.h>
#include <string.h>

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc_fault.h"
#include "base/status.h"
#include "device/thread.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"

static uint32_t n_allocs, fail_alloc; /* 0 = none */

static bool alloc_fails(size_t bytes)
{
    (void)bytes;
    return ++n_allocs == fail_alloc;
}

/* ---- What is done ----------------------------------------------------------------------- */

/* A transfer of each kind, and what its bytes are in the end. */
enum { BYTES = 256, FLOATS = BYTES / 4, TRANSFERS = 8, STREAMS = 5 };

static const mp_stream_class classes[STREAMS] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH,
                                                 MP_STREAM_COMPUTE, MP_STREAM_BACKGROUND,
                                                 MP_STREAM_COLD};

typedef struct counted {
    mp_task task;
    _Atomic uint32_t runs;
} counted;

typedef struct scene {
    mp_device *device;
    const mp_device_ops *ops;
    mp_stream *streams[STREAMS];
    unsigned char *pinned, *inside; /* TRANSFERS of BYTES each */
    float *sums;                    /* [FLOATS] */
    unsigned char plain[2][BYTES];
    _Atomic int32_t results[TRANSFERS];
    mp_tick last[STREAMS];
    counted after[STREAMS];
    moepage_status launched, followed;
} scene;

static void count(mp_task *task)
{
    atomic_fetch_add(&((counted *)(void *)task)->runs, 1);
}

static moepage_status fill(const mp_copy *copy, void *out)
{
    memset(out, (int)copy->fill_key[0], copy->bytes);
    return MOEPAGE_OK;
}

/* Opens the device and its streams with the driver whole: faults come after. */
static void open_scene(scene *s)
{
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .threads = 1,
                                          .io_threads = 1};
    static const sim_cuda_config machine = {.copy_batch = true, .seed = 3};
    void *memory[3] = {NULL};
    memset(s, 0, sizeof *s);
    const mp_cuda_driver *driver = sim_cuda_open(&machine);
    assert_int_equal(mp_cuda_device_open(driver, NULL, "", sim_images, sim_n_images, 0, &config,
                                         &s->device),
                     MOEPAGE_OK);
    s->ops = s->device->ops;
    for (uint32_t i = 0; i < STREAMS; i++) {
        assert_int_equal(s->ops->stream_create(s->device, classes[i], &s->streams[i]), 0);
        s->after[i].task.run = count;
    }
    const uint64_t bytes[3] = {TRANSFERS * BYTES, TRANSFERS * BYTES, BYTES};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(s->ops->alloc(s->device, i ? MP_MEMORY_WORKSPACE : MP_MEMORY_HOST,
                                       bytes[i], &memory[i]),
                         0);
    s->pinned = memory[0];
    s->inside = memory[1];
    s->sums = memory[2];
    memset(s->pinned, 0, bytes[0]);
    memset(s->inside, 0, bytes[1]);
    memset(s->sums, 0, bytes[2]);
}

static unsigned char *cell(unsigned char *cells, uint32_t i)
{
    return cells + i * BYTES;
}

static void copy(scene *s, uint32_t stream, uint32_t which, void *dst, const void *src)
{
    mp_copy halves[2];
    for (uint32_t i = 0; i < 2; i++)
        halves[i] = (mp_copy){.dst = (unsigned char *)dst + i * (BYTES / 2),
                              .src = src ? (const unsigned char *)src + i * (BYTES / 2) : NULL,
                              .bytes = BYTES / 2,
                              .fill = src ? NULL : fill,
                              .fill_key = {which + 1, 0, 0},
                              .result = &s->results[which]};
    moepage_status status = s->ops->copy(s->streams[stream], halves, 2, &s->last[stream]);
    if (status)
        atomic_store(&s->results[which], status);
}

/* A wait that is refused would have to stop a caller: so it does here. */
static bool wait(scene *s, uint32_t stream, uint32_t other)
{
    return s->ops->wait(s->streams[stream], s->streams[other], s->last[other]) == MOEPAGE_OK;
}

static moepage_status launch(scene *s)
{
    float weight = 2;
    int32_t id = 0;
    mp_kernel_combine_args args = {.partial = (const float *)(const void *)cell(s->inside, 4),
                                   .weights = &weight,
                                   .ids = &id,
                                   .y = s->sums,
                                   .y_stride = FLOATS,
                                   .y_dtype = MOEPAGE_DTYPE_F32,
                                   .n_tokens = 1,
                                   .top_k = 1,
                                   .hidden = FLOATS};
    return s->ops->launch(s->streams[2], MP_KERNEL_COMBINE, &args, &s->last[2]);
}

/* Everything once. What is not submitted because of a refusal says so in its result. */
static void submit(scene *s)
{
    static unsigned char ones[BYTES];
    float *source = (float *)(void *)cell(s->pinned, 4);
    for (uint32_t i = 0; i < FLOATS; i++)
        source[i] = 1.5f;
    memset(ones, 3, sizeof ones);
    copy(s, 4, 0, cell(s->pinned, 0), NULL);               /* COLD */
    copy(s, 0, 1, cell(s->inside, 1), NULL);               /* a fill */
    copy(s, 0, 2, cell(s->inside, 2), ones);               /* pageable, up */
    copy(s, 0, 4, cell(s->inside, 4), cell(s->pinned, 4)); /* plain */
    s->launched = wait(s, 2, 0) ? launch(s) : MOEPAGE_E_DEVICE;
    if (wait(s, 1, 4))
        copy(s, 1, 3, cell(s->inside, 3), cell(s->pinned, 0)); /* behind COLD */
    else
        atomic_store(&s->results[3], MOEPAGE_E_DEVICE);
    if (wait(s, 1, 0))
        copy(s, 1, 5, s->plain[0], cell(s->inside, 2)); /* pageable, down */
    else
        atomic_store(&s->results[5], MOEPAGE_E_DEVICE);
    if (s->ops->enter(s->streams[3], NULL) || !wait(s, 3, 2) || !wait(s, 3, 0))
        atomic_store(&s->results[6], MOEPAGE_E_DEVICE);
    else
        copy(s, 3, 6, cell(s->inside, 6), cell(s->inside, 1)); /* within the device */
    if (s->last[1] && wait(s, 4, 1))
        copy(s, 4, 7, s->plain[1], s->plain[0]); /* COLD behind the GPU */
    else
        atomic_store(&s->results[7], MOEPAGE_E_DEVICE);
    if (s->last[0])
        s->followed = s->ops->follow(NULL, s->streams[0], s->last[0]);
    for (uint32_t i = 0; i < STREAMS; i++)
        s->ops->post(s->device, s->streams[i], s->last[i], &s->after[i].task);
}

static void check_bytes(const scene *s, uint32_t which, const void *at, const void *want)
{
    if (!atomic_load(&s->results[which]) && memcmp(at, want, BYTES))
        fail_msg("transfer %u claims bytes that it did not bring", which);
}

/* True: all went well, and all of it is right. */
static bool finish(scene *s)
{
    unsigned char want[TRANSFERS][BYTES];
    bool well = !s->launched && !s->followed;
    for (uint32_t i = 0; i < STREAMS; i++) {
        moepage_status status = s->ops->sync(s->streams[i], s->last[i]);
        well = well && !status;
        assert_true(s->ops->completed(s->streams[i]) >= s->last[i]);
        while (!atomic_load(&s->after[i].runs))
            sched_yield();
    }
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        memset(want[i], (int)i + 1, BYTES);
        well = well && !atomic_load(&s->results[i]);
    }
    if (!well)
        return false;
    memset(want[2], 3, BYTES);
    check_bytes(s, 0, cell(s->pinned, 0), want[0]);
    check_bytes(s, 1, cell(s->inside, 1), want[1]);
    check_bytes(s, 2, cell(s->inside, 2), want[2]);
    check_bytes(s, 3, cell(s->inside, 3), want[0]);
    check_bytes(s, 4, cell(s->inside, 4), cell(s->pinned, 4));
    check_bytes(s, 5, s->plain[0], want[2]);
    check_bytes(s, 6, cell(s->inside, 6), want[1]);
    check_bytes(s, 7, s->plain[1], want[2]);
    for (uint32_t i = 0; i < FLOATS; i++)
        assert_true(s->sums[i] == 3.0f);
    return true;
}

static void close_scene(scene *s)
{
    for (uint32_t i = 0; i < STREAMS; i++)
        s->ops->stream_destroy(s->streams[i]);
    s->ops->free(s->device, MP_MEMORY_HOST, s->pinned, TRANSFERS * BYTES);
    s->ops->free(s->device, MP_MEMORY_WORKSPACE, s->inside, TRANSFERS * BYTES);
    s->ops->free(s->device, MP_MEMORY_WORKSPACE, s->sums, BYTES);
    s->ops->close(s->device);
    sim_cuda_close();
}

/* ---- Faults ----------------------------------------------------------------------------- */

/* The driver is whole again when all is taken down: what gives back has done so. */
static bool run_with_fault(sim_cuda_call call, uint64_t nth, mp_cu_result result, bool for_ever,
                           uint64_t *made)
{
    scene s;
    open_scene(&s);
    uint64_t before = sim_cuda_get_stats().calls[call];
    if (nth)
        sim_cuda_fail(call, nth, result, for_ever);
    alarm(60); /* a hang is a failure with a name */
    submit(&s);
    bool well = finish(&s);
    alarm(0);
    *made = sim_cuda_get_stats().calls[call] - before;
    sim_cuda_fail_none();
    close_scene(&s);
    return well;
}

/* What work needs, so that a failure must be seen; and what has another way, or is asked again. */
static const sim_cuda_call needed[] = {
    SIM_copy,         SIM_copy_batch,     SIM_launch,          SIM_stream_wait,
    SIM_event_record, SIM_stream_write64, SIM_stream_capturing};
static const sim_cuda_call others[] = {SIM_pointer_attribute, SIM_event_sync, SIM_context_push,
                                       SIM_stream_query};

/* The number of faults that were seen. */
static uint32_t fail_each(sim_cuda_call call, mp_cu_result result, bool for_ever, bool must_show)
{
    uint32_t shown = 0;
    uint64_t calls = 0, made = 0;
    assert_true(run_with_fault(call, 0, 0, false, &calls));
    assert_true(calls > 0 || !must_show);
    for (uint64_t nth = 1; nth <= calls; nth++) {
        bool well = run_with_fault(call, nth, result, for_ever, &made);
        if (well && must_show && made >= nth)
            fail_msg("%s %u failed with %d, and nobody was told", sim_cuda_call_name(call),
                     (unsigned)nth, result);
        shown += !well;
    }
    return shown;
}

static void check_calls(mp_cu_result result, bool for_ever)
{
    uint32_t shown = 0;
    for (uint32_t i = 0; i < sizeof needed / sizeof *needed; i++)
        shown += fail_each(needed[i], result, for_ever, true);
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++)
        fail_each(others[i], result, for_ever, false);
    assert_true(shown > 10);
}

static void test_cuda_stream_survives_calls_that_fail_once(void **state)
{
    (void)state;
    check_calls(MP_CU_INVALID_HANDLE, false);
}

static void test_cuda_stream_survives_calls_that_fail_for_ever(void **state)
{
    (void)state;
    check_calls(MP_CU_OUT_OF_MEMORY, true);
}

static void test_cuda_stream_survives_a_gpu_that_dies(void **state)
{
    (void)state;
    check_calls(MP_CU_LAUNCH_FAILED, false);
}

/* Creating a stream, at every call and allocation that it makes: a sentence, and nothing left. */
static void test_cuda_stream_create_fails_without_a_trace(void **state)
{
    (void)state;
    const moepage_device_config config = {.struct_size = sizeof config,
                                          .threads = 1,
                                          .io_threads = 1};
    for (uint32_t c = 0; c < STREAMS; c++) {
        for (uint32_t part = 0; part < 2; part++) {
            bool failed = true;
            uint32_t nth = 1;
            for (; failed; nth++) {
                mp_device *device = NULL;
                mp_stream *stream = NULL;
                const mp_cuda_driver *driver = sim_cuda_open(NULL);
                assert_int_equal(mp_cuda_device_open(driver, NULL, "", sim_images, sim_n_images, 0,
                                                     &config, &device),
                                 MOEPAGE_OK);
                n_allocs = 0;
                if (part)
                    fail_alloc = nth;
                else if (classes[c] != MP_STREAM_COLD)
                    sim_cuda_fail_any(nth, MP_CU_OUT_OF_MEMORY, false);
                mp_error_set("none");
                moepage_status status = device->ops->stream_create(device, classes[c], &stream);
                failed = status != MOEPAGE_OK;
                fail_alloc = 0;
                sim_cuda_fail_none();
                if (failed)
                    assert_string_not_equal(moepage_last_error(), "none");
                else
                    device->ops->stream_destroy(stream);
                device->ops->close(device);
                sim_cuda_close();
            }
            assert_true(part || classes[c] == MP_STREAM_COLD || nth > 40); /* its events alone */
        }
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_stream_survives_calls_that_fail_once),
        cmocka_unit_test(test_cuda_stream_survives_calls_that_fail_for_ever),
        cmocka_unit_test(test_cuda_stream_survives_a_gpu_that_dies),
        cmocka_unit_test(test_cuda_stream_create_fails_without_a_trace),
    };
    alloc_fault_strikes = alloc_fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
