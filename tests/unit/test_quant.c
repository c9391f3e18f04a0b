/* Group quantisation by example, byte for byte, and every FP8, E8M0 and MXFP4 number. */

#include <math.h>
#include <string.h>

#include "codec/quant.h"
#include "numbers.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32

/* ---- Layout ---- */

static mp_quant_shape shape_of(uint64_t rows, uint64_t columns, uint32_t bits, uint32_t group)
{
    return (mp_quant_shape){.rows = rows, .columns = columns, .bits = bits, .group = group};
}

static void test_quant_layout_puts_scales_after_whole_rows(void **state)
{
    static const struct {
        mp_quant_shape shape;
        mp_quant_layout layout;
    } cases[] = {
        {{1, 1, 8, 32}, {1, 1, 16, 32}},      {{1, 1, 2, 128}, {1, 1, 16, 32}},
        {{3, 37, 4, 32}, {19, 2, 64, 80}}, /* 57 bytes, then 3 * 2 * 2 */
        {{3, 37, 2, 32}, {10, 2, 32, 48}},    {{2, 64, 8, 64}, {64, 1, 128, 144}},
        {{4, 128, 4, 32}, {64, 4, 256, 288}}, {{768, 2048, 4, 128}, {1024, 16, 786432, 811008}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mp_quant_layout got;
        assert_true(mp_quant_layout_of(&cases[i].shape, &got));
        assert_int_equal(got.row_bytes, cases[i].layout.row_bytes);
        assert_int_equal(got.row_groups, cases[i].layout.row_groups);
        assert_int_equal(got.scale_offset, cases[i].layout.scale_offset);
        assert_int_equal(got.bytes, cases[i].layout.bytes);
    }
}

static void test_quant_layout_refuses_other_shapes(void **state)
{
    const mp_quant_shape bad[] = {
        shape_of(1, 1, 3, 32),
        shape_of(1, 1, 16, 32),
        shape_of(1, 1, 0, 32),
        shape_of(1, 1, 8, 0),
        shape_of(1, 1, 8, 16),
        shape_of(1, 1, 8, 256),
        shape_of(0, 1, 8, 32),
        shape_of(1, 0, 8, 32),
        shape_of(1ull << 24, 1ull << 24, 8, 32), /* 2^48 and the scales */
        shape_of(UINT64_MAX, UINT64_MAX, 2, 128),
        shape_of(UINT64_MAX, 1, 2, 128),
        shape_of(1, UINT64_MAX, 2, 128),
        shape_of(1ull << 32, 1ull << 32, 8, 32), /* 2^64: 0 bytes, if it wrapped */
    };
    const mp_quant_shape large = shape_of(1ull << 23, 1ull << 24, 8, 32);
    mp_quant_layout layout;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mp_quant_layout_of(&bad[i], &layout));
    assert_true(mp_quant_layout_of(&large, &layout));
}

/* ---- Encoding ---- */

static void expect_coded(mp_quant_shape shape, const float *weights, const char *want)
{
    unsigned char out[96];
    mp_quant_layout layout;
    assert_true(mp_quant_layout_of(&shape, &layout));
    assert_true(layout.bytes <= sizeof out);
    memset(out, 0xee, sizeof out);
    for (int search = 0; search < 2; search++) { /* these weights are represented exactly */
        assert_int_equal(mp_quant_encode(&shape, F32, weights, search, out), MOEPAGE_OK);
        assert_memory_equal(out, want, layout.bytes);
        assert_int_equal(out[layout.bytes], 0xee);
        assert_int_equal(mp_quant_check(&shape, out, layout.bytes), MOEPAGE_OK);
    }
    for (uint64_t row = 0; row < shape.rows; row++) {
        float back[40];
        mp_quant_decode_row(&shape, out, row, 0, shape.columns, back);
        for (uint64_t i = 0; i < shape.columns; i++)
            assert_true(back[i] == weights[row * shape.columns + i]);
    }
}

static void test_quant_packs_low_bits_first_and_rows_apart(void **state)
{
    (void)state;
    static const float eights[] = {127, -127, -1, 254, 2, -6};
    expect_coded(shape_of(2, 3, 8, 32), eights,
                 "\x7f\x81\xff\x7f\x01\xfd\0\0\0\0\0\0\0\0\0\0"
                 "\x00\x3c\x00\x40\0\0\0\0\0\0\0\0\0\0\0\0"); /* scales 1 and 2 */
    static const float fours[] = {7, -7, 1, -1, 3, -3.5f, 0, 0.5f, -0.5f, 1};
    expect_coded(shape_of(2, 5, 4, 32), fours,
                 "\x97\xf1\x03\x09\xf1\x02\0\0\0\0\0\0\0\0\0\0"
                 "\x00\x3c\x00\x38\0\0\0\0\0\0\0\0\0\0\0\0"); /* scales 1 and 1/2 */
    static const float twos[] = {1, -1, 0, 1, 1, -4, 4, -4, 0, -4};
    expect_coded(shape_of(2, 5, 2, 32), twos,
                 "\x4d\x01\x37\x03\0\0\0\0\0\0\0\0\0\0\0\0"
                 "\x00\x3c\x00\x44\0\0\0\0\0\0\0\0\0\0\0\0"); /* scales 1 and 4 */
}

