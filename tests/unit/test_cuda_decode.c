/* The decoder's kernel, in its CPU form: tensors come out as they were encoded, whatever the grid
 * and the order of threads; and what is launched for a list of jobs. */
#include <stdlib.h>
#include <string.h>

#include "codec/exph_format.h"
#include "decode_rig.h"
#include "exph_naive.h"
#include "exph_streams.h"
#include "gpu.h"
#include "kernels/decode.h"
#include "launch.h"
#include "numbers.h"
#include "sim_cuda.h"
#include "testing.h"

#define BF16 MOEPAGE_DTYPE_BF16
#define CANARY 64u

/* ---- A tensor, its job, and the place it is decoded to ---- */

typedef struct tensor {
    mp_decode_job job;
    uint8_t *src, *wanted, *place; /* place: a canary, the tensor `skew` bytes on, a canary */
    uint64_t bytes;
    uint32_t skew;
} tensor;

static void set_job(tensor *t, uint32_t form, uint32_t dtype, uint64_t n, uint64_t src_bytes)
{
    t->place = aligned_alloc(64, (t->bytes + 2 * CANARY + t->skew + 63) / 64 * 64);
    assert_non_null(t->place);
    t->job = (mp_decode_job){.src = t->src,
                             .src_bytes = src_bytes,
                             .dst = t->place + CANARY + t->skew,
                             .elements = n,
                             .form = form,
                             .dtype = dtype};
}

static tensor encoded(exph_random *random, uint32_t dtype, uint32_t kind, uint64_t n, uint32_t skew)
{
    tensor t = {.bytes = n * exph_element_bytes(dtype), .skew = skew};
    const uint64_t bound = mp_exph_bound(dtype, n);
    uint8_t *stream = malloc(bound);
    t.wanted = malloc(t.bytes + 1);
    assert_non_null(stream);
    assert_non_null(t.wanted);
    exph_fill(random, dtype, kind, t.wanted, n);
    const uint64_t src_bytes = mp_exph_encode(dtype, t.wanted, n, stream);
    t.src = guarded_alloc(src_bytes);
    memcpy(t.src, stream, src_bytes);
    free(stream);
    set_job(&t, MOEPAGE_FORM_EXPH, dtype, n, src_bytes);
    return t;
}

/* As it is; `skew` moves both its ends. */
static tensor dense(exph_random *random, uint64_t bytes, uint32_t skew)
{
    tensor t = {.bytes = bytes, .skew = skew};
    t.wanted = malloc(bytes + 1);
    t.src = guarded_alloc(bytes);
    assert_non_null(t.wanted);
    for (uint64_t i = 0; i < bytes; i++)
        t.wanted[i] = (uint8_t)exph_next(random);
    memcpy(t.src, t.wanted, bytes);
    set_job(&t, MOEPAGE_FORM_DENSE, 0, bytes / 2, bytes);
    return t;
}

static void blank(tensor *t)
{
    memset(t->place, 0xb4, t->bytes + 2 * CANARY + t->skew);
}

static void is_there(const tensor *t)
{
    const uint8_t *got = t->job.dst;
    for (uint64_t i = 0; i < t->bytes; i++) {
        if (got[i] != t->wanted[i])
            fail_msg("dtype %u, %llu elements, skew %u: byte %llu is %02x, not %02x", t->job.dtype,
                     (unsigned long long)t->job.elements, t->skew, (unsigned long long)i, got[i],
                     t->wanted[i]);
    }
    for (uint32_t i = 0; i < CANARY + t->skew; i++)
        assert_int_equal(t->place[i], 0xb4);
    for (uint32_t i = 0; i < CANARY; i++)
        assert_int_equal(got[t->bytes + i], 0xb4);
}

static void free_tensor(tensor *t)
{
    guarded_free(t->src, t->job.src_bytes);
    free(t->wanted);
    free(t->place);
}

static void decodes(exph_random *random, tensor t)
{
    blank(&t);
    decode_rig_run(random, &t.job, 1);
    is_there(&t);
    free_tensor(&t);
}

/* ---- One tensor ---- */

