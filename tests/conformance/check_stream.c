/* Streams: ticks, order, waits, priorities, queues that fill up, and their end. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

/* Order in which transfers ran: each notes its number. Those of one engine run one at a time. */
#define LOG_ENTRIES 20000

typedef struct run_log {
    uint32_t entry[LOG_ENTRIES];
    uint32_t n;
} run_log;

static moepage_status note(const mp_copy *copy, void *out)
{
    run_log *log = (run_log *)copy->fill_user;
    log->entry[log->n++] = copy->fill_key[0];
    memset(out, 0, copy->bytes);
    return 0;
}

static mp_copy noted(run_log *log, uint32_t number, void *dst)
{
    return (mp_copy){
        .dst = dst, .bytes = 1, .fill = note, .fill_user = log, .fill_key = {number, 0, 0}};
}

static mp_tick submit_noted(rig *r, mp_stream *stream, run_log *log, uint32_t number, void *dst)
{
    mp_copy copy = noted(log, number, dst);
    mp_tick tick = 0;
    MUST(r->ops->copy(stream, &copy, 1, &tick));
    return tick;
}

static run_log *new_log(void)
{
    run_log *log = calloc(1, sizeof *log);
    assert_non_null(log);
    return log;
}

static void assert_counts_up(const run_log *log, uint32_t n)
{
    assert_int_equal(log->n, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(log->entry[i], i);
}

void test_stream_ticks_count_submissions(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 8);
    static const unsigned char source[8];
    mp_stream *streams[3] = {rig_stream(&r, MP_STREAM_DEMAND), rig_stream(&r, MP_STREAM_PREFETCH),
                             rig_stream(&r, MP_STREAM_DEMAND)};
    mp_tick expected[3] = {0};
    mp_tick seen[3] = {0};
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t s = i % 3;
        uint32_t n = 1 + i % 7;
        mp_copy copies[7];
        for (uint32_t j = 0; j < n; j++)
            copies[j] = (mp_copy){.dst = memory + s, .src = source, .bytes = 1};
        mp_tick tick = 0;
        MUST(r.ops->copy(streams[s], copies, n, &tick));
        expected[s] += n;
        assert_int_equal(tick, expected[s]);
        for (uint32_t k = 0; k < 3; k++) {
            mp_tick completed = r.ops->completed(streams[k]);
            assert_in_range(completed, seen[k], expected[k]);
            seen[k] = completed;
        }
        if (i % 50 == 49) {
            MUST(r.ops->sync(streams[s], tick));
            assert_int_equal(r.ops->completed(streams[s]), tick);
        }
    }
    rig_close(&r);
}

void test_stream_runs_in_order_of_submission(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 1);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    run_log *log = new_log();
    mp_tick tick = 0;
    uint32_t number = 0;
    for (uint32_t batch = 0; batch < 60; batch++) {
        mp_copy copies[10];
        uint32_t n = 1 + batch % 10;
        for (uint32_t i = 0; i < n; i++)
            copies[i] = noted(log, number++, memory);
        MUST(r.ops->copy(stream, copies, n, &tick));
        memset(copies, 0, sizeof copies); /* the array was copied */
    }
    MUST(r.ops->sync(stream, tick));
    assert_counts_up(log, number);
    free(log);
    rig_close(&r);
}

void test_stream_completion_makes_writes_visible(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    NEEDS(holds_bytes);
    enum { BYTES = 3000 };
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *source = rig_alloc(&r, MP_MEMORY_HOST, BYTES);
    unsigned char *target = rig_alloc(&r, MP_MEMORY_HOST, BYTES);
    void *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, BYTES);
    mp_stream *stream = rig_stream(&r, MP_STREAM_PREFETCH);
    for (uint32_t round = 0; round < 200; round++) {
        memset(source, (int)round, BYTES);
        rig_copy(&r, stream, inside, source, BYTES);
        mp_tick tick = rig_copy(&r, stream, target, inside, BYTES);
        while (r.ops->completed(stream) < tick)
            sched_yield();
        assert_memory_equal(target, source, BYTES);
    }
    rig_close(&r);
}

