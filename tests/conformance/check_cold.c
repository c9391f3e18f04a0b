/* COLD streams: their fills may block, run side by side, and hold up no other stream. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

/* ---- Side by side ------------------------------------------------------------------------ */

/* Where `expected` fills meet: none returns before all have begun. */
typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t complete;
    uint32_t expected, arrived;
} meeting;

static moepage_status meet(const mp_copy *copy, void *out)
{
    meeting *m = (meeting *)copy->fill_user;
    pthread_mutex_lock(&m->lock);
    m->arrived++;
    pthread_cond_broadcast(&m->complete);
    while (m->arrived < m->expected)
        pthread_cond_wait(&m->complete, &m->lock);
    pthread_mutex_unlock(&m->lock);
    memset(out, 0, copy->bytes);
    return MOEPAGE_OK;
}

void test_cold_streams_run_side_by_side(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    enum { MOST = 8 };
    rig r;
    mp_stream *streams[MOST];
    mp_tick last[MOST] = {0};
    rig_open(&r, 1, 0);
    uint32_t width = r.device->io_threads < MOST ? r.device->io_threads : MOST;
    assert_true(width >= 2); /* unless told otherwise */
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, MOST);
    for (uint32_t s = 0; s < width; s++)
        streams[s] = rig_stream(&r, MP_STREAM_COLD);
    for (uint32_t round = 0; round < rounds(200); round++) {
        meeting m = {.expected = 2 + round % (width - 1)};
        pthread_mutex_init(&m.lock, NULL);
        pthread_cond_init(&m.complete, NULL);
        for (uint32_t i = 0; i < m.expected; i++) {
            uint32_t s = (round + i) % width;
            last[s] = rig_fill(&r, streams[s], memory + s, 1, meet, &m);
        }
        for (uint32_t s = 0; s < width; s++)
            MUST(r.ops->sync(streams[s], last[s]));
        assert_int_equal(m.arrived, m.expected);
        pthread_cond_destroy(&m.complete);
        pthread_mutex_destroy(&m.lock);
    }
    rig_close(&r);
}

/* ---- In order ---------------------------------------------------------------------------- */

/* What one stream's fills share, without a lock: they never run at the same time. */
typedef struct sequence {
    _Atomic uint32_t *inside; /* fills that run at this moment, of all streams */
    _Atomic uint32_t *most;   /* ever */
    uint32_t next;            /* number that is due */
    uint32_t wrong;
} sequence;

static moepage_status take_turn(const mp_copy *copy, void *out)
{
    sequence *s = (sequence *)copy->fill_user;
    uint32_t inside = atomic_fetch_add(s->inside, 1) + 1, most = atomic_load(s->most);
    while (inside > most && !atomic_compare_exchange_weak(s->most, &most, inside)) {
    }
    s->wrong += copy->fill_key[0] != s->next++;
    if (subject->holds_bytes)
        memset(out, (int)copy->fill_key[0], copy->bytes);
    atomic_fetch_sub(s->inside, 1);
    return MOEPAGE_OK;
}

/* Many more streams than threads, some waiting for each other. */
void test_cold_streams_keep_their_order(void **state)
{
    (void)state;
    enum { STREAMS = 24, EACH = 300 };
    rig r;
    mp_stream *streams[STREAMS];
    sequence sequences[STREAMS] = {0};
    mp_tick last[STREAMS] = {0};
    _Atomic uint32_t inside = 0, most = 0;
    uint64_t seed = 5;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, STREAMS);
    for (uint32_t s = 0; s < STREAMS; s++) {
        streams[s] = rig_stream(&r, MP_STREAM_COLD);
        sequences[s] = (sequence){.inside = &inside, .most = &most};
    }
    for (uint32_t i = 0; i < EACH * STREAMS; i++) {
        uint32_t s = i % STREAMS, other = random_below(&seed, STREAMS);
        mp_copy copy = {.dst = memory + s,
                        .bytes = 1,
                        .fill = take_turn,
                        .fill_user = &sequences[s],
                        .fill_key = {i / STREAMS, 0, 0}};
        if (random_below(&seed, 8) == 0)
            MUST(r.ops->wait(streams[s], streams[other], last[other]));
        MUST(r.ops->copy(streams[s], &copy, 1, &last[s]));
    }
    for (uint32_t s = 0; s < STREAMS; s++) {
        MUST(r.ops->sync(streams[s], last[s]));
        assert_int_equal(sequences[s].next, EACH);
        assert_int_equal(sequences[s].wrong, 0);
        if (subject->holds_bytes)
            assert_int_equal(memory[s], (EACH - 1) & 0xff);
    }
    assert_in_range(most, 1, r.device->io_threads);
    rig_close(&r);
}

