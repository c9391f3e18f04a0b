/* Block formats: values as the format's own package computes them (tests/data/blocks), as a decoder in
 * double arithmetic written from docs/format-blocks.md does, and the sizes of tensors of blocks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codec/blocks.h"
#include "model/dtype.h"
#include "model/shape.h"
#include "numbers.h"
#include "testing.h"

/* As GGUF's specification numbers and sizes them, and docs/format-blocks.md those that it has not. */
#define NO_TYPE UINT32_MAX
static const struct {
    const char *name;
    uint32_t dtype, ggml_type, weights, bytes;
} published[] = {
    {"Q4_0", 16, 2, 32, 2 + 16},
    {"Q4_1", 17, 3, 32, 2 + 2 + 16},
    {"Q5_0", 18, 6, 32, 2 + 4 + 16},
    {"Q5_1", 19, 7, 32, 2 + 2 + 4 + 16},
    {"Q8_0", 20, 8, 32, 2 + 32},
    {"Q2_K", 21, 10, 256, 16 + 64 + 2 + 2},
    {"Q3_K", 22, 11, 256, 32 + 64 + 12 + 2},
    {"Q4_K", 23, 12, 256, 2 + 2 + 12 + 128},
    {"Q5_K", 24, 13, 256, 2 + 2 + 12 + 32 + 128},
    {"Q6_K", 25, 14, 256, 128 + 64 + 16 + 2},
    {"IQ4_NL", 26, 20, 32, 2 + 16},
    {"IQ4_XS", 27, 23, 256, 2 + 2 + 4 + 128},
    {"MXFP4", 28, 39, 32, 1 + 16},
    {"NVFP4", 29, 40, 64, 4 + 32},
    {"W4G32_F16", 30, NO_TYPE, 32, 4 + 16},
    {"W4G64_F16", 31, NO_TYPE, 64, 4 + 32},
    {"W4G128_F16", 32, NO_TYPE, 128, 4 + 64},
    {"W4G32_BF16", 33, NO_TYPE, 32, 4 + 16},
    {"W4G64_BF16", 34, NO_TYPE, 64, 4 + 32},
    {"W4G128_BF16", 35, NO_TYPE, 128, 4 + 64},
    {"NVFP4G64_F32", 36, NO_TYPE, 64, 4 + 4 + 32},
    {"NVFP4G128_F32", 37, NO_TYPE, 128, 4 + 8 + 64},
    {"NVFP4G256_F32", 38, NO_TYPE, 256, 4 + 16 + 128},
};
enum { N_FORMATS = sizeof published / sizeof *published, MAX_WEIGHTS = 256, MAX_BYTES = 210 };

static void test_blocks_have_their_published_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const mp_block_format *format = mp_block_format_of(published[i].dtype);
        assert_non_null(format);
        assert_ptr_equal(mp_block_format_of_ggml(published[i].ggml_type),
                         published[i].ggml_type == NO_TYPE ? NULL : format);
        assert_string_equal(format->name, published[i].name);
        assert_int_equal(format->dtype, published[i].dtype);
        assert_int_equal(format->ggml_type, published[i].ggml_type);
        assert_int_equal(format->weights, published[i].weights);
        assert_int_equal(format->bytes, published[i].bytes);
    }
}

static void test_blocks_of_other_types_are_unknown(void **state)
{
    (void)state;
    for (uint32_t dtype = 0; dtype < 70; dtype++)
        assert_true((mp_block_format_of(dtype) != NULL) == (dtype >= 16 && dtype <= 38));
    static const uint32_t others[] = {0, 1, 4, 5, 9, 15, 16, 24, 30, 34, 38, 41, UINT32_MAX};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_null(mp_block_format_of_ggml(others[i]));
    assert_null(mp_block_format_of(UINT32_MAX));
}

/* ---- against the format's package ---- */

enum { SAVED = 16, PLAIN = 4 };

