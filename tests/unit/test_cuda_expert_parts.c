/* What the expert kernels are made of: the matrix instruction's fragments, operands of every type
 * of weights, and SwiGLU. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/experts.h"
#include "moepage.h"
#include "numbers.h"
#include "reference.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16
#define F8 MOEPAGE_DTYPE_F8_E4M3

static uint32_t below(uint32_t n)
{
    return num_random_bits() % n;
}

/* ---- The instruction ---- */

/* The PTX ISA's picture the other way round: where an element is, not what a register holds. */
typedef struct place {
    uint32_t lane, word, half;
} place;

static place place_of_a(uint32_t row, uint32_t k)
{
    return (place){row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2};
}

static place place_of_b(uint32_t k, uint32_t column)
{
    return (place){column * 4 + k % 8 / 2, k / 8, k % 2};
}

typedef struct lane_data {
    uint32_t a[4], b[2];
    float d[4];
} lane_data;

static void multiply(MP_LANES_PARAMETERS(lane_data))
{
    MP_LANES_MMA(lane_data, own->d, own->a[0], own->a[1], own->a[2], own->a[3], own->b[0],
                 own->b[1]);
}

/* Small integers: every sum is exact. */
static void test_mma_fragments_are_the_matrices_of_the_instruction(void **state)
{
    (void)state;
    lane_data lanes[32] = {0};
    int a[16][16], b[16][8], d[16][8];
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t k = 0; k < 16; k++) {
            place at = place_of_a(row, k);
            a[row][k] = (int)below(100) - 50;
            lanes[at.lane].a[at.word] |= num_bits((float)a[row][k]) >> 16 << at.half * 16;
        }
        for (uint32_t n = 0; n < 8; n++) {
            place at = place_of_b(row, n);
            b[row][n] = (int)below(100) - 50;
            lanes[at.lane].b[at.word] |= num_bits((float)b[row][n]) >> 16 << at.half * 16;
            d[row][n] = (int)below(1000);
            lanes[row % 8 * 4 + n / 2].d[row / 8 * 2 + n % 2] = (float)d[row][n];
        }
    }
    multiply(lanes, below(32));
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t n = 0; n < 8; n++) {
            for (uint32_t k = 0; k < 16; k++)
                d[row][n] += a[row][k] * b[k][n];
            assert_true(lanes[row % 8 * 4 + n / 2].d[row / 8 * 2 + n % 2] == (float)d[row][n]);
        }
    }
}

/* ---- Operands ---- */

static void test_f8_weights_are_exact(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 256; i++) {
        const uint8_t code = (uint8_t)i;
        const float got = mp_experts_from_f8(i), want = (float)reference_load(&code, 0, F8);
        assert_true(num_same(got, want));
    }
}

#define LENGTH 24u

/* A row of weights, with block scales of F8 whose columns are `columns`. */
typedef struct weights {
    uint32_t dtype;
    mp_gpu_experts_args args;
    _Alignas(16) unsigned char bytes[LENGTH * 4];
    float scales[LENGTH];
    double value[LENGTH]; /* in FP32 */
} weights;

static void random_weights(weights *w, uint32_t dtype, uint32_t columns)
{
    *w = (weights){.dtype = dtype, .args = {.scale_dtype = F32, .scale_columns = columns}};
    for (uint32_t i = 0; i < LENGTH; i++) {
        w->scales[i] = num_random();
        if (dtype == F8)
            do
                w->bytes[i] = (unsigned char)below(256);
            while ((w->bytes[i] & 0x7f) == 0x7f);
        else
            reference_store(w->bytes, i, dtype, num_random());
    }
    for (uint32_t i = 0; i < LENGTH; i++) {
        w->value[i] = reference_load(w->bytes, i, dtype);
        if (dtype == F8)
            w->value[i] = (float)(w->value[i] * (double)w->scales[i / columns]);
    }
}

