/* Streams of the CUDA device beyond what every device must do: what reaches the driver, from which
 * thread and when, what waits for what, and what becomes of it all when the GPU dies. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu.h"
#include "issue.h"
#include "rig.h"
#include "sim_cuda.h"

enum { MIB = 1 << 20 };

static sim_cuda_config machine;

static mp_device *open_device(uint32_t threads, uint64_t bus_bytes_per_s)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = threads,
                                    .io_threads = 2,
                                    .bus_bytes_per_s = bus_bytes_per_s};
    mp_device *device = NULL;
    const mp_cuda_driver *driver = sim_cuda_open(&machine);
    if (mp_cuda_device_open(driver, NULL, "not here", sim_images, sim_n_images, 0, &config,
                            &device)) {
        sim_cuda_close();
        return NULL;
    }
    return device;
}

static void open_rig(rig *r, const sim_cuda_config *config)
{
    static const sim_cuda_config usual = {.copy_batch = true, .seed = 1};
    machine = config ? *config : usual;
    rig_open(r, 2, 0);
}

static mp_cu_stream handle_of(const mp_stream *stream)
{
    return mp_cuda_stream_of(stream)->handle;
}

static mp_tick mark(rig *r, mp_stream *stream)
{
    mp_tick tick = 0;
    MUST(r->ops->mark(stream, &tick));
    return tick;
}

static uint64_t calls_of(sim_cuda_call call)
{
    return sim_cuda_get_stats().calls[call];
}

/* Without any call of the driver that would itself make the time pass. */
static void await(rig *r, mp_stream *stream, mp_tick tick)
{
    while (r->ops->completed(stream) < tick)
        sched_yield();
}

/* ---- What reaches the driver ------------------------------------------------------------- */

/* The GPU stands still: nothing but the submission itself can have put the work there. */
static void test_cuda_stream_submits_within_the_call(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *compute = rig_stream(&r, MP_STREAM_COMPUTE);
    memset(host, 7, 64);
    sim_cuda_hold_all(true);
    mp_tick tick = rig_copy(&r, demand, inside, host, 64);
    assert_int_equal(sim_cuda_pending(handle_of(demand)), 2); /* the copy, and its tick */
    MUST(r.ops->wait(compute, demand, tick));
    mp_tick copied = rig_launch_copy(&r, compute, inside + 32, inside, 4);
    assert_int_equal(sim_cuda_pending(handle_of(compute)), 3); /* wait, kernel, tick */
    MUST(r.ops->settle(demand, tick));
    MUST(r.ops->settle(compute, copied));
    assert_int_equal(r.ops->completed(demand), 0);
    assert_int_equal(r.ops->completed(compute), 0);
    sim_cuda_hold_all(false);
    MUST(r.ops->sync(compute, copied));
    assert_int_equal(r.ops->completed(demand), tick);
    assert_memory_equal(inside + 32, host, 16);
    rig_close(&r);
}

static void launch_sum(rig *r, mp_stream *stream, float *y, const float *x, uint32_t n,
                       mp_tick *out)
{
    float weight = 1;
    int32_t id = 0;
    mp_kernel_combine_args args = {
        .partial = x,
        .weights = &weight,
        .ids = &id,
        .y = y,
        .y_stride = n,
        .y_dtype = MOEPAGE_DTYPE_F32,
        .n_tokens = 1,
        .top_k = 1,
        .hidden = n,
        .accumulate = 1,
    };
    MUST(r->ops->launch(stream, MP_KERNEL_COMBINE, &args, out));
    weight = 1e30f; /* which must not be seen: the table was the launch's while it lasted */
    id = -1;
}

