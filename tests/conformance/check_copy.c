/* Memory and transfers: exact bytes, fill callbacks, failures, the throttle. */
#include <stdlib.h>
#include <string.h>

#include "rig.h"

void test_memory_is_aligned_and_writable(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 0);
    static const uint64_t sizes[] = {1, 63, 64, 65, 4096, 100001, 3u << 20};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t n = sizes[i];
        unsigned char *pattern = malloc(n), *got = malloc(n);
        assert_non_null(pattern);
        assert_non_null(got);
        memset(pattern, 0xa5 + (int)i, n);
        /* One arena at a time; the others live on to the end. */
        void *arena = NULL;
        uint64_t align = r.device->arena_align, arena_bytes = (n + align - 1) / align * align;
        MUST(r.ops->alloc(r.device, MP_MEMORY_ARENA, arena_bytes, &arena));
        void *places[] = {arena, rig_alloc(&r, MP_MEMORY_WORKSPACE, n),
                          rig_alloc(&r, MP_MEMORY_HOST, n)};
        assert_int_equal((uintptr_t)places[0] % 4096, 0);
        assert_int_equal(align & (align - 1), 0);
        assert_int_equal((uintptr_t)places[1] % 64, 0);
        for (uint32_t k = 0; k < 3 && subject->holds_bytes; k++) {
            rig_write(&r, places[k], pattern, n);
            rig_read(&r, places[k], got, n);
            assert_memory_equal(got, pattern, n);
        }
        r.ops->free(r.device, MP_MEMORY_ARENA, arena, arena_bytes);
        free(pattern);
        free(got);
    }
    rig_close(&r);
}

/* Every class of stream that reaches the device, odd sizes, all alignments; nothing before or
 * behind is touched. */
void test_copy_moves_exactly_its_bytes(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const mp_stream_class classes[] = {MP_STREAM_DEMAND, MP_STREAM_PREFETCH,
                                              MP_STREAM_COMPUTE, MP_STREAM_BACKGROUND};
    static const uint32_t sizes[] = {1,  2,  3,  7,   8,    15,   31,    33,
                                     63, 64, 65, 255, 4095, 4097, 300001};
    enum { ROOM = 300001 + 256 };
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *source = malloc(ROOM), *want = malloc(ROOM), *got = malloc(ROOM);
    unsigned char *from = rig_alloc(&r, MP_MEMORY_WORKSPACE, ROOM);
    unsigned char *to = rig_alloc(&r, MP_MEMORY_WORKSPACE, ROOM);
    uint64_t seed = 3;
    for (uint32_t i = 0; i < ROOM; i++)
        source[i] = (unsigned char)random_next(&seed);
    rig_write(&r, from, source, ROOM);
    for (uint32_t c = 0; c < sizeof classes / sizeof *classes; c++) {
        mp_stream *stream = rig_stream(&r, classes[c]);
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint32_t at = random_below(&seed, 128), out = random_below(&seed, 128);
            memset(want, 0xee, ROOM);
            rig_write(&r, to, want, ROOM);
            MUST(r.ops->sync(stream, rig_copy(&r, stream, to + out, from + at, sizes[i])));
            memcpy(want + out, source + at, sizes[i]);
            rig_read(&r, to, got, ROOM);
            assert_memory_equal(got, want, ROOM);
        }
    }
    free(source);
    free(want);
    free(got);
    rig_close(&r);
}

static void assert_all(const unsigned char *bytes, uint64_t n, int value)
{
    assert_int_equal(bytes[0], value);
    assert_memory_equal(bytes, bytes + 1, n - 1);
}