static void test_cuda_decode_gives_back_all_types_and_kinds(void **state)
{
    static const uint32_t sizes[] = {8192, 40000, 70001};
    (void)state;
    exph_random random = exph_random_of(1);
    for (uint32_t d = 0; d < 4; d++)
        for (uint32_t kind = 0; kind < EXPH_KINDS; kind++)
            for (uint32_t s = 0; s < 3; s++)
                decodes(&random, encoded(&random, exph_dtypes[d], kind, sizes[s], 0));
}

static void test_cuda_decode_gives_back_all_sizes(void **state)
{
    static const uint32_t edges[] = {0, 248, 256, 8192, 16384, 24576, 32768, 40960, 65536};
    (void)state;
    exph_random random = exph_random_of(2);
    for (uint32_t d = 0; d < 4; d++) {
        for (uint32_t e = 0; e < sizeof edges / sizeof *edges; e++) {
            for (uint32_t i = 0; i < 20; i += getenv("MP_TEST_LONG") || e < 3 ? 1 : 3) {
                const uint64_t n = edges[e] + i;
                decodes(&random,
                        encoded(&random, exph_dtypes[d], EXPH_GAUSSIAN, n > 9 ? n - 9 : n + 1, 0));
            }
        }
    }
}

/* Two chunks and a bit, at every place modulo 16. */
static void test_cuda_decode_writes_to_any_alignment(void **state)
{
    (void)state;
    exph_random random = exph_random_of(3);
    for (uint32_t skew = 0; skew < 16; skew++) {
        decodes(&random, encoded(&random, BF16, EXPH_GAUSSIAN, 9001, skew));
        decodes(&random, encoded(&random, BF16, EXPH_NOISE, 777, skew));
        decodes(&random, encoded(&random, BF16, EXPH_CONSTANT, 777, skew));
        decodes(&random, encoded(&random, exph_dtypes[skew % 4], EXPH_BLOCKS, 33333, skew));
        decodes(&random, dense(&random, 70000 + skew, skew));
        decodes(&random, dense(&random, 4096, skew)); /* one end aligned, the other not */
    }
}

/* Bytes of the bits of a stream of one chunk; 0 if it is not coded. */
static uint64_t coded_bytes(const exph_stream *s)
{
    const mp_exph_type type = mp_exph_type_of(s->dtype);
    const uint8_t *entry = s->bytes + MP_EXPH_AT_TABLE;
    if (entry[MP_EXPH_ENTRY_MODE] != MP_EXPH_CODED)
        return 0;
    return s->n_bytes - mp_exph_front_bytes(s->n) - mp_exph_rest_bytes(&type, s->n) -
           mp_exph_index_bytes((uint32_t)s->n, mp_exph_get16(entry + MP_EXPH_ENTRY_VALUE));
}

/* Codes far longer than those of weights: more than shared memory has room for. */
static void test_cuda_decode_reads_tiles_that_are_not_staged(void **state)
{
    uint32_t unstaged = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        exph_random random = exph_random_of(1000 + seed);
        exph_stream s = exph_stream_make(&random, exph_dtypes[seed % 4], 32768);
        tensor t = {.bytes = s.element_bytes, .src = s.bytes, .wanted = s.elements};
        set_job(&t, MOEPAGE_FORM_EXPH, s.dtype, s.n, s.n_bytes);
        unstaged += coded_bytes(&s) > 4 * MP_DECODE_STAGE_BYTES;
        blank(&t);
        decode_rig_run(&random, &t.job, 1);
        is_there(&t);
        free(t.place);
        exph_stream_free(&s);
    }
    assert_in_range(unstaged, 4, 36);
}

/* ---- Many ---- */

#define MOST_JOBS 300

typedef struct batch {
    tensor tensors[MOST_JOBS];
    mp_decode_job jobs[MOST_JOBS];
    uint32_t n;
} batch;

static void add(batch *b, tensor t)
{
    b->jobs[b->n] = t.job;
    b->tensors[b->n++] = t;
}

static batch batch_of(exph_random *random, uint32_t n)
{
    batch b = {.n = 0};
    while (b.n < n) {
        const uint64_t dice = exph_below(random, 10), size = exph_below(random, 4);
        const uint64_t elements =
            size ? 1 + exph_below(random, 3000) : 1 + exph_below(random, 90000);
        const uint32_t skew = exph_below(random, 4) ? 0 : (uint32_t)exph_below(random, 16);
        const uint32_t dtype = exph_dtypes[exph_below(random, 4)];
        if (dice < 2)
            add(&b, dense(random, exph_below(random, 3) * 65536 + exph_below(random, 50), skew));
        else if (dice == 2)
            add(&b, dense(random, 0, 0));
        else
            add(&b, encoded(random, dice < 6 ? BF16 : dtype,
                            (uint32_t)exph_below(random, EXPH_KINDS), elements, skew));
    }
    return b;
}