static void test_cuda_stream_steady_state_neither_allocates_nor_synchronises(void **state)
{
    (void)state;
    enum { N = 64 };
    rig r;
    open_rig(&r, NULL);
    float *host = rig_alloc(&r, MP_MEMORY_HOST, N * sizeof *host);
    float *x = rig_alloc(&r, MP_MEMORY_WORKSPACE, N * sizeof *x);
    float *y = rig_alloc(&r, MP_MEMORY_WORKSPACE, N * sizeof *y);
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *compute = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_tick computed = 0, loaded = 0;
    for (uint32_t i = 0; i < N; i++)
        host[i] = (float)i;
    rig_copy(&r, demand, y, host, N * sizeof *y);
    sim_cuda_stats before = sim_cuda_get_stats();
    for (uint32_t i = 0; i < 500; i++) {
        MUST(r.ops->wait(demand, compute, computed));
        loaded = rig_copy(&r, demand, x, host, N * sizeof *x);
        MUST(r.ops->wait(compute, demand, loaded));
        launch_sum(&r, compute, y, x, N, &computed);
        await(&r, compute, i % 5 ? 0 : computed);
    }
    await(&r, compute, computed);
    sim_cuda_stats after = sim_cuda_get_stats();
    assert_int_equal(after.memory_calls, before.memory_calls);
    assert_int_equal(after.staged_copies, 0);
    for (uint32_t i = 0; i < N; i++)
        assert_true(y[i] == 501 * (float)i);
    static const sim_cuda_call none[] = {SIM_stream_sync,  SIM_event_sync,   SIM_event_query,
                                         SIM_stream_query, SIM_event_create, SIM_stream_create};
    for (uint32_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(after.calls[none[i]], before.calls[none[i]]);
    rig_close(&r);
}

static void test_cuda_stream_completed_calls_nobody(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_tick tick = mark(&r, stream);
    await(&r, stream, tick);
    sim_cuda_stats before = sim_cuda_get_stats();
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(r.ops->completed(stream), tick);
    MUST(r.ops->sync(stream, tick)); /* nor does a wait for what is there */
    MUST(r.ops->wait(rig_stream(&r, MP_STREAM_COLD), stream, tick));
    sim_cuda_stats after = sim_cuda_get_stats();
    assert_memory_equal(after.calls, before.calls, sizeof before.calls);
    rig_close(&r);
}

/* Copies of one batch may run in any order; the simulated driver sees to it that they do. */
static void test_cuda_stream_keeps_order_within_a_batch(void **state)
{
    (void)state;
    enum { N = 100 };
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 2 * N);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, N + 2);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_copy copies[N];
    mp_tick tick = 0;
    for (uint32_t round = 0; round < rounds(20); round++) {
        /* Each reads what the one before has written. */
        host[0] = (unsigned char)(round + 1);
        for (uint32_t i = 0; i < N; i++)
            copies[i] = (mp_copy){.dst = inside + i, .src = i ? inside + i - 1 : host, .bytes = 1};
        MUST(r.ops->copy(stream, copies, N, &tick));
        /* Each writes where the one before has. */
        for (uint32_t i = 0; i < N; i++) {
            host[N + i] = (unsigned char)i;
            copies[i] = (mp_copy){.dst = inside + N, .src = host + N + i, .bytes = 1};
        }
        MUST(r.ops->copy(stream, copies, N, &tick));
        MUST(r.ops->sync(stream, tick));
        assert_int_equal(inside[N - 1], round + 1);
        assert_int_equal(inside[N], N - 1);
    }
    /* Those that have nothing to do with each other go together. */
    uint64_t batches = calls_of(SIM_copy_batch), singles = calls_of(SIM_copy);
    for (uint32_t i = 0; i < N; i++)
        copies[i] = (mp_copy){.dst = inside + i, .src = host + N + i, .bytes = 1};
    MUST(r.ops->copy(stream, copies, N, &tick));
    MUST(r.ops->sync(stream, tick));
    assert_memory_equal(inside, host + N, N);
    assert_true(calls_of(SIM_copy_batch) - batches <= 4);
    assert_int_equal(calls_of(SIM_copy), singles);
    rig_close(&r);
}

/* ---- Waits ------------------------------------------------------------------------------ */

/* The events that cover early ticks have been used again for later ones. */
static void test_cuda_stream_waits_for_ticks_older_than_its_events(void **state)
{
    (void)state;
    enum { N = 4 * MP_CUDA_EVENTS };
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, N), *got = rig_alloc(&r, MP_MEMORY_HOST, N);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, N);
    mp_stream *from = rig_stream(&r, MP_STREAM_DEMAND), *to = rig_stream(&r, MP_STREAM_PREFETCH);
    mp_tick tick = 0;
    memset(inside, 0, N);
    memset(host, 9, N);
    sim_cuda_hold(handle_of(from));
    for (uint32_t i = 0; i < N; i++)
        rig_copy(&r, from, inside + i, host + i, 1);
    for (mp_tick i = 1; i <= N; i++) {
        MUST(r.ops->wait(to, from, i));
        tick = rig_copy(&r, to, got + i - 1, inside + i - 1, 1);
    }
    assert_int_equal(r.ops->completed(to), 0);
    sim_cuda_release(handle_of(from));
    MUST(r.ops->sync(to, tick));
    assert_memory_equal(got, host, N);
    rig_close(&r);
}

/* A wait is for its tick, not for all that the other stream has by then. */
static void test_cuda_stream_waits_for_no_more_than_its_tick(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *from = rig_stream(&r, MP_STREAM_DEMAND), *to = rig_stream(&r, MP_STREAM_PREFETCH);
    mp_stream *never = rig_stream(&r, MP_STREAM_DEMAND);
    sim_cuda_hold(handle_of(never));
    sim_cuda_hold(handle_of(from));
    mp_tick held = rig_copy(&r, never, inside + 8, inside, 1);
    mp_tick early = rig_copy(&r, from, inside + 16, inside, 1);
    MUST(r.ops->wait(from, never, held));
    rig_copy(&r, from, inside + 24, inside, 1);
    MUST(r.ops->wait(to, from, early));
    mp_tick tick = rig_copy(&r, to, inside + 32, inside, 1);
    sim_cuda_release(handle_of(from));
    MUST(r.ops->sync(to, tick));
    assert_int_equal(r.ops->completed(never), 0);
    sim_cuda_release(handle_of(never));
    rig_close(&r);
}

