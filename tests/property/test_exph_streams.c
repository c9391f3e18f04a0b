/* Legal streams that the encoder would never make, and damaged ones with the right checksums:
 * whatever they hold, all decoders make of them what the specification says. Each failure names its
 * seed. */
#include <stdlib.h>
#include <string.h>

#include "exph_data.h"
#include "exph_naive.h"
#include "exph_streams.h"
#include "numbers.h"
#include "testing.h"

#define ROUNDS (getenv("MP_TEST_LONG") ? 20000u : 500u)

static void fails(uint64_t seed, const exph_stream *s, const char *what)
{
    fail_msg("seed %llu, %llu elements of dtype %u: %s", (unsigned long long)seed,
             (unsigned long long)s->n, s->dtype, what);
}

/* Whole, and chunk by chunk from the last to the first. */
static int decodes_to(const exph_stream *s, const mp_exph_decoder *decoder, const uint8_t *want)
{
    const uint64_t chunks = mp_exph_chunks(s->n);
    uint8_t *whole = guarded_alloc(s->element_bytes), *apart = guarded_alloc(s->element_bytes);
    memset(whole, 0x5a, s->element_bytes);
    memset(apart, 0xa5, s->element_bytes);
    mp_exph_decode(decoder, s->bytes, s->n_bytes, s->dtype, s->n, 0, chunks, whole);
    for (uint64_t i = chunks; i > 0; i--)
        mp_exph_decode(decoder, s->bytes, s->n_bytes, s->dtype, s->n, i - 1, 1, apart);
    const int same =
        memcmp(whole, want, s->element_bytes) == 0 && memcmp(apart, want, s->element_bytes) == 0;
    guarded_free(whole, s->element_bytes);
    guarded_free(apart, s->element_bytes);
    return same;
}

static void decoders_agree(uint64_t seed, const exph_stream *s, const uint8_t *want)
{
    if (!decodes_to(s, NULL, want))
        fails(seed, s, "a symbol at a time");
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        if (!decodes_to(s, exph_decoders[d], want))
            fails(seed, s, mp_exph_decoder_name(exph_decoders[d]));
    }
}

static void test_exph_streams_of_any_encoder_decode(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        exph_random random = exph_random_of(seed);
        exph_stream s = exph_stream_any(&random);
        uint8_t *naive = guarded_alloc(s.element_bytes);
        if (mp_exph_check(s.bytes, s.n_bytes, s.dtype, s.n))
            fails(seed, &s, moepage_last_error());
        exph_naive_decode(s.bytes, s.n_bytes, s.dtype, s.n, naive);
        if (memcmp(naive, s.elements, s.element_bytes) != 0)
            fails(seed, &s, "the naive decoder disagrees");
        decoders_agree(seed, &s, s.elements);
        guarded_free(naive, s.element_bytes);
        exph_stream_free(&s);
    }
}

/* Valid checksums prove nothing about the numbers: lanes may lead outside, codes may be invalid. */
static void test_exph_streams_damaged_behind_their_checksums_decode_as_specified(void **state)
{
    uint32_t checked = 0;
    (void)state;
    for (uint64_t seed = 1000000; seed < 1000000 + ROUNDS * 2; seed++) {
        exph_random random = exph_random_of(seed);
        exph_stream s = exph_stream_any(&random);
        uint8_t *want = guarded_alloc(s.element_bytes);
        exph_stream_damage(&random, &s);
        checked += mp_exph_check(s.bytes, s.n_bytes, s.dtype, s.n) == MOEPAGE_OK;
        exph_naive_decode(s.bytes, s.n_bytes, s.dtype, s.n, want);
        decoders_agree(seed, &s, want);
        guarded_free(want, s.element_bytes);
        exph_stream_free(&s);
    }
    assert_in_range(checked, ROUNDS / 50, ROUNDS * 2 - ROUNDS / 50); /* both kinds occur */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_streams_of_any_encoder_decode),
        cmocka_unit_test(test_exph_streams_damaged_behind_their_checksums_decode_as_specified),
    };
    return cmocka_run_group_tests(tests, exph_decoders_find, NULL);
}