static void all_are_there(batch *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        is_there(&b->tensors[i]);
}

static void test_cuda_decode_brings_many_jobs_in_one_launch(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 31, 32, 33, 64, 70, MOST_JOBS};
    (void)state;
    exph_random random = exph_random_of(4);
    for (uint32_t round = 0; round < (getenv("MP_TEST_LONG") ? 90u : 9u); round++) {
        batch b = batch_of(&random, sizes[round % 9]);
        for (uint32_t replay = 0; replay < 2; replay++) {
            for (uint32_t i = 0; i < b.n; i++)
                blank(&b.tensors[i]);
            decode_rig_run(&random, b.jobs, b.n);
            all_are_there(&b);
        }
        for (uint32_t i = 0; i < b.n; i++)
            free_tensor(&b.tensors[i]);
    }
}

/* Each block alone: no element is brought twice, and with as many blocks as units none idles. */
static void test_cuda_decode_deals_units_to_one_block_each(void **state)
{
    (void)state;
    exph_random random = exph_random_of(5);
    mp_gpu_decode_shared shared;
    mp_gpu_decode_job jobs[] = {{.elements = 3 * 32768, .form = MOEPAGE_FORM_EXPH, .dtype = BF16},
                                {.elements = 1 << 20, .form = MOEPAGE_FORM_EXPH, .dtype = 1},
                                {.elements = 32769, .form = MOEPAGE_FORM_EXPH, .dtype = BF16},
                                {.src_bytes = 0, .form = MOEPAGE_FORM_DENSE},
                                {.src_bytes = 65537, .form = MOEPAGE_FORM_DENSE}};
    static const uint32_t units[] = {3, 0, 2, 0, 2};
    const mp_gpu_decode_args args = {.jobs = jobs, .n_jobs = 5};
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(mp_decode_units(&jobs[i]), units[i]);
    for (uint32_t blocks = 1; blocks < 12; blocks++) {
        uint32_t sum = 0;
        for (uint32_t block = 0; block < blocks; block++) {
            memset(&shared, (int)exph_below(&random, 256), sizeof shared);
            for (uint32_t s = 0; s < MP_DECODE_SLICES; s++)
                mp_decode_count_slice(&args, &shared, s);
            for (uint32_t s = MP_DECODE_SLICES; s-- > 0;)
                mp_decode_find_range(&args, &shared, s, block, blocks);
            assert_in_range(shared.range.left, 7 / blocks, (7 + blocks - 1) / blocks);
            uint32_t before = shared.range.unit;
            for (uint32_t i = 0; shared.range.left && i < shared.range.job; i++)
                before += units[i];
            if (shared.range.left)
                assert_int_equal(before, sum);
            sum += shared.range.left;
        }
        assert_int_equal(sum, 7);
    }
}

static void test_cuda_decode_of_nothing_does_nothing(void **state)
{
    (void)state;
    exph_random random = exph_random_of(6);
    mp_decode_job jobs[] = {{.form = MOEPAGE_FORM_DENSE},
                            {.form = MOEPAGE_FORM_EXPH, .dtype = BF16},
                            {.form = MOEPAGE_FORM_EXPH,
                             .elements = 99,
                             .dtype = MOEPAGE_DTYPE_F32}};
    decode_rig_run(&random, NULL, 0);
    decode_rig_run(&random, jobs, 3);
}

/* ---- What must not be decoded ---- */