/* What a tier of experts lives in. */
void test_memory_host_map_is_zero_and_writable(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, 100001, (3u << 20) + 1, 8u << 20};
    enum { N = sizeof sizes / sizeof *sizes };
    mp_host_memory memory[N];
    rig r;
    rig_open(&r, 2, 0);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    for (uint32_t i = 0; i < N; i++) {
        MUST(r.ops->host_map(r.device, sizes[i], &memory[i]));
        assert_true(memory[i].bytes >= sizes[i]);
        assert_int_equal((uintptr_t)memory[i].base % 4096, 0);
        assert_true(memory[i].page_bytes >= 4096);
        assert_int_equal(memory[i].page_bytes & (memory[i].page_bytes - 1), 0);
        assert_int_equal((uintptr_t)memory[i].base % memory[i].page_bytes, 0);
        assert_true(memory[i].node >= -1);
        if (!subject->holds_bytes)
            continue;
        assert_all(memory[i].base, memory[i].bytes, 0);
        memset(memory[i].base, 1 + (int)i, memory[i].bytes);
    }
    for (uint32_t i = 0; i < N && subject->holds_bytes; i++) {
        unsigned char *inside = rig_alloc(&r, MP_MEMORY_WORKSPACE, sizes[i]);
        unsigned char *got = malloc(sizes[i]);
        assert_non_null(got);
        MUST(r.ops->sync(stream, rig_copy(&r, stream, inside, memory[i].base, sizes[i])));
        rig_read(&r, inside, got, sizes[i]);
        assert_all(got, sizes[i], 1 + (int)i);
        free(got);
    }
    for (uint32_t i = 0; i < N; i++)
        r.ops->host_unmap(r.device, &memory[(i + 2) % N]);
    rig_close(&r);
}

typedef struct fill_record {
    mp_copy seen[8];
    uint32_t n;
} fill_record;

static moepage_status record_fill(const mp_copy *copy, void *out)
{
    fill_record *record = (fill_record *)copy->fill_user;
    record->seen[record->n++] = *copy;
    memset(out, (int)copy->fill_offset, copy->bytes);
    return 0;
}

void test_copy_fill_gets_its_struct_and_fills(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 800);
    mp_stream *stream = rig_stream(&r, MP_STREAM_DEMAND);
    fill_record record = {.n = 0};
    mp_copy copies[8];
    for (uint32_t i = 0; i < 8; i++)
        copies[i] = (mp_copy){
            .dst = memory + 100 * i,
            .bytes = 100,
            .fill = record_fill,
            .fill_user = &record,
            .fill_key = {i, i + 1, i + 2},
            .fill_offset = 0x10 + i,
        };
    mp_tick tick = 0;
    MUST(r.ops->copy(stream, copies, 8, &tick));
    MUST(r.ops->sync(stream, tick));
    assert_int_equal(record.n, 8);
    for (uint32_t i = 0; i < 8; i++) {
        const mp_copy *seen = &record.seen[i];
        assert_ptr_equal(seen->dst, copies[i].dst);
        assert_int_equal(seen->bytes, 100);
        assert_memory_equal(seen->fill_key, copies[i].fill_key, sizeof seen->fill_key);
        assert_int_equal(seen->fill_offset, 0x10 + i);
    }
    if (subject->holds_bytes) {
        unsigned char got[800];
        rig_read(&r, memory, got, sizeof got);
        for (uint32_t i = 0; i < sizeof got; i++)
            assert_int_equal(got[i], 0x10 + i / 100);
    }
    rig_close(&r);
}

/* Fails as the key says: with the negative of a status. */
static moepage_status fill_or_fail(const mp_copy *copy, void *out)
{
    if (subject->holds_bytes)
        memset(out, 1, copy->bytes);
    return -(moepage_status)copy->fill_key[0];
}

static void check_failures_stay(mp_stream_class cls)
{
    enum { N = 30 };
    static const moepage_status ends[] = {MOEPAGE_OK, MOEPAGE_E_CALLBACK, MOEPAGE_OK, MOEPAGE_E_IO,
                                          MOEPAGE_E_FORMAT};
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_HOST, N);
    mp_stream *stream = rig_stream(&r, cls);
    mp_stream *after = rig_stream(&r, MP_STREAM_DEMAND);
    _Atomic int32_t results[N];
    mp_copy copies[N];
    for (uint32_t i = 0; i < N; i++) {
        atomic_init(&results[i], 12345); /* set only on failure */
        copies[i] = (mp_copy){.dst = memory + i,
                              .bytes = 1,
                              .fill = fill_or_fail,
                              .fill_key = {(uint32_t)-ends[i % 5], 0, 0},
                              .result = &results[i]};
    }
    mp_tick tick = 0;
    MUST(r.ops->copy(stream, copies, N, &tick));
    MUST(r.ops->wait(after, stream, tick));
    MUST(r.ops->sync(after, rig_copy(&r, after, memory, "\1", 1)));
    MUST(r.ops->sync(stream, tick));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(atomic_load(&results[i]), ends[i % 5] ? ends[i % 5] : 12345);
    for (uint32_t i = 0; i < N && subject->holds_bytes; i++) {
        unsigned char got = 0;
        rig_read(&r, memory + i, &got, 1);
        if (!ends[i % 5])
            assert_int_equal(got, 1);
    }
    rig_close(&r);
}

