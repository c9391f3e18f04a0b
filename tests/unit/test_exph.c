/* The exponent-Huffman codec: what goes in comes out, whatever it is, and the bytes between are
 * those that docs/format-exph.md specifies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exph_data.h"
#include "exph_naive.h"
#include "numbers.h"
#include "testing.h"

#define BF16 MOEPAGE_DTYPE_BF16

/* ---- A stream, and every way to read it ---- */

typedef struct coded {
    uint8_t *stream;
    uint64_t bytes;
    uint64_t bound;
} coded;

static coded encode(uint32_t dtype, const void *in, uint64_t n)
{
    coded c = {.bound = mp_exph_bound(dtype, n)};
    c.stream = guarded_alloc(c.bound);
    memset(c.stream, 0xa5, c.bound);
    c.bytes = mp_exph_encode(dtype, in, n, c.stream);
    assert_true(c.bytes <= c.bound);
    assert_int_equal(c.bytes % MP_EXPH_ALIGN, 0);
    return c;
}

/* At the end of a page, so that one byte too far is a crash. */
static uint8_t *at_a_pages_end(const void *from, uint64_t bytes)
{
    uint8_t *copy = guarded_alloc(bytes);
    memcpy(copy, from, bytes);
    return copy;
}

static exph_naive_stats round_trip(uint32_t dtype, const void *in, uint64_t n)
{
    const uint64_t bytes = n * exph_element_bytes(dtype);
    exph_naive_stats stats;
    coded c = encode(dtype, in, n);
    uint8_t *stream = at_a_pages_end(c.stream, c.bytes), *out = guarded_alloc(bytes);
    if (mp_exph_check(stream, c.bytes, dtype, n))
        fail_msg("%llu elements of dtype %u: %s", (unsigned long long)n, dtype,
                 moepage_last_error());
    const char *wrong = exph_naive_read(stream, c.bytes, dtype, n, out, &stats);
    if (wrong)
        fail_msg("%llu elements of dtype %u: %s", (unsigned long long)n, dtype, wrong);
    assert_memory_equal(out, in, bytes);
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        memset(out, 0x5a, bytes);
        mp_exph_decode(exph_decoders[d], stream, c.bytes, dtype, n, 0, mp_exph_chunks(n), out);
        assert_memory_equal(out, in, bytes);
    }
    guarded_free(out, bytes);
    guarded_free(stream, c.bytes);
    guarded_free(c.stream, c.bound);
    return stats;
}

static exph_naive_stats round_trip_of(uint32_t dtype, uint32_t kind, uint64_t seed, uint64_t n)
{
    exph_random random = exph_random_of(seed);
    void *in = malloc(n * exph_element_bytes(dtype) + 1);
    assert_non_null(in);
    exph_fill(&random, dtype, kind, in, n);
    exph_naive_stats stats = round_trip(dtype, in, n);
    free(in);
    return stats;
}

/* ---- Values ---- */

static void test_exph_keeps_every_pattern_of_16_bits(void **state)
{
    (void)state;
    static uint16_t in[65536];
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    round_trip(MOEPAGE_DTYPE_BF16, in, 65536);
    round_trip(MOEPAGE_DTYPE_F16, in, 65536);
}

/* The same patterns among so many of one exponent that all chunks are coded. */
static void test_exph_keeps_every_pattern_in_coded_chunks(void **state)
{
    (void)state;
    enum { EACH = 16 };
    uint16_t *in = malloc(2u * EACH * 65536);
    assert_non_null(in);
    for (uint32_t i = 0; i < EACH * 65536; i++) /* NaNs and denormals are in every chunk */
        in[i] = (uint16_t)(i % EACH ? 0x3f80 + i % 128 : i / EACH * 40503u);
    exph_naive_stats stats = round_trip(BF16, in, EACH * 65536);
    assert_int_equal(stats.coded, EACH * 65536 / MP_EXPH_CHUNK);
    assert_true(stats.escapes > 60000);
    stats = round_trip(MOEPAGE_DTYPE_F16, in, EACH * 65536);
    assert_int_equal(stats.coded, EACH * 65536 / MP_EXPH_CHUNK);
    free(in);
}