/* More than the executor's stream takes at a time, and a GPU stream behind the last of it. */
static void test_cuda_stream_cold_work_has_no_limit(void **state)
{
    (void)state;
    enum { N = 3 * MP_CUDA_COLD_DEPTH };
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *cold = rig_stream(&r, MP_STREAM_COLD), *demand = rig_stream(&r, MP_STREAM_DEMAND);
    unsigned char numbers[N];
    gate g;
    mp_tick tick = 0, gated = gate_shut(&g, &r, cold, host, 1);
    for (uint32_t i = 0; i < N / 2; i++) {
        numbers[i] = (unsigned char)(i * 7);
        tick = rig_copy(&r, cold, host, &numbers[i], 1);
    }
    assert_int_equal(tick, gated + N / 2);
    MUST(r.ops->wait(demand, cold, tick));
    mp_tick moved = rig_copy(&r, demand, inside, host, 1);
    MUST(r.ops->wait(cold, demand, moved)); /* and back */
    numbers[0] = 0xee;
    mp_tick last = rig_copy(&r, cold, host, &numbers[0], 1);
    assert_int_equal(r.ops->completed(demand), 0);
    gate_open(&g);
    MUST(r.ops->sync(cold, last));
    assert_int_equal(r.ops->completed(demand), moved);
    assert_int_equal(inside[0], numbers[N / 2 - 1]);
    assert_int_equal(host[0], 0xee);
    rig_close(&r);
}

/* ---- The host's part -------------------------------------------------------------------- */

/* A number for each word of a transfer, in whatever parts it is filled. */
static moepage_status fill_pattern(const mp_copy *copy, void *out)
{
    uint32_t *words = out, first = (uint32_t)(copy->fill_offset / 4);
    for (uint32_t i = 0; i < copy->bytes / 4; i++)
        words[i] = (first + i) * 2654435761u;
    return MOEPAGE_OK;
}

static void test_cuda_stream_brings_more_than_its_ring_holds(void **state)
{
    (void)state;
    const uint64_t n = 37 * MIB + 12344;
    rig r;
    open_rig(&r, NULL);
    unsigned char *plain = malloc(n), *back = malloc(n);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, n);
    mp_stream *stream = rig_stream(&r, MP_STREAM_PREFETCH);
    assert_non_null(plain);
    assert_non_null(back);
    fill_pattern(&(mp_copy){.bytes = n, .fill_offset = 100}, plain);

    mp_copy filled = {.dst = inside, .bytes = n, .fill = fill_pattern, .fill_offset = 100};
    mp_tick tick = 0;
    MUST(r.ops->copy(stream, &filled, 1, &tick));
    MUST(r.ops->sync(stream, tick));
    assert_memory_equal(inside, plain, n);

    memset(inside, 0, n);
    MUST(r.ops->sync(stream, rig_copy(&r, stream, inside, plain, n)));
    assert_memory_equal(inside, plain, n);

    MUST(r.ops->sync(stream, rig_copy(&r, stream, back, inside, n)));
    assert_memory_equal(back, plain, n);
    assert_int_equal(sim_cuda_get_stats().staged_copies, 0);
    free(plain);
    free(back);
    rig_close(&r);
}

static _Atomic uint32_t n_fills;

static moepage_status fill_and_count(const mp_copy *copy, void *out)
{
    atomic_fetch_add(&n_fills, 1);
    return fill_pattern(copy, out);
}

/* The GPU stands still, so that nothing that was put into the ring may be written over. */
static void test_cuda_stream_fills_no_room_that_is_in_use(void **state)
{
    (void)state;
    const uint64_t n = 40 * MIB;
    rig r;
    open_rig(&r, NULL);
    unsigned char *want = malloc(n), *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, n);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_copy filled = {.dst = inside, .bytes = n, .fill = fill_and_count};
    mp_tick tick = 0;
    assert_non_null(want);
    fill_pattern(&filled, want);
    atomic_store(&n_fills, 0);
    sim_cuda_hold(handle_of(stream));
    uint64_t before = calls_of(SIM_event_sync);
    MUST(r.ops->copy(stream, &filled, 1, &tick));
    while (calls_of(SIM_event_sync) == before)
        sched_yield();
    assert_int_equal(atomic_load(&n_fills), 8);
    sim_cuda_release(handle_of(stream));
    MUST(r.ops->sync(stream, tick));
    assert_memory_equal(inside, want, n);
    free(want);
    rig_close(&r);
}

/* Between two places of the host, of all kinds, in the stream's order with the GPU's work. */
static void test_cuda_stream_copies_between_host_memories_in_order(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char plain[2] = {1, 0};
    unsigned char *pinned = rig_alloc(&r, MP_MEMORY_HOST, 2);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 2);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_tick tick = 0;
    for (uint32_t round = 0; round < 50; round++) {
        plain[0] = (unsigned char)round;
        rig_copy(&r, stream, pinned, plain, 1);
        rig_copy(&r, stream, inside, pinned, 1);
        rig_copy(&r, stream, pinned + 1, inside, 1);
        tick = rig_copy(&r, stream, plain + 1, pinned + 1, 1);
        MUST(r.ops->sync(stream, tick));
        assert_int_equal(plain[1], round);
    }
    assert_int_equal(sim_cuda_get_stats().staged_copies, 0);
    rig_close(&r);
}

/* A fill that has begun holds up no fill of the other kind; no prefetch's fill begins while
 * a demand's runs. */
