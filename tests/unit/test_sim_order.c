/* In which order things happen on the simulated device: tasks, ties, a naive schedule beside it, and the
 * same run twice. */

#include <stdlib.h>
#include <string.h>

#include "machine_rig.h"
#include "testing.h"

/* ---- tasks ---- */

typedef struct event {
    uint32_t number;
    uint64_t at_ns;
} event;

typedef struct history {
    event events[4000];
    uint32_t n;
} history;

typedef struct witness {
    mp_task task;
    history *history;
    mp_device *device;
    uint32_t number;
} witness;

static void note_event(mp_task *task)
{
    witness *w = (witness *)task;
    w->history->events[w->history->n++] = (event){w->number, machine_now_ns(w->device)};
}

typedef struct job {
    mp_task task;
    mp_device *device;
    mp_stream *stream; /* to which it submits when it is to go on */
    uint64_t at_ns[64];
    uint32_t runs, again;
} job;

static void run_job(mp_task *task)
{
    job *j = (job *)task;
    j->at_ns[j->runs++] = machine_now_ns(j->device);
    if (j->again == 0)
        return;
    j->again--;
    if (j->stream)
        j->device->ops->post(j->device, j->stream, machine_copy(j->device, j->stream, 100), task);
    else
        j->device->ops->post(j->device, NULL, 0, task);
}

static void test_sim_order_tasks_run_at_their_tick(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    const mp_device_ops *ops = device->ops;
    mp_stream *bus = machine_stream(device, MP_STREAM_DEMAND);
    mp_stream *compute = machine_stream(device, MP_STREAM_COMPUTE);
    job jobs[4];
    for (int i = 0; i < 4; i++)
        jobs[i] = (job){.task = {.run = run_job}, .device = device};
    mp_tick ticks[3];
    for (int i = 0; i < 3; i++)
        ticks[i] = machine_copy(device, bus, 900);
    mp_tick computed = machine_convert(device, compute, 1995); /* to 4000 */
    for (int i = 3; i-- > 0;)
        ops->post(device, bus, ticks[i], &jobs[i].task);
    ops->post(device, NULL, 0, &jobs[3].task);
    for (int i = 0; i < 4; i++)
        assert_int_equal(jobs[i].runs, 0); /* never inside a submission */
    machine_sync(device, compute, computed);
    for (int i = 0; i < 4; i++)
        assert_int_equal(jobs[i].runs, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(jobs[i].at_ns[0], 1000 * (i + 1));
    assert_int_equal(jobs[3].at_ns[0], 0);

    /* A task submits work and follows it; destroying the stream waits for all of that. */
    jobs[0] = (job){.task = {.run = run_job}, .device = device, .stream = bus, .again = 20};
    ops->post(device, bus, ticks[2], &jobs[0].task);
    ops->stream_destroy(bus);
    assert_int_equal(jobs[0].runs, 21);
    for (uint32_t i = 0; i < 21; i++)
        assert_int_equal(jobs[0].at_ns[i], 4000 + 200 * i);

    /* One that only looks again and again does not stop time, nor is it lost. */
    jobs[1] = (job){.task = {.run = run_job}, .device = device, .again = 60};
    ops->post(device, NULL, 0, &jobs[1].task);
    mp_sim_pass(device, 10);
    assert_int_equal(machine_now_ns(device), 8010);
    assert_in_range(jobs[1].runs, 1, 60);
    machine_sync(device, compute, machine_convert(device, compute, 45));
    assert_int_equal(machine_now_ns(device), 8110);
    ops->stream_destroy(compute);
    ops->close(device);
    assert_int_equal(jobs[1].runs, 61);
}

/* At one moment, what was submitted first ends first, whichever unit it was on. */
static void test_sim_order_ties_end_in_order_of_submission(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 3; first++) {
        mp_device *device = machine_open();
        mp_stream *streams[3] = {machine_stream(device, MP_STREAM_DEMAND),
                                 machine_stream(device, MP_STREAM_COMPUTE),
                                 machine_stream(device, MP_STREAM_COLD)};
        history events = {.n = 0};
        witness witnesses[3];
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t s = (first + i) % 3;
            mp_tick tick = s == 0   ? machine_copy(device, streams[s], 1900)
                           : s == 1 ? machine_convert(device, streams[s], 995)
                                    : machine_copy(device, streams[s], 1000);
            witnesses[i] = (witness){{.run = note_event}, &events, device, i};
            device->ops->post(device, streams[s], tick, &witnesses[i].task);
        }
        mp_sim_idle_until(device, 2000);
        assert_int_equal(events.n, 3);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(events.events[i].number, i);
            assert_int_equal(events.events[i].at_ns, 2000);
            device->ops->stream_destroy(streams[i]);
        }
        device->ops->close(device);
    }
}

