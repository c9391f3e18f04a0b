/* DECODE against what was encoded: each tensor comes back bit for bit, wherever it lies, however
 * many come in one launch, and nothing around it is touched. */
#include <stdlib.h>
#include <string.h>

#include "codec/exph.h"
#include "reference.h"
#include "rig.h"

enum { GUARD = 64 };

/* One tensor, as it is before, stored and after. */
typedef struct tensor {
    uint32_t form, dtype;
    uint64_t elements, bytes, stored_bytes;
    unsigned char *original, *stored;
    unsigned char *dst; /* device memory: GUARD bytes, the tensor, GUARD bytes */
    uint32_t shift;     /* off alignment */
} tensor;

static void *new_bytes(uint64_t n)
{
    void *bytes = aligned_alloc(64, (n + 64) / 64 * 64);
    assert_non_null(bytes);
    memset(bytes, 0, (n + 64) / 64 * 64);
    return bytes;
}

/* Numbers like weights, with any bit pattern here and there. */
static void make_numbers(tensor *t, uint64_t *seed)
{
    for (uint64_t i = 0; i < t->elements; i++) {
        uint64_t bits = random_next(seed);
        if (bits % 257 == 0)
            memcpy(t->original + i * t->bytes / t->elements, &bits, t->bytes / t->elements);
        else
            reference_store(t->original, i, t->dtype, random_unit(seed) * random_unit(seed) / 16);
    }
}

static tensor make_tensor(uint32_t form, uint32_t dtype, uint64_t elements, uint64_t *seed)
{
    tensor t = {.form = form, .dtype = dtype, .elements = elements};
    t.bytes = elements * reference_size(dtype);
    t.shift = random_below(seed, 2) * 2 + 16 * random_below(seed, 3);
    t.original = new_bytes(t.bytes);
    make_numbers(&t, seed);
    if (form == MOEPAGE_FORM_EXPH) {
        t.stored = new_bytes(mp_exph_bound(dtype, elements));
        t.stored_bytes = mp_exph_encode(dtype, t.original, elements, t.stored);
        MUST(mp_exph_check(t.stored, t.stored_bytes, dtype, elements));
    } else {
        t.stored = new_bytes(t.bytes);
        t.stored_bytes = t.bytes;
        memcpy(t.stored, t.original, t.bytes);
    }
    return t;
}

static void free_tensor(tensor *t)
{
    free(t->original);
    free(t->stored);
}

#define BLANK 0x3c

/* Stored bytes into device memory, and a blank place to decode to. */
static mp_decode_job place(rig *r, tensor *t)
{
    uint64_t room = t->bytes + t->shift + 2 * GUARD;
    unsigned char *blank = new_bytes(room);
    memset(blank, BLANK, room);
    t->dst = rig_put(r, blank, room);
    free(blank);
    return (mp_decode_job){.src = rig_put(r, t->stored, t->stored_bytes),
                           .src_bytes = t->stored_bytes,
                           .dst = t->dst + GUARD + t->shift,
                           .elements = t->elements,
                           .form = t->form,
                           .dtype = t->dtype};
}

/* What lies where the tensor was to go. Its surroundings are blank in any case. */
typedef enum expectation { DECODED, UNTOUCHED, ANYTHING_INSIDE } expectation;

static void check_tensor(rig *r, const tensor *t, expectation expect)
{
    uint64_t room = t->bytes + t->shift + 2 * GUARD, before = GUARD + t->shift;
    unsigned char *got = new_bytes(room), *want = new_bytes(room);
    memset(want, BLANK, room);
    rig_read(r, t->dst, got, room);
    if (expect == DECODED)
        memcpy(want + before, t->original, t->bytes);
    if (expect == ANYTHING_INSIDE)
        memcpy(want + before, got + before, t->bytes);
    assert_memory_equal(got, want, room);
    free(got);
    free(want);
}