static void test_cuda_stream_prefetch_never_holds_a_demand_up(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *prefetch[2] = {rig_stream(&r, MP_STREAM_PREFETCH),
                              rig_stream(&r, MP_STREAM_PREFETCH)};
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    gate slow, urgent;
    gate_shut(&slow, &r, prefetch[0], inside, 1);
    mp_tick behind = rig_fill(&r, prefetch[1], inside + 8, 4, fill_pattern, NULL);
    MUST(r.ops->sync(demand, rig_fill(&r, demand, inside + 16, 4, fill_pattern, NULL)));
    assert_int_equal(r.ops->completed(prefetch[0]), 0);

    mp_tick last = gate_shut(&urgent, &r, demand, inside + 16, 1);
    gate_open(&slow);
    MUST(r.ops->sync(prefetch[0], 1)); /* it had begun */
    assert_int_equal(r.ops->completed(prefetch[1]), 0);
    gate_open(&urgent);
    MUST(r.ops->sync(demand, last));
    MUST(r.ops->sync(prefetch[1], behind));
    rig_close(&r);
}

/* ---- Tables ----------------------------------------------------------------------------- */

/* Weighted sums of one-element rows, with tables of all sizes: from a line to more than the
 * ring. */
static void check_tables(rig *r, mp_stream *stream, const uint32_t *sizes, uint32_t n_sizes)
{
    enum { MOST = 300000 };
    float *partial = rig_alloc(r, MP_MEMORY_WORKSPACE, MOST * sizeof *partial);
    float *y = rig_alloc(r, MP_MEMORY_WORKSPACE, (uint64_t)n_sizes * sizeof *y);
    float *weights = malloc(MOST * sizeof *weights);
    int32_t *ids = malloc(MOST * sizeof *ids);
    float want[256];
    mp_tick tick = 0;
    assert_true(n_sizes <= 256 && weights && ids);
    for (uint32_t i = 0; i < MOST; i++)
        partial[i] = 1;
    for (uint32_t s = 0; s < n_sizes; s++) {
        mp_kernel_combine_args args = {.partial = partial,
                                       .weights = weights,
                                       .ids = ids,
                                       .y = y + s,
                                       .y_stride = 1,
                                       .y_dtype = MOEPAGE_DTYPE_F32,
                                       .n_tokens = 1,
                                       .top_k = sizes[s],
                                       .hidden = 1};
        want[s] = 0;
        for (uint32_t i = 0; i < sizes[s]; i++) {
            weights[i] = (float)((i + s) % 5);
            ids[i] = (i * 7 + s) % 3 ? (int32_t)i : -1;
            want[s] += ids[i] < 0 ? 0 : weights[i];
        }
        MUST(r->ops->launch(stream, MP_KERNEL_COMBINE, &args, &tick));
        memset(weights, 0xff, sizes[s] * sizeof *weights);
        memset(ids, 0x77, sizes[s] * sizeof *ids);
    }
    MUST(r->ops->sync(stream, tick));
    for (uint32_t s = 0; s < n_sizes; s++)
        assert_true(y[s] == want[s]);
    free(weights);
    free(ids);
}

static void test_cuda_stream_keeps_tables_that_its_caller_forgets(void **state)
{
    (void)state;
    enum { N = 120 };
    uint32_t sizes[N];
    uint64_t seed = 8;
    rig r;
    open_rig(&r, NULL);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    for (uint32_t i = 0; i < N; i++) /* several times round the ring */
        sizes[i] = 1 + random_below(&seed, i % 7 ? 1500 : 8000);
    uint64_t before = sim_cuda_get_stats().memory_calls;
    check_tables(&r, stream, sizes, N);
    assert_int_equal(sim_cuda_get_stats().memory_calls, before + 2); /* check_tables' own */

    const uint32_t large[] = {5, 150000, 12, 300000, 300000, 1, 300000};
    check_tables(&r, stream, large, sizeof large / sizeof *large);
    before = sim_cuda_get_stats().memory_calls;
    check_tables(&r, stream, large, sizeof large / sizeof *large);
    assert_int_equal(sim_cuda_get_stats().memory_calls, before + 2);
    rig_close(&r);
}

/* A launch that the driver refuses leaves nothing behind: its tables' room comes back too. */
static void test_cuda_stream_forgets_launches_that_were_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    float *y = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64), *x = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_tick tick = 0;
    x[0] = 2, y[0] = 1;
    sim_cuda_fail(SIM_launch, 1, MP_CU_INVALID_HANDLE, true);
    for (uint32_t i = 0; i < 2 * MP_CUDA_TABLES_SPANS; i++) {
        float weight = 1;
        int32_t id = 0;
        mp_kernel_combine_args args = {.partial = x,
                                       .weights = &weight,
                                       .ids = &id,
                                       .y = y,
                                       .y_stride = 1,
                                       .y_dtype = MOEPAGE_DTYPE_F32,
                                       .n_tokens = 1,
                                       .top_k = 1,
                                       .hidden = 1};
        assert_int_equal(r.ops->launch(stream, MP_KERNEL_COMBINE, &args, &tick), MOEPAGE_E_DEVICE);
        assert_int_equal(tick, 0);
    }
    sim_cuda_fail_none();
    launch_sum(&r, stream, y, x, 1, &tick);
    MUST(r.ops->sync(stream, tick));
    assert_true(y[0] == 3);
    rig_close(&r);
}