/* Three levels, and then four, of scale 2 with a search: 3 is (1 + 1/2) * 2, and -1 (-1 + 1/2) * 2. */
static void test_quant_of_two_bits_has_the_better_levels(void **state)
{
    (void)state;
    const mp_quant_shape shape = shape_of(2, 7, 2, 32);
    static const float weights[] = {2, 0, -2, 0, 0, 2, 0, /**/ 3, 1, -1, -3, 1, 3, -1};
    static const char plain[] = "\x31\x04\xb1\x34\0\0\0\0\0\0\0\0\0\0\0\0"
                                "\x00\x40\x00\xbe\0\0\0\0\0\0\0\0\0\0\0\0"; /* 2 and 3/2 */
    unsigned char out[32];
    float back[7];
    assert_int_equal(mp_quant_encode(&shape, F32, weights, 0, out), MOEPAGE_OK);
    assert_memory_equal(out, plain, 32);
    mp_quant_decode_row(&shape, out, 1, 0, 7, back);
    for (int i = 0; i < 7; i++)
        assert_true(back[i] == 0.75f * weights[7 + i]);
    assert_int_equal(mp_quant_encode(&shape, F32, weights, 1, out), MOEPAGE_OK);
    assert_memory_equal(out, plain, 18);
    assert_memory_equal(out + 18, "\x00\xc0", 2);
    mp_quant_decode_row(&shape, out, 1, 0, 7, back);
    assert_memory_equal(back, weights + 7, sizeof back);
    assert_int_equal(mp_quant_check(&shape, out, 32), MOEPAGE_OK);
}

/* 37 weights: a group of 32 and a short one, which ends amid a byte. */
static void test_quant_gives_a_short_last_group_its_own_scale(void **state)
{
    (void)state;
    float weights[37];
    for (int i = 0; i < 37; i++)
        weights[i] = i < 32 ? 7 : -0.25f;
    weights[36] = 1.75f;
    expect_coded(shape_of(1, 37, 4, 32), weights,
                 "\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77\x77"
                 "\xff\xff\x07\0\0\0\0\0\0\0\0\0\0\0\0\0"
                 "\x00\x3c\x00\x34\0\0\0\0\0\0\0\0\0\0\0\0"); /* scales 1 and 1/4 */
}

static void test_quant_rounds_ties_to_even(void **state)
{
    static const float weights[] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f,
                                    /* next to ties */
                                    0x1.000002p-1f, 0x1.7ffffep0f, -0x1.000002p-1f};
    static const int8_t want[] = {127, 0, 2, 2, 0, -2, -2, 126, 1, 1, -1};
    const mp_quant_shape shape = shape_of(1, 11, 8, 32);
    unsigned char out[32];
    (void)state;
    assert_int_equal(mp_quant_encode(&shape, F32, weights, 0, out), MOEPAGE_OK);
    assert_memory_equal(out, want, sizeof want);
}

static float scale_of(const float *weights, uint64_t n, uint32_t bits, unsigned char *out)
{
    const mp_quant_shape shape = shape_of(1, n, bits, 32);
    mp_quant_layout layout;
    assert_true(mp_quant_layout_of(&shape, &layout));
    assert_int_equal(mp_quant_encode(&shape, F32, weights, 0, out), MOEPAGE_OK);
    return num_get(MOEPAGE_DTYPE_F16, out + layout.scale_offset, 0);
}

static void test_quant_of_zeros_has_no_scale(void **state)
{
    static const float zeros[] = {0, -0.0f, 0};
    unsigned char out[32], nothing[32] = {0};
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2) {
        const mp_quant_shape shape = shape_of(1, 3, bits, 32);
        for (int search = 0; search < 2; search++) {
            memset(out, 0xee, sizeof out);
            assert_int_equal(mp_quant_encode(&shape, F32, zeros, search, out), MOEPAGE_OK);
            assert_memory_equal(out, nothing, sizeof out);
        }
    }
}

