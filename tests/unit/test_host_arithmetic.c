/* What the host kernels are made of, on every instruction set that this CPU runs: BF16 pairs,
 * SwiGLU, conversions, and the CONVERT and COMBINE kernels. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

#define TOP_K 3

static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* ---- BF16 pairs at the edge of the range ---- */

typedef struct pair_case {
    double x[4]; /* elements 0, 1, 32, 33: all of lane 0 */
    double w[4];
    double sum;
} pair_case;

static float lane_zero(const mp_host_kernel_set *set, const uint16_t *x, const uint16_t *w)
{
    _Alignas(64) float acc[MP_TILE_WEIGHTS * MP_LANES];
    mp_tile tile = {.x = {x}, .w = {w, w, w, w}, .n_rows = 1, .k = 34, .acc = acc};
    set->tile[MP_TILE_DOT](&tile);
    return acc[0];
}

static void test_host_arithmetic_bf16_pairs_round_and_flush_as_documented(void **state)
{
    static const pair_case cases[] = {
        /* The odd element of a pair comes first: 1 + 2^24 loses the 1. */
        {{1, 0, -0x1p12, 0x1p12}, {1, 0, 0x1p12, 0x1p12}, 0},
        /* Products are not rounded: 1 + 2^-7 squared, less 1 + 2^-6. */
        {{0, 1.0078125, -1.015625, 0}, {0, 1.0078125, 1, 0}, 0x1p-14},
        /* Denormal operands are zero. */
        {{0, 0x1p-130, 0, 0}, {0, 0x1p100, 0, 0}, 0},
        /* Denormal results are zero, also on the way. */
        {{0x1p-70, 0, 0x1p-70, 0}, {0x1p-60, 0, 0x1p-57, 0}, 0},
        /* Just below 2^-126: tiny if it is so after rounding to 24 bits. */
        {{-0x1.4p-75, 0x1p-63, 0, 0}, {0x1p-76, 0x1p-63, 0, 0}, 0},
        {{-0x1p-76, 0x1p-63, 0, 0}, {0x1p-76, 0x1p-63, 0, 0}, 0x1p-126},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const uint32_t at[] = {0, 1, 32, 33};
        uint16_t x[34] = {0}, w[34] = {0};
        for (int j = 0; j < 4; j++) {
            num_put(MOEPAGE_DTYPE_BF16, x, at[j], cases[i].x[j]);
            num_put(MOEPAGE_DTYPE_BF16, w, at[j], cases[i].w[j]);
        }
        for (size_t s = 0; s < n_kernel_sets; s++)
            assert_true(lane_zero(kernel_sets[s], x, w) == cases[i].sum);
    }
}

/* Every bit pattern, with products gathered around the smallest and largest floats. Where the CPU
 * has VDPBF16PS, its own arithmetic is among those compared. */
static void test_host_arithmetic_bf16_pairs_agree_on_all_sets_over_the_whole_range(void **state)
{
    static const uint32_t around[] = {64, 127, 190};
    (void)state;
    for (uint32_t round = 0; round < 30000; round++) {
        uint16_t x[34], w[34];
        for (int i = 0; i < 34; i++) {
            uint32_t bits = num_random_bits(), more = num_random_bits();
            x[i] = (uint16_t)bits;
            w[i] = (uint16_t)(bits >> 16);
            if (round % 4 < 3) {
                uint32_t middle = around[round % 4];
                x[i] = (uint16_t)((bits & 0x807f) | (middle - 3 + more % 7) << 7);
                w[i] = (uint16_t)((bits >> 16 & 0x807f) | (middle - 3 + more / 7 % 7) << 7);
            }
        }
        float want = lane_zero(kernel_sets[0], x, w);
        for (size_t s = 1; s < n_kernel_sets; s++)
            assert_true(num_same(lane_zero(kernel_sets[s], x, w), want));
    }
}

/* ---- Weights rounded to bfloat16 ---- */

