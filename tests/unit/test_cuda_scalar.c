/* Numbers in kernels: narrow types bit for bit, e^x and its sums to a bound. */

#include <math.h>

#include "kernels/scalar.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

/* Sign, exponent and digits as the formats define them. */
static double half_value(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31), digits = (int)(bits & 1023);
    double value = exponent ? ldexp(1024 + digits, exponent - 25) : ldexp(digits, -24);
    if (exponent == 31)
        value = digits ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
}

static void test_cuda_scalar_reads_every_half_exactly(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float got = mp_scalar_from_f16((uint16_t)bits);
        const double want = half_value(bits);
        assert_true(isnan(want) ? isnan(got) : got == want);
        assert_true(isnan(want) || !signbit(got) == !signbit(want));
        assert_true(isnan(want) || mp_scalar_to_f16(got) == bits);
    }
}

/* The nearest half by search: of the two around x the nearer, of two as near the even one. */
static uint32_t nearest_half(double x)
{
    const double magnitude = fabs(x);
    uint32_t low = 0;
    for (uint32_t step = 1u << 14; step; step /= 2)
        if (low + step < 0x7c00 && half_value(low + step) <= magnitude)
            low += step;
    const double next = low == 0x7bff ? 65536 : half_value(low + 1);
    const double below = magnitude - half_value(low), above = next - magnitude;
    low += above < below || (above == below && low % 2);
    return low | (signbit(x) ? 0x8000u : 0);
}

static void test_cuda_scalar_rounds_to_the_nearest_half(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60000; i++) {
        /* Exponents around those of halves; digits random, or a tie. */
        const uint32_t exponent = 127 - 27 + num_random_bits() % 45;
        uint32_t digits = num_random_bits() & 0x7fffff;
        if (i % 3 == 0)
            digits = (digits & ~0x1fffu) | 0x1000u;
        const float x = num_of_bits((num_random_bits() & 1u) << 31 | exponent << 23 | digits);
        assert_int_equal(mp_scalar_to_f16(x),
                         fabsf(x) >= 65536 ? 0x7c00u | (x < 0 ? 0x8000u : 0) : nearest_half(x));
    }
    assert_int_equal(mp_scalar_to_f16(-INFINITY), 0xfc00);
    assert_true(isnan(half_value(mp_scalar_to_f16(NAN))));
}

static void test_cuda_scalar_rounds_to_the_nearest_bf16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t bits = num_random_bits();
        if (i % 3 == 0)
            bits = (bits & ~0xffffu) | 0x8000u;
        const float x = num_of_bits(bits);
        const float got = mp_scalar_from_bf16(mp_scalar_to_bf16(x));
        if (isnan(x)) {
            assert_true(isnan(got));
            continue;
        }
        /* The two around x are x with its low digits cut off, and the next. */
        const float low = num_of_bits(bits & 0xffff0000u), next = num_of_bits((bits | 0xffffu) + 1);
        const double below = fabs((double)x - low);
        const double above =
            isinf(next) ? fabs(ldexp(1, 128) - fabs((double)x)) : fabs((double)next - x);
        const int up = above < below || (above == below && (bits >> 16 & 1u));
        assert_true(isinf(x) ? got == x : got == (up ? next : low));
    }
}

/* In units in the last place of a normal number, or of the smallest there is. */
static double ulps(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs(got - want) / ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

static void test_cuda_scalar_exponentials_are_within_two_ulps(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = 0; x > -104; x -= 0.00037f) {
        const double off = ulps(mp_scalar_exp(x), exp((double)x));
        worst = off > worst ? off : worst;
    }
    assert_true(worst < 2);
    assert_true(mp_scalar_exp(0) == 1);
    assert_true(mp_scalar_exp(-0.0f) == 1);
    assert_true(mp_scalar_exp(-104.5f) == 0);
    assert_true(mp_scalar_exp(-1e30f) == 0);
    assert_true(mp_scalar_exp(-INFINITY) == 0);
    assert_true(isnan(mp_scalar_exp(NAN)));
}

static void test_cuda_scalar_sigmoids_are_within_four_ulps(void **state)
{
    (void)state;
    for (float x = -86; x < 86; x += 0.0113f)
        assert_true(ulps(mp_scalar_sigmoid(x), 1 / (1 + exp(-(double)x))) < 4);
    assert_true(mp_scalar_sigmoid(INFINITY) == 1);
    assert_true(mp_scalar_sigmoid(-INFINITY) == 0);
    assert_true(mp_scalar_sigmoid(0) == 0.5f);
    assert_true(isnan(mp_scalar_sigmoid(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_scalar_reads_every_half_exactly),
        cmocka_unit_test(test_cuda_scalar_rounds_to_the_nearest_half),
        cmocka_unit_test(test_cuda_scalar_rounds_to_the_nearest_bf16),
        cmocka_unit_test(test_cuda_scalar_exponentials_are_within_two_ulps),
        cmocka_unit_test(test_cuda_scalar_sigmoids_are_within_four_ulps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