/* Spans in use never share a byte, and whatever fits an empty ring is given in the end. */
static void test_cuda_tables_give_each_launch_its_own_place(void **state)
{
    (void)state;
    enum { BYTES = 64 * 64, LIVE = 400 };
    mp_cuda_tables *tables = calloc(1, sizeof *tables);
    mp_cuda_span live[LIVE];
    mp_tick completed = 0, submitted = 0;
    uint64_t seed = 4, taken = 0, refused = 0;
    tables->pinned.bytes = BYTES;
    for (uint32_t round = 0; round < 50000; round++) {
        uint64_t bytes = 64 * (1 + random_below(&seed, random_below(&seed, 5) ? 6 : 64));
        mp_cuda_span *span = &live[(submitted + 1) % LIVE];
        bool got = mp_cuda_tables_take(tables, bytes, submitted + 1, completed, span);
        taken += got;
        refused += !got;
        if (!got) {
            mp_tick oldest = mp_cuda_tables_oldest(tables);
            assert_in_range(oldest, completed + 1, submitted);
            completed += 1 + random_below(&seed, (uint32_t)(submitted - completed));
            continue;
        }
        submitted++;
        assert_int_equal(span->bytes, bytes);
        assert_true(span->at + bytes <= BYTES);
        for (mp_tick t = completed + 1; t < submitted; t++) {
            const mp_cuda_span *other = &live[t % LIVE];
            assert_true(other->at + other->bytes <= span->at || span->at + bytes <= other->at);
        }
    }
    assert_true(taken > 1000 && refused > 1000);
    free(tables);
}

/* ---- The caller's streams --------------------------------------------------------------- */

static void test_cuda_stream_enters_and_follows_the_callers(void **state)
{
    (void)state;
    enum { N = 3 * MP_CUDA_ENTERS };
    rig r;
    open_rig(&r, NULL);
    mp_cuda *cuda = mp_cuda_of(r.device);
    mp_cu_stream native = NULL;
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    MUST(mp_cuda_enter(cuda));
    assert_int_equal(cuda->driver->stream_create(&native, MP_CU_STREAM_NON_BLOCKING, 0), 0);
    mp_cuda_leave(cuda);
    memset(host, 0, 64);
    for (uint32_t i = 0; i < N; i++) {
        /* theirs: host -> inside; ours: inside -> inside + 8; theirs: -> host + 8 */
        host[0] = (unsigned char)(i + 1);
        MUST(mp_cuda_enter(cuda));
        cuda->driver->copy((mp_cu_ptr)(uintptr_t)inside, (mp_cu_ptr)(uintptr_t)host, 1, native);
        mp_cuda_leave(cuda);
        MUST(r.ops->enter(demand, native));
        mp_tick tick = rig_copy(&r, demand, inside + 8, inside, 1);
        MUST(r.ops->follow(native, demand, tick));
        MUST(mp_cuda_enter(cuda));
        cuda->driver->copy((mp_cu_ptr)(uintptr_t)(host + 8), (mp_cu_ptr)(uintptr_t)(inside + 8), 1,
                           native);
        assert_int_equal(cuda->driver->stream_sync(native), 0);
        mp_cuda_leave(cuda);
        assert_int_equal(host[8], i + 1);
    }
    MUST(mp_cuda_enter(cuda));
    cuda->driver->stream_destroy(native);
    mp_cuda_leave(cuda);
    rig_close(&r);
}

typedef struct enterer {
    rig *r;
    mp_stream *stream;
    _Atomic uint32_t entered;
    uint32_t n, wrong;
} enterer;

static void *enter_many(void *arg)
{
    enterer *e = arg;
    for (uint32_t i = 0; i < e->n; i++) {
        e->wrong += e->r->ops->enter(e->stream, NULL) != MOEPAGE_OK;
        atomic_fetch_add(&e->entered, 1);
    }
    return NULL;
}

/* Behind host work, of more streams of the caller's than there are events for. */
static void test_cuda_stream_enters_more_than_it_can_queue(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND), *held = rig_stream(&r, MP_STREAM_COMPUTE);
    enterer e = {.r = &r, .stream = held, .n = 5 * MP_CUDA_ENTERS};
    gate g;
    pthread_t thread;
    MUST(r.ops->wait(held, load, gate_shut(&g, &r, load, inside, 1)));
    assert_int_equal(pthread_create(&thread, NULL, enter_many, &e), 0);
    while (atomic_load(&e.entered) < MP_CUDA_ENTERS)
        sched_yield();
    gate_open(&g);
    pthread_join(thread, NULL);
    assert_int_equal(e.wrong, 0);
    MUST(r.ops->sync(held, mark(&r, held)));
    rig_close(&r);
}