static void test_sim_order_task_waits_for_its_lock(void **state)
{
    (void)state;
    mp_device *device = machine_open();
    mp_stream *bus = machine_stream(device, MP_STREAM_DEMAND);
    pthread_mutex_t lock;
    pthread_mutex_init(&lock, NULL);
    job locked = {.task = {.run = run_job, .lock = &lock}, .device = device};
    job behind = {.task = {.run = run_job}, .device = device};
    mp_tick tick = machine_copy(device, bus, 900);
    device->ops->post(device, bus, tick, &locked.task);
    device->ops->post(device, bus, tick, &behind.task);
    pthread_mutex_lock(&lock);
    machine_sync(device, bus, tick);
    mp_sim_pass(device, 500);
    assert_int_equal(locked.runs + behind.runs, 0);
    pthread_mutex_unlock(&lock);
    mp_sim_pass(device, 500);
    assert_int_equal(locked.runs, 1);
    assert_int_equal(locked.at_ns[0], 1500);
    assert_int_equal(behind.runs, 1);
    device->ops->stream_destroy(bus);
    device->ops->close(device);
    pthread_mutex_destroy(&lock);
}

/* ---- beside a naive schedule ---- */

enum { STREAMS = 7, MOST = 400 };

static const mp_stream_class class_of[STREAMS] = {MP_STREAM_DEMAND,    MP_STREAM_DEMAND,
                                                  MP_STREAM_PREFETCH,  MP_STREAM_COMPUTE,
                                                  MP_STREAM_COMPUTE,   MP_STREAM_BACKGROUND,
                                                  MP_STREAM_BACKGROUND};

/* One submission as the model sees it. */
typedef struct planned {
    uint32_t stream, unit; /* 0 bus, 1 compute, 2 decoder */
    mp_tick tick;
    uint64_t submitted_ns, ns, started_ns, ended_ns;
    uint32_t needs[STREAMS]; /* ticks of each stream; 0 = none */
    bool started, ended;
} planned;

typedef struct plan {
    planned work[MOST];
    uint32_t n;
    uint64_t ended_at[STREAMS][MOST]; /* by tick */
    mp_tick last[STREAMS];
} plan;

static bool may_start(const plan *p, const planned *w, uint64_t t)
{
    if (w->started || w->submitted_ns > t)
        return false;
    for (uint32_t s = 0; s < STREAMS; s++) {
        mp_tick needed = s == w->stream && w->tick - 1 > w->needs[s] ? w->tick - 1 : w->needs[s];
        if (needed && !(p->ended_at[s][needed] <= t))
            return false;
    }
    return true;
}

static bool is_low(const planned *w)
{
    mp_stream_class cls = class_of[w->stream];
    return cls == MP_STREAM_PREFETCH || cls == MP_STREAM_BACKGROUND;
}

static bool is_busy(const plan *p, uint32_t unit, uint64_t t)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->work[i].unit == unit && p->work[i].started && p->work[i].ended_ns > t)
            return true;
    return false;
}

/* Starts whatever may start at t, the urgent first, then the first submitted. */
static void start_at(plan *p, uint64_t t)
{
    for (uint32_t unit = 0; unit < 3; unit++) {
        planned *best = NULL;
        for (uint32_t i = is_busy(p, unit, t) ? p->n : 0; i < p->n; i++) {
            planned *w = &p->work[i];
            if (w->unit == unit && may_start(p, w, t) && (!best || (is_low(best) && !is_low(w))))
                best = w;
        }
        if (!best)
            continue;
        best->started = true;
        best->started_ns = t;
        best->ended_ns = t + best->ns;
        p->ended_at[best->stream][best->tick] = best->ended_ns;
    }
}

/* Every moment from `from` to before `until` at which something can begin. */
static void run_plan(plan *p, uint64_t from, uint64_t until)
{
    for (uint64_t t = from; t < until;) {
        start_at(p, t);
        uint64_t next = until;
        for (uint32_t i = 0; i < p->n; i++)
            if (p->work[i].started && p->work[i].ended_ns > t && p->work[i].ended_ns < next)
                next = p->work[i].ended_ns;
        t = next;
    }
}

typedef struct program {
    mp_device *device;
    mp_stream *streams[STREAMS];
    plan *plan; /* or NULL */
    uint64_t seed;
    job jobs[MOST]; /* one follows each submission */
    uint32_t n;
} program;

static uint32_t below(program *p, uint32_t n)
{
    p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((p->seed >> 33) % n);
}

static void submit_one(program *p, uint32_t needs[STREAMS][STREAMS])
{
    uint32_t s = below(p, STREAMS), size = below(p, 400);
    bool kernels = class_of[s] >= MP_STREAM_COMPUTE && class_of[s] <= MP_STREAM_BACKGROUND;
    uint32_t unit = kernels ? 1 + below(p, 2) : 0;
    planned w = {.stream = s, .unit = unit, .submitted_ns = machine_now_ns(p->device)};
    if (unit == 0) {
        w.tick = machine_copy(p->device, p->streams[s], size);
        w.ns = 100 + size;
    } else if (unit == 1) {
        w.tick = machine_convert(p->device, p->streams[s], size);
        w.ns = 10 + 2 * size;
    } else {
        w.tick = machine_decode(p->device, p->streams[s], size, NULL);
        w.ns = 50 + size;
    }
    memcpy(w.needs, needs[s], sizeof w.needs);
    p->plan->last[s] = w.tick;
    p->plan->ended_at[s][w.tick] = UINT64_MAX;
    p->plan->work[p->plan->n++] = w;
    job *j = &p->jobs[p->n++];
    *j = (job){.task = {.run = run_job}, .device = p->device};
    p->device->ops->post(p->device, p->streams[s], w.tick, &j->task);
}