void test_copy_failure_stays_with_its_transfer(void **state)
{
    (void)state;
    if (subject->holds_bytes) {
        check_failures_stay(MP_STREAM_DEMAND);
        check_failures_stay(MP_STREAM_PREFETCH);
    }
    check_failures_stay(MP_STREAM_COLD);
}

/* From the failure on sync says DEVICE; nothing hangs, and no transfer claims bytes that it did not
 * bring. */
void test_copy_failure_without_result_poisons(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    rig r;
    rig_open(&r, 1, 0);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 64);
    unsigned char *outside = rig_alloc(&r, MP_MEMORY_HOST, 64);
    mp_stream *first = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *second = rig_stream(&r, MP_STREAM_PREFETCH);
    mp_stream *third = rig_stream(&r, MP_STREAM_COMPUTE);
    mp_stream *fourth = rig_stream(&r, MP_STREAM_COLD);
    memset(outside, 9, 64);
    rig_write(&r, memory, "abcd", 4);

    mp_copy bad = {.dst = memory, .bytes = 1, .fill = fill_or_fail, .fill_key = {1, 0, 0}};
    mp_tick tick = 0;
    MUST(r.ops->copy(first, &bad, 1, &tick));
    assert_int_equal(r.ops->sync(first, tick), MOEPAGE_E_DEVICE);
    assert_true(strlen(moepage_last_error()) > 10);
    assert_int_equal(r.ops->completed(first), tick);

    _Atomic int32_t result = 0;
    mp_copy good = {.dst = outside, .src = memory + 1, .bytes = 1, .result = &result};
    mp_tick later = 0;
    if (!r.ops->wait(second, first, tick) && !r.ops->copy(second, &good, 1, &later)) {
        assert_int_equal(r.ops->sync(second, later), MOEPAGE_E_DEVICE);
        assert_int_equal(r.ops->completed(second), later);
        if (subject->holds_bytes && !atomic_load(&result))
            assert_int_equal(outside[0], 'b');
    }
    atomic_store(&result, MOEPAGE_OK);
    mp_copy cold = {.dst = outside, .bytes = 1, .fill = fill_or_fail, .result = &result};
    if (!r.ops->copy(fourth, &cold, 1, &later)) {
        assert_int_equal(r.ops->sync(fourth, later), MOEPAGE_E_DEVICE);
        if (subject->holds_bytes && !atomic_load(&result))
            assert_int_equal(outside[0], 1);
    }
    assert_int_equal(r.ops->sync(third, 0), MOEPAGE_E_DEVICE);
    assert_int_equal(r.ops->sync(first, tick), MOEPAGE_E_DEVICE);
    rig_close(&r);
}

static moepage_status fill_quietly(const mp_copy *copy, void *out)
{
    memset(out, 5, copy->bytes);
    return 0;
}

void test_copy_throttle_is_never_exceeded(void **state)
{
    (void)state;
    NEEDS(has_throttle);
    enum { RATE = 100000000, PIECE = 50000, PIECES = 20 };
    rig r;
    rig_open(&r, 1, RATE);
    assert_int_equal(r.device->bus_bytes_per_s, RATE);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, PIECE);
    unsigned char *source = rig_alloc(&r, MP_MEMORY_HOST, PIECE);
    mp_stream *demand = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *prefetch = rig_stream(&r, MP_STREAM_PREFETCH);
    if (subject->holds_bytes)
        memset(source, 1, PIECE);
    uint64_t before = r.ops->now_ns(r.device);
    mp_tick d = 0, p = 0;
    for (uint32_t i = 0; i < PIECES; i++) {
        if (i % 2)
            d = rig_copy(&r, demand, memory, source, PIECE);
        else
            p = rig_fill(&r, prefetch, memory, PIECE, fill_quietly, NULL);
    }
    MUST(r.ops->sync(demand, d));
    MUST(r.ops->sync(prefetch, p));
    uint64_t elapsed = r.ops->now_ns(r.device) - before;
    uint64_t least = (uint64_t)PIECE * PIECES * 1000000000u / RATE;
    assert_true(elapsed >= least);

    /* An idle bus saves nothing up. */
    before = r.ops->now_ns(r.device);
    MUST(r.ops->sync(demand, rig_copy(&r, demand, memory, source, PIECE)));
    assert_true(r.ops->now_ns(r.device) - before >= least / PIECES);
    rig_close(&r);
}