/* A NaN's bits are not specified. */
static uint32_t saved_bits(float value)
{
    return isnan(value) ? 0x7fc00000u : num_bits(value);
}

static uint64_t checksum(const float *values, uint32_t n)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < 4 * n; i++)
        sum = (sum ^ (saved_bits(values[i / 4]) >> i % 4 * 8 & 255u)) * 0x100000001b3u;
    return sum;
}

/* Bytes of a format's file: of every block, what README.md there lists. */
static uint32_t open_saved(const mp_block_format *format, uint8_t *saved)
{
    char path[64];
    snprintf(path, sizeof path, "tests/data/blocks/%s.bin", format->name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    const uint32_t each = format->bytes + 8 + 4 * PLAIN;
    assert_int_equal(fread(saved, each, SAVED + 1, file), SAVED);
    assert_int_equal(ftell(file), each * SAVED);
    fclose(file);
    return each;
}

static void expect_saved(const mp_block_format *format, const uint8_t *saved, const float *values)
{
    uint64_t sum;
    uint32_t plain[PLAIN];
    memcpy(&sum, saved, sizeof sum);
    memcpy(plain, saved + sizeof sum, sizeof plain);
    for (uint32_t i = 0; i < PLAIN; i++) {
        const uint32_t at = i * (format->weights + 1) / PLAIN;
        if (saved_bits(values[at]) != plain[i])
            fail_msg("%s: weight %u is %a, it must be %a", format->name, at, (double)values[at],
                     (double)num_of_bits(plain[i]));
    }
    if (checksum(values, format->weights) != sum)
        fail_msg("%s: a value differs", format->name);
}

/* Blocks one by one, and all at once from an odd address up to the end of their memory. */
static void test_blocks_have_the_values_of_the_formats_package(void **state)
{
    (void)state;
    static uint8_t saved[(SAVED + 1) * (MAX_BYTES + 8 + 4 * PLAIN)];
    for (size_t f = 0; f < N_FORMATS; f++) {
        const mp_block_format *format = mp_block_format_of(published[f].dtype);
        const uint32_t each = open_saved(format, saved);
        const uint64_t in_bytes = SAVED * format->bytes, n = SAVED * format->weights;
        uint8_t *in = guarded_alloc(in_bytes), *odd = guarded_alloc(in_bytes + 1);
        float *out = guarded_alloc(n * sizeof *out), *one = guarded_alloc(n / SAVED * sizeof *one);
        for (uint32_t b = 0; b < SAVED; b++) {
            memcpy(in + b * format->bytes, saved + b * each, format->bytes);
            mp_block_decode(format, saved + b * each, 1, one);
            expect_saved(format, saved + b * each + format->bytes, one);
        }
        memcpy(odd, in, in_bytes);
        for (uint32_t turn = 0; turn < 2; turn++) {
            memset(out, 0xee, n * sizeof *out);
            mp_block_decode(format, turn ? odd : in, SAVED, out);
            for (uint32_t b = 0; b < SAVED; b++)
                expect_saved(format, saved + b * each + format->bytes, out + b * format->weights);
        }
        guarded_free(in, in_bytes), guarded_free(odd, in_bytes + 1);
        guarded_free(out, n * sizeof *out), guarded_free(one, n / SAVED * sizeof *one);
    }
}

static void test_blocks_are_decoded_by_the_public_call(void **state)
{
    (void)state;
    static uint8_t saved[(SAVED + 1) * (MAX_BYTES + 8 + 4 * PLAIN)];
    for (size_t f = 0; f < N_FORMATS; f++) {
        const mp_block_format *format = mp_block_format_of(published[f].dtype);
        const uint32_t n = published[f].weights, bytes = published[f].bytes;
        float *out = guarded_alloc(n * sizeof *out);
        open_saved(format, saved);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, saved, bytes, out, n),
                         MOEPAGE_OK);
        expect_saved(format, saved + bytes, out);
        memset(out, 0xee, n * sizeof *out);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, saved, bytes, out, n - 1),
                         MOEPAGE_E_ARGUMENT);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, saved, bytes - 1, out, n),
                         MOEPAGE_E_ARGUMENT);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, saved, 2 * bytes, out, n),
                         MOEPAGE_E_ARGUMENT);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, NULL, bytes, out, n),
                         MOEPAGE_E_ARGUMENT);
        assert_int_equal(num_bits(out[0]), 0xeeeeeeee);
        assert_int_equal(moepage_blocks_decode(published[f].dtype, NULL, 0, NULL, 0), MOEPAGE_OK);
        guarded_free(out, n * sizeof *out);
    }
    float one;
    assert_int_equal(moepage_blocks_decode(MOEPAGE_DTYPE_F16, saved, 2, &one, 1),
                     MOEPAGE_E_ARGUMENT);
}

