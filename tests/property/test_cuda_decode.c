/* Streams that no encoder makes, and damaged ones: the decoder's kernel, in its CPU form, makes of
 * them what the specification says, and touches nothing outside them and their places. Streams and
 * places end at inaccessible pages. Each failure names its seed. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "decode_rig.h"
#include "exph_naive.h"
#include "exph_streams.h"
#include "numbers.h"
#include "testing.h"

#define ROUNDS (getenv("MP_TEST_LONG") ? 10000u : 300u)

/* Half of them end in the middle of 16 bytes, so that the last chunk is not aligned. */
static void cut(exph_random *random, const exph_stream *s, mp_decode_job *job)
{
    const uint64_t most = s->n_bytes < 40 ? s->n_bytes : 40;
    if (exph_below(random, 2))
        job->src_bytes -= exph_below(random, most);
}

static void same_as_specified(uint64_t seed, bool damaged)
{
    exph_random random = exph_random_of(seed);
    exph_stream s = exph_stream_any(&random);
    uint8_t *want = guarded_alloc(s.element_bytes), *got = guarded_alloc(s.element_bytes);
    mp_decode_job job = {.src = s.bytes,
                         .src_bytes = s.n_bytes,
                         .dst = got,
                         .elements = s.n,
                         .form = MOEPAGE_FORM_EXPH,
                         .dtype = s.dtype};
    uint8_t *source = NULL;
    if (damaged) {
        exph_stream_damage(&random, &s);
        cut(&random, &s, &job);
        source = aligned_alloc(16, (job.src_bytes + 31) / 16 * 16); /* ASan sees its end */
        assert_non_null(source);
        memcpy(source, s.bytes, job.src_bytes);
        memset(source + job.src_bytes, 0xa5, 16); /* and this sees that it does not matter */
        if (job.src_bytes < s.n_bytes)
            job.src = source;
    }
    memset(got, 0x5a, s.element_bytes);
    mp_exph_decode(NULL, job.src, job.src_bytes, s.dtype, s.n, 0, mp_exph_chunks(s.n), want);
    if (job.src_bytes == s.n_bytes) {
        exph_naive_decode(s.bytes, s.n_bytes, s.dtype, s.n, got);
        assert_memory_equal(got, want, s.element_bytes);
        memset(got, 0x5a, s.element_bytes);
    }
    decode_rig_run(&random, &job, 1);
    if (memcmp(got, want, s.element_bytes) != 0)
        fail_msg("seed %llu, %llu elements of dtype %u", (unsigned long long)seed,
                 (unsigned long long)s.n, s.dtype);
    free(source);
    guarded_free(got, s.element_bytes);
    guarded_free(want, s.element_bytes);
    exph_stream_free(&s);
}

static void test_cuda_decode_streams_of_any_encoder(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++)
        same_as_specified(seed, false);
}

static void test_cuda_decode_damaged_streams_as_specified(void **state)
{
    (void)state;
    for (uint64_t seed = 1000000; seed < 1000000 + ROUNDS * 2; seed++)
        same_as_specified(seed, true);
}

/* Bytes of any kind under a plausible front: chunks overlap, or lead outside. */
static void test_cuda_decode_any_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        exph_random random = exph_random_of(5000000 + seed);
        exph_stream s = exph_stream_make(&random, exph_dtypes[seed % 4], 1 + seed % 3 * 32768);
        uint8_t *want = guarded_alloc(s.element_bytes), *got = guarded_alloc(s.element_bytes);
        mp_decode_job job = {.src = s.bytes,
                             .src_bytes = s.n_bytes,
                             .dst = got,
                             .elements = s.n,
                             .form = MOEPAGE_FORM_EXPH,
                             .dtype = s.dtype};
        for (uint32_t i = 36; i < 36 + 12 * mp_exph_chunks(s.n); i++) {
            if (exph_below(&random, 3) == 0) /* offsets, modes, numbers of escapes */
                s.bytes[i] = (uint8_t)exph_below(&random, i % 12 < 2 ? 256 : 4);
        }
        for (uint64_t i = 84; i < s.n_bytes && i < 400; i++)
            s.bytes[i] ^= exph_below(&random, 5) ? 0 : (uint8_t)exph_next(&random);
        mp_exph_decode(NULL, s.bytes, s.n_bytes, s.dtype, s.n, 0, mp_exph_chunks(s.n), want);
        memset(got, 0x5a, s.element_bytes);
        decode_rig_run(&random, &job, 1);
        if (memcmp(got, want, s.element_bytes) != 0)
            fail_msg("seed %llu, %llu elements of dtype %u", (unsigned long long)seed,
                     (unsigned long long)s.n, s.dtype);
        guarded_free(got, s.element_bytes);
        guarded_free(want, s.element_bytes);
        exph_stream_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_decode_streams_of_any_encoder),
        cmocka_unit_test(test_cuda_decode_damaged_streams_as_specified),
        cmocka_unit_test(test_cuda_decode_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
