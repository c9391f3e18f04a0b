/* Prefix codes of at most 8 bits: none is shorter, and each is canonical and complete. */
#include <string.h>

#include "codec/exph_code.h"
#include "exph_data.h"
#include "exph_naive.h"
#include "testing.h"

static uint64_t cost(const uint64_t *counts, const uint8_t *lengths)
{
    uint64_t bits = 0;
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
        assert_int_equal(counts[s] != 0, lengths[s] != 0);
        bits += counts[s] * lengths[s];
    }
    return bits;
}

static void is_optimal(const uint64_t *counts)
{
    uint8_t lengths[MP_EXPH_SYMBOLS], codes[MP_EXPH_SYMBOLS];
    mp_exph_code_lengths(counts, lengths);
    assert_true(mp_exph_code_assign(lengths, codes));
    assert_int_equal(cost(counts, lengths), exph_naive_fewest_bits(counts, MP_EXPH_SYMBOLS));
}

static void test_exph_code_is_the_shortest(void **state)
{
    (void)state;
    exph_random random = exph_random_of(1);
    for (int round = 0; round < 300; round++) {
        uint64_t counts[MP_EXPH_SYMBOLS] = {0};
        const uint64_t used = 2 + exph_below(&random, 15), spread = exph_below(&random, 30);
        for (uint64_t i = 0; i < used; i++) /* in any places */
            counts[(i * 7 + (uint64_t)round) % 16] = 1 + exph_below(&random, 1ull << spread);
        is_optimal(counts);
    }
}

/* Unlimited, these would have codes of 15 bits. */
static void test_exph_code_is_limited_to_8_bits(void **state)
{
    (void)state;
    uint64_t counts[MP_EXPH_SYMBOLS], fibonacci[MP_EXPH_SYMBOLS] = {1, 1};
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++)
        counts[s] = UINT64_C(1) << (2 * s);
    is_optimal(counts);
    for (uint32_t s = 2; s < MP_EXPH_SYMBOLS; s++)
        fibonacci[s] = fibonacci[s - 1] + fibonacci[s - 2];
    is_optimal(fibonacci);
}

static void test_exph_code_of_equals_is_of_one_length(void **state)
{
    (void)state;
    uint64_t counts[MP_EXPH_SYMBOLS];
    uint8_t lengths[MP_EXPH_SYMBOLS];
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++)
        counts[s] = 1000;
    mp_exph_code_lengths(counts, lengths);
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++)
        assert_int_equal(lengths[s], 4);
}

/* Codes 0, 10, 110, 1110, 1111 in order of length, then of symbol; the first bit is bit 0. */
static void test_exph_code_is_canonical(void **state)
{
    (void)state;
    const uint8_t lengths[MP_EXPH_SYMBOLS] = {4, 1, 3, 0, 4, 0, 2};
    uint8_t codes[MP_EXPH_SYMBOLS];
    assert_true(mp_exph_code_assign(lengths, codes));
    assert_int_equal(codes[1], 0x0);
    assert_int_equal(codes[6], 0x1);
    assert_int_equal(codes[2], 0x3);
    assert_int_equal(codes[0], 0x7);
    assert_int_equal(codes[4], 0xf);
}

static void test_exph_code_must_be_complete(void **state)
{
    (void)state;
    static const uint8_t bad[][MP_EXPH_SYMBOLS] = {
        {0},          {1},          {8},         {1, 2},     {1, 1, 1}, {1, 1, 8},
        {2, 2, 2, 3}, {1, 2, 3, 9}, {1, 1, 9},   {1, 1, 15}, {9, 9},    {1, 2, 3, 4, 5, 6, 7, 8},
        {8, 8, 8, 8}, {3, 3, 3, 3}, {1, 2, 2, 2}};
    uint8_t codes[MP_EXPH_SYMBOLS];
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mp_exph_code_assign(bad[i], codes));
    const uint8_t deepest[MP_EXPH_SYMBOLS] = {1, 2, 3, 4, 5, 6, 7, 8, 8};
    assert_true(mp_exph_code_assign(deepest, codes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_code_is_the_shortest),
        cmocka_unit_test(test_exph_code_is_limited_to_8_bits),
        cmocka_unit_test(test_exph_code_of_equals_is_of_one_length),
        cmocka_unit_test(test_exph_code_is_canonical),
        cmocka_unit_test(test_exph_code_must_be_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