static void test_blocks_write_nothing_for_no_blocks(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        float out = 7;
        mp_block_decode(mp_block_format_of(published[f].dtype), NULL, 0, &out);
        assert_true(out == 7);
    }
}

/* ---- against the page that describes them ---- */

static double half(const uint8_t *b)
{
    const int bits = b[0] + 256 * b[1], exponent = bits / 1024 % 32, mantissa = bits % 1024;
    const double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -value : value;
}

static int nibbles(const uint8_t *p, int r, int i)
{
    const int k = i / (2 * r) * r + i % r;
    return i / r % 2 ? p[k] / 16 : p[k] % 16;
}

static int pairs(const uint8_t *p, int i)
{
    static const int shifts[] = {1, 4, 16, 64};
    return p[i / 128 * 32 + i % 32] / shifts[i % 128 / 32] % 4;
}

static int bits(const uint8_t *p, int i)
{
    return p[i % 32] / (1 << i / 32) % 2;
}

static double q4_1(const uint8_t *b, int i)
{
    return half(b) * nibbles(b + 4, 16, i) + half(b + 2);
}

static double q5_0(const uint8_t *b, int i)
{
    return half(b) * (nibbles(b + 6, 16, i) + 16 * (b[2 + i / 8] / (1 << i % 8) % 2) - 16);
}

static double q2_k(const uint8_t *b, int i)
{
    const int c = b[i / 16];
    return half(b + 80) * (c % 16) * pairs(b + 16, i) - half(b + 82) * (c / 16);
}

static double q3_k(const uint8_t *b, int i)
{
    const uint8_t *c = b + 96;
    const int g = i / 16, low = g < 8 ? c[g] % 16 : c[g - 8] / 16;
    static const int shifts[] = {1, 4, 16, 64};
    const int s = low + 16 * (c[8 + g % 4] / shifts[g / 4] % 4);
    return half(b + 108) * (s - 32) * (pairs(b + 32, i) + 4 * bits(b, i) - 4);
}

static int k4_scale(const uint8_t *c, int g)
{
    return g < 4 ? c[g] % 64 : c[4 + g] % 16 + 16 * (c[g - 4] / 64);
}

static int k4_minimum(const uint8_t *c, int g)
{
    return g < 4 ? c[4 + g] % 64 : c[4 + g] / 16 + 16 * (c[g] / 64);
}

static double q4_k(const uint8_t *b, int i)
{
    const int s = k4_scale(b + 4, i / 32), t = k4_minimum(b + 4, i / 32);
    return half(b) * s * nibbles(b + 16, 32, i) - half(b + 2) * t;
}

static double q5_k(const uint8_t *b, int i)
{
    const int s = k4_scale(b + 4, i / 32), t = k4_minimum(b + 4, i / 32);
    return half(b) * s * (nibbles(b + 48, 32, i) + 16 * bits(b + 16, i)) - half(b + 2) * t;
}

