/* Tasks: once, alone, after their tick, and never forgotten. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

typedef struct job {
    mp_task task; /* first */
    rig *r;
    mp_stream *stream;
    mp_tick tick;
    void *memory;
    _Atomic uint32_t *inside; /* tasks that run at this moment */
    _Atomic uint32_t runs, early, crowded, wrong;
    uint32_t again; /* times to post itself */
    sem_t *done;    /* after the last run; NULL = nobody waits */
} job;

static void run_job(mp_task *task)
{
    job *j = (job *)task;
    if (j->inside && atomic_fetch_add(j->inside, 1) != 0)
        atomic_fetch_add(&j->crowded, 1);
    if (j->stream && j->r->ops->completed(j->stream) < j->tick)
        atomic_fetch_add(&j->early, 1);
    atomic_fetch_add(&j->runs, 1);
    if (j->inside)
        atomic_fetch_sub(j->inside, 1);
    if (j->done)
        sem_post(j->done);
}

static void sem_wait_n(sem_t *sem, uint32_t n)
{
    while (n--)
        sem_wait(sem);
}

void test_task_runs_once_after_its_tick(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    enum { N = 200 };
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *streams[2] = {rig_stream(&r, MP_STREAM_DEMAND), rig_stream(&r, MP_STREAM_COMPUTE)};
    sem_t done;
    sem_init(&done, 0, 0);
    job *jobs = calloc(N + 1, sizeof *jobs);
    gate g;
    mp_tick gated = gate_shut(&g, &r, streams[0], memory, 1);
    MUST(r.ops->wait(streams[1], streams[0], gated));
    mp_tick ticks[2][N];
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t s = 0; s < 2; s++)
            ticks[s][i] = rig_copy(&r, streams[s], (char *)memory + 8 * (s + 1), memory, 4);
    }
    /* Posted in an order that is not the ticks'. */
    for (uint32_t i = 0; i < N; i++) {
        uint32_t s = i % 2, at = i * 77 % N;
        jobs[i] = (job){.task = {.run = run_job},
                        .r = &r,
                        .stream = streams[s],
                        .tick = ticks[s][at],
                        .done = &done};
        r.ops->post(r.device, streams[s], ticks[s][at], &jobs[i].task);
    }
    /* One that waits for nothing is not held up by them. */
    jobs[N] = (job){.task = {.run = run_job}, .r = &r, .done = &done};
    r.ops->post(r.device, NULL, 0, &jobs[N].task);
    sem_wait(&done);
    assert_int_equal(jobs[N].runs, 1);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(jobs[i].runs, 0);

    gate_open(&g);
    sem_wait_n(&done, N);
    for (uint32_t s = 0; s < 2; s++)
        MUST(r.ops->sync(streams[s], ticks[s][N - 1]));
    rig_close(&r);
    for (uint32_t i = 0; i <= N; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].early, 0);
    }
    free(jobs);
}

typedef struct poster {
    rig *r;
    job *jobs;
    uint32_t n;
    mp_stream *stream;
    mp_tick tick;
} poster;

static void *post_all(void *arg)
{
    poster *p = arg;
    for (uint32_t i = 0; i < p->n; i++)
        p->r->ops->post(p->r->device, i % 2 ? p->stream : NULL, i % 2 ? p->tick : 0,
                        &p->jobs[i].task);
    return NULL;
}

void test_task_runs_alone(void **state)
{
    (void)state;
    NEEDS(any_thread);
    enum { THREADS = 4, EACH = 500 };
    rig r;
    rig_open(&r, 1, 0);
    void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    _Atomic uint32_t inside = 0;
    job *jobs = calloc(THREADS * EACH, sizeof *jobs);
    poster posters[THREADS];
    pthread_t threads[THREADS];
    mp_tick tick = 0;
    for (uint32_t i = 0; i < THREADS; i++)
        tick = rig_copy(&r, stream, memory, "x", 1);
    for (uint32_t i = 0; i < THREADS * EACH; i++)
        jobs[i] = (job){.task = {.run = run_job}, .r = &r, .inside = &inside};
    for (uint32_t i = 0; i < THREADS; i++) {
        posters[i] = (poster){
            .r = &r, .jobs = jobs + i * EACH, .n = EACH, .stream = stream, .tick = tick - i};
        assert_int_equal(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    rig_close(&r); /* waits for all of them */
    for (uint32_t i = 0; i < THREADS * EACH; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].crowded, 0);
    }
    free(jobs);
}

static void submit_and_repost(mp_task *task)
{
    job *j = (job *)task;
    run_job(task);
    if (j->again == 0)
        return;
    j->again--;
    mp_copy copy = {.dst = j->memory, .src = "z", .bytes = 1};
    if (j->r->ops->copy(j->stream, &copy, 1, &j->tick))
        atomic_fetch_add(&j->wrong, 1);
    j->r->ops->post(j->r->device, j->stream, j->tick, task);
}

void test_task_may_post_itself_and_submit(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 0);
    job j = {.task = {.run = submit_and_repost}, .r = &r, .again = 300};
    j.memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    j.stream = rig_stream(&r, MP_STREAM_PREFETCH);
    j.tick = rig_copy(&r, j.stream, j.memory, "x", 1);
    r.ops->post(r.device, j.stream, j.tick, &j.task);
    rig_close(&r); /* waits for a task that has more to submit and to post */
    assert_int_equal(j.runs, 301);
    assert_int_equal(j.early, 0);
    assert_int_equal(j.wrong, 0);
}

static void submit_too_much(mp_task *task)
{
    job *j = (job *)task;
    mp_copy copy = {.dst = j->memory, .src = "z", .bytes = 1};
    for (uint32_t i = 0; i < 5000; i++) {
        if (j->r->ops->copy(j->stream, &copy, 1, &j->tick))
            atomic_fetch_add(&j->wrong, 1);
    }
    run_job(task);
}

/* A full queue holds a task up, but nothing that empties the queue waits for tasks. */
void test_task_may_overfill_a_stream(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    sem_t done;
    sem_init(&done, 0, 0);
    job j = {.task = {.run = submit_too_much}, .r = &r, .done = &done};
    j.memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    j.stream = rig_stream(&r, MP_STREAM_PREFETCH);
    r.ops->post(r.device, NULL, 0, &j.task);
    sem_wait(&done);
    assert_int_equal(j.tick, 5000);
    MUST(r.ops->sync(j.stream, j.tick));
    assert_int_equal(j.wrong, 0);
    rig_close(&r);
}

void test_task_is_waited_for_by_destroy_and_close(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 30; round++) {
        rig r;
        rig_open(&r, 1, 0);
        void *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
        mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
        job after = {.task = {.run = run_job}, .r = &r, .stream = stream};
        after.tick = rig_copy(&r, stream, memory, "x", 1);
        r.ops->post(r.device, stream, after.tick, &after.task);
        r.ops->stream_destroy(stream);
        assert_int_equal(after.runs, 1);
        rig_forget(&r, stream);

        job last = {.task = {.run = run_job}, .r = &r};
        r.ops->post(r.device, NULL, 0, &last.task);
        rig_close(&r);
        assert_int_equal(last.runs, 1);
    }
}