/* 16 weights by 1, one in each lane. */
static void check_rounded_weights(mp_tile_kind kind, uint32_t dtype, const void *weights)
{
    uint16_t x[34] = {0};
    char w[34 * 4] = {0};
    const uint64_t bytes = num_bytes(dtype);
    for (uint32_t lane = 0; lane < 16; lane++) {
        num_put(MOEPAGE_DTYPE_BF16, x, 2 * lane, 1);
        memcpy(w + 2 * lane * bytes, (const char *)weights + lane * bytes, bytes);
    }
    for (size_t s = 0; s < n_kernel_sets; s++) {
        _Alignas(64) float acc[MP_TILE_WEIGHTS * MP_LANES];
        mp_tile tile = {.x = {x}, .w = {w, w, w, w}, .n_rows = 1, .k = 34, .acc = acc};
        kernel_sets[s]->tile[kind](&tile);
        for (uint32_t lane = 0; lane < 16; lane++) {
            const double value = num_get(dtype, weights, lane);
            const double rounded = num_rounded(MOEPAGE_DTYPE_BF16, value);
            const float want = fabs(rounded) < 0x1p-126 ? 0 : (float)rounded;
            assert_true(isnan(value) ? isnan(acc[lane]) : acc[lane] == want);
        }
    }
}

static void test_host_arithmetic_tiles_round_float_weights_to_bfloat16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x10000 / 16; i++) {
        uint16_t half[16];
        float wide[16], edge[16];
        for (uint32_t j = 0; j < 16; j++) {
            const uint32_t high = 16 * i + j, sign = high << 31;
            half[j] = (uint16_t)high;
            wide[j] = num_of_bits(high << 16 | (num_random_bits() & 0xffff));
            /* The greatest denormals, of which those from 0x007f8000 on are rounded to none. */
            edge[j] = num_of_bits(sign | (0x007f0000 + (num_random_bits() & 0x1ffff)));
        }
        check_rounded_weights(MP_TILE_DOT_F16, MOEPAGE_DTYPE_F16, half);
        check_rounded_weights(MP_TILE_DOT_F32, MOEPAGE_DTYPE_F32, wide);
        check_rounded_weights(MP_TILE_DOT_F32, MOEPAGE_DTYPE_F32, edge);
    }
}

/* ---- SwiGLU ---- */