void test_stream_wait_holds_later_work_back(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    NEEDS(holds_bytes);
    const float old[4] = {1, 2, 3, 4};
    const float zero[4] = {0};
    float got[4];
    rig r;
    rig_open(&r, 2, 0);
    void *cell = rig_put(&r, old, sizeof old);
    void *out = rig_put(&r, old, sizeof old);
    void *other_out = rig_alloc(&r, MP_MEMORY_WORKSPACE, sizeof old);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *held = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_stream *freely = rig_stream(&r, MP_STREAM_COMPUTE);
    gate g;
    mp_tick loaded = gate_shut(&g, &r, load, cell, sizeof old);
    MUST(r.ops->wait(held, load, loaded));
    mp_tick computed = rig_launch_copy(&r, held, out, cell, 4);

    /* Kernels run in turn: the later one on another stream is through, the held one is not. */
    MUST(r.ops->sync(freely, rig_launch_copy(&r, freely, other_out, out, 4)));
    assert_int_equal(r.ops->completed(held), 0);
    assert_int_equal(r.ops->completed(load), loaded - 1);

    gate_open(&g);
    MUST(r.ops->sync(held, computed));
    assert_true(r.ops->completed(load) >= loaded);
    rig_read(&r, out, got, sizeof got);
    assert_memory_equal(got, zero, sizeof got);
    rig_close(&r);
}

void test_stream_wait_outlives_the_stream_waited_for(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *gone = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_stream *behind = rig_stream(&r, MP_STREAM_PREFETCH);
    run_log *log = new_log();
    gate first, second;
    mp_tick early = gate_shut(&first, &r, load, memory, 1);
    mp_tick late = gate_queue(&second, &r, load, memory, 1);
    MUST(r.ops->wait(gone, load, early));
    mp_tick done = rig_copy(&r, gone, (char *)memory + 8, memory, 4);

    /* `behind` comes to its wait on `gone`, which has not run yet, when `gone` is no more. */
    MUST(r.ops->wait(behind, load, late));
    MUST(r.ops->wait(behind, gone, done));
    mp_tick tick = submit_noted(&r, behind, log, 0, memory);
    gate_open(&first);
    r.ops->stream_destroy(gone);
    rig_forget(&r, gone);
    assert_int_equal(r.ops->completed(behind), 0);
    gate_open(&second);
    MUST(r.ops->sync(behind, tick));
    assert_counts_up(log, 1);
    free(log);
    rig_close(&r);
}

/* Two classes that share an engine: what is urgent goes first, though it was submitted last. */
static void check_goes_before(mp_stream_class urgent_class, mp_stream_class other_class)
{
    enum { EACH = 5 };
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *other[2] = {rig_stream(&r, other_class), rig_stream(&r, other_class)};
    mp_stream *urgent[2] = {rig_stream(&r, urgent_class), rig_stream(&r, urgent_class)};
    run_log *log = new_log();
    gate g;
    gate_shut(&g, &r, other[0], memory, 1); /* the engine is taken; all else queues up */
    mp_tick last[2], last_urgent[2];
    for (uint32_t i = 0; i < EACH; i++) {
        for (uint32_t s = 0; s < 2; s++)
            last[s] = submit_noted(&r, other[s], log, 100 + s, memory + 8 * s);
    }
    for (uint32_t i = 0; i < EACH; i++) {
        for (uint32_t s = 0; s < 2; s++)
            last_urgent[s] = submit_noted(&r, urgent[s], log, s, memory + 16 + 8 * s);
    }
    gate_open(&g);
    for (uint32_t s = 0; s < 2; s++) /* first: a thread that waits may lend its urgency */
        MUST(r.ops->sync(urgent[s], last_urgent[s]));
    for (uint32_t s = 0; s < 2; s++)
        MUST(r.ops->sync(other[s], last[s]));
    assert_int_equal(log->n, 4 * EACH);
    for (uint32_t i = 0; i < 4 * EACH; i++)
        assert_int_equal(log->entry[i] >= 100, i >= 2 * EACH);
    free(log);
    rig_close(&r);
}