static void test_quant_scales_may_be_denormal(void **state)
{
    unsigned char out[32];
    (void)state;
    const float least[] = {0x1p-24f * 127, 0x1p-24f * 63};
    assert_true(scale_of(least, 2, 8, out) == 0x1p-24f);
    assert_int_equal(out[0], 127);
    assert_int_equal(out[1], 63);
    /* Just above: the next scale, of which the weight is 63.5... */
    const float above[] = {num_of_bits(num_bits(0x1p-24f * 127) + 1)};
    assert_true(scale_of(above, 1, 8, out) == 0x1p-23f);
    assert_int_equal(out[0], 64);
    /* Below half of the least scale all are zero, but still within half a scale. */
    const float tiny[] = {0x1p-26f, -0x1p-149f};
    assert_true(scale_of(tiny, 2, 8, out) == 0x1p-24f);
    assert_int_equal(out[0], 0);
    assert_int_equal(out[1], 0);
}

static void expect_refusal(uint32_t dtype, const void *weights, uint32_t bits, const char *words)
{
    const mp_quant_shape shape = shape_of(2, 2, bits, 32);
    unsigned char out[32];
    for (int search = 0; search < 2; search++) {
        assert_int_equal(mp_quant_encode(&shape, dtype, weights, search, out),
                         MOEPAGE_E_UNSUPPORTED);
        assert_non_null(strstr(moepage_last_error(), words));
    }
}

static void test_quant_goes_as_far_as_halves_do(void **state)
{
    static const float tops[] = {1, 7, 127};
    unsigned char out[32];
    (void)state;
    for (int i = 0; i < 3; i++) {
        const uint32_t bits = 2u << i;
        const float largest[] = {65504 * tops[i], -65504 * tops[i]};
        assert_true(scale_of(largest, 2, bits, out) == 65504);
        const float beyond[] = {0, 0, 0, -num_of_bits(num_bits(largest[0]) + 1)};
        expect_refusal(F32, beyond, bits, "row 1");
        const float far[] = {3e38f, 0, 0, 0};
        expect_refusal(F32, far, bits, "3e+38");
    }
}

static void test_quant_refuses_what_is_not_finite(void **state)
{
    (void)state;
    const float nan[] = {0, 1, 2, NAN}, infinite[] = {-INFINITY, 1, 2, 3};
    const uint16_t half[] = {0, 0x7c00, 0, 0}, brain[] = {0, 0, 0x7fc0, 0};
    expect_refusal(F32, nan, 4, "row 1, column 1 is NaN");
    expect_refusal(F32, infinite, 8, "row 0, column 0 is infinite");
    expect_refusal(MOEPAGE_DTYPE_F16, half, 4, "row 0, column 1 is infinite");
    expect_refusal(MOEPAGE_DTYPE_BF16, brain, 2, "row 1, column 0 is NaN");
}

static void test_quant_refuses_other_types_and_shapes(void **state)
{
    static const float weights[4] = {1, 2, 3, 4};
    const mp_quant_shape bad = shape_of(2, 2, 5, 32);
    unsigned char out[32];
    (void)state;
    expect_refusal(MOEPAGE_DTYPE_F8_E4M3, weights, 4, "dtype 4");
    expect_refusal(MOEPAGE_DTYPE_U8, weights, 4, "dtype 7");
    assert_int_equal(mp_quant_encode(&bad, F32, weights, 0, out), MOEPAGE_E_ARGUMENT);
}

/* ---- Checking ---- */

static void test_quant_check_refuses_scales_that_are_not_finite_or_negative(void **state)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7c01, 0xffff,
                                   0x7e00, 0x8000, 0x8001, 0xbc00}; /* and negative ones */
    const mp_quant_shape shape = shape_of(2, 40, 8, 32);
    unsigned char in[112] = {0};
    (void)state;
    memset(in, 0xff, 80); /* any integers in range will do */
    assert_int_equal(mp_quant_check(&shape, in, sizeof in - 16), MOEPAGE_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (uint32_t at = 80; at < 88; at += 2) {
            memcpy(in + at, &bad[i], 2);
            assert_int_equal(mp_quant_check(&shape, in, 96), MOEPAGE_E_FORMAT);
            memset(in + at, 0, 2);
        }
    }
    assert_int_equal(mp_quant_check(&shape, in, 95), MOEPAGE_E_FORMAT);
    assert_int_equal(mp_quant_check(&shape, in, 112), MOEPAGE_E_FORMAT);
    const mp_quant_shape bad_shape = shape_of(2, 40, 7, 32);
    assert_int_equal(mp_quant_check(&bad_shape, in, 96), MOEPAGE_E_FORMAT);
}