static void test_exph_keeps_every_pattern_of_8_bits(void **state)
{
    (void)state;
    static uint8_t in[65536];
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint8_t)(i % 8 ? i % 16 : i / 8);
    for (uint32_t d = 2; d < 4; d++) {
        exph_naive_stats stats = round_trip(exph_dtypes[d], in, 65536);
        assert_int_equal(stats.coded, 2);
    }
}

static void test_exph_stores_one_exponent_without_bits(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < 4; d++) {
        exph_naive_stats stats = round_trip_of(exph_dtypes[d], EXPH_CONSTANT, d, 100000);
        assert_int_equal(stats.constant, 4);
        assert_int_equal(stats.code_bits, 0);
    }
    uint16_t zeros[1000] = {0};
    coded c = encode(BF16, zeros, 1000);
    assert_int_equal(c.bytes, 48 + 1008);
    guarded_free(c.stream, c.bound);
    round_trip(BF16, zeros, 1000);
}

/* Random bits: nothing is gained, and no more is lost than the header and the table. */
static void test_exph_stores_noise_raw(void **state)
{
    (void)state;
    exph_naive_stats stats = round_trip_of(BF16, EXPH_NOISE, 1, 100000);
    assert_int_equal(stats.raw, 4);
    for (uint64_t n = 1; n < 1000000; n = n * 3 + 1)
        assert_true(mp_exph_bound(BF16, n) <= 2 * n + 36 + 12 * mp_exph_chunks(n) + 30);
}

/* The first chunk's exponents fill the palette. Every element of the second is an escape, which
 * is dearer than raw; then one in six, which is not. */
static void test_exph_stores_a_chunk_of_escapes(void **state)
{
    (void)state;
    static uint16_t in[65536];
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)((i < 32768 ? 100 + i % 15 : 1 + i % 60) << 7);
    exph_naive_stats stats = round_trip(BF16, in, 65536);
    assert_int_equal(stats.coded, 1);
    assert_int_equal(stats.raw, 1);
    for (uint32_t i = 32768; i < 65536; i++)
        in[i] = (uint16_t)((i % 6 ? 100 : 1 + i % 59) << 7);
    stats = round_trip(BF16, in, 65536);
    assert_int_equal(stats.coded, 2);
    assert_int_equal(stats.escapes, 32768 / 6);
}

/* Lanes that differ by more bits than a byte counts are measured in a coarser unit. */
static void test_exph_pads_lanes_that_differ_much(void **state)
{
    (void)state;
    uint64_t coarse = 0;
    for (uint64_t seed = 0; seed < 8; seed++)
        coarse += round_trip_of(BF16, EXPH_LANES, seed, 70000).coarse;
    assert_true(coarse >= 64);
}

/* Tile t has its rarest exponents, of 8 bits, in lane t, and the commonest, of 1 bit, in the others,
 * which are 6 times as fast or more with wide tables. Further tiles shape the code. */
static uint16_t exponent_of_unequal_lanes(uint32_t element)
{
    const uint32_t tile = element / 8192, lane = element / 8 % 32, i = element / 256 + element;
    if (tile < 32)
        return (uint16_t)(lane == tile ? 101 + i % 8 : 100);
    return (uint16_t)(i % 2 ? 109 : i % 4 ? 110 : i % 8 ? 111 : 112);
}

static void test_exph_keeps_lanes_of_the_longest_codes_among_the_shortest(void **state)
{
    (void)state;
    enum { TILES = 64, N = TILES * 8192 };
    uint16_t *in = malloc(2 * N), *out = malloc(2 * N);
    assert_true(in && out);
    for (uint32_t i = 0; i < N; i++)
        in[i] = (uint16_t)(exponent_of_unequal_lanes(i) << 7 | i % 128);
    round_trip(BF16, in, N);
    coded c = encode(BF16, in, N);
    const uint8_t *chunk = c.stream + (36 + 12 * 16 + 15) / 16 * 16; /* tile 0 is its first */
    assert_int_equal(chunk[2] | (chunk[3] & 15) << 8, 256);
    assert_int_equal(256 + (chunk[16] << (chunk[3] >> 4)), 8 * 256);
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        memset(out, 0x5a, 2 * N);
        for (uint64_t i = 0; i < N / MP_EXPH_CHUNK; i++)
            mp_exph_decode(exph_decoders[d], c.stream, c.bytes, BF16, N, i, 1, out);
        assert_memory_equal(out, in, 2 * N);
    }
    guarded_free(c.stream, c.bound);
    free(in);
    free(out);
}