/* ---- In nobody's way --------------------------------------------------------------------- */

/* As many blocked fills as there are threads, and one that waits behind them. */
void test_cold_fill_holds_up_nobody_else(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    static const mp_stream_class others[] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH,
                                             MP_STREAM_COMPUTE, MP_STREAM_BACKGROUND};
    enum { MOST = 16 };
    rig r;
    rig_open(&r, 1, 0);
    gate gates[MOST];
    mp_stream *cold[MOST];
    uint32_t n = r.device->io_threads;
    assert_in_range(n, 1, MOST - 1);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, MOST);
    unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    for (uint32_t i = 0; i <= n; i++) {
        cold[i] = rig_stream(&r, MP_STREAM_COLD);
        if (i < n)
            gate_shut(&gates[i], &r, cold[i], memory + i, 1);
        else
            gate_queue(&gates[i], &r, cold[i], memory + i, 1);
    }
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
        mp_stream *stream = rig_stream(&r, others[i]);
        MUST(r.ops->sync(stream, rig_copy(&r, stream, inside, inside + 32, 16)));
    }
    for (uint32_t i = 0; i <= n; i++)
        assert_int_equal(r.ops->completed(cold[i]), 0);
    for (uint32_t i = 0; i <= n; i++)
        gate_open(&gates[i]);
    for (uint32_t i = 0; i <= n; i++)
        MUST(r.ops->sync(cold[i], 1));
    rig_close(&r);
}

/* ---- From storage to kernels ------------------------------------------------------------- */

enum { FLOATS = 700, STAGES = 3, LOADS = 60 };

static moepage_status fill_floats(const mp_copy *copy, void *out)
{
    float *values = out;
    for (uint32_t i = 0; i < FLOATS; i++)
        values[i] = (float)(copy->fill_key[0] * FLOATS + i);
    return MOEPAGE_OK;
}

/* Everything is submitted ahead of the first byte. The few buffers are used again and again, each
 * time after a wait for whoever reads them still. */
void test_cold_bytes_reach_kernels_through_waits(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    NEEDS(holds_bytes);
    const uint64_t bytes = FLOATS * sizeof(float);
    rig r;
    gate g;
    float *staged[STAGES], *slots[STAGES], *outs[LOADS], got[FLOATS];
    mp_stream *cold[STAGES];
    mp_tick moved[STAGES] = {0}, computed[STAGES] = {0};
    rig_open(&r, 2, 0);
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *compute = rig_stream(&r, MP_STREAM_COMPUTE);
    for (uint32_t s = 0; s < STAGES; s++) {
        cold[s] = rig_stream(&r, MP_STREAM_COLD);
        staged[s] = rig_alloc(&r, MP_MEMORY_HOST, bytes);
        slots[s] = rig_alloc(&r, MP_MEMORY_WORKSPACE, bytes);
    }
    gate_shut(&g, &r, cold[0], staged[0], bytes);
    for (uint32_t i = 0; i < LOADS; i++) {
        uint32_t s = i % STAGES;
        mp_copy read = {.dst = staged[s],
                        .bytes = bytes,
                        .fill = fill_floats,
                        .fill_key = {i, 0, 0}};
        mp_tick tick = 0;
        outs[i] = rig_alloc(&r, MP_MEMORY_WORKSPACE, bytes);
        MUST(r.ops->wait(cold[s], demand, moved[s]));
        MUST(r.ops->copy(cold[s], &read, 1, &tick));
        MUST(r.ops->wait(demand, cold[s], tick));
        MUST(r.ops->wait(demand, compute, computed[s]));
        moved[s] = rig_copy(&r, demand, slots[s], staged[s], bytes);
        MUST(r.ops->wait(compute, demand, moved[s]));
        computed[s] = rig_launch_copy(&r, compute, outs[i], slots[s], FLOATS);
    }
    assert_int_equal(r.ops->completed(demand), 0);
    assert_int_equal(r.ops->completed(compute), 0);
    gate_open(&g);
    MUST(r.ops->sync(compute, computed[(LOADS - 1) % STAGES]));
    for (uint32_t i = 0; i < LOADS; i++) {
        rig_read(&r, outs[i], got, bytes);
        for (uint32_t k = 0; k < FLOATS; k++)
            assert_true(got[k] == (float)(i * FLOATS + k));
    }
    rig_close(&r);
}