/* Streams cut short, and those that do not begin where they must: NaNs, in every place. */
static void test_cuda_decode_gives_nans_for_streams_that_are_not_there(void **state)
{
    (void)state;
    exph_random random = exph_random_of(7);
    tensor t = encoded(&random, BF16, EXPH_GAUSSIAN, 40000, 0);
    const uint64_t bytes = t.job.src_bytes;
    uint8_t *moved = malloc(bytes + 16);
    assert_non_null(moved);
    memset(t.wanted, 0xff, t.bytes);
    t.job.src_bytes = 63; /* a front of two chunks has 64 */
    blank(&t);
    decode_rig_run(&random, &t.job, 1);
    is_there(&t);
    t.job.src_bytes = bytes;
    memcpy(moved + 8, t.src, bytes);
    t.job.src = moved + 8;
    blank(&t);
    decode_rig_run(&random, &t.job, 1);
    is_there(&t);
    free(moved);
    for (uint64_t left = 16; left < 64; left += 16) { /* nothing of it may be read */
        uint8_t *rump = guarded_alloc(left);
        memcpy(rump, t.src, left);
        t.job.src = rump;
        t.job.src_bytes = left;
        blank(&t);
        decode_rig_run(&random, &t.job, 1);
        is_there(&t);
        guarded_free(rump, left);
    }
    t.job.src_bytes = bytes;
    free_tensor(&t);
}

/* A last chunk whose lanes read past the stream's end, wherever that is in a word: zeros follow. */
static void decodes_cut(exph_random *random, const exph_stream *s, uint64_t bytes)
{
    const uint64_t room = (bytes + 15) / 16 * 16;
    tensor t = {.bytes = s->element_bytes,
                .src = guarded_alloc(room),
                .wanted = malloc(s->element_bytes)};
    assert_non_null(t.wanted);
    memset(t.src, 0xff, room);
    memcpy(t.src, s->bytes, bytes);
    set_job(&t, MOEPAGE_FORM_EXPH, s->dtype, s->n, bytes);
    exph_naive_decode(t.src, bytes, s->dtype, s->n, t.wanted);
    blank(&t);
    decode_rig_run(random, &t.job, 1);
    is_there(&t);
    free(t.wanted);
    free(t.place);
    guarded_free(t.src, room);
}

static void test_cuda_decode_reads_zeros_past_the_end_of_a_stream(void **state)
{
    uint32_t unstaged = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        exph_random random = exph_random_of(2000 + seed);
        exph_stream s = exph_stream_make(&random, exph_dtypes[seed % 4], 32768 - seed % 3 * 131);
        const mp_exph_type type = mp_exph_type_of(s.dtype);
        const uint64_t rests = mp_exph_rest_bytes(&type, s.n), bits = coded_bytes(&s);
        unstaged += bits > 4 * MP_DECODE_STAGE_BYTES;
        const uint64_t spare = bits > rests + 64 ? bits - rests : 64;
        for (uint64_t i = 0; bits && i < 6; i++) { /* the rests are aligned, or not */
            const uint64_t cut = rests + exph_below(&random, i % 2 ? 64 : spare);
            decodes_cut(&random, &s, s.n_bytes - (i < 3 ? cut & ~7ull : cut));
        }
        exph_stream_free(&s);
    }
    assert_in_range(unstaged, 6, 54);
}

/* The last of several exponents for one element counts, in whatever order the list stands. */
static void test_cuda_decode_patches_escapes_in_their_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        exph_random random = exph_random_of(seed);
        exph_stream s = exph_stream_make(&random, exph_dtypes[seed % 4], 1000);
        uint8_t *positions = s.bytes + 48 + 36;
        const uint32_t escapes = s.bytes[36 + 5] ? 0 : s.bytes[42] + s.bytes[43] * 256u;
        for (uint32_t i = 0; i < escapes; i++) { /* few places, some outside */
            const uint32_t at = (uint32_t)(exph_below(&random, 30) * 37);
            positions[2 * i] = (uint8_t)at;
            positions[2 * i + 1] = (uint8_t)(at >> 8);
        }
        tensor t = {.bytes = s.element_bytes, .src = s.bytes, .wanted = s.elements};
        set_job(&t, MOEPAGE_FORM_EXPH, s.dtype, s.n, s.n_bytes);
        exph_naive_decode(s.bytes, s.n_bytes, s.dtype, s.n, t.wanted);
        blank(&t);
        decode_rig_run(&random, &t.job, 1);
        is_there(&t);
        free(t.place);
        exph_stream_free(&s);
    }
}

/* ---- The launch ---- */

static const moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 1 << 20};