static void test_cuda_stream_refuses_a_stream_that_is_captured(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    mp_cuda *cuda = mp_cuda_of(r.device);
    mp_cu_stream native = NULL;
    sim_cuda_graph *graph = NULL;
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    MUST(mp_cuda_enter(cuda));
    assert_int_equal(cuda->driver->stream_create(&native, MP_CU_STREAM_NON_BLOCKING, 0), 0);
    mp_cuda_leave(cuda);
    assert_int_equal(sim_cuda_capture_begin(native, SIM_CAPTURE_GLOBAL), 0);
    assert_int_equal(r.ops->enter(stream, native), MOEPAGE_E_STATE);
    assert_non_null(strstr(moepage_last_error(), "captured"));
    assert_int_equal(r.ops->follow(native, stream, mark(&r, stream)), MOEPAGE_E_STATE);
    /* What does not concern the capture goes on, and does not end it. */
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    MUST(r.ops->sync(stream, rig_fill(&r, stream, inside, 64, fill_pattern, NULL)));
    assert_int_equal(sim_cuda_capture_end(native, &graph), 0);
    sim_cuda_graph_destroy(graph);
    MUST(r.ops->enter(stream, native));
    MUST(mp_cuda_enter(cuda));
    cuda->driver->stream_destroy(native);
    mp_cuda_leave(cuda);
    rig_close(&r);
}

static void expect_refused(rig *r, mp_stream *stream, const mp_kernel_experts_args *args,
                           const char *why)
{
    mp_tick tick = 77;
    assert_int_equal(r->ops->launch(stream, MP_KERNEL_EXPERTS, args, &tick), MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(tick, 77);
    if (!strstr(moepage_last_error(), why))
        fail_msg("\"%s\" does not say \"%s\"", moepage_last_error(), why);
}

/* Where there are no kernels for an expert's weights nothing is submitted, and the device lives. */
static void test_cuda_stream_refuses_experts_that_it_has_no_kernels_for(void **state)
{
    (void)state;
    for (uint32_t owned = 0; owned < 2; owned++) {
        rig r;
        open_rig(&r, NULL);
        mp_stream *stream = rig_stream(&r, owned ? MP_STREAM_BACKGROUND : MP_STREAM_COMPUTE);
        mp_ffn_expert expert = {.n_rows = 1};
        const uint32_t row = 0;
        const mp_kernel_experts_args fine = {.experts = &expert,
                                             .rows = &row,
                                             .n_experts = 1,
                                             .top_k = 1,
                                             .hidden = 32,
                                             .intermediate = 36,
                                             MP_ONE_DTYPE(MOEPAGE_DTYPE_BF16),
                                             .group = 32};
        mp_kernel_experts_args args = fine;
        args.form = MOEPAGE_FORM_INT4;
        expect_refused(&r, stream, &args, "int4 have rows of 32 and 36 weights");
        args = fine;
        args.dtypes[MP_DOWN] = MOEPAGE_DTYPE_F8_E5M2;
        expect_refused(&r, stream, &args, "dtypes 3, 3 and 5, and this device has no kernel for 5");
        args = fine;
        args.dtypes[MP_UP] = MOEPAGE_DTYPE_Q4_K;
        expect_refused(&r, stream, &args, "gate has dtype 3 and up 23");
        args.dtypes[MP_GATE] = MOEPAGE_DTYPE_W4G32_F16; /* one kernel, but not one launch of it */
        args.dtypes[MP_UP] = MOEPAGE_DTYPE_W4G64_F16;
        expect_refused(&r, stream, &args, "gate has dtype 30 and up 31");
        args = fine;
        args.dtypes[MP_DOWN] = MOEPAGE_DTYPE_MXFP4;
        expert.up = (const char *)NULL + 2;
        expect_refused(&r, stream, &args, "multiples of 4 bytes");
        expert.up = NULL;
        args = fine;
        args.activation.kind = MOEPAGE_ACTIVATION_OTHER;
        expect_refused(&r, stream, &args, "activation 2");
        args = fine;
        args.on_host = 1;
        expect_refused(&r, stream, &args, "host memory");
        assert_false(r.device->caps & MP_CAP_ON_HOST);
        MUST(r.ops->sync(stream, mark(&r, stream)));
        rig_close(&r);
    }
}

static void test_cuda_stream_writes_words_in_order(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    mp_cuda_shared shared;
    MUST(r.ops->cuda->shared_alloc(r.device, 64, &shared));
    _Atomic uint32_t *word = shared.host;
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    gate g;
    mp_tick gated = gate_shut(&g, &r, stream, inside, 1);
    MUST(r.ops->cuda->write32(stream, shared.device, 77));
    mp_tick after = mark(&r, stream);
    assert_int_equal(atomic_load(word), 0);
    gate_open(&g);
    MUST(r.ops->sync(stream, after));
    assert_true(after > gated);
    assert_int_equal(atomic_load(word), 77);
    assert_int_equal(r.ops->cuda->write32(rig_stream(&r, MP_STREAM_COLD), shared.device, 1),
                     MOEPAGE_E_ARGUMENT);
    r.ops->cuda->shared_free(r.device, &shared);
    rig_close(&r);
}

/* Opens the gate a while after the stream's end has begun. */
static void *open_later(void *gpu_stream)
{
    for (uint32_t i = 0; i < 2000; i++)
        sched_yield();
    sim_cuda_release(gpu_stream);
    return NULL;
}

/* Words have no ticks; but whose stream is gone may give their memory back. */
static void test_cuda_stream_is_destroyed_after_the_words_that_it_writes(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    mp_cuda_shared shared;
    pthread_t thread;
    mp_stream *stream = NULL;
    MUST(r.ops->cuda->shared_alloc(r.device, 64, &shared));
    MUST(r.ops->stream_create(r.device, MP_STREAM_DEMAND, &stream));
    _Atomic uint32_t *word = shared.host;
    sim_cuda_hold(handle_of(stream));
    MUST(r.ops->cuda->write32(stream, shared.device, 77));
    assert_int_equal(pthread_create(&thread, NULL, open_later, handle_of(stream)), 0);
    r.ops->stream_destroy(stream);
    assert_int_equal(atomic_load(word), 77);
    assert_int_equal(pthread_join(thread, NULL), 0);
    r.ops->cuda->shared_free(r.device, &shared);
    (void)sim_cuda_take_misuse(); /* when the thread comes late */
    rig_close(&r);
}

/* ---- Host memory in pieces ---------------------------------------------------------------- */

/* No transfer reaches from one registration into the next, alone or with others. */
static void check_pieces(bool copy_batch)
{
    enum { PIECE = MIB, BYTES = 5 * MIB + 4096, COPIES = 200 };
    const sim_cuda_config config = {.copy_batch = copy_batch, .seed = 1, .register_limit = PIECE};
    rig r;
    open_rig(&r, &config);
    ((mp_cuda *)(void *)r.device)->pin_bytes = PIECE;
    mp_host_memory tier;
    MUST(r.ops->host_map(r.device, BYTES, &tier));
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, BYTES), *model = malloc(BYTES);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_copy copies[COPIES];
    uint64_t seed = 5;
    mp_tick tick = 0;
    for (uint32_t i = 0; i < BYTES; i++)
        tier.base[i] = model[i] = (unsigned char)(i * 2654435761u >> 24);
    rig_copy(&r, stream, inside, tier.base, BYTES); /* across all cuts */
    for (uint32_t i = 0, at = 0; i < COPIES; i++) { /* and back, shifted: across some */
        uint32_t bytes = 1 + random_below(&seed, 2 * (BYTES - 64) / COPIES - 1);
        bytes = i + 1 < COPIES && bytes < BYTES - 64 - at ? bytes : BYTES - 64 - at;
        copies[i] = (mp_copy){.dst = tier.base + 64 + at, .src = inside + at, .bytes = bytes};
        at += bytes;
    }
    MUST(r.ops->copy(stream, copies, COPIES, &tick));
    MUST(r.ops->sync(stream, tick));
    assert_memory_equal(inside, model, BYTES);
    assert_memory_equal(tier.base, model, 64);
    assert_memory_equal(tier.base + 64, model, BYTES - 64);
    assert_int_equal(sim_cuda_get_stats().staged_copies, 0);
    free(model);
    r.ops->host_unmap(r.device, &tier);
    rig_close(&r);
}

