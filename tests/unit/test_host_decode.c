/* How the host cuts DECODE: each byte is brought by exactly one part, and parts are about equal. */

#include <stdlib.h>
#include <string.h>

#include "device/host_decode.h"
#include "testing.h"

enum { BLANK = 0xb4 };

typedef struct batch {
    mp_decode_job *jobs;
    uint32_t n;
    uint8_t **wanted;
} batch;

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Bytes of `job` in the slot. */
static uint64_t size_of(const mp_decode_job *job)
{
    return job->form == MOEPAGE_FORM_EXPH ? job->elements * 2 : job->src_bytes;
}

/* No byte is BLANK, so that each byte that was brought shows. */
static void add_job(batch *b, uint32_t form, uint64_t elements, uint64_t *seed)
{
    uint16_t *wanted = malloc(elements * 2);
    assert_non_null(wanted);
    for (uint64_t i = 0; i < elements; i++) /* the high byte: signs and exponents of weights */
        wanted[i] = (uint16_t)((0x3a00 + (next_random(seed) % 4 << 8)) | next_random(seed) % 100);
    mp_decode_job *job = &b->jobs[b->n];
    *job = (mp_decode_job){.elements = elements, .form = form, .dtype = MOEPAGE_DTYPE_BF16};
    uint64_t room =
        form == MOEPAGE_FORM_EXPH ? mp_exph_bound(MOEPAGE_DTYPE_BF16, elements) : elements * 2;
    void *src = aligned_alloc(64, (room + 63) / 64 * 64);
    assert_non_null(src);
    if (form == MOEPAGE_FORM_EXPH) {
        job->src_bytes = mp_exph_encode(MOEPAGE_DTYPE_BF16, wanted, elements, src);
    } else {
        job->src_bytes = elements * 2;
        memcpy(src, wanted, elements * 2);
    }
    job->src = src;
    job->dst = malloc(elements * 2);
    assert_non_null(job->dst);
    b->wanted[b->n++] = (uint8_t *)wanted;
}

static batch make_batch(uint32_t n, uint64_t *seed)
{
    batch b = {.jobs = calloc(n, sizeof *b.jobs), .wanted = calloc(n, sizeof *b.wanted)};
    assert_non_null(b.jobs);
    assert_non_null(b.wanted);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t chunks = next_random(seed) % 4;
        uint64_t elements = chunks * MP_EXPH_CHUNK + next_random(seed) % (chunks ? 3 : 5000);
        add_job(&b, next_random(seed) % 2 ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE, elements + 1,
                seed);
    }
    return b;
}

static void free_batch(batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        free((void *)(uintptr_t)b->jobs[i].src);
        free(b->jobs[i].dst);
        free(b->wanted[i]);
    }
    free(b->jobs);
    free(b->wanted);
}

static void blank(const batch *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        memset(b->jobs[i].dst, BLANK, size_of(&b->jobs[i]));
}

/* Counts, per byte of all jobs in a row, the parts that wrote it; returns what the busiest part
 * brought. */
static uint64_t count_parts(const batch *b, uint32_t n_parts, uint8_t *writers)
{
    const mp_kernel_decode_args args = {.jobs = b->jobs, .n_jobs = b->n};
    uint64_t most = 0;
    for (uint32_t part = 0; part < n_parts; part++) {
        uint64_t brought = 0, at = 0;
        blank(b);
        mp_host_decode(mp_exph_decoder_best(), &args, part, n_parts);
        for (uint32_t i = 0; i < b->n; i++) {
            const uint8_t *got = b->jobs[i].dst;
            for (uint64_t k = 0; k < size_of(&b->jobs[i]); k++, at++) {
                if (got[k] == BLANK)
                    continue;
                writers[at]++;
                brought++;
                if (got[k] != b->wanted[i][k])
                    fail_msg("job %u, byte %llu is wrong", i, (unsigned long long)k);
            }
        }
        most = brought > most ? brought : most;
    }
    return most;
}

static void test_host_decode_brings_each_byte_in_one_part(void **state)
{
    (void)state;
    static const uint32_t parts[] = {1, 2, 3, 7, 16, 100};
    uint64_t seed = 9;
    for (uint32_t round = 0; round < 4; round++) {
        batch b = make_batch(1 + round * 4, &seed);
        uint64_t total = 0;
        for (uint32_t i = 0; i < b.n; i++)
            total += size_of(&b.jobs[i]);
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            uint8_t *writers = calloc(total, 1);
            assert_non_null(writers);
            count_parts(&b, parts[p], writers);
            for (uint64_t at = 0; at < total; at++)
                assert_true(writers[at] == 1);
            free(writers);
        }
        free_batch(&b);
    }
}

/* One big tensor and many small ones: no part gets more than its share and one chunk. */
static void test_host_decode_deals_out_evenly(void **state)
{
    (void)state;
    enum { PARTS = 8 };
    uint64_t seed = 10, total = 0;
    batch b = {.jobs = calloc(20, sizeof *b.jobs), .wanted = calloc(20, sizeof *b.wanted)};
    assert_non_null(b.jobs);
    assert_non_null(b.wanted);
    add_job(&b, MOEPAGE_FORM_EXPH, 40 * MP_EXPH_CHUNK, &seed);
    for (uint32_t i = 0; i < 19; i++)
        add_job(&b, MOEPAGE_FORM_EXPH, MP_EXPH_CHUNK, &seed);
    for (uint32_t i = 0; i < b.n; i++)
        total += size_of(&b.jobs[i]);
    uint8_t *writers = calloc(total, 1);
    assert_non_null(writers);
    uint64_t most = count_parts(&b, PARTS, writers);
    assert_true(most <= total / PARTS + 2 * MP_EXPH_CHUNK);
    free(writers);
    free_batch(&b);
}

static void test_host_decode_of_nothing_does_nothing(void **state)
{
    (void)state;
    const mp_kernel_decode_args none = {.n_jobs = 0};
    mp_decode_job empty = {.form = MOEPAGE_FORM_DENSE};
    const mp_kernel_decode_args one = {.jobs = &empty, .n_jobs = 1};
    for (uint32_t part = 0; part < 3; part++) {
        mp_host_decode(mp_exph_decoder_best(), &none, part, 3);
        mp_host_decode(mp_exph_decoder_best(), &one, part, 3);
    }
    assert_int_equal(mp_host_decode_work(&none), 0);
    assert_int_equal(mp_host_decode_work(&one), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_decode_brings_each_byte_in_one_part),
        cmocka_unit_test(test_host_decode_deals_out_evenly),
        cmocka_unit_test(test_host_decode_of_nothing_does_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
