/* Random tensors through the exponent-Huffman codec: what goes in comes out of every decoder, chunk
 * by chunk in any order; what is damaged is found, and does no harm. A failure names its seed. */
#include <stdlib.h>
#include <string.h>

#include "exph_data.h"
#include "exph_naive.h"
#include "numbers.h"
#include "testing.h"

#define ROUNDS (getenv("MP_TEST_LONG") ? 100000u : 10000u)

typedef struct round {
    uint64_t seed;
    exph_random random;
    uint32_t dtype;
    uint64_t n;
    uint8_t *in;
    uint64_t in_bytes;
    uint8_t *stream; /* at the end of a page */
    uint64_t bytes;
} round;

/* Mostly small, sometimes some chunks; mostly BF16. */
static uint64_t random_size(exph_random *random)
{
    const uint64_t dice = exph_below(random, 1000);
    return exph_below(random, dice < 800 ? 1200 : dice < 985 ? 9000 : 120000);
}

static round open_round(uint64_t seed)
{
    round r = {.seed = seed, .random = exph_random_of(seed)};
    const uint64_t dice = exph_below(&r.random, 8);
    r.dtype = exph_dtypes[dice < 4 ? dice : 0];
    r.n = random_size(&r.random);
    r.in_bytes = r.n * exph_element_bytes(r.dtype);
    r.in = guarded_alloc(r.in_bytes);
    exph_fill(&r.random, r.dtype, (uint32_t)exph_below(&r.random, EXPH_KINDS), r.in, r.n);
    const uint64_t bound = mp_exph_bound(r.dtype, r.n);
    uint8_t *wide = guarded_alloc(bound);
    r.bytes = mp_exph_encode(r.dtype, r.in, r.n, wide);
    r.stream = guarded_alloc(r.bytes);
    memcpy(r.stream, wide, r.bytes);
    guarded_free(wide, bound);
    return r;
}

static void close_round(round *r)
{
    guarded_free(r->in, r->in_bytes);
    guarded_free(r->stream, r->bytes);
}

static void fails(const round *r, const char *what)
{
    fail_msg("seed %llu, %llu elements of dtype %u: %s", (unsigned long long)r->seed,
             (unsigned long long)r->n, r->dtype, what);
}

/* Every chunk once, alone, in random order; places of chunks to come stay as they are. */
static void decode_shuffled(round *r, const mp_exph_decoder *decoder, uint8_t *out)
{
    const uint64_t chunks = mp_exph_chunks(r->n);
    uint64_t order[8];
    assert_true(chunks <= 8);
    for (uint64_t i = 0; i < chunks; i++) {
        const uint64_t at = exph_below(&r->random, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (uint64_t i = 0; i < chunks; i++)
        mp_exph_decode(decoder, r->stream, r->bytes, r->dtype, r->n, order[i], 1, out);
}

static void test_exph_round_trips_whatever_the_tensor(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        round r = open_round(seed);
        uint8_t *out = guarded_alloc(r.in_bytes);
        if (mp_exph_check(r.stream, r.bytes, r.dtype, r.n))
            fails(&r, moepage_last_error());
        const char *wrong = exph_naive_read(r.stream, r.bytes, r.dtype, r.n, out, NULL);
        if (wrong)
            fails(&r, wrong);
        if (memcmp(out, r.in, r.in_bytes) != 0)
            fails(&r, "the naive reader disagrees");
        for (uint32_t d = 0; d < n_exph_decoders; d++) {
            memset(out, 0x5a, r.in_bytes);
            decode_shuffled(&r, exph_decoders[d], out);
            if (memcmp(out, r.in, r.in_bytes) != 0)
                fails(&r, mp_exph_decoder_name(exph_decoders[d]));
        }
        guarded_free(out, r.in_bytes);
        close_round(&r);
    }
}

static void damage(round *r)
{
    const uint64_t changes = 1 + exph_below(&r->random, 4);
    for (uint64_t i = 0; i < changes; i++) {
        /* The index, at the front and before the bits, is where it hurts most. */
        const uint64_t reach = exph_below(&r->random, 2) ? r->bytes : 160;
        const uint64_t at = exph_below(&r->random, reach < r->bytes ? reach : r->bytes);
        r->stream[at] ^= (uint8_t)(1 + exph_below(&r->random, 255));
    }
}

static void test_exph_damage_is_found_and_stays_in_bounds(void **state)
{
    (void)state;
    for (uint64_t seed = 1000000; seed < 1000000 + ROUNDS / 4; seed++) {
        round r = open_round(seed);
        uint8_t *before = guarded_alloc(r.bytes);
        uint8_t *want = guarded_alloc(r.in_bytes), *out = guarded_alloc(r.in_bytes);
        memcpy(before, r.stream, r.bytes);
        damage(&r);
        if (memcmp(before, r.stream, r.bytes) != 0 &&
            mp_exph_check(r.stream, r.bytes, r.dtype, r.n) == MOEPAGE_OK)
            fails(&r, "damage was not found");
        exph_naive_decode(r.stream, r.bytes, r.dtype, r.n, want);
        for (uint32_t d = 0; d < n_exph_decoders; d++) {
            memset(out, 0x22, r.in_bytes);
            decode_shuffled(&r, exph_decoders[d], out);
            if (memcmp(out, want, r.in_bytes) != 0)
                fails(&r, mp_exph_decoder_name(exph_decoders[d]));
        }
        guarded_free(before, r.bytes);
        guarded_free(want, r.in_bytes);
        guarded_free(out, r.in_bytes);
        close_round(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_round_trips_whatever_the_tensor),
        cmocka_unit_test(test_exph_damage_is_found_and_stays_in_bounds),
    };
    return cmocka_run_group_tests(tests, exph_decoders_find, NULL);
}