/* ---- Sizes ---- */

static void test_exph_keeps_tensors_of_any_size(void **state)
{
    (void)state;
    static const uint64_t around[] = {0, 8, 256, 8192, 16384, 24576, 32768, 40960, 65536};
    for (uint32_t i = 0; i < sizeof around / sizeof *around; i++) {
        for (int64_t more = -9; more <= 9; more++) {
            const int64_t n = (int64_t)around[i] + more;
            if (n < 0)
                continue;
            for (uint32_t d = 0; d < 4; d++) {
                round_trip_of(exph_dtypes[d], EXPH_GAUSSIAN, (uint64_t)n, (uint64_t)n);
                if (n < 300)
                    round_trip_of(exph_dtypes[d], EXPH_TWO, (uint64_t)n, (uint64_t)n);
            }
        }
    }
}

static void test_exph_bound_is_0_for_what_is_not_coded(void **state)
{
    (void)state;
    assert_int_equal(mp_exph_bound(MOEPAGE_DTYPE_F32, 8), 0);
    assert_int_equal(mp_exph_bound(MOEPAGE_DTYPE_NONE, 8), 0);
    assert_int_equal(mp_exph_bound(99, 8), 0);
    assert_int_equal(mp_exph_bound(BF16, (UINT64_C(1) << 40) + 1), 0);
    assert_true(mp_exph_bound(BF16, UINT64_C(1) << 40) > UINT64_C(2) << 40);
    assert_int_equal(mp_exph_bound(BF16, 0), 48);
}

static void test_exph_does_not_need_alignment(void **state)
{
    (void)state;
    enum { N = 9000 };
    exph_random random = exph_random_of(5);
    uint8_t *in = malloc(2 * N), *odd = malloc(2 * N + 1), *out = malloc(2 * N + 3);
    uint8_t *stream = malloc(mp_exph_bound(BF16, N)), *moved = malloc(mp_exph_bound(BF16, N) + 5);
    assert_true(in && odd && out && stream && moved);
    exph_fill(&random, BF16, EXPH_GAUSSIAN, in, N);
    memcpy(odd + 1, in, 2 * N);
    const uint64_t bytes = mp_exph_encode(BF16, in, N, stream);
    assert_int_equal(mp_exph_encode(BF16, odd + 1, N, moved + 5), bytes);
    assert_memory_equal(moved + 5, stream, bytes);
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        memset(out, 0, 2 * N + 3);
        mp_exph_decode(exph_decoders[d], moved + 5, bytes, BF16, N, 0, 1, out + 3);
        assert_memory_equal(out + 3, in, 2 * N);
    }
    free(in);
    free(odd);
    free(out);
    free(stream);
    free(moved);
}

/* ---- Chunks alone ---- */

static void test_exph_decodes_chunks_alone_and_nothing_else(void **state)
{
    (void)state;
    enum { N = 5 * 32768 + 12345, CHUNKS = 6 };
    exph_random random = exph_random_of(11);
    uint16_t *in = malloc(2 * N), *out = malloc(2 * N);
    assert_true(in && out);
    exph_fill(&random, BF16, EXPH_BLOCKS, in, N);
    coded c = encode(BF16, in, N);
    for (uint32_t d = 0; d < n_exph_decoders; d++) {
        for (uint64_t first = 0; first < CHUNKS + 2; first++) {
            for (uint64_t count = 0; count < CHUNKS + 2; count++) {
                uint64_t from = first * MP_EXPH_CHUNK, to = (first + count) * MP_EXPH_CHUNK;
                from = from < N ? from : N;
                to = to < N ? to : N;
                memset(out, 0x5a, 2 * N);
                mp_exph_decode(exph_decoders[d], c.stream, c.bytes, BF16, N, first, count, out);
                assert_memory_equal(out + from, in + from, 2 * (to - from));
                for (uint64_t i = 0; i < N; i++) {
                    if ((i < from || i >= to) && out[i] != 0x5a5a)
                        fail_msg("%s wrote element %llu of chunks %llu to %llu",
                                 mp_exph_decoder_name(exph_decoders[d]), (unsigned long long)i,
                                 (unsigned long long)first, (unsigned long long)(first + count));
                }
            }
        }
    }
    guarded_free(c.stream, c.bound);
    free(in);
    free(out);
}