static double q6_k(const uint8_t *b, int i)
{
    const int s = b[192 + i / 16] < 128 ? b[192 + i / 16] : b[192 + i / 16] - 256;
    return half(b + 208) * s * (nibbles(b, 64, i) + 16 * pairs(b + 128, i) - 32);
}

static double iq4_xs(const uint8_t *b, int i)
{
    static const int v[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
    const int g = i / 32, c = b[4 + g / 2], a = b[2] + 256 * b[3];
    const int s = (g % 2 ? c / 16 : c % 16) + 16 * (a / (1 << 2 * g) % 4);
    return half(b) * (s - 32) * v[nibbles(b + 8, 16, i)];
}

static double e2m1(int q)
{
    static const double v[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return q < 8 ? v[q] : 0 - v[q - 8];
}

static double mxfp4(const uint8_t *b, int i)
{
    return ldexp(e2m1(nibbles(b + 1, 16, i)), b[0] - 127);
}

static double e4m3(int byte)
{
    const int x = byte % 128 / 8, y = byte % 8;
    return byte == 127 ? 0 : x ? ldexp(8 + y, x - 10) : ldexp(y, -9);
}

static double nvfp4(const uint8_t *b, int i)
{
    return e4m3(b[i / 16]) * e2m1(nibbles(b + 4 + i / 16 * 8, 8, i % 16));
}

/* The scale is rounded to a float; a double divides exactly enough for that. */
static double nvfp4g(const uint8_t *b, int i, int weights)
{
    const uint32_t bits = b[0] + 256u * b[1] + 65536u * b[2] + 16777216u * b[3];
    const double d = (double)num_of_bits(bits), f = e4m3(b[4 + i / 16]);
    const float scale = (float)(d < 0 ? f / -d : f * d);
    return (double)scale * e2m1(nibbles(b + 4 + weights / 16 + i / 16 * 8, 8, i % 16));
}

static double nvfp4g64(const uint8_t *b, int i)
{
    return nvfp4g(b, i, 64);
}

static double nvfp4g128(const uint8_t *b, int i)
{
    return nvfp4g(b, i, 128);
}

static double nvfp4g256(const uint8_t *b, int i)
{
    return nvfp4g(b, i, 256);
}

/* The type that a product is rounded to is not the float's: half, and of BF16 the upper half of one. */
static double to_half(double value)
{
    const double least = ldexp(1, -24),
                 step = fabs(value) < ldexp(1, -14) ? least : ldexp(1, ilogb(value) - 10);
    const double near = nearbyint(value / step) * step;
    return fabs(near) > 65504 ? copysign(INFINITY, value) : near;
}

static double to_bf16(double value)
{
    const double step = fabs(value) < ldexp(1, -126) ? ldexp(1, -133) : ldexp(1, ilogb(value) - 7);
    return nearbyint(value / step) * step;
}

static double bf16(const uint8_t *b)
{
    const int bits = b[0] + 256 * b[1], exponent = bits / 128 % 256, mantissa = bits % 128;
    const double value = exponent ? ldexp(128 + mantissa, exponent - 134) : ldexp(mantissa, -133);
    return bits & 0x8000 ? -value : value;
}

static double w4_f16(const uint8_t *b, int i)
{
    return to_half(half(b) * (nibbles(b + 4, 16, i) - b[2] % 16));
}

static double w4_bf16(const uint8_t *b, int i)
{
    return to_bf16(bf16(b) * (nibbles(b + 4, 16, i) - b[2] % 16));
}

static const struct {
    uint32_t dtype;
    double (*value)(const uint8_t *block, int i);
    int halves[3]; /* where they are; -1: no more */
} naive[] = {
    {MOEPAGE_DTYPE_Q4_1, q4_1, {0, 2, -1}},
    {MOEPAGE_DTYPE_Q5_0, q5_0, {0, -1}},
    {MOEPAGE_DTYPE_Q2_K, q2_k, {80, 82, -1}},
    {MOEPAGE_DTYPE_Q3_K, q3_k, {108, -1}},
    {MOEPAGE_DTYPE_Q4_K, q4_k, {0, 2, -1}},
    {MOEPAGE_DTYPE_Q5_K, q5_k, {0, 2, -1}},
    {MOEPAGE_DTYPE_Q6_K, q6_k, {208, -1}},
    {MOEPAGE_DTYPE_IQ4_XS, iq4_xs, {0, -1}},
    {MOEPAGE_DTYPE_MXFP4, mxfp4, {-1}},
    {MOEPAGE_DTYPE_NVFP4, nvfp4, {-1}},
    {MOEPAGE_DTYPE_W4G32_F16, w4_f16, {0, -1}},
    {MOEPAGE_DTYPE_W4G64_F16, w4_f16, {0, -1}},
    {MOEPAGE_DTYPE_W4G128_F16, w4_f16, {0, -1}},
    {MOEPAGE_DTYPE_W4G32_BF16, w4_bf16, {0, -1}},
    {MOEPAGE_DTYPE_W4G64_BF16, w4_bf16, {0, -1}},
    {MOEPAGE_DTYPE_W4G128_BF16, w4_bf16, {0, -1}},
    {MOEPAGE_DTYPE_NVFP4G64_F32, nvfp4g64, {-1}},
    {MOEPAGE_DTYPE_NVFP4G128_F32, nvfp4g128, {-1}},
    {MOEPAGE_DTYPE_NVFP4G256_F32, nvfp4g256, {-1}},
};

/* Random bytes; infinite and NaN halves are made finite, and factors 2^-63 to 2^65 of either sign. */
static void draw(size_t f, const mp_block_format *format, uint8_t *block)
{
    for (uint32_t i = 0; i < format->bytes; i++)
        block[i] = (uint8_t)(num_random_bits() >> 13);
    for (int h = 0; naive[f].halves[h] >= 0; h++)
        if ((block[naive[f].halves[h] + 1] & 0x7c) == 0x7c)
            block[naive[f].halves[h] + 1] ^= 0x40;
    if (format->dtype >= MOEPAGE_DTYPE_NVFP4G64_F32)
        block[3] = (uint8_t)((block[3] & 0x9f) | (block[3] & 0x40 ? 0x40 : 0x20));
}

/* The double is exact: at most 51 bits, or one product of a table's value. It rounds once, as the
 * library may. */
static void test_blocks_have_the_values_that_their_page_says(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof naive / sizeof *naive; f++) {
        const mp_block_format *format = mp_block_format_of(naive[f].dtype);
        uint8_t block[MAX_BYTES];
        float out[MAX_WEIGHTS];
        for (uint32_t round = 0; round < 500; round++) {
            draw(f, format, block);
            mp_block_decode(format, block, 1, out);
            for (uint32_t i = 0; i < format->weights; i++) {
                const float value = (float)naive[f].value(block, (int)i);
                if (out[i] != value)
                    fail_msg("%s: weight %u is %a, it must be %a", format->name, i, (double)out[i],
                             (double)value);
            }
        }
    }
}

/* ---- tensors of blocks ---- */

static bool bytes_of(uint32_t dtype, uint32_t rank, uint64_t a, uint64_t b, uint64_t c,
                     uint64_t *out)
{
    const uint64_t shape[] = {a, b, c};
    *out = 12345;
    return mp_shape_bytes(dtype, rank, shape, out);
}

static void test_blocks_fill_a_tensor_by_its_last_dimension(void **state)
{
    (void)state;
    uint64_t bytes;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const uint32_t dtype = published[i].dtype, n = published[i].weights;
        assert_true(bytes_of(dtype, 1, n, 0, 0, &bytes) && bytes == published[i].bytes);
        assert_true(bytes_of(dtype, 2, 5, 3 * n, 0, &bytes) && bytes == 15 * published[i].bytes);
        assert_true(bytes_of(dtype, 3, 7, 5, 2 * n, &bytes) && bytes == 70 * published[i].bytes);
        assert_int_equal(mp_dtype_weights(dtype, bytes), 70 * n);
        assert_true(bytes_of(dtype, 2, 0, n, 0, &bytes) && bytes == 0);
        assert_string_equal(mp_dtype_name(dtype), published[i].name);
        assert_int_equal(mp_dtype_bytes(dtype), 0);
        assert_true(mp_dtype_is_stored(dtype));
        assert_int_equal(published[i].bytes % mp_dtype_align(dtype), 0);
    }
}