static mp_cuda *open_gpu(void)
{
    const mp_cuda_driver *driver = sim_cuda_open(&(sim_cuda_config){.kernels_reach_host = true});
    mp_device *device = NULL;
    if (mp_cuda_device_open(driver, NULL, "none", sim_images, sim_n_images, 0, &config, &device))
        fail_msg("%s", moepage_last_error());
    assert_int_equal(mp_cuda_enter(mp_cuda_of(device)), MOEPAGE_OK);
    return mp_cuda_of(device);
}

static void close_gpu(mp_cuda *cuda)
{
    mp_cuda_leave(cuda);
    cuda->device.ops->close(&cuda->device);
    sim_cuda_close();
}

static void test_cuda_decode_launches_once_for_all_jobs(void **state)
{
    (void)state;
    exph_random random = exph_random_of(8);
    mp_cuda *cuda = open_gpu();
    batch b = batch_of(&random, 20);
    const mp_kernel_decode_args args = {.jobs = b.jobs, .n_jobs = b.n};
    moepage_cuda_decode_job public_jobs[70];
    memcpy(public_jobs, b.jobs, sizeof public_jobs);
    moepage_cuda_decode call = {.struct_size = sizeof call, .jobs = public_jobs, .n_jobs = b.n};
    const uint64_t before = sim_cuda_get_stats().calls[SIM_launch];
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < b.n; i++)
            blank(&b.tensors[i]);
        call.total_elements = round == 1 ? 0 : 90000;
        assert_int_equal(round ? mp_cuda_call_decode(cuda, NULL, &call)
                               : mp_cuda_launch_decode(cuda, NULL, &args, &args),
                         MOEPAGE_OK);
        assert_int_equal(cuda->driver->stream_sync(NULL), 0);
        all_are_there(&b);
    }
    assert_int_equal(sim_cuda_get_stats().calls[SIM_launch], before + 3);
    for (uint32_t i = 0; i < b.n; i++)
        free_tensor(&b.tensors[i]);
    close_gpu(cuda);
}

static void test_cuda_decode_refuses_lists_that_it_cannot_read(void **state)
{
    (void)state;
    mp_cuda *cuda = open_gpu();
    moepage_cuda_decode_job job = {.form = MOEPAGE_FORM_DENSE};
    moepage_cuda_decode call = {.struct_size = sizeof call};
    mp_decode_job odd = {.src = (void *)(uintptr_t)8, .form = MOEPAGE_FORM_EXPH};
    const mp_kernel_decode_args none = {.n_jobs = 0}, one = {.jobs = &odd, .n_jobs = 1};
    const uint64_t before = sim_cuda_get_stats().calls[SIM_launch];
    assert_int_equal(mp_cuda_call_decode(cuda, NULL, &call), MOEPAGE_OK);
    assert_int_equal(mp_cuda_launch_decode(cuda, NULL, &none, &none), MOEPAGE_OK);
    call.n_jobs = 1;
    assert_int_equal(mp_cuda_call_decode(cuda, NULL, &call), MOEPAGE_E_ARGUMENT);
    call.jobs = (void *)((char *)&job + 4);
    assert_int_equal(mp_cuda_call_decode(cuda, NULL, &call), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "aligned to 8"));
    assert_int_equal(mp_cuda_launch_decode(cuda, NULL, &one, &one), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "decode job 0 begins at 0x8"));
    assert_int_equal(sim_cuda_get_stats().calls[SIM_launch], before);
    close_gpu(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_decode_gives_back_all_types_and_kinds),
        cmocka_unit_test(test_cuda_decode_gives_back_all_sizes),
        cmocka_unit_test(test_cuda_decode_writes_to_any_alignment),
        cmocka_unit_test(test_cuda_decode_reads_tiles_that_are_not_staged),
        cmocka_unit_test(test_cuda_decode_brings_many_jobs_in_one_launch),
        cmocka_unit_test(test_cuda_decode_deals_units_to_one_block_each),
        cmocka_unit_test(test_cuda_decode_of_nothing_does_nothing),
        cmocka_unit_test(test_cuda_decode_gives_nans_for_streams_that_are_not_there),
        cmocka_unit_test(test_cuda_decode_reads_zeros_past_the_end_of_a_stream),
        cmocka_unit_test(test_cuda_decode_patches_escapes_in_their_order),
        cmocka_unit_test(test_cuda_decode_launches_once_for_all_jobs),
        cmocka_unit_test(test_cuda_decode_refuses_lists_that_it_cannot_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