/* Of two bits, negative scales stand for four levels; the least integer belongs to those alone. */
static void test_quant_check_knows_groups_of_four_levels(void **state)
{
    static const uint16_t good[] = {0x8001, 0xbc00, 0xfbff},
                          bad[] = {0x8000, 0xfc00, 0xfc01, 0xffff};
    const mp_quant_shape shape = shape_of(2, 40, 2, 32);
    mp_quant_layout layout;
    unsigned char in[48] = {0};
    (void)state;
    assert_true(mp_quant_layout_of(&shape, &layout) && layout.bytes <= sizeof in);
    for (uint64_t group = 0; group < 4; group++) {
        unsigned char *scale = in + layout.scale_offset + 2 * group;
        unsigned char *integers = in + group / 2 * layout.row_bytes + group % 2 * 8;
        integers[1] = 0x80; /* -2 and zeros */
        assert_int_equal(mp_quant_check(&shape, in, layout.bytes), MOEPAGE_E_FORMAT);
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            memcpy(scale, &good[i], 2);
            assert_int_equal(mp_quant_check(&shape, in, layout.bytes), MOEPAGE_OK);
        }
        integers[1] = 0;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            memcpy(scale, &bad[i], 2);
            assert_int_equal(mp_quant_check(&shape, in, layout.bytes), MOEPAGE_E_FORMAT);
        }
        memset(scale, 0, 2);
    }
}

/* Every field of every byte: the least integer of two's complement is refused, all others are not. */
static void test_quant_check_refuses_the_least_integer_anywhere(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2) {
        const mp_quant_shape shape = shape_of(3, 40, bits, 32);
        const unsigned least = 1u << (bits - 1), fields = 1u << bits, per_byte = 8 / bits;
        mp_quant_layout layout;
        unsigned char in[256];
        assert_true(mp_quant_layout_of(&shape, &layout));
        assert_true(layout.bytes <= sizeof in);
        memset(in, 0, sizeof in);
        for (uint64_t i = 0; i < 3 * 40; i++) {
            for (unsigned field = 0; field < fields; field++) {
                in[i / per_byte] = (unsigned char)(field << (i % per_byte * bits));
                moepage_status status = mp_quant_check(&shape, in, layout.bytes);
                assert_int_equal(status, field == least ? MOEPAGE_E_FORMAT : MOEPAGE_OK);
            }
            in[i / per_byte] = 0;
        }
        for (unsigned field = 0; field < fields; field++) { /* whatever its neighbours are */
            memset(in, (int)(field * (255 / (fields - 1))), 3 * layout.row_bytes);
            assert_int_equal(mp_quant_check(&shape, in, layout.bytes),
                             field == least ? MOEPAGE_E_FORMAT : MOEPAGE_OK);
        }
    }
}

static void test_quant_check_refuses_padding_that_is_not_zero(void **state)
{
    (void)state;
    const mp_quant_shape shape = shape_of(3, 37, 4, 32); /* 57 bytes, to 64; 12 of scales, to 80 */
    unsigned char in[80] = {0};
    static const struct {
        uint32_t at;
        unsigned char bit;
        int padding;
    } cases[] = {{18, 0x10, 1}, {37, 0x40, 1}, {56, 0x10, 1}, {56, 0x04, 0}, {57, 1, 1},
                 {63, 0x40, 1}, {64, 1, 0},    {75, 1, 0},    {76, 1, 1},    {79, 0x80, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        in[cases[i].at] = cases[i].bit;
        assert_int_equal(mp_quant_check(&shape, in, sizeof in),
                         cases[i].padding ? MOEPAGE_E_FORMAT : MOEPAGE_OK);
        in[cases[i].at] = 0;
    }
    assert_int_equal(mp_quant_check(&shape, in, sizeof in), MOEPAGE_OK);
}

/* ---- Small floats ---- */

/* 1 sign bit, then exponent, then mantissa, as IEEE numbers without their infinities and NaNs. */
static double closed_form(unsigned bits, int mantissa_bits, int bias)
{
    int exponent = (bits & 0x7f) >> mantissa_bits;
    double fraction = ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
    double value = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return bits & 0x80 ? -value : value;
}

static void expect_number(float got, double want)
{
    if (isnan(want)) {
        assert_true(isnan(got));
        return;
    }
    assert_true((double)got == want);
    assert_int_equal(!signbit(got), !signbit(want));
}

static void test_quant_e4m3_values_are_exact(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 256; bits++)
        expect_number(mp_f8_e4m3_value((uint8_t)bits),
                      (bits & 0x7f) == 0x7f ? NAN : closed_form(bits, 3, 7));
    assert_true(mp_f8_e4m3_value(0x7e) == 448);
    assert_true(mp_f8_e4m3_value(0x01) == 0x1p-9f);
}