static void test_cuda_stream_copies_across_pieces_of_a_host_tier(void **state)
{
    (void)state;
    check_pieces(false);
    check_pieces(true);
}

/* ---- Failures --------------------------------------------------------------------------- */

static moepage_status fail_fill(const mp_copy *copy, void *out)
{
    (void)copy;
    (void)out;
    return MOEPAGE_E_IO;
}

static void test_cuda_stream_cold_failure_poisons_the_device(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *cold = rig_stream(&r, MP_STREAM_COLD), *demand = rig_stream(&r, MP_STREAM_DEMAND);
    memset(inside, 3, 64);
    mp_tick read = rig_fill(&r, cold, host, 64, fail_fill, NULL);
    MUST(r.ops->wait(demand, cold, read));
    mp_tick moved = rig_copy(&r, demand, inside, host, 64);
    assert_int_equal(r.ops->sync(demand, moved), MOEPAGE_E_DEVICE);
    assert_int_equal(inside[0], 3); /* what was never read was not passed on */
    assert_int_equal(r.ops->sync(cold, read), MOEPAGE_E_DEVICE);
    assert_int_equal(r.ops->completed(demand), moved);
    rig_close(&r);
}

typedef struct counted {
    mp_task task;
    _Atomic uint32_t runs;
} counted;

static void count(mp_task *task)
{
    atomic_fetch_add(&((counted *)(void *)task)->runs, 1);
}

/* The GPU dies with work under way on all kinds of streams, and nobody asks the driver for
 * anything: ticks complete all the same, tasks run, and all of it can be taken down. */
static void test_cuda_stream_ticks_complete_when_the_gpu_dies(void **state)
{
    (void)state;
    static const mp_stream_class classes[] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH,
                                              MP_STREAM_COMPUTE, MP_STREAM_COLD};
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *streams[4];
    mp_tick ticks[4];
    counted after = {.task.run = count};
    for (uint32_t i = 0; i < 4; i++)
        streams[i] = rig_stream(&r, classes[i]);
    sim_cuda_hold_all(true);
    mp_tick held = rig_copy(&r, streams[0], inside, host, 64);
    for (uint32_t i = 1; i < 4; i++)
        MUST(r.ops->wait(streams[i], streams[0], held));
    ticks[0] = rig_fill(&r, streams[0], inside, 8, fill_pattern, NULL);
    ticks[1] = rig_fill(&r, streams[1], host + 32, 8, fill_pattern, NULL);
    ticks[2] = rig_launch_copy(&r, streams[2], inside + 32, inside, 4);
    ticks[3] = rig_fill(&r, streams[3], host, 8, fill_pattern, NULL);
    r.ops->post(r.device, streams[2], ticks[2], &after.task);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(r.ops->completed(streams[i]), 0);
    sim_cuda_break(0, MP_CU_ILLEGAL_ADDRESS);
    for (uint32_t i = 0; i < 4; i++)
        await(&r, streams[i], ticks[i]);
    while (!atomic_load(&after.runs))
        sched_yield();
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(r.ops->sync(streams[i], ticks[i]), MOEPAGE_E_DEVICE);
    assert_non_null(strstr(moepage_last_error(), "ILLEGAL_ADDRESS"));
    _Atomic int32_t result = 0;
    mp_copy copy = {.dst = inside, .src = host, .bytes = 1, .result = &result};
    mp_tick late = 0;
    if (!r.ops->copy(streams[0], &copy, 1, &late)) {
        assert_int_equal(r.ops->sync(streams[0], late), MOEPAGE_E_DEVICE);
        assert_int_equal(atomic_load(&result), MOEPAGE_E_DEVICE);
    }
    sim_cuda_hold_all(false);
    rig_close(&r);
}