/* Five times 2^-24, and where silu itself or the result is denormal, a last place of each. */
static void check_swiglu(const float *gate, const float *up, uint32_t n)
{
    float out[64], first[64];
    for (size_t s = 0; s < n_kernel_sets; s++) {
        kernel_sets[s]->swiglu(gate, up, s ? out : first, n);
        for (uint32_t i = 0; s && i < n; i++)
            assert_true(num_same(out[i], first[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
        double g = gate[i];
        double want = isinf(g) && g < 0 ? 0 : g / (1 + exp(-g)) * (double)up[i];
        if (isnan(want))
            assert_true(isnan(first[i]));
        else if (fabs(want) > 0x1.ffffffp127)
            assert_true(isinf(first[i]));
        else
            assert_true(fabs((double)first[i] - want) <=
                        fabs(want) * 0x1.4p-22 + 0x1p-149 * (1 + fabs((double)up[i])));
    }
}

static void test_host_arithmetic_swiglu_is_accurate_everywhere(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 0x10000; high += 16) {
        float gate[64], up[64];
        for (uint32_t i = 0; i < 64; i++) {
            gate[i] = num_of_bits((high + i / 4) << 16 | (num_random_bits() & 0xffffu));
            up[i] = i % 4 ? 1.0f : num_random();
        }
        check_swiglu(gate, up, 64);
    }
}

/* Seven times 2^-24 and, for the product in the sigmoid, |alpha * gate| times it where that is
 * negative; and where a factor or the result is denormal, a last place of each. */
static void check_clamped(const float *gate, const float *up, uint32_t n, float alpha, float limit)
{
    float out[64], first[64];
    for (size_t s = 0; s < n_kernel_sets; s++) {
        kernel_sets[s]->swiglu_clamped(gate, up, alpha, limit, s ? out : first, n);
        for (uint32_t i = 0; s && i < n; i++)
            assert_true(num_same(out[i], first[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
        const double a = alpha, most = limit;
        double g = gate[i] > most ? most : gate[i];
        double u = up[i] > most ? most : up[i] < -most ? -most : up[i];
        double z = a * g, factor = z < -1000 ? 0 : g / (1 + exp(-z));
        double want = factor * (u + 1), lost = z < 0 ? fmin(-z, 1000) : 0;
        if (isnan(g) || isnan(u))
            assert_true(isnan(first[i]));
        else if (fabs(want) > 0x1.ffffffp127)
            assert_true(isinf(first[i]));
        else if (!(fabs((double)first[i] - want) <=
                   fabs(want) * (7 + lost) * 0x1p-24 + 0x1p-149 * (2 + fabs(u))))
            fail_msg("gate %a, up %a, alpha %a, limit %a: %a, not %a", (double)gate[i],
                     (double)up[i], a, most, (double)first[i], want);
    }
}

static void test_host_arithmetic_clamped_swiglu_is_accurate_everywhere(void **state)
{
    static const float alphas[] = {1.702f, 1, 0x1p-10f, 0x1p10f, 1.702f};
    static const float limits[] = {7, 1000, 3.4e38f, 0.5f, 1e-20f};
    (void)state;
    for (uint32_t high = 0; high < 0x10000; high += 16) {
        float gate[64], up[64];
        for (uint32_t i = 0; i < 64; i++) {
            gate[i] = num_of_bits((high + i / 4) << 16 | (num_random_bits() & 0xffffu));
            up[i] = i % 4 == 0   ? num_of_bits(num_random_bits())
                    : i % 4 == 1 ? -1 + num_random() / 1024
                                 : 10 * num_random();
        }
        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
            check_clamped(gate, up, 64, alphas[k], limits[k]);
            check_clamped(up, gate, 64, alphas[k], limits[k]);
        }
    }
}

static void test_host_arithmetic_clamped_swiglu_has_the_values_of_its_formula(void **state)
{
    static const float gates[16] = {7, 8, INFINITY, -INFINITY, NAN, 0,  -0.0f,  1,
                                    1, 1, 1,        -100,      -20, -5, 1e-40f, 7};
    static const float ups[16] = {0, 0, 0, 1, 1, 3, 3, 7, 9, -7, -INFINITY, 1, 2, 0, 0, NAN};
    float out[16];
    (void)state;
    check_clamped(gates, ups, 16, 1.702f, 7);
    for (size_t s = 0; s < n_kernel_sets; s++) {
        kernel_sets[s]->swiglu_clamped(gates, ups, 1.702f, 7, out, 16);
        assert_true(out[0] > 6.9999f && out[1] == out[0] && out[2] == out[0]);
        assert_true(out[3] == 0 && signbit(out[3]));
        assert_true(isnan(out[4]) && isnan(out[15]));
        assert_true(out[5] == 0 && out[6] == 0 && signbit(out[6]));
        assert_true(out[7] == out[8] && fabsf(out[7] - 8 * 0.84579575f) < 1e-5f);
        assert_true(out[9] == out[10] && fabsf(out[9] + 6 * 0.84579575f) < 1e-5f);
    }
}

static void test_host_arithmetic_swiglu_reaches_its_limits(void **state)
{
    static const float gates[16] = {INFINITY, -INFINITY, NAN,    0.0f,   -0.0f, -104.0f,
                                    -88.0f,   -128.0f,   -1e30f, 1e30f,  88.8f, -127.9f,
                                    1e-40f,   -1e-40f,   -0.5f,  3.4e38f};
    float up[16], out[16];
    (void)state;
    for (int i = 0; i < 16; i++)
        up[i] = 1.0f;
    check_swiglu(gates, up, 16);
    for (size_t s = 0; s < n_kernel_sets; s++) {
        kernel_sets[s]->swiglu(gates, up, out, 16);
        assert_true(out[0] == INFINITY);
        assert_true(out[1] == 0 && signbit(out[1]));
        assert_true(isnan(out[2]));
        assert_true(out[4] == 0 && signbit(out[4]));
        assert_true(out[9] == 1e30f);
    }
}

/* ---- Conversions ---- */

static void test_host_arithmetic_widen_exactly(void **state)
{
    static uint16_t halves[0x10000];
    static float wide[0x10000];
    (void)state;
    for (uint32_t i = 0; i < 0x10000; i++)
        halves[i] = (uint16_t)i;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (uint32_t dtype = MOEPAGE_DTYPE_F16; dtype <= MOEPAGE_DTYPE_BF16; dtype++) {
            kernel_sets[s]->widen[dtype](halves, wide, 0x10000);
            for (uint32_t i = 0; i < 0x10000; i++)
                assert_true(num_same(wide[i], num_get(dtype, halves, i)));
        }
    }
}

/* Around every value that the narrow type can hold: on it, between, and just off the middle. */
static void test_host_arithmetic_narrow_to_nearest_even(void **state)
{
    enum { CHUNK = 4096 };
    static float in[CHUNK];
    static double want[CHUNK];
    static uint16_t out[CHUNK];
    (void)state;
    for (uint32_t dtype = MOEPAGE_DTYPE_F16; dtype <= MOEPAGE_DTYPE_BF16; dtype++) {
        const uint32_t cut = dtype == MOEPAGE_DTYPE_F16 ? 13 : 16, half = 1u << (cut - 1);
        const uint32_t offsets[] = {0, 1, half - 1, half, half + 1, 2 * half - 1, 3, half / 2};
        for (uint64_t high = 0; high < 1ull << (32 - cut); high += CHUNK / 8) {
            for (uint32_t i = 0; i < CHUNK; i++) {
                in[i] = num_of_bits((uint32_t)(high + i / 8) << cut | offsets[i % 8]);
                want[i] = num_rounded(dtype, in[i]);
            }
            for (size_t s = 0; s < n_kernel_sets; s++) {
                kernel_sets[s]->narrow[dtype](in, out, CHUNK);
                for (uint32_t i = 0; i < CHUNK; i++) {
                    float got = num_get(dtype, out, i);
                    assert_true(isnan(in[i]) ? isnan(got)
                                             : got == want[i] && !signbit(got) == !signbit(in[i]));
                }
            }
        }
    }
}

static void run_in_parts(const mp_host_kernel_set *set, mp_kernel kernel,
                         const mp_kernel_args *args, uint32_t n_parts)
{
    for (uint32_t part = 0; part < n_parts; part++)
        mp_host_kernel_run(set, kernel, args, 0, part, n_parts);
}

static void check_convert(const mp_host_kernel_set *set, uint32_t dtype, uint32_t math,
                          uint32_t hidden)
{
    enum { TOKENS = 3, GAP = 5 };
    const uint32_t to = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    const uint64_t stride = hidden + GAP, n = (TOKENS - 1) * stride + hidden;
    const uint64_t out_bytes = (uint64_t)TOKENS * hidden * num_bytes(to);
    void *x = num_array(dtype, n), *out = guarded_alloc(out_bytes);
    mp_kernel_args args = {.convert = {.x = x,
                                       .x_stride = stride,
                                       .x_dtype = dtype,
                                       .math = math,
                                       .n_tokens = TOKENS,
                                       .hidden = hidden,
                                       .out = out}};
    run_in_parts(set, MP_KERNEL_CONVERT, &args, 2);
    for (uint64_t t = 0; t < TOKENS; t++) {
        for (uint32_t h = 0; h < hidden; h++)
            assert_true(num_get(to, out, t * hidden + h) ==
                        num_rounded(to, num_get(dtype, x, t * stride + h)));
    }
    guarded_free(out, out_bytes);
    guarded_free(x, n * num_bytes(dtype));
}

static void test_host_arithmetic_convert_brings_strided_rows_to_the_operand_type(void **state)
{
    static const uint32_t sizes[] = {1, 17, 512, 1300};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t i = 0; i < 3 * 2 * 4; i++)
            check_convert(kernel_sets[s], dtypes[i % 3], maths[i / 3 % 2], sizes[i / 6]);
    }
}

/* ---- COMBINE ---- */

static void check_combine(const mp_host_kernel_set *set, uint32_t dtype, uint32_t hidden,
                          uint32_t accumulate)
{
    enum { TOKENS = 4, GAP = 3 };
    static const int32_t ids[TOKENS * TOP_K] = {3, 0, 9, -1, 4, 4, 2, -1, -1, -1, -1, -1};
    const uint64_t stride = hidden + GAP, n = (TOKENS - 1) * stride + hidden;
    const uint64_t partial_n = (uint64_t)TOKENS * TOP_K * hidden;
    float *partial = num_array(MOEPAGE_DTYPE_F32, partial_n);
    float *weights = num_array(MOEPAGE_DTYPE_F32, TOKENS * TOP_K);
    void *y = num_array(dtype, n), *old = malloc(n * num_bytes(dtype));
    assert_non_null(old);
    memcpy(old, y, n * num_bytes(dtype));
    for (uint64_t i = 3 * hidden; i < 4 * hidden; i++)
        partial[i] = NAN; /* token 1's first slot is skipped, not multiplied by zero */
    mp_kernel_args args = {.combine = {.partial = partial,
                                       .weights = weights,
                                       .ids = ids,
                                       .y = y,
                                       .y_stride = stride,
                                       .y_dtype = dtype,
                                       .n_tokens = TOKENS,
                                       .top_k = TOP_K,
                                       .hidden = hidden,
                                       .accumulate = accumulate}};
    run_in_parts(set, MP_KERNEL_COMBINE, &args, 3);
    for (uint64_t t = 0; t < TOKENS; t++) {
        for (uint64_t h = 0; h < stride && t * stride + h < n; h++) {
            float before = num_get(dtype, old, t * stride + h), sum = 0;
            for (uint64_t slot = t * TOP_K; slot < (t + 1) * TOP_K && h < hidden; slot++)
                sum = ids[slot] < 0 ? sum : fmaf(weights[slot], partial[slot * hidden + h], sum);
            float whole = accumulate ? before + sum : sum;
            assert_true(num_get(dtype, y, t * stride + h) ==
                        (h < hidden ? num_rounded(dtype, whole) : before));
        }
    }
    free(old);
    guarded_free(y, n * num_bytes(dtype));
    guarded_free(weights, TOKENS * TOP_K * sizeof *weights);
    guarded_free(partial, partial_n * sizeof *partial);
}

static void test_host_arithmetic_combine_adds_in_router_order(void **state)
{
    static const uint32_t sizes[] = {1, 23, 512, 1031};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t i = 0; i < 3 * 2 * 4; i++)
            check_combine(kernel_sets[s], dtypes[i % 3], sizes[i / 6], i / 3 % 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_arithmetic_bf16_pairs_round_and_flush_as_documented),
        cmocka_unit_test(test_host_arithmetic_bf16_pairs_agree_on_all_sets_over_the_whole_range),
        cmocka_unit_test(test_host_arithmetic_tiles_round_float_weights_to_bfloat16),
        cmocka_unit_test(test_host_arithmetic_swiglu_is_accurate_everywhere),
        cmocka_unit_test(test_host_arithmetic_swiglu_reaches_its_limits),
        cmocka_unit_test(test_host_arithmetic_clamped_swiglu_is_accurate_everywhere),
        cmocka_unit_test(test_host_arithmetic_clamped_swiglu_has_the_values_of_its_formula),
        cmocka_unit_test(test_host_arithmetic_widen_exactly),
        cmocka_unit_test(test_host_arithmetic_narrow_to_nearest_even),
        cmocka_unit_test(test_host_arithmetic_convert_brings_strided_rows_to_the_operand_type),
        cmocka_unit_test(test_host_arithmetic_combine_adds_in_router_order),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