static mp_tick launch_decode(rig *r, mp_stream *stream, const mp_decode_job *jobs, uint32_t n)
{
    mp_kernel_decode_args args = {.jobs = rig_table(r, jobs, n * sizeof *jobs), .n_jobs = n};
    return rig_launch(r, stream, MP_KERNEL_DECODE, &args);
}

/* Sizes around a chunk and around what raw bytes are cut at. */
static const uint64_t sizes[] = {1,
                                 7,
                                 64,
                                 1000,
                                 MP_EXPH_CHUNK - 1,
                                 MP_EXPH_CHUNK,
                                 MP_EXPH_CHUNK + 1,
                                 2 * MP_EXPH_CHUNK,
                                 5 * MP_EXPH_CHUNK + 4321};

enum { JOBS = 40 };

static void make_tensors(tensor *tensors, uint32_t n, uint64_t *seed)
{
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    for (uint32_t i = 0; i < n; i++)
        tensors[i] = make_tensor(random_below(seed, 3) ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE,
                                 dtypes[i % 3],
                                 sizes[random_below(seed, sizeof sizes / sizeof *sizes)], seed);
}

/* In launches of 1 to all of them, on both classes of stream that run kernels. */
void test_decode_gives_tensors_back(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const mp_stream_class classes[] = {MP_STREAM_COMPUTE, MP_STREAM_BACKGROUND};
    tensor tensors[JOBS];
    mp_decode_job jobs[JOBS];
    uint64_t seed = 31;
    make_tensors(tensors, JOBS, &seed);
    for (uint32_t threads = all_cases() ? 1 : 2; threads <= 3; threads++) {
        rig r;
        rig_open(&r, threads, 0);
        mp_stream *stream = rig_stream(&r, classes[threads % 2]);
        for (uint32_t most = 1; most <= JOBS; most = most * (all_cases() ? 3 : 20) + 1) {
            mp_tick tick = 0;
            for (uint32_t i = 0; i < JOBS; i++)
                jobs[i] = place(&r, &tensors[i]);
            for (uint32_t i = 0, n; i < JOBS; i += n) {
                n = 1 + random_below(&seed, most);
                n = n < JOBS - i ? n : JOBS - i;
                tick = launch_decode(&r, stream, jobs + i, n);
            }
            MUST(r.ops->sync(stream, tick));
            for (uint32_t i = 0; i < JOBS; i++)
                check_tensor(&r, &tensors[i], DECODED);
        }
        rig_close(&r);
    }
    for (uint32_t i = 0; i < JOBS; i++)
        free_tensor(&tensors[i]);
}

/* Streams that were damaged after their check: numbers may be wrong, their neighbours may not. */
void test_decode_stays_inside_its_tensors(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    enum { N = 8 };
    uint64_t seed = 32;
    for (uint32_t round = 0; round < rounds(12); round++) {
        tensor tensors[N];
        mp_decode_job jobs[N];
        rig r;
        rig_open(&r, 2, 0);
        mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
        make_tensors(tensors, N, &seed);
        for (uint32_t i = 0; i < N; i++) {
            tensor *t = &tensors[i];
            uint64_t head = t->stored_bytes < 512 ? t->stored_bytes : 512;
            for (uint32_t k = random_below(&seed, 30); t->form == MOEPAGE_FORM_EXPH && k > 0; k--)
                t->stored[random_next(&seed) % (k % 2 ? head : t->stored_bytes)] =
                    (unsigned char)random_next(&seed);
            jobs[i] = place(&r, t);
        }
        MUST(r.ops->sync(stream, launch_decode(&r, stream, jobs, N)));
        for (uint32_t i = 0; i < N; i++) {
            check_tensor(&r, &tensors[i],
                         tensors[i].form == MOEPAGE_FORM_EXPH ? ANYTHING_INSIDE : DECODED);
            free_tensor(&tensors[i]);
        }
        rig_close(&r);
    }
}

static moepage_status fail_to_fill(const mp_copy *copy, void *out)
{
    (void)copy;
    (void)out;
    return MOEPAGE_E_IO;
}

/* The words are looked at when the kernel runs, not when it is submitted: one for a whole launch, then one for
 * each job, then both. */