void test_stream_demand_goes_before_prefetch(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    check_goes_before(MP_STREAM_DEMAND, MP_STREAM_PREFETCH);
}

void test_stream_compute_goes_before_background(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    check_goes_before(MP_STREAM_COMPUTE, MP_STREAM_BACKGROUND);
}

void test_stream_sync_of_nothing_returns(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 8);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    MUST(r.ops->sync(stream, 0));
    mp_tick first = rig_copy(&r, stream, memory, "x", 1);
    MUST(r.ops->sync(stream, first));
    gate g;
    gate_shut(&g, &r, stream, memory, 1);
    MUST(r.ops->sync(stream, 0));
    MUST(r.ops->sync(stream, first));
    gate_open(&g);
    rig_close(&r);
}

typedef struct syncer {
    rig *r;
    mp_stream *streams[3];
    unsigned char *inside, *source, *target; /* its own */
    uint32_t n, wrong;
} syncer;

static void *submit_and_sync(void *arg)
{
    syncer *s = arg;
    const mp_device_ops *ops = s->r->ops;
    for (uint32_t i = 0; i < s->n; i++) {
        memset(s->source, (int)i, 100);
        mp_copy in = {.dst = s->inside, .src = s->source, .bytes = 100};
        mp_copy out = {.dst = s->target, .src = s->inside, .bytes = 100};
        mp_stream *first = s->streams[i % 3], *second = s->streams[(i + 1 + i / 3 % 2) % 3];
        mp_tick tick = 0;
        s->wrong += ops->copy(first, &in, 1, &tick) != MOEPAGE_OK;
        s->wrong += ops->wait(second, first, tick) != MOEPAGE_OK;
        s->wrong += ops->copy(second, &out, 1, &tick) != MOEPAGE_OK;
        s->wrong += ops->sync(second, tick) != MOEPAGE_OK;
        s->wrong += memcmp(s->source, s->target, 100) != 0;
    }
    return NULL;
}

void test_stream_sync_works_from_many_threads(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    enum { THREADS = 5 };
    rig r;
    rig_open(&r, 1, 0);
    mp_stream *streams[3] = {rig_stream(&r, MP_STREAM_DEMAND), rig_stream(&r, MP_STREAM_PREFETCH),
                             rig_stream(&r, MP_STREAM_COMPUTE)};
    syncer s[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        s[i] = (syncer){.r = &r, .n = rounds(300)};
        memcpy(s[i].streams, streams, sizeof streams);
        s[i].inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 100);
        s[i].source = rig_alloc(&r, MP_MEMORY_HOST, 100);
        s[i].target = rig_alloc(&r, MP_MEMORY_HOST, 100);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, submit_and_sync, &s[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(s[i].wrong, 0);
    }
    rig_close(&r);
}

/* Long enough that the other thread can submit while this one runs. */
enum { LONG = 60000 };

typedef struct companion {
    rig *r;
    mp_stream *stream;
    void *in, *out;
    pthread_barrier_t *start;
    uint32_t n;
} companion;

static void *launch_and_sync(void *arg)
{
    companion *c = arg;
    for (uint32_t i = 0; i < c->n; i++) {
        pthread_barrier_wait(c->start);
        c->r->ops->sync(c->stream, rig_launch_copy(c->r, c->stream, c->out, c->in, LONG));
    }
    return NULL;
}

/* A thread that waits may run kernels itself. What is submitted meanwhile must not be left behind
 * when it goes: nobody waits for it here. */
void test_stream_goes_on_when_a_waiting_thread_leaves(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    float *cells = rig_alloc(&r, MP_MEMORY_WORKSPACE, 2 * LONG * sizeof *cells);
    float *few = rig_alloc(&r, MP_MEMORY_WORKSPACE, 100 * sizeof *few);
    mp_stream *own = rig_stream(&r, MP_STREAM_COMPUTE);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 2);
    companion c = {.r = &r,
                   .stream = rig_stream(&r, MP_STREAM_COMPUTE),
                   .in = cells,
                   .out = cells + LONG,
                   .start = &start,
                   .n = rounds(3000)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, launch_and_sync, &c), 0);
    for (uint32_t i = 0; i < c.n; i++) {
        pthread_barrier_wait(&start);
        mp_tick tick = rig_launch_copy(&r, own, few + 50, few, 1 + i % 50);
        while (r.ops->completed(own) < tick)
            sched_yield();
    }
    pthread_join(thread, NULL);
    rig_close(&r);
}