/* ---- The document ---- */

/* The hexadecimal rows of its example, "0000  01 03 ...". */
static uint64_t example_of_the_document(uint8_t *out, uint64_t room)
{
    char line[256];
    uint64_t n = 0;
    FILE *document = fopen("docs/format-exph.md", "r");
    assert_non_null(document);
    while (fgets(line, sizeof line, document)) {
        unsigned row;
        int used = 0;
        if (sscanf(line, "%4x %n", &row, &used) != 1 || used != 6 || row != n)
            continue;
        for (char *at = line + used, *end; n < room; at = end) {
            const unsigned long byte = strtoul(at, &end, 16);
            if (end == at)
                break;
            out[n++] = (uint8_t)byte;
        }
    }
    fclose(document);
    return n;
}

static void test_exph_example_of_the_document_is_right(void **state)
{
    (void)state;
    static const uint8_t exponents[8] = {0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7e, 0x7e, 0x7d};
    uint16_t in[64], out[64];
    uint8_t written[512];
    for (uint32_t i = 0; i < 64; i++)
        in[i] = (uint16_t)(exponents[i % 8] << 7 | i);
    const uint64_t bytes = example_of_the_document(written, sizeof written);
    assert_int_equal(bytes, 160);
    coded c = encode(BF16, in, 64);
    assert_int_equal(c.bytes, bytes);
    assert_memory_equal(c.stream, written, bytes);
    assert_null(exph_naive_read(written, bytes, BF16, 64, out, NULL));
    assert_memory_equal(out, in, sizeof in);
    guarded_free(c.stream, c.bound);
}

/* ---- Entry points ---- */

static void test_exph_entry_points_encode_and_decode(void **state)
{
    (void)state;
    enum { N = 3000 };
    static uint8_t in[2 * N], out[2 * N], stream[2 * N + 100];
    uint64_t bytes = 0;
    for (uint32_t d = 0; d < 4; d++) {
        exph_random random = exph_random_of(d);
        const uint64_t bound = moepage_exph_bound(exph_dtypes[d], N);
        exph_fill(&random, exph_dtypes[d], EXPH_GAUSSIAN, in, N);
        assert_true(bound <= sizeof stream);
        assert_int_equal(moepage_exph_encode(exph_dtypes[d], in, N, stream, bound, &bytes), 0);
        assert_int_equal(moepage_exph_decode(NULL, exph_dtypes[d], stream, bytes, out, N), 0);
        assert_memory_equal(out, in, N * exph_element_bytes(exph_dtypes[d]));
        assert_int_equal(moepage_exph_decode("portable", exph_dtypes[d], stream, bytes, out, N), 0);
    }
    assert_int_equal(moepage_exph_encode(BF16, NULL, 0, stream, sizeof stream, &bytes), 0);
    assert_int_equal(bytes, 48);
    assert_int_equal(moepage_exph_decode(NULL, BF16, stream, bytes, NULL, 0), 0);
}

static void refused(moepage_status status, moepage_status expected, const char *word)
{
    assert_int_equal(status, expected);
    assert_non_null(strstr(moepage_last_error(), word));
}

