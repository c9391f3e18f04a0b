/* Random programs over many streams of the CUDA device, with delays between the GPU's operations:
 * transfers of every kind between pageable, pinned and device memory, fills that may fail, kernels
 * with tables, the caller's own work, COLD reads; with a wait for every hazard. The outcome must be
 * that of running the program one operation after the other on plain arrays. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu.h"
#include "issue.h"
#include "rig.h"
#include "sim_cuda.h"

enum {
    CELLS = 15,
    PAGEABLE = 4,
    PINNED = 9,
    FLOATS = 512,
    STREAMS = 9,
    NATIVE = STREAMS,
    OPS = 250
};

/* Cells: [0, PAGEABLE) pageable, [.., PINNED) pinned, the rest on the device. */
static const mp_stream_class classes[STREAMS] = {MP_STREAM_DEMAND,   MP_STREAM_DEMAND,
                                                 MP_STREAM_PREFETCH, MP_STREAM_PREFETCH,
                                                 MP_STREAM_COMPUTE,  MP_STREAM_BACKGROUND,
                                                 MP_STREAM_COMPUTE,  MP_STREAM_COLD,
                                                 MP_STREAM_COLD};

typedef struct mark {
    uint32_t stream; /* STREAMS: the caller's own */
    mp_tick tick;    /* 0: none */
} mark;

/* Posted after a tick. */
typedef struct note {
    mp_task task;
    const mp_device_ops *ops;
    mp_stream *stream;
    mp_tick tick;
    _Atomic uint32_t *runs, *early;
} note;

typedef struct program {
    rig r;
    mp_cuda *cuda;
    mp_cu_stream native;
    mp_stream *streams[STREAMS];
    float *cells[CELLS];
    float model[CELLS][FLOATS];
    mark written[CELLS];
    mp_tick read[CELLS][STREAMS]; /* since then */
    bool read_natively[CELLS];
    _Atomic int32_t results[OPS];
    int32_t want[OPS]; /* what the transfer's result must be */
    note notes[OPS];
    uint32_t n_notes;
    _Atomic uint32_t runs, early;
    uint64_t seed;
} program;

static uint32_t below(program *p, uint32_t n)
{
    return random_below(&p->seed, n);
}

static bool is_cold(uint32_t stream)
{
    return stream < STREAMS && classes[stream] == MP_STREAM_COLD;
}

static bool computes(uint32_t stream)
{
    return stream < STREAMS &&
           (classes[stream] == MP_STREAM_COMPUTE || classes[stream] == MP_STREAM_BACKGROUND);
}

/* ---- Hazards ---- */

static void wait_for_stream(program *p, uint32_t stream, uint32_t other, mp_tick tick)
{
    if (stream == NATIVE)
        MUST(p->r.ops->follow(p->native, p->streams[other], tick));
    else
        MUST(p->r.ops->wait(p->streams[stream], p->streams[other], tick));
}

/* A COLD stream cannot wait for the caller's: one of ours does in its place. */
static void wait_for_native(program *p, uint32_t stream)
{
    uint32_t by = is_cold(stream) ? 0 : stream;
    mp_tick tick = 0;
    if (stream == NATIVE)
        return;
    MUST(p->r.ops->enter(p->streams[by], p->native));
    if (by == stream)
        return;
    MUST(p->r.ops->mark(p->streams[by], &tick));
    MUST(p->r.ops->wait(p->streams[stream], p->streams[by], tick));
}

static void wait_for_cell(program *p, uint32_t stream, uint32_t cell, bool to_write)
{
    mark w = p->written[cell];
    if (w.stream == NATIVE)
        wait_for_native(p, stream);
    else if (w.tick)
        wait_for_stream(p, stream, w.stream, w.tick);
    if (!to_write)
        return;
    for (uint32_t s = 0; s < STREAMS; s++) {
        if (p->read[cell][s])
            wait_for_stream(p, stream, s, p->read[cell][s]);
    }
    if (p->read_natively[cell])
        wait_for_native(p, stream);
}

static void note_read(program *p, uint32_t stream, uint32_t cell, mp_tick tick)
{
    if (stream == NATIVE)
        p->read_natively[cell] = true;
    else
        p->read[cell][stream] = tick;
}

static void note_written(program *p, uint32_t stream, uint32_t cell, mp_tick tick)
{
    memset(p->read[cell], 0, sizeof p->read[cell]);
    p->read_natively[cell] = false;
    p->written[cell] = (mark){.stream = stream, .tick = tick};
}

/* ---- Operations ---- */

static moepage_status fill_cell(const mp_copy *copy, void *out)
{
    float *values = out;
    if (copy->fill_key[1]) /* and nothing of it may arrive */
        return MOEPAGE_E_IO;
    for (uint32_t i = 0; i < copy->bytes / sizeof *values; i++)
        values[i] = (float)((copy->fill_key[0] * 31 + (copy->fill_offset / 4 + i) * 7) % 1000);
    return MOEPAGE_OK;
}