enum { MANY = 5000 };

typedef struct flood {
    rig *r;
    mp_stream *stream, *other;
    mp_tick other_tick;
    run_log *log;
    void *memory;
    mp_tick last;
    uint32_t wrong;
} flood;

/* Singly, and then in one call with more than any queue holds. */
static void *submit_many(void *arg)
{
    flood *f = arg;
    const mp_device_ops *ops = f->r->ops;
    mp_copy *copies = calloc(MANY, sizeof *copies);
    for (uint32_t i = 0; i < MANY; i++) {
        mp_copy copy = noted(f->log, i, f->memory);
        copies[i] = noted(f->log, MANY + i, f->memory);
        f->wrong += ops->copy(f->stream, &copy, 1, &f->last) != MOEPAGE_OK;
    }
    f->wrong += ops->copy(f->stream, copies, MANY, &f->last) != MOEPAGE_OK;
    free(copies);
    return NULL;
}

void test_stream_takes_more_work_than_it_can_queue(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    flood f = {.r = &r, .log = new_log()};
    f.memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    f.stream = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *prefetch = rig_stream(&r, MP_STREAM_PREFETCH);
    gate g;
    gate_shut(&g, &r, prefetch, f.memory, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, submit_many, &f), 0);
    gate_open(&g);
    pthread_join(thread, NULL);
    assert_int_equal(f.wrong, 0);
    assert_int_equal(f.last, 2 * MANY);
    MUST(r.ops->sync(f.stream, f.last));
    assert_counts_up(f.log, 2 * MANY);
    free(f.log);
    rig_close(&r);
}

static void *wait_many(void *arg)
{
    flood *f = arg;
    for (uint32_t i = 0; i < MANY; i++)
        f->wrong += f->r->ops->wait(f->stream, f->other, f->other_tick) != MOEPAGE_OK;
    mp_copy copy = noted(f->log, 0, f->memory);
    f->wrong += f->r->ops->copy(f->stream, &copy, 1, &f->last) != MOEPAGE_OK;
    return NULL;
}

void test_stream_takes_more_waits_than_it_can_queue(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    flood f = {.r = &r, .log = new_log()};
    f.memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    f.stream = rig_stream(&r, MP_STREAM_COMPUTE);
    f.other = rig_stream(&r, MP_STREAM_DEMAND);
    gate g;
    f.other_tick = gate_shut(&g, &r, f.other, f.memory, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_many, &f), 0);
    gate_open(&g);
    pthread_join(thread, NULL);
    assert_int_equal(f.wrong, 0);
    MUST(r.ops->sync(f.stream, f.last));
    assert_counts_up(f.log, 1);
    free(f.log);
    rig_close(&r);
}

void test_stream_destroy_waits_for_its_work(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    for (uint32_t round = 0; round < 20; round++) {
        run_log *log = new_log();
        mp_stream *first = NULL, *second = NULL;
        MUST(r.ops->stream_create(r.device, round / 2 % 2 ? MP_STREAM_COLD : MP_STREAM_PREFETCH,
                                  &first));
        MUST(r.ops->stream_create(r.device, MP_STREAM_COMPUTE, &second));
        mp_tick tick = 0;
        for (uint32_t i = 0; i < 100; i++)
            tick = submit_noted(&r, first, log, i, memory);
        MUST(r.ops->wait(second, first, tick));
        if (round % 2)
            submit_noted(&r, second, log, 100, memory);
        r.ops->stream_destroy(second);
        r.ops->stream_destroy(first);
        assert_counts_up(log, 100 + round % 2);
        free(log);
    }
    rig_close(&r);
}