static void test_blocks_refuse_tensors_that_they_do_not_fill(void **state)
{
    (void)state;
    uint64_t bytes;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const uint32_t dtype = published[i].dtype, n = published[i].weights;
        assert_false(bytes_of(dtype, 0, n, n, n, &bytes));
        assert_false(bytes_of(dtype, 1, n - 1, 0, 0, &bytes));
        assert_false(bytes_of(dtype, 1, n / 2, 0, 0, &bytes));
        assert_false(bytes_of(dtype, 2, n, n + 1, 0, &bytes)); /* whole blocks only in sum */
        assert_false(bytes_of(dtype, 2, n, 1, 0, &bytes));
        assert_false(bytes_of(dtype, 1, UINT64_MAX, 0, 0, &bytes));
        assert_false(bytes_of(dtype, 2, UINT64_MAX, n, 0, &bytes));
        assert_false(bytes_of(dtype, 3, 1ull << 32, 1ull << 32, n, &bytes));
        assert_false(bytes_of(dtype, 3, 1ull << 32, 1ull << 31, n, &bytes));
        assert_int_equal(bytes, 12345);
    }
    /* As many blocks as there are weights in 2^64: the product of the dimensions overflows, the
     * bytes do not. */
    assert_true(bytes_of(MOEPAGE_DTYPE_Q4_K, 2, 1ull << 32, 1ull << 32, 0, &bytes));
    assert_true(bytes == 144ull << 56);
}