static mp_tick submit_fill(program *p, uint32_t stream, uint32_t to, uint32_t number)
{
    bool fails = below(p, 8) == 0;
    uint32_t n = 1 + below(p, FLOATS);
    mp_copy copy = {.dst = p->cells[to],
                    .bytes = n * sizeof(float),
                    .fill = fill_cell,
                    .fill_key = {number, fails, 0},
                    .result = &p->results[number]};
    mp_tick tick = 0;
    p->want[number] = fails ? MOEPAGE_E_IO : MOEPAGE_OK;
    if (!fails)
        fill_cell(&copy, p->model[to]);
    MUST(p->r.ops->copy(p->streams[stream], &copy, 1, &tick));
    return tick;
}

/* In up to 40 pieces, of one call. */
static mp_tick submit_copy(program *p, uint32_t stream, uint32_t to, uint32_t from)
{
    mp_copy copies[40];
    uint32_t n = 1 + below(p, below(p, 3) ? 3 : 40), at = below(p, FLOATS - 40);
    mp_tick tick = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = FLOATS - at - (n - i), take = 1 + (left ? below(p, left / (n - i) + 1) : 0);
        copies[i] = (mp_copy){.dst = p->cells[to] + at,
                              .src = p->cells[from] + at,
                              .bytes = take * sizeof(float)};
        memcpy(p->model[to] + at, p->model[from] + at, take * sizeof(float));
        at += take;
    }
    MUST(p->r.ops->copy(p->streams[stream], copies, n, &tick));
    return tick;
}

static mp_tick submit_kernel(program *p, uint32_t stream, uint32_t to, uint32_t from)
{
    float weight = below(p, 2) ? 1 : -1;
    int32_t id = 5;
    uint32_t n = 1 + below(p, FLOATS);
    mp_kernel_combine_args args = {.partial = p->cells[from],
                                   .weights = &weight,
                                   .ids = &id,
                                   .y = p->cells[to],
                                   .y_stride = n,
                                   .y_dtype = MOEPAGE_DTYPE_F32,
                                   .n_tokens = 1,
                                   .top_k = 1,
                                   .hidden = n};
    for (uint32_t i = 0; i < n; i++)
        p->model[to][i] = weight * p->model[from][i] + 0.0f;
    mp_tick tick = 0;
    MUST(p->r.ops->launch(p->streams[stream], MP_KERNEL_COMBINE, &args, &tick));
    weight = 12345;
    id = -1;
    return tick;
}

static void submit_natively(program *p, uint32_t to, uint32_t from)
{
    MUST(mp_cuda_enter(p->cuda));
    assert_int_equal(p->cuda->driver->copy((mp_cu_ptr)(uintptr_t)p->cells[to],
                                           (mp_cu_ptr)(uintptr_t)p->cells[from],
                                           sizeof p->model[to], p->native),
                     0);
    mp_cuda_leave(p->cuda);
    memcpy(p->model[to], p->model[from], sizeof p->model[to]);
}

/* ---- Programs ---- */

static void run_note(mp_task *task)
{
    note *n = (note *)(void *)task;
    if (n->ops->completed(n->stream) < n->tick)
        atomic_fetch_add(n->early, 1);
    atomic_fetch_add(n->runs, 1);
}

static void look_at(program *p, uint32_t stream, mp_tick tick)
{
    const mp_device_ops *ops = p->r.ops;
    note *n = &p->notes[p->n_notes];
    switch (below(p, 24)) {
    case 0: MUST(ops->sync(p->streams[stream], tick)); break;
    case 1: MUST(ops->settle(p->streams[stream], tick)); break;
    case 2: MUST(ops->mark(p->streams[stream], &tick)); break;
    case 3:
        *n = (note){.task.run = run_note,
                    .ops = ops,
                    .stream = p->streams[stream],
                    .tick = tick,
                    .runs = &p->runs,
                    .early = &p->early};
        p->n_notes++;
        ops->post(p->r.device, p->streams[stream], tick, &n->task);
        break;
    case 4:
        while (ops->completed(p->streams[stream]) < tick)
            sched_yield();
        break;
    default: break;
    }
}

static void run_op(program *p, uint32_t number)
{
    uint32_t stream = below(p, STREAMS + 1), first = 0, end = CELLS;
    if (is_cold(stream))
        end = PINNED;
    else if (computes(stream))
        first = PINNED;
    else if (stream == NATIVE)
        first = PAGEABLE + 1;
    uint32_t to = first + below(p, end - first), from;
    do
        from = first + below(p, end - first);
    while (from == to || (stream == NATIVE && to < PINNED && from < PINNED));
    bool fills = stream != NATIVE && !computes(stream) && below(p, 3) == 0;
    mp_tick tick = 0;
    wait_for_cell(p, stream, to, true);
    if (!fills)
        wait_for_cell(p, stream, from, false);
    if (fills)
        tick = submit_fill(p, stream, to, number);
    else if (stream == NATIVE)
        submit_natively(p, to, from);
    else if (computes(stream) && below(p, 3))
        tick = submit_kernel(p, stream, to, from);
    else
        tick = submit_copy(p, stream, to, from);
    if (!fills)
        note_read(p, stream, from, tick);
    note_written(p, stream, to, tick);
    if (stream != NATIVE)
        look_at(p, stream, tick);
}

