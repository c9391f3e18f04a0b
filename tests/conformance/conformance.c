/* The list of conformance tests, and the rig they use. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

#include "rig.h"

const conformance_subject *subject;

int conformance_run(const conformance_subject *which)
{
#define CONFORMANCE_ENTRY(name) cmocka_unit_test(name),
    static const struct CMUnitTest tests[] = {CONFORMANCE_TESTS(CONFORMANCE_ENTRY)};
    subject = which;
    return cmocka_run_group_tests_name(which->name, tests, NULL, NULL);
}

void must(moepage_status status, const char *call)
{
    if (status)
        fail_msg("%s: %s: %s", call, moepage_status_text(status), moepage_last_error());
}

void rig_open(rig *r, uint32_t threads, uint64_t bus_bytes_per_s)
{
    memset(r, 0, sizeof *r);
    r->device = subject->open(threads, bus_bytes_per_s);
    if (!r->device)
        fail_msg("%s does not open: %s", subject->name, moepage_last_error());
    r->ops = r->device->ops;
    assert_int_equal(r->ops->version, MP_DEVICE_OPS_VERSION);
    MUST(r->ops->stream_create(r->device, MP_STREAM_DEMAND, &r->carrier));
}

struct rig_table {
    struct rig_table *next;
    uint64_t bytes;
    unsigned char memory[];
};

static void drop_tables(rig *r)
{
    while (r->tables) {
        struct rig_table *table = r->tables;
        r->tables = table->next;
        memset(table->memory, 0xff, table->bytes);
        free(table);
    }
}

void rig_close(rig *r)
{
    for (uint32_t i = 0; i < r->n_streams; i++)
        r->ops->stream_destroy(r->streams[i]);
    r->ops->stream_destroy(r->carrier);
    drop_tables(r);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        r->ops->free(r->device, r->blocks[i].kind, r->blocks[i].memory, r->blocks[i].bytes);
    r->ops->close(r->device);
    if (subject->closed)
        subject->closed();
}

void *rig_alloc(rig *r, mp_memory_kind kind, uint64_t bytes)
{
    void *memory = NULL;
    assert_true(r->n_blocks < RIG_BLOCKS);
    MUST(r->ops->alloc(r->device, kind, bytes, &memory));
    assert_non_null(memory);
    r->blocks[r->n_blocks].memory = memory;
    r->blocks[r->n_blocks].kind = kind;
    r->blocks[r->n_blocks++].bytes = bytes;
    return memory;
}

mp_stream *rig_stream(rig *r, mp_stream_class cls)
{
    assert_true(r->n_streams < RIG_STREAMS);
    MUST(r->ops->stream_create(r->device, cls, &r->streams[r->n_streams]));
    return r->streams[r->n_streams++];
}

void rig_forget(rig *r, mp_stream *stream)
{
    for (uint32_t i = 0; i < r->n_streams; i++) {
        if (r->streams[i] == stream)
            r->streams[i] = r->streams[--r->n_streams];
    }
}

void rig_write(rig *r, void *device_memory, const void *from, uint64_t bytes)
{
    MUST(r->ops->sync(r->carrier, rig_copy(r, r->carrier, device_memory, from, bytes)));
}

void rig_read(rig *r, const void *device_memory, void *to, uint64_t bytes)
{
    MUST(r->ops->sync(r->carrier, rig_copy(r, r->carrier, to, device_memory, bytes)));
}

void *rig_put(rig *r, const void *bytes, uint64_t n)
{
    void *memory = rig_alloc(r, MP_MEMORY_WORKSPACE, n);
    rig_write(r, memory, bytes, n);
    return memory;
}

void *rig_table(rig *r, const void *bytes, uint64_t n)
{
    struct rig_table *table = malloc(sizeof *table + n);
    assert_non_null(table);
    table->bytes = n;
    table->next = r->tables;
    r->tables = table;
    return memcpy(table->memory, bytes, n);
}

mp_tick rig_launch(rig *r, mp_stream *stream, mp_kernel kernel, const void *args)
{
    mp_tick tick = 0;
    MUST(r->ops->launch(stream, kernel, args, &tick));
    if (!(r->device->caps & MP_CAP_SYNC_CALLER))
        drop_tables(r);
    return tick;
}

mp_tick rig_launch_copy(rig *r, mp_stream *stream, void *out, const void *in, uint32_t n)
{
    mp_kernel_convert_args args = {
        .x = in,
        .x_stride = n,
        .x_dtype = MOEPAGE_DTYPE_F32,
        .math = MOEPAGE_MATH_FP32,
        .n_tokens = 1,
        .hidden = n,
        .out = out,
    };
    return rig_launch(r, stream, MP_KERNEL_CONVERT, &args);
}

mp_tick rig_copy(rig *r, mp_stream *stream, void *dst, const void *src, uint64_t bytes)
{
    mp_copy copy = {.dst = dst, .src = src, .bytes = bytes};
    mp_tick tick = 0;
    MUST(r->ops->copy(stream, &copy, 1, &tick));
    return tick;
}

mp_tick rig_fill(rig *r, mp_stream *stream, void *dst, uint64_t bytes,
                 moepage_status (*fill)(const mp_copy *, void *), const void *user)
{
    mp_copy copy = {.dst = dst, .bytes = bytes, .fill = fill, .fill_user = user};
    mp_tick tick = 0;
    MUST(r->ops->copy(stream, &copy, 1, &tick));
    return tick;
}

static moepage_status hold(const mp_copy *copy, void *out)
{
    gate *g = (gate *)copy->fill_user;
    sem_post(&g->begun);
    sem_wait(&g->open);
    memset(out, 0, copy->bytes);
    return 0;
}

mp_tick gate_queue(gate *g, rig *r, mp_stream *stream, void *dst, uint64_t bytes)
{
    sem_init(&g->begun, 0, 0);
    sem_init(&g->open, 0, 0);
    return rig_fill(r, stream, dst, bytes, hold, g);
}

mp_tick gate_shut(gate *g, rig *r, mp_stream *stream, void *dst, uint64_t bytes)
{
    mp_tick tick = gate_queue(g, r, stream, dst, bytes);
    sem_wait(&g->begun);
    return tick;
}

void gate_open(gate *g)
{
    sem_post(&g->open);
}

uint64_t random_next(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    uint64_t x = *seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint32_t random_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(random_next(seed) % n);
}

double random_unit(uint64_t *seed)
{
    return (double)random_below(seed, 1u << 21) / (1 << 20) - 1;
}

uint32_t rounds(uint32_t usual)
{
    if (getenv("MP_TEST_LONG"))
        return usual * 10;
    return subject->slow ? (usual + 4) / 5 : usual;
}

bool all_cases(void)
{
    return !subject->slow || getenv("MP_TEST_LONG");
}