/* Whoever waits for a task calls no driver that could tell. */
static void test_cuda_stream_runs_tasks_though_the_gpu_has_died(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, NULL);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    counted after = {.task.run = count};
    sim_cuda_hold_all(true);
    mp_tick tick = rig_copy(&r, stream, inside, inside + 32, 8);
    r.ops->post(r.device, stream, tick, &after.task);
    assert_int_equal(atomic_load(&after.runs), 0);
    sim_cuda_break(0, MP_CU_ILLEGAL_ADDRESS);
    while (!atomic_load(&after.runs))
        sched_yield();
    assert_int_equal(r.ops->completed(stream), tick);
    sim_cuda_hold_all(false);
    rig_close(&r);
}

static void test_cuda_stream_needs_words_of_64_bits(void **state)
{
    (void)state;
    machine = (sim_cuda_config){.gpus[0].no_stream_mem_ops_64 = true};
    assert_null(open_device(1, 0));
    assert_non_null(strstr(moepage_last_error(), "64-bit"));
}

/* Words are given back with their streams. */
static void test_cuda_stream_may_be_created_again_and_again(void **state)
{
    (void)state;
    enum { N = MP_CUDA_STREAMS + 10 };
    rig r;
    open_rig(&r, NULL);
    unsigned char *host = rig_alloc(&r, MP_MEMORY_HOST, 64);
    for (uint32_t i = 0; i < N; i++) {
        mp_stream *stream = NULL;
        MUST(r.ops->stream_create(r.device, MP_STREAM_COLD, &stream));
        assert_int_equal(r.ops->completed(stream), 0);
        rig_copy(&r, stream, host, "x", 1);
        r.ops->stream_destroy(stream);
    }
    rig_close(&r);
}

int main(void)
{
    static const conformance_subject cuda = {.name = "CUDA device",
                                             .open = open_device,
                                             .closed = sim_cuda_close,
                                             .asynchronous = true,
                                             .holds_bytes = true};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_stream_submits_within_the_call),
        cmocka_unit_test(test_cuda_stream_steady_state_neither_allocates_nor_synchronises),
        cmocka_unit_test(test_cuda_stream_completed_calls_nobody),
        cmocka_unit_test(test_cuda_stream_keeps_order_within_a_batch),
        cmocka_unit_test(test_cuda_stream_waits_for_ticks_older_than_its_events),
        cmocka_unit_test(test_cuda_stream_waits_for_no_more_than_its_tick),
        cmocka_unit_test(test_cuda_stream_cold_work_has_no_limit),
        cmocka_unit_test(test_cuda_stream_brings_more_than_its_ring_holds),
        cmocka_unit_test(test_cuda_stream_fills_no_room_that_is_in_use),
        cmocka_unit_test(test_cuda_stream_copies_between_host_memories_in_order),
        cmocka_unit_test(test_cuda_stream_prefetch_never_holds_a_demand_up),
        cmocka_unit_test(test_cuda_stream_keeps_tables_that_its_caller_forgets),
        cmocka_unit_test(test_cuda_stream_forgets_launches_that_were_refused),
        cmocka_unit_test(test_cuda_tables_give_each_launch_its_own_place),
        cmocka_unit_test(test_cuda_stream_enters_and_follows_the_callers),
        cmocka_unit_test(test_cuda_stream_enters_more_than_it_can_queue),
        cmocka_unit_test(test_cuda_stream_refuses_a_stream_that_is_captured),
        cmocka_unit_test(test_cuda_stream_refuses_experts_that_it_has_no_kernels_for),
        cmocka_unit_test(test_cuda_stream_writes_words_in_order),
        cmocka_unit_test(test_cuda_stream_is_destroyed_after_the_words_that_it_writes),
        cmocka_unit_test(test_cuda_stream_copies_across_pieces_of_a_host_tier),
        cmocka_unit_test(test_cuda_stream_cold_failure_poisons_the_device),
        cmocka_unit_test(test_cuda_stream_ticks_complete_when_the_gpu_dies),
        cmocka_unit_test(test_cuda_stream_runs_tasks_though_the_gpu_has_died),
        cmocka_unit_test(test_cuda_stream_needs_words_of_64_bits),
        cmocka_unit_test(test_cuda_stream_may_be_created_again_and_again),
    };
    subject = &cuda;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
