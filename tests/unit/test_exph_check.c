/* Damaged and hostile exponent-Huffman streams: mp_exph_check finds them all, and decoders stay in
 * bounds and agree even on unchecked streams.
 *
 * Streams lie at the end of a page, and so does what is decoded. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "exph_data.h"
#include "numbers.h"
#include "testing.h"

#define BF16 MOEPAGE_DTYPE_BF16

typedef struct coded {
    uint32_t dtype;
    uint64_t n;
    uint8_t *stream;
    uint64_t bytes;
} coded;

static coded encode(uint32_t dtype, uint32_t kind, uint64_t seed, uint64_t n)
{
    exph_random random = exph_random_of(seed);
    coded c = {.dtype = dtype, .n = n};
    uint8_t *in = malloc(2 * n + 1), *out = malloc(mp_exph_bound(dtype, n));
    assert_true(in && out);
    exph_fill(&random, dtype, kind, in, n);
    c.bytes = mp_exph_encode(dtype, in, n, out);
    c.stream = guarded_alloc(c.bytes);
    memcpy(c.stream, out, c.bytes);
    free(in);
    free(out);
    return c;
}

static void release(coded *c)
{
    guarded_free(c->stream, c->bytes);
}

static moepage_status check(const coded *c)
{
    return mp_exph_check(c->stream, c->bytes, c->dtype, c->n);
}

/* All decoders, all chunks: the same bits, whatever these are. */
static void decode_agrees(const uint8_t *stream, uint64_t bytes, uint32_t dtype, uint64_t n)
{
    const uint64_t out_bytes = n * exph_element_bytes(dtype);
    uint8_t *first = guarded_alloc(out_bytes), *out = guarded_alloc(out_bytes);
    memset(first, 0x11, out_bytes);
    mp_exph_decode(exph_decoders[0], stream, bytes, dtype, n, 0, mp_exph_chunks(n), first);
    for (uint32_t d = 1; d < n_exph_decoders; d++) {
        memset(out, 0x22, out_bytes);
        mp_exph_decode(exph_decoders[d], stream, bytes, dtype, n, 0, mp_exph_chunks(n), out);
        assert_memory_equal(out, first, out_bytes);
    }
    guarded_free(first, out_bytes);
    guarded_free(out, out_bytes);
}

/* ---- Damage ---- */

static void every_byte_is_covered(coded c)
{
    assert_int_equal(check(&c), MOEPAGE_OK);
    for (uint64_t i = 0; i < c.bytes; i++) {
        for (uint32_t by = 1; by < 256; by = by * 2 + 1) {
            c.stream[i] ^= (uint8_t)by;
            const moepage_status status = check(&c);
            if (status != MOEPAGE_E_FORMAT && !(status == MOEPAGE_E_VERSION && i == 0))
                fail_msg("byte %llu of %llu changed by %u: status %d", (unsigned long long)i,
                         (unsigned long long)c.bytes, by, status);
            c.stream[i] ^= (uint8_t)by;
        }
    }
    release(&c);
}

static void test_exph_check_finds_every_changed_byte(void **state)
{
    (void)state;
    every_byte_is_covered(encode(BF16, EXPH_GAUSSIAN, 1, 1000));
    every_byte_is_covered(encode(BF16, EXPH_GAUSSIAN, 2, 0));
    every_byte_is_covered(encode(BF16, EXPH_NOISE, 3, 37));
    every_byte_is_covered(encode(BF16, EXPH_CONSTANT, 4, 300));
    every_byte_is_covered(encode(MOEPAGE_DTYPE_F16, EXPH_GEOMETRIC, 5, 700));
    every_byte_is_covered(encode(MOEPAGE_DTYPE_F8_E4M3, EXPH_GAUSSIAN, 6, 900));
    every_byte_is_covered(encode(MOEPAGE_DTYPE_F8_E5M2, EXPH_TWO, 7, 900));
}