static void test_blocks_leave_other_dtypes_as_they_were(void **state)
{
    (void)state;
    static const uint32_t none[] = {0, 11, 12, 13, 14, 15, 39, 40, UINT32_MAX};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_false(bytes_of(none[i], 1, 256, 0, 0, &bytes));
        assert_false(mp_dtype_is_stored(none[i]));
        assert_int_equal(mp_dtype_weights(none[i], 256), 0);
        assert_string_equal(mp_dtype_name(none[i]), "no dtype");
    }
    assert_true(bytes_of(MOEPAGE_DTYPE_BF16, 0, 0, 0, 0, &bytes) && bytes == 2);
    assert_true(bytes_of(MOEPAGE_DTYPE_F32, 2, 3, 5, 0, &bytes) && bytes == 60);
    assert_int_equal(mp_dtype_weights(MOEPAGE_DTYPE_F32, 60), 15);
    assert_int_equal(mp_dtype_align(MOEPAGE_DTYPE_I64), 8);
    assert_false(bytes_of(MOEPAGE_DTYPE_F32, 2, 1ull << 32, 1ull << 32, 0, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_have_their_published_sizes),
        cmocka_unit_test(test_blocks_of_other_types_are_unknown),
        cmocka_unit_test(test_blocks_have_the_values_of_the_formats_package),
        cmocka_unit_test(test_blocks_are_decoded_by_the_public_call),
        cmocka_unit_test(test_blocks_write_nothing_for_no_blocks),
        cmocka_unit_test(test_blocks_have_the_values_that_their_page_says),
        cmocka_unit_test(test_blocks_fill_a_tensor_by_its_last_dimension),
        cmocka_unit_test(test_blocks_refuse_tensors_that_they_do_not_fill),
        cmocka_unit_test(test_blocks_leave_other_dtypes_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