/* Operands of elements [k, k + 8), of which those from `limit` on are zeros. */
static void check_operands(const weights *w, uint32_t aligned, uint32_t k, uint32_t limit)
{
    const mp_experts_row row = {(const char *)w->bytes,
                                w->dtype == F8 ? (const char *)w->scales : NULL};
    mp_experts_raw raw;
    uint32_t narrow[4];
    float wide[8];
    memset(&raw, 0xff, sizeof raw);
    mp_experts_fetch(w->dtype, aligned, &w->args, &row, k, limit, &raw);
    mp_experts_operand(w->dtype, aligned, &raw, narrow);
    mp_experts_floats(w->dtype, aligned, &raw, wide);
    for (uint32_t i = 0; i < 8; i++) {
        const double want = k + i < limit ? w->value[k + i] : 0;
        const uint16_t got = (uint16_t)(narrow[i / 2] >> i % 2 * 16);
        assert_true(wide[i] == want);
        assert_true(reference_load(&got, 0, BF16) == reference_round(want, BF16));
    }
}

static void test_operands_are_exact_or_rounded_once(void **state)
{
    (void)state;
    static const uint32_t dtypes[] = {F32, MOEPAGE_DTYPE_F16, BF16, F8};
    for (uint32_t c = 0; c < 40; c++) {
        weights w;
        random_weights(&w, dtypes[c % 4], 8);
        for (uint32_t k = 0; k <= LENGTH; k += 8) {
            check_operands(&w, 1, k, LENGTH);
            check_operands(&w, 1, k, LENGTH - 8);
        }
        random_weights(&w, dtypes[c % 4], 1 + below(10));
        for (uint32_t k = 0; k <= LENGTH; k++)
            check_operands(&w, 0, k, k < LENGTH - 8 ? LENGTH - below(8) : LENGTH);
    }
}

static void test_activations_end_in_zeros(void **state)
{
    (void)state;
    _Alignas(16) uint16_t x[24];
    for (uint32_t i = 0; i < 24; i++)
        x[i] = (uint16_t)(i + 1);
    for (uint32_t c = 0; c < 2000; c++) {
        const uint32_t aligned = below(2), k = aligned ? 8 * below(4) : below(25);
        const uint32_t limit = aligned ? 8 * below(4) : below(25);
        uint32_t out[4] = {~0u, ~0u, ~0u, ~0u};
        mp_experts_activations(aligned, (const char *)(x + k), k, limit, out);
        for (uint32_t i = 0; i < 8; i++) {
            const uint16_t got = (uint16_t)(out[i / 2] >> i % 2 * 16);
            assert_int_equal(got, k + i < limit ? k + i + 1 : 0);
        }
    }
}

/* ---- SwiGLU ---- */

static void test_swiglu_has_the_limits_of_its_definition(void **state)
{
    (void)state;
    for (float gate = -120; gate < 120; gate += 0.37f) {
        const double want = gate / (1 + exp(-(double)gate)) * 1.5;
        assert_true(fabs(mp_experts_swiglu(gate, 1.5f) - want) <= ldexp(fabs(want), -20) + 1e-37);
    }
    assert_true(mp_experts_swiglu(-INFINITY, 2) == 0);
    assert_true(mp_experts_swiglu(-1e30f, 2) == 0);
    assert_true(mp_experts_swiglu(INFINITY, 2) == INFINITY);
    assert_true(isnan(mp_experts_swiglu(NAN, 2)));
    assert_true(isnan(mp_experts_swiglu(2, NAN)));
    assert_true(mp_experts_swiglu(3e38f, 1) == 3e38f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma_fragments_are_the_matrices_of_the_instruction),
        cmocka_unit_test(test_f8_weights_are_exact),
        cmocka_unit_test(test_operands_are_exact_or_rounded_once),
        cmocka_unit_test(test_activations_end_in_zeros),
        cmocka_unit_test(test_swiglu_has_the_limits_of_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