static void test_exph_check_finds_every_truncation(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < EXPH_KINDS; kind++) {
        coded c = encode(BF16, kind, kind, 2000);
        for (uint64_t bytes = 0; bytes < c.bytes; bytes++) {
            uint8_t *cut = guarded_alloc(bytes); /* reading what is gone is a crash */
            memcpy(cut, c.stream, bytes);
            assert_int_equal(mp_exph_check(cut, bytes, BF16, 2000), MOEPAGE_E_FORMAT);
            if (bytes % 97 == 0)
                decode_agrees(cut, bytes, BF16, 2000);
            guarded_free(cut, bytes);
        }
        release(&c);
    }
}

static void test_exph_check_finds_what_follows_the_last_chunk(void **state)
{
    (void)state;
    coded c = encode(BF16, EXPH_GAUSSIAN, 1, 40000);
    uint8_t *longer = malloc(c.bytes + 48);
    assert_non_null(longer);
    memcpy(longer, c.stream, c.bytes);
    memset(longer + c.bytes, 0, 48);
    for (uint64_t more = 1; more <= 48; more++)
        assert_int_equal(mp_exph_check(longer, c.bytes + more, BF16, 40000), MOEPAGE_E_FORMAT);
    free(longer);
    release(&c);
}

static void refused(const coded *c, uint32_t dtype, uint64_t n, const char *word)
{
    assert_int_equal(mp_exph_check(c->stream, c->bytes, dtype, n), MOEPAGE_E_FORMAT);
    if (!strstr(moepage_last_error(), word))
        fail_msg("\"%s\" does not say \"%s\"", moepage_last_error(), word);
}

static void test_exph_check_compares_with_the_tensor(void **state)
{
    (void)state;
    coded c = encode(BF16, EXPH_GAUSSIAN, 1, 4000);
    refused(&c, MOEPAGE_DTYPE_F16, 4000, "holds dtype 3, the tensor's is 2");
    refused(&c, BF16, 4001, "holds 4000 elements, the tensor has 4001");
    refused(&c, MOEPAGE_DTYPE_F32, 4000, "dtype 1");
    refused(&c, BF16, UINT64_MAX, "no stream holds");
    c.stream[0] = 2;
    assert_int_equal(check(&c), MOEPAGE_E_VERSION);
    release(&c);
}

/* ---- Hostile streams: checksums are right, what they cover is not ---- */

enum { FRONT = 48, HEADS = FRONT, LENGTHS = FRONT + 4 }; /* of a stream of one chunk, one tile */

static void sign(coded *c)
{
    const uint32_t chunk = (uint32_t)XXH3_64bits(c->stream + FRONT, c->bytes - FRONT);
    uint64_t seed;
    memcpy(c->stream + 44, &chunk, 4);
    memcpy(&seed, c->stream, 8);
    const uint32_t front = (uint32_t)XXH3_64bits_withSeed(c->stream + 12, FRONT - 12, seed);
    memcpy(c->stream + 8, &front, 4);
}

/* Elements that escape, for which there are more than 15 exponents. */
static coded with_escapes_of(uint32_t dtype, uint32_t mantissa_bits)
{
    enum { N = 8192 };
    uint16_t in[N];
    coded c = {.dtype = dtype, .n = N};
    uint8_t *out = malloc(mp_exph_bound(dtype, N));
    assert_non_null(out);
    for (uint32_t i = 0; i < N; i++)
        in[i] = (uint16_t)((i % 64 ? 28 + i % 3 : 1 + i / 64 % 27) << mantissa_bits);
    c.bytes = mp_exph_encode(dtype, in, N, out);
    c.stream = guarded_alloc(c.bytes);
    memcpy(c.stream, out, c.bytes);
    free(out);
    assert_int_equal(check(&c), MOEPAGE_OK);
    assert_true(c.stream[42] > 2); /* escapes */
    return c;
}

static coded with_escapes(void)
{
    return with_escapes_of(BF16, 7);
}

typedef struct lie {
    uint64_t at;
    uint8_t byte;
    const char *word; /* of the sentence */
} lie;