void test_decode_does_nothing_when_told_to_skip(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    NEEDS(holds_bytes);
    enum { N = 6 };
    tensor tensors[2 * N];
    mp_decode_job jobs[2 * N];
    _Atomic int32_t skip[2] = {MOEPAGE_OK, MOEPAGE_OK};
    const _Atomic int32_t *skips[2 * N];
    uint64_t seed = 33;
    rig r;
    gate g;
    rig_open(&r, 2, 0);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 1);
    make_tensors(tensors, 2 * N, &seed);
    for (uint32_t i = 0; i < 2 * N; i++) {
        jobs[i] = place(&r, &tensors[i]);
        skips[i] = &skip[i >= N && i % N % 3 == 1]; /* of the first launch all fail */
    }
    gate_shut(&g, &r, load, memory, 1);
    mp_copy bad = {.dst = memory, .bytes = 1, .fill = fail_to_fill, .result = &skip[0]};
    mp_tick loaded = 0;
    MUST(r.ops->copy(load, &bad, 1, &loaded));
    MUST(r.ops->wait(stream, load, loaded));
    mp_tick tick = 0;
    for (uint32_t l = 0; l < 2; l++) {
        mp_kernel_decode_args args = {.jobs = rig_table(&r, jobs + l * N, N * sizeof *jobs),
                                      .skips = skips + l * N,
                                      .n_jobs = N};
        tick = rig_launch(&r, stream, MP_KERNEL_DECODE, &args);
    }
    gate_open(&g);
    MUST(r.ops->sync(stream, tick));
    for (uint32_t i = 0; i < 2 * N; i++) {
        check_tensor(&r, &tensors[i], i >= N && i % N % 3 == 1 ? DECODED : UNTOUCHED);
        free_tensor(&tensors[i]);
    }
    rig_close(&r);
}

/* A compressed expert's way: its image crosses the bus into staging memory, then is decoded. */
void test_decode_waits_for_its_transfers(void **state)
{
    (void)state;
    NEEDS(asynchronous);
    NEEDS(holds_bytes);
    enum { N = 10 };
    tensor tensors[N];
    mp_decode_job jobs[N];
    uint64_t seed = 34;
    rig r;
    gate g;
    rig_open(&r, 2, 0);
    mp_stream *load = rig_stream(&r, MP_STREAM_DEMAND);
    mp_stream *stream = rig_stream(&r, MP_STREAM_BACKGROUND);
    make_tensors(tensors, N, &seed);
    unsigned char *memory = rig_alloc(&r, MP_MEMORY_WORKSPACE, 1);
    gate_shut(&g, &r, load, memory, 1);
    mp_tick tick = 0;
    for (uint32_t i = 0; i < N; i++) {
        tensor *t = &tensors[i];
        unsigned char *staging = rig_alloc(&r, MP_MEMORY_WORKSPACE, t->stored_bytes);
        t->shift = 0;
        t->dst = rig_alloc(&r, MP_MEMORY_WORKSPACE, t->bytes + 2 * GUARD);
        jobs[i] = (mp_decode_job){.src = staging,
                                  .src_bytes = t->stored_bytes,
                                  .dst = t->dst + GUARD,
                                  .elements = t->elements,
                                  .form = t->form,
                                  .dtype = t->dtype};
        mp_tick loaded = rig_copy(&r, load, staging, t->stored, t->stored_bytes);
        MUST(r.ops->wait(stream, load, loaded));
        tick = launch_decode(&r, stream, &jobs[i], 1);
    }
    assert_int_equal(r.ops->completed(stream), 0);
    gate_open(&g);
    MUST(r.ops->sync(stream, tick));
    for (uint32_t i = 0; i < N; i++) {
        unsigned char *got = new_bytes(tensors[i].bytes);
        rig_read(&r, tensors[i].dst + GUARD, got, tensors[i].bytes);
        assert_memory_equal(got, tensors[i].original, tensors[i].bytes);
        free(got);
        free_tensor(&tensors[i]);
    }
    rig_close(&r);
}