/* Submissions and waits, in a few bursts with time between them; then all runs to its end. */
static void run_program(program *p, uint64_t seed)
{
    uint32_t needs[STREAMS][STREAMS] = {{0}};
    p->device = machine_open();
    p->seed = seed;
    for (uint32_t s = 0; s < STREAMS; s++)
        p->streams[s] = machine_stream(p->device, class_of[s]);
    for (uint32_t burst = 0; burst < 6; burst++) {
        for (uint32_t i = 0; i < 50; i++) {
            uint32_t waiter = below(p, STREAMS), other = below(p, STREAMS);
            if (below(p, 3) == 0 && waiter != other) {
                mp_tick tick = p->plan->last[other];
                assert_int_equal(p->device->ops->wait(p->streams[waiter], p->streams[other], tick),
                                 MOEPAGE_OK);
                if (tick > needs[waiter][other])
                    needs[waiter][other] = (uint32_t)tick;
            }
            submit_one(p, needs);
        }
        uint64_t from = machine_now_ns(p->device), until = from + 1 + below(p, 9000);
        mp_sim_idle_until(p->device, until);
        run_plan(p->plan, from, until);
    }
    run_plan(p->plan, machine_now_ns(p->device), UINT64_MAX);
    for (uint32_t s = 0; s < STREAMS; s++)
        p->device->ops->stream_destroy(p->streams[s]);
    p->device->ops->close(p->device);
}

static void test_sim_order_agrees_with_a_naive_schedule(void **state)
{
    (void)state;
    const uint32_t rounds = getenv("MP_TEST_LONG") ? 600 : 60;
    program *p = malloc(sizeof *p);
    plan *own = malloc(sizeof *own);
    assert_true(p && own);
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        memset(p, 0, sizeof *p);
        memset(own, 0, sizeof *own);
        p->plan = own;
        run_program(p, seed);
        for (uint32_t i = 0; i < own->n; i++) {
            assert_int_equal(p->jobs[i].runs, 1);
            if (p->jobs[i].at_ns[0] != own->work[i].ended_ns)
                fail_msg("seed %llu: submission %u ended at %llu, not at %llu",
                         (unsigned long long)seed, i, (unsigned long long)p->jobs[i].at_ns[0],
                         (unsigned long long)own->work[i].ended_ns);
        }
    }
    free(own);
    free(p);
}

/* ---- the same every time ---- */

static void record_run(uint64_t seed, history *out)
{
    enum { N = 3000, ALL = 9 };
    mp_device *device = machine_open();
    program random = {.seed = seed};
    mp_stream *streams[ALL];
    witness *witnesses = calloc(N, sizeof *witnesses);
    assert_non_null(witnesses);
    out->n = 0;
    for (uint32_t s = 0; s < ALL; s++)
        streams[s] = machine_stream(device, s < STREAMS ? class_of[s] : MP_STREAM_COLD);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t s = below(&random, ALL), other = below(&random, ALL);
        if (below(&random, 4) == 0)
            assert_int_equal(device->ops->wait(streams[s], streams[other],
                                               device->ops->completed(streams[other])),
                             MOEPAGE_OK);
        mp_tick tick = machine_copy(device, streams[s], below(&random, 4) * 100); /* many ties */
        witnesses[i] = (witness){{.run = note_event}, out, device, i};
        device->ops->post(device, streams[s], tick, &witnesses[i].task);
        if (below(&random, 40) == 0)
            machine_sync(device, streams[s], tick);
        if (below(&random, 40) == 0)
            mp_sim_work(device, 500, 500);
    }
    for (uint32_t s = 0; s < ALL; s++)
        device->ops->stream_destroy(streams[s]);
    device->ops->close(device);
    assert_int_equal(out->n, N);
    free(witnesses);
}

static void test_sim_order_runs_are_equal_event_for_event(void **state)
{
    (void)state;
    history *runs = malloc(3 * sizeof *runs);
    assert_non_null(runs);
    record_run(5, &runs[0]);
    record_run(5, &runs[1]);
    record_run(6, &runs[2]);
    for (uint32_t i = 0; i < runs[0].n; i++) {
        assert_int_equal(runs[0].events[i].number, runs[1].events[i].number);
        assert_int_equal(runs[0].events[i].at_ns, runs[1].events[i].at_ns);
    }
    uint32_t same = 0;
    for (uint32_t i = 0; i < runs[0].n; i++)
        same += runs[0].events[i].number == runs[2].events[i].number;
    assert_true(same < runs[0].n / 2);
    free(runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_order_tasks_run_at_their_tick),
        cmocka_unit_test(test_sim_order_ties_end_in_order_of_submission),
        cmocka_unit_test(test_sim_order_task_waits_for_its_lock),
        cmocka_unit_test(test_sim_order_agrees_with_a_naive_schedule),
        cmocka_unit_test(test_sim_order_runs_are_equal_event_for_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