static void lies_are_found(coded (*make)(void), const lie *lies, uint32_t n_lies)
{
    for (uint32_t i = 0; i < n_lies; i++) {
        coded c = make();
        assert_int_not_equal(c.stream[lies[i].at], lies[i].byte);
        c.stream[lies[i].at] = lies[i].byte;
        sign(&c);
        refused(&c, c.dtype, c.n, lies[i].word);
        decode_agrees(c.stream, c.bytes, c.dtype, c.n);
        release(&c);
    }
}

static void test_exph_check_finds_lies_under_right_checksums(void **state)
{
    (void)state;
    static const lie lies[] = {
        {7, 1, "reserved"},
        {27, 9, "escape has exponent 9"},
        {12, 29, "unique"},
        {28, 0, "complete code"},
        {28, 0xff, "complete code"},
        {36, 2, "must begin at 48"},
        {36, 4, "must begin at 48"},
        {40, 1, "must begin at 48"},
        {40, 0xff, "must begin at 48"},
        {41, 1, "chunk 0"},
        {41, 2, "raw chunk"},
        {41, 3, "mode is 3"},
        {42, 0, "chunk"},
        {43, 0xff, "index alone"},
        {HEADS, 1, "tile 0 begins at byte 1"},
        {HEADS + 2, 0xff, "chunk"},
        {HEADS + 3, 0xff, "chunk"},
        {LENGTHS, 0xff, "chunk"},
        {LENGTHS + 31, 0xff, "chunk"},
        {LENGTHS + 32, 255, "in order"},
        {LENGTHS + 33, 255, "below 8192"},
        {LENGTHS + 35, 255, "below 8192"},
    };
    lies_are_found(with_escapes, lies, sizeof lies / sizeof *lies);
}

static coded of_small_exponents(void)
{
    return encode(MOEPAGE_DTYPE_F8_E4M3, EXPH_GAUSSIAN, 1, 5000);
}

static coded of_one_exponent(void)
{
    return encode(MOEPAGE_DTYPE_F8_E5M2, EXPH_CONSTANT, 1, 5000);
}

static void test_exph_check_finds_exponents_that_the_type_lacks(void **state)
{
    (void)state;
    static const lie coded_lie[] = {{12, 16, "below 16"}};
    static const lie constant_lies[] = {{42, 32, "below 32"},
                                        {43, 1, "below 32"},
                                        {41, 0, "no code"}};
    lies_are_found(of_small_exponents, coded_lie, 1);
    lies_are_found(of_one_exponent, constant_lies, 3);
}

static void test_exph_check_finds_escapes_that_lie(void **state)
{
    (void)state;
    coded c = with_escapes_of(MOEPAGE_DTYPE_F16, 10);
    uint8_t *positions = c.stream + LENGTHS + 32, *exponents = positions + 2 * c.stream[42];
    exponents[1] = 32;
    sign(&c);
    refused(&c, MOEPAGE_DTYPE_F16, 8192, "escape 1 has exponent 32");
    exponents[1] = 0;
    exponents[-1] = 32; /* the last position: 8192 and more */
    sign(&c);
    refused(&c, MOEPAGE_DTYPE_F16, 8192, "below 8192");
    decode_agrees(c.stream, c.bytes, MOEPAGE_DTYPE_F16, 8192);
    release(&c);
}

/* Codes that take all of a lane's 8 bits per symbol, however short the lane says it is. */
static void test_exph_decoders_stay_in_a_stream_whose_lanes_do_not(void **state)
{
    (void)state;
    for (uint64_t n = 8; n <= 8192; n = n * 5 / 3) {
        coded c = encode(BF16, EXPH_GEOMETRIC, n, n);
        const uint64_t rests = (n + 15) / 16 * 16;
        if (c.stream[41] == 0) {
            memset(c.stream + LENGTHS + 32, 0xff, c.bytes - rests - LENGTHS - 32);
            decode_agrees(c.stream, c.bytes, BF16, n);
            memset(c.stream + LENGTHS, 0xff, 32); /* later lanes begin far outside */
            decode_agrees(c.stream, c.bytes, BF16, n);
        }
        release(&c);
    }
}