static void test_exph_entry_points_refuse_bad_arguments(void **state)
{
    (void)state;
    uint16_t in[8] = {0}, out[8] = {0};
    uint8_t stream[128];
    uint64_t bytes = 7;
    const uint64_t bound = moepage_exph_bound(BF16, 8), many = (UINT64_C(1) << 40) + 1;
    const moepage_status argument = MOEPAGE_E_ARGUMENT;
    refused(moepage_exph_encode(MOEPAGE_DTYPE_F32, in, 8, stream, bound, &bytes), argument,
            "dtype is 1");
    refused(moepage_exph_encode(BF16, in, many, stream, bound, &bytes), argument, "2^40");
    refused(moepage_exph_encode(BF16, NULL, 8, stream, bound, &bytes), argument, "in is NULL");
    refused(moepage_exph_encode(BF16, in, 8, NULL, bound, &bytes), argument, "out is NULL");
    refused(moepage_exph_encode(BF16, in, 8, stream, bound, NULL), argument, "out_bytes");
    refused(moepage_exph_encode(BF16, in, 8, stream, bound - 1, &bytes), argument, "capacity");
    assert_int_equal(bytes, 7);
    assert_int_equal(moepage_exph_encode(BF16, in, 8, stream, bound, &bytes), MOEPAGE_OK);
    refused(moepage_exph_decode("mmx", BF16, stream, bytes, out, 8), MOEPAGE_E_NOT_FOUND, "mmx");
    refused(moepage_exph_decode(NULL, 0, stream, bytes, out, 8), argument, "dtype is 0");
    refused(moepage_exph_decode(NULL, BF16, NULL, bytes, out, 8), argument, "in is NULL");
    refused(moepage_exph_decode(NULL, BF16, stream, bytes, NULL, 8), argument, "out is NULL");
    refused(moepage_exph_decode(NULL, BF16, stream, bytes, out, 7), MOEPAGE_E_FORMAT, "8 elements");
}

static void test_exph_entry_point_leaves_out_alone_when_damaged(void **state)
{
    (void)state;
    uint16_t in[64], out[64];
    uint8_t stream[256];
    uint64_t bytes;
    for (uint32_t i = 0; i < 64; i++)
        in[i] = (uint16_t)((i % 3) << 7);
    assert_int_equal(moepage_exph_encode(BF16, in, 64, stream, sizeof stream, &bytes), 0);
    memset(out, 0x5a, sizeof out);
    stream[bytes - 1] ^= 1;
    refused(moepage_exph_decode(NULL, BF16, stream, bytes, out, 64), MOEPAGE_E_FORMAT, "chunk 0");
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(out[i], 0x5a5a);
}

static void test_exph_finds_decoders_by_name(void **state)
{
    (void)state;
    assert_null(mp_exph_decoder_find("none"));
    assert_string_equal(mp_exph_decoder_name(mp_exph_decoder_find("portable")), "portable");
    assert_ptr_equal(mp_exph_decoder_best(), exph_decoders[n_exph_decoders - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_keeps_every_pattern_of_16_bits),
        cmocka_unit_test(test_exph_keeps_every_pattern_in_coded_chunks),
        cmocka_unit_test(test_exph_keeps_every_pattern_of_8_bits),
        cmocka_unit_test(test_exph_stores_one_exponent_without_bits),
        cmocka_unit_test(test_exph_stores_noise_raw),
        cmocka_unit_test(test_exph_stores_a_chunk_of_escapes),
        cmocka_unit_test(test_exph_pads_lanes_that_differ_much),
        cmocka_unit_test(test_exph_keeps_lanes_of_the_longest_codes_among_the_shortest),
        cmocka_unit_test(test_exph_keeps_tensors_of_any_size),
        cmocka_unit_test(test_exph_bound_is_0_for_what_is_not_coded),
        cmocka_unit_test(test_exph_does_not_need_alignment),
        cmocka_unit_test(test_exph_decodes_chunks_alone_and_nothing_else),
        cmocka_unit_test(test_exph_example_of_the_document_is_right),
        cmocka_unit_test(test_exph_entry_points_encode_and_decode),
        cmocka_unit_test(test_exph_entry_points_refuse_bad_arguments),
        cmocka_unit_test(test_exph_entry_point_leaves_out_alone_when_damaged),
        cmocka_unit_test(test_exph_finds_decoders_by_name),
    };
    return cmocka_run_group_tests(tests, exph_decoders_find, NULL);
}
