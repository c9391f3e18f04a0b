/* Ticks that submit nothing, transfers whose end is known before their tick completes, and the
 * order between the caller's work and ours. */
#include <string.h>

#include "rig.h"

static mp_tick mark(rig *r, mp_stream *stream)
{
    mp_tick tick = 0;
    MUST(r->ops->mark(stream, &tick));
    return tick;
}

void test_mark_completes_with_what_came_before(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    MUST(r.ops->sync(stream, mark(&r, stream))); /* nothing came before */
    gate g;
    mp_tick held = subject->asynchronous ? gate_shut(&g, &r, stream, memory, 1)
                                         : rig_copy(&r, stream, memory, "x", 1);
    mp_tick marked = mark(&r, stream);
    assert_true(marked >= held);
    mp_tick after = rig_copy(&r, stream, memory, "y", 1);
    assert_true(after > marked);
    if (subject->asynchronous) {
        assert_true(r.ops->completed(stream) < marked);
        gate_open(&g);
    }
    MUST(r.ops->sync(stream, marked));
    assert_in_range(r.ops->completed(stream), held, after);
    MUST(r.ops->sync(stream, after));
    rig_close(&r);
}

/* For each class of stream, though nothing is ever submitted to it. */
void test_mark_completes_with_what_was_waited_for(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, 64);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND), *streams[5];
    for (uint32_t c = 0; c < 5; c++)
        streams[c] = rig_stream(&r, (mp_stream_class)c);
    for (uint32_t round = 0; round < 3; round++) {
        gate g;
        mp_tick marked[5], held = gate_shut(&g, &r, load, memory, 1);
        for (uint32_t c = 0; c < 5; c++) {
            MUST(r.ops->wait(streams[c], load, held));
            marked[c] = mark(&r, streams[c]);
        }
        for (uint32_t c = 0; c < 5; c++)
            assert_true(r.ops->completed(streams[c]) < marked[c]);
        gate_open(&g);
        for (uint32_t c = 0; c < 5; c++) {
            MUST(r.ops->sync(streams[c], marked[c]));
            assert_true(r.ops->completed(load) >= held);
            assert_true(r.ops->completed(streams[c]) >= marked[c]);
        }
    }
    rig_close(&r);
}

/* ---- Settling --------------------------------------------------------------------------- */

static moepage_status fill_or_fail(const mp_copy *copy, void *out)
{
    if (subject->holds_bytes)
        memset(out, 1, copy->bytes);
    return copy->fill_key[0] % 3 == 1 ? MOEPAGE_E_IO : MOEPAGE_OK;
}

static void check_settle(rig *r, mp_stream_class cls)
{
    enum { N = 9 };
    unsigned char *memory = rig_alloc(r, MP_MEMORY_HOST, N);
    mp_stream *before = rig_stream(r, MP_STREAM_PREFETCH), *stream = rig_stream(r, cls);
    for (uint32_t round = 0; round < rounds(30); round++) {
        _Atomic int32_t results[N];
        mp_copy copies[N];
        mp_tick tick = 0;
        for (uint32_t i = 0; i < N; i++) {
            atomic_init(&results[i], 12345);
            copies[i] = (mp_copy){.dst = memory + i,
                                  .bytes = 1,
                                  .fill = fill_or_fail,
                                  .fill_key = {i, 0, 0},
                                  .result = &results[i]};
        }
        MUST(r->ops->wait(stream, before, rig_copy(r, before, memory, "x", 1)));
        MUST(r->ops->copy(stream, copies, N, &tick));
        MUST(r->ops->settle(stream, tick));
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(atomic_load(&results[i]), i % 3 == 1 ? MOEPAGE_E_IO : 12345);
        MUST(r->ops->sync(stream, tick));
    }
}

void test_settle_shows_failures(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 0);
    if (subject->holds_bytes) {
        check_settle(&r, MP_STREAM_DEMAND);
        check_settle(&r, MP_STREAM_PREFETCH);
    }
    check_settle(&r, MP_STREAM_COLD);
    rig_close(&r);
}

/* What comes later does not hold it up. */
void test_settle_returns_for_what_has_settled(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    static const mp_stream_class classes[] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH, MP_STREAM_COLD};
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, 8);
    for (uint32_t c = 0; c < 3; c++) {
        mp_stream *stream = rig_stream(&r, classes[c]);
        gate g;
        MUST(r.ops->settle(stream, 0));
        mp_tick early = rig_fill(&r, stream, memory, 1, fill_or_fail, NULL);
        gate_shut(&g, &r, stream, memory + 1, 1);
        MUST(r.ops->settle(stream, early));
        gate_open(&g);
        MUST(r.ops->sync(stream, early + 1));
    }
    rig_close(&r);
}

/* ---- The caller's own work -------------------------------------------------------------- */

/* From a stream of ours, over the caller's, to another of ours, and a transfer's bytes with it. */
void test_caller_sees_what_it_follows(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    enum { FLOATS = 64 };
    float in[FLOATS], got[FLOATS];
    rig r;
    rig_open(&r, 2, 0);
    float *cells = rig_alloc(&r, MP_MEMORY_WORKSPACE, sizeof in);
    float *middle = rig_alloc(&r, MP_MEMORY_WORKSPACE, sizeof in);
    float *out = rig_alloc(&r, MP_MEMORY_WORKSPACE, sizeof in);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *first = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_stream *second = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_tick tick = 0;
    for (uint32_t round = 0; round < rounds(60); round++) {
        for (uint32_t i = 0; i < FLOATS; i++)
            in[i] = (float)(round * FLOATS + i);
        MUST(r.ops->enter(load, NULL));
        tick = rig_copy(&r, load, cells, in, sizeof in);
        MUST(r.ops->follow(NULL, load, tick));
        MUST(r.ops->enter(first, NULL));
        tick = rig_launch_copy(&r, first, middle, cells, FLOATS);
        MUST(r.ops->follow(NULL, first, tick));
        MUST(r.ops->enter(second, NULL));
        tick = rig_launch_copy(&r, second, out, middle, FLOATS);
        MUST(r.ops->follow(NULL, second, tick));
        if (round % 4 == 3) {
            MUST(r.ops->sync(second, tick));
            rig_read(&r, out, got, sizeof got);
            assert_memory_equal(got, in, sizeof in);
        }
        MUST(r.ops->sync(load, 0));
        MUST(r.ops->sync(second, tick)); /* `in` is ours again */
    }
    rig_close(&r);
}