/* The last lanes begin a little before the stream's end, with 256 symbols of 8 bits to go. */
static void test_exph_decoders_stay_in_a_stream_that_ends_early(void **state)
{
    (void)state;
    static const uint8_t code[8] = {0x21, 0x43, 0x65, 0x87, 0x08};
    for (uint32_t before = 0; before < 420; before += 3) {
        coded c = encode(BF16, EXPH_GEOMETRIC, 1, 8192);
        const uint32_t bits = (uint32_t)(c.bytes - LENGTHS - 32 - before) * 8;
        assert_int_equal(c.stream[41], 0);
        memset(c.stream + LENGTHS + 32, 0xff, c.bytes - LENGTHS - 32);
        memset(c.stream + LENGTHS, 0, 32);
        memcpy(c.stream + 28, code, sizeof code);
        memset(c.stream + 42, 0, 2);               /* no escapes */
        for (uint32_t lane = 0; lane < 31; lane++) /* in units of 2^7 bits */
            c.stream[LENGTHS + lane] = (uint8_t)(bits / 31 / 128);
        c.stream[HEADS + 2] = (uint8_t)(bits / 31 % 128);
        c.stream[HEADS + 3] = 7 << 4;
        decode_agrees(c.stream, c.bytes, BF16, 8192);
        release(&c);
    }
}

static void test_exph_decoders_stay_in_any_bytes(void **state)
{
    (void)state;
    exph_random random = exph_random_of(77);
    for (int round = 0; round < 400; round++) {
        const uint64_t bytes = exph_below(&random, 3000), n = exph_below(&random, 70000);
        uint8_t *stream = guarded_alloc(bytes);
        for (uint64_t i = 0; i < bytes; i++)
            stream[i] = (uint8_t)exph_next(&random);
        if (bytes > 60 && round % 2) { /* at least as far as a chunk */
            static const uint8_t code[8] = {0x21, 0x43, 0x65, 0x87, 0x08};
            memset(stream + 36, 0, 12);
            memcpy(stream + 28, code, 8);
            stream[36] = 3;
            stream[41] = (uint8_t)(round / 2 % 4);
        }
        assert_int_not_equal(mp_exph_check(stream, bytes, BF16, n), MOEPAGE_OK);
        decode_agrees(stream, bytes, exph_dtypes[round % 4], n);
        guarded_free(stream, bytes);
    }
}

/* What cannot be decoded is NaN, not what the memory held before. */
static void test_exph_decoders_leave_no_old_memory(void **state)
{
    (void)state;
    uint16_t out[3000];
    coded c = encode(BF16, EXPH_GAUSSIAN, 1, 3000);
    memset(c.stream + 28, 0, 8); /* no code */
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        memset(out, 0, sizeof out);
        mp_exph_decode(exph_decoders[d], c.stream, c.bytes, BF16, 3000, 0, 1, out);
        for (uint32_t i = 0; i < 3000; i++)
            assert_int_equal(out[i], 0xffff);
        memset(out, 0, sizeof out);
        mp_exph_decode(exph_decoders[d], c.stream, 20, BF16, 3000, 0, 1, out);
        for (uint32_t i = 0; i < 3000; i++)
            assert_int_equal(out[i], 0xffff);
    }
    release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_check_finds_every_changed_byte),
        cmocka_unit_test(test_exph_check_finds_every_truncation),
        cmocka_unit_test(test_exph_check_finds_what_follows_the_last_chunk),
        cmocka_unit_test(test_exph_check_compares_with_the_tensor),
        cmocka_unit_test(test_exph_check_finds_lies_under_right_checksums),
        cmocka_unit_test(test_exph_check_finds_exponents_that_the_type_lacks),
        cmocka_unit_test(test_exph_decoders_stay_in_a_stream_whose_lanes_do_not),
        cmocka_unit_test(test_exph_check_finds_escapes_that_lie),
        cmocka_unit_test(test_exph_decoders_stay_in_a_stream_that_ends_early),
        cmocka_unit_test(test_exph_decoders_stay_in_any_bytes),
        cmocka_unit_test(test_exph_decoders_leave_no_old_memory),
    };
    return cmocka_run_group_tests(tests, exph_decoders_find, NULL);
}