static void test_quant_e5m2_values_are_exact(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 256; bits++) {
        double want = closed_form(bits, 2, 15);
        if ((bits & 0x7f) == 0x7c)
            want = bits & 0x80 ? -INFINITY : INFINITY;
        expect_number(mp_f8_e5m2_value((uint8_t)bits), (bits & 0x7f) > 0x7c ? NAN : want);
    }
    assert_true(mp_f8_e5m2_value(0x7b) == 57344);
    assert_true(mp_f8_e5m2_value(0x81) == -0x1p-16f);
}

static void test_quant_e8m0_values_are_powers_of_two(void **state)
{
    (void)state;
    for (int bits = 0; bits < 255; bits++)
        expect_number(mp_f8_e8m0_value((uint8_t)bits), ldexp(1, bits - 127));
    expect_number(mp_f8_e8m0_value(255), NAN);
}

static void test_quant_mxfp4_takes_the_low_nibble_first(void **state)
{
    static const double table[] = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                   -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    static const uint8_t scales[] = {127, 0, 1, 254, 255, 130};
    enum { GROUPS = sizeof scales };
    uint8_t blocks[GROUPS * 16];
    float out[GROUPS * 32];
    (void)state;
    for (int i = 0; i < GROUPS * 16; i++)
        blocks[i] = (uint8_t)((i * 7 + 3) % 16 | (i * 5 + 1) % 16 << 4);
    mp_mxfp4_decode(blocks, scales, GROUPS * 32, out);
    for (int i = 0; i < GROUPS * 32; i++) {
        unsigned nibble = blocks[i / 2] >> (i % 2 * 4) & 15u;
        double scale = scales[i / 32] == 255 ? NAN : ldexp(1, scales[i / 32] - 127);
        double want = table[nibble] * scale;
        expect_number(out[i], fabs(want) >= 0x1p128 ? copysign(INFINITY, want) : want);
    }
}

#if defined(__SSE2__)

/* As in a thread that has denormals flushed, in what it reads and in what it makes. */
static void test_quant_small_floats_are_exact_where_denormals_are_flushed(void **state)
{
    (void)state;
    static const uint8_t scales[] = {0, 1, 2};
    uint8_t blocks[3 * 16];
    float plain[3 * 32], flushed[3 * 32], e8m0;
    memset(blocks, 0x19, sizeof blocks);
    mp_mxfp4_decode(blocks, scales, 3 * 32, plain);
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040);
    mp_mxfp4_decode(blocks, scales, 3 * 32, flushed);
    e8m0 = mp_f8_e8m0_value(0);
    __builtin_ia32_ldmxcsr(before);
    assert_memory_equal(plain, flushed, sizeof plain);
    assert_true(plain[0] == -0x1p-128f && plain[1] == 0x1p-128f);
    assert_true(e8m0 == 0x1p-127f);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quant_layout_puts_scales_after_whole_rows),
        cmocka_unit_test(test_quant_layout_refuses_other_shapes),
        cmocka_unit_test(test_quant_packs_low_bits_first_and_rows_apart),
        cmocka_unit_test(test_quant_of_two_bits_has_the_better_levels),
        cmocka_unit_test(test_quant_gives_a_short_last_group_its_own_scale),
        cmocka_unit_test(test_quant_rounds_ties_to_even),
        cmocka_unit_test(test_quant_of_zeros_has_no_scale),
        cmocka_unit_test(test_quant_scales_may_be_denormal),
        cmocka_unit_test(test_quant_goes_as_far_as_halves_do),
        cmocka_unit_test(test_quant_refuses_what_is_not_finite),
        cmocka_unit_test(test_quant_refuses_other_types_and_shapes),
        cmocka_unit_test(test_quant_check_refuses_scales_that_are_not_finite_or_negative),
        cmocka_unit_test(test_quant_check_knows_groups_of_four_levels),
        cmocka_unit_test(test_quant_check_refuses_the_least_integer_anywhere),
        cmocka_unit_test(test_quant_check_refuses_padding_that_is_not_zero),
        cmocka_unit_test(test_quant_e4m3_values_are_exact),
        cmocka_unit_test(test_quant_e5m2_values_are_exact),
        cmocka_unit_test(test_quant_e8m0_values_are_powers_of_two),
        cmocka_unit_test(test_quant_mxfp4_takes_the_low_nibble_first),
#if defined(__SSE2__)
        cmocka_unit_test(test_quant_small_floats_are_exact_where_denormals_are_flushed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