/* Streams come and go while others wait for their ticks. */
static void replace_stream(program *p)
{
    uint32_t stream = below(p, STREAMS);
    p->r.ops->stream_destroy(p->streams[stream]);
    MUST(p->r.ops->stream_create(p->r.device, classes[stream], &p->streams[stream]));
    for (uint32_t c = 0; c < CELLS; c++) {
        p->read[c][stream] = 0;
        if (p->written[c].stream == stream)
            p->written[c] = (mark){0};
    }
}

static void settle_all(program *p)
{
    mp_tick tick = 0;
    MUST(p->r.ops->enter(p->streams[0], p->native));
    for (uint32_t s = 0; s < STREAMS; s++) {
        MUST(p->r.ops->mark(p->streams[s], &tick));
        MUST(p->r.ops->sync(p->streams[s], tick));
    }
}

static void run_program(program *p, uint64_t seed)
{
    p->seed = seed;
    p->n_notes = 0;
    atomic_store(&p->runs, 0);
    for (uint32_t i = 0; i < OPS; i++) {
        atomic_store(&p->results[i], 0);
        p->want[i] = 0;
    }
    for (uint32_t i = 0; i < OPS; i++) {
        run_op(p, i);
        if (below(p, 60) == 0)
            replace_stream(p);
    }
    settle_all(p);
    for (uint32_t i = 0; i < OPS; i++)
        assert_int_equal(atomic_load(&p->results[i]), p->want[i]);
    for (uint32_t c = 0; c < CELLS; c++) { /* device memory is host memory here */
        if (memcmp(p->cells[c], p->model[c], sizeof p->model[c]))
            fail_msg("cell %u differs after the program of seed %llu", c, (unsigned long long)seed);
    }
    while (atomic_load(&p->runs) < p->n_notes)
        sched_yield();
    assert_int_equal(atomic_load(&p->early), 0);
    memset(p->written, 0, sizeof p->written);
    memset(p->read, 0, sizeof p->read);
    memset(p->read_natively, 0, sizeof p->read_natively);
}

static sim_cuda_config machine;

static mp_device *open_device(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = threads,
                                    .io_threads = 2,
                                    .bus_bytes_per_s = bus_bytes_per_s};
    mp_device *device = NULL;
    const mp_cuda_driver *driver = sim_cuda_open(&machine);
    return mp_cuda_device_open(driver, NULL, "not here", sim_images, sim_n_images, 0, &config,
                               &device)
               ? NULL
               : device;
}

static void open_program(program *p)
{
    rig_open(&p->r, 1, 0);
    p->cuda = mp_cuda_of(p->r.device);
    MUST(mp_cuda_enter(p->cuda));
    assert_int_equal(p->cuda->driver->stream_create(&p->native, MP_CU_STREAM_NON_BLOCKING, 0), 0);
    mp_cuda_leave(p->cuda);
    for (uint32_t s = 0; s < STREAMS; s++)
        MUST(p->r.ops->stream_create(p->r.device, classes[s], &p->streams[s]));
    for (uint32_t c = 0; c < CELLS; c++) {
        p->cells[c] = c < PAGEABLE
                          ? calloc(FLOATS, sizeof(float))
                          : rig_alloc(&p->r, c < PINNED ? MP_MEMORY_HOST : MP_MEMORY_WORKSPACE,
                                      sizeof p->model[c]);
        assert_non_null(p->cells[c]);
        memset(p->cells[c], 0, sizeof p->model[c]);
    }
}

static void close_program(program *p)
{
    for (uint32_t s = 0; s < STREAMS; s++)
        p->r.ops->stream_destroy(p->streams[s]);
    MUST(mp_cuda_enter(p->cuda));
    p->cuda->driver->stream_destroy(p->native);
    mp_cuda_leave(p->cuda);
    assert_int_equal(sim_cuda_get_stats().staged_copies, 0);
    rig_close(&p->r);
    for (uint32_t c = 0; c < PAGEABLE; c++)
        free(p->cells[c]);
}

static void check_programs(const sim_cuda_config *config)
{
    program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    machine = *config;
    open_program(p);
    for (uint32_t i = 0; i < rounds(25); i++) {
        sim_cuda_jitter(i % 3 ? i : 0);
        run_program(p, config->seed * 10000 + i);
    }
    close_program(p);
    free(p);
}

static void test_cuda_streams_do_what_the_program_says(void **state)
{
    (void)state;
    check_programs(&(sim_cuda_config){.copy_batch = true, .seed = 1});
}

/* Submissions wait for room, in the driver and in our own queues. */
static void test_cuda_streams_do_it_with_short_queues(void **state)
{
    (void)state;
    check_programs(&(sim_cuda_config){.queue_ops = 3, .seed = 2});
}

int main(void)
{
    static const conformance_subject cuda = {.name = "CUDA device",
                                             .open = open_device,
                                             .closed = sim_cuda_close,
                                             .asynchronous = true,
                                             .holds_bytes = true};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_streams_do_what_the_program_says),
        cmocka_unit_test(test_cuda_streams_do_it_with_short_queues),
    };
    subject = &cuda;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
