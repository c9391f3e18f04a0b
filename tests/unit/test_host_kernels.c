/* EXPERTS on the host, on every instruction set that this CPU runs: bit for bit against naive sums
 * in the documented order, whatever the rows, the shares and the floating-point mode. */

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- A launch of EXPERTS ---- */

#define N_EXPERTS 4
#define TOP_K 3

typedef struct launch {
    mp_kernel_args args;
    mp_ffn_expert experts[N_EXPERTS];
    uint32_t dtypes[MP_MATRICES];
    uint32_t bias_dtype;
    uint32_t operand; /* type of x and inner */
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t n_rows; /* in the launch */
    uint32_t n_tokens;
    int with_bias;
    uint32_t *rows;
    void *x;
    void *inner;
    float *partial;
} launch;

#define INNER_BASE 5
#define POISON 0xa5

static void poison(launch *l)
{
    memset(l->inner, POISON, (uint64_t)l->n_rows * l->intermediate * num_bytes(l->operand));
    memset(l->partial, POISON, (uint64_t)l->n_tokens * TOP_K * l->hidden * 4);
}

static void open_mixed(launch *l, const uint32_t *dtypes, uint32_t bias_dtype, uint32_t math,
                       uint32_t hidden, uint32_t intermediate, const uint32_t *counts,
                       int with_bias)
{
    memset(l, 0, sizeof *l);
    memcpy(l->dtypes, dtypes, sizeof l->dtypes);
    l->bias_dtype = bias_dtype;
    l->operand = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    l->hidden = hidden;
    l->intermediate = intermediate;
    l->with_bias = with_bias;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        const uint64_t n = (uint64_t)hidden * intermediate;
        mp_ffn_expert *expert = &l->experts[e];
        *expert = (mp_ffn_expert){.gate = num_array(dtypes[MP_GATE], n),
                                  .up = num_array(dtypes[MP_UP], n),
                                  .down = num_array(dtypes[MP_DOWN], n),
                                  .first_row = INNER_BASE + l->n_rows,
                                  .n_rows = counts[e]};
        if (with_bias) {
            expert->gate_bias = num_array(bias_dtype, intermediate);
            expert->up_bias = num_array(bias_dtype, intermediate);
            expert->down_bias = num_array(bias_dtype, hidden);
        }
        l->n_rows += counts[e];
    }
    l->n_tokens = l->n_rows / TOP_K + 2;
    l->x = num_array(l->operand, (uint64_t)l->n_tokens * hidden);
    l->inner = guarded_alloc((uint64_t)l->n_rows * intermediate * num_bytes(l->operand));
    l->partial = guarded_alloc((uint64_t)l->n_tokens * TOP_K * hidden * 4);
    l->rows = guarded_alloc((INNER_BASE + l->n_rows) * sizeof *l->rows);
    for (uint32_t i = 0; i < l->n_rows; i++) /* distinct, in no order of tokens */
        l->rows[INNER_BASE + i] = (i * 7u) % l->n_rows + 1u;
    l->args.experts = (mp_kernel_experts_args){.x = l->x,
                                               .experts = l->experts,
                                               .rows = l->rows,
                                               .inner = l->inner,
                                               .partial = l->partial,
                                               .inner_base = INNER_BASE,
                                               .n_experts = N_EXPERTS,
                                               .top_k = TOP_K,
                                               .hidden = hidden,
                                               .intermediate = intermediate,
                                               .bias_dtype = bias_dtype,
                                               .math = math};
    memcpy(l->args.experts.dtypes, dtypes, sizeof l->dtypes);
    if (num_random_bits() & 1)
        l->args.experts.activation =
            (mp_activation){MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 0.75f};
    poison(l);
}

static void open_launch(launch *l, uint32_t dtype, uint32_t math, uint32_t hidden,
                        uint32_t intermediate, const uint32_t *counts, int with_bias)
{
    const uint32_t same[MP_MATRICES] = {dtype, dtype, dtype};
    open_mixed(l, same, dtype, math, hidden, intermediate, counts, with_bias);
}

static void close_launch(launch *l)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        const uint64_t element_size = num_bytes(l->bias_dtype);
        const uint64_t n = (uint64_t)l->hidden * l->intermediate;
        mp_ffn_expert *expert = &l->experts[e];
        guarded_free((void *)(uintptr_t)expert->gate, n * num_bytes(l->dtypes[MP_GATE]));
        guarded_free((void *)(uintptr_t)expert->up, n * num_bytes(l->dtypes[MP_UP]));
        guarded_free((void *)(uintptr_t)expert->down, n * num_bytes(l->dtypes[MP_DOWN]));
        guarded_free((void *)(uintptr_t)expert->gate_bias, l->intermediate * element_size);
        guarded_free((void *)(uintptr_t)expert->up_bias, l->intermediate * element_size);
        guarded_free((void *)(uintptr_t)expert->down_bias, l->hidden * element_size);
    }
    guarded_free(l->x, (uint64_t)l->n_tokens * l->hidden * num_bytes(l->operand));
    guarded_free(l->inner, (uint64_t)l->n_rows * l->intermediate * num_bytes(l->operand));
    guarded_free(l->partial, (uint64_t)l->n_tokens * TOP_K * l->hidden * 4);
    guarded_free(l->rows, (INNER_BASE + l->n_rows) * sizeof *l->rows);
}

static void run_launch(const mp_host_kernel_set *set, launch *l, uint32_t n_parts)
{
    for (uint32_t phase = 0; phase < 2; phase++) {
        for (uint32_t part = n_parts; part-- > 0;)
            mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &l->args, phase, part, n_parts);
    }
}

/* ---- The naive model ---- */

/* docs/host-kernels.md: FP32 math visits l, l + 16, l + 32 ... in lane l; BF16 math visits pairs,
 * the odd element of each first. */
static float naive_dot(uint32_t math, const float *x, const float *w, uint32_t n)
{
    float lanes[16];
    uint32_t turn = math == MOEPAGE_MATH_BF16 ? 32 : 16;
    for (uint32_t lane = 0; lane < 16; lane++) {
        float sum = 0;
        for (uint32_t base = 0; base < n; base += turn) {
            uint32_t order[2] = {base + lane, base + lane};
            if (math == MOEPAGE_MATH_BF16) {
                order[0] = base + 2 * lane + 1;
                order[1] = base + 2 * lane;
            }
            for (uint32_t j = 0; j < turn / 16; j++)
                sum = order[j] < n ? fmaf(x[order[j]], w[order[j]], sum) : fmaf(0, 0, sum);
        }
        lanes[lane] = sum;
    }
    float eight[8], four[4];
    for (int i = 0; i < 8; i++)
        eight[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static float naive_product(const launch *l, const void *x, uint64_t x_row, uint32_t dtype,
                           const void *w, uint64_t w_row, const void *bias, uint32_t n)
{
    const uint32_t math = l->args.experts.math;
    float *a = malloc(2 * n * sizeof *a), *b = a + n;
    assert_non_null(a);
    for (uint32_t i = 0; i < n; i++) {
        a[i] = num_get(l->operand, x, x_row * n + i);
        b[i] = num_get(dtype, w, w_row * n + i);
        if (math == MOEPAGE_MATH_BF16)
            b[i] = (float)num_rounded(MOEPAGE_DTYPE_BF16, b[i]);
    }
    float sum = naive_dot(math, a, b, n);
    free(a);
    return bias ? sum + num_get(l->bias_dtype, bias, w_row) : sum;
}

/* inner and partial as they must come out. Activations have their own tests; here they are the portable
 * ones, given sums that are not the kernels'. */
static void naive_launch(launch *l)
{
    const mp_activation *how = &l->args.experts.activation;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        const mp_ffn_expert *expert = &l->experts[e];
        for (uint32_t i = expert->first_row; i < expert->first_row + expert->n_rows; i++) {
            const uint64_t line = i - INNER_BASE, token = l->rows[i] / TOP_K;
            for (uint32_t n = 0; n < l->intermediate; n++) {
                float gate[16] = {0}, up[16] = {0};
                gate[0] = naive_product(l, l->x, token, l->dtypes[MP_GATE], expert->gate, n,
                                        expert->gate_bias, l->hidden);
                up[0] = naive_product(l, l->x, token, l->dtypes[MP_UP], expert->up, n,
                                      expert->up_bias, l->hidden);
                if (how->kind == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED)
                    mp_host_set_portable.swiglu_clamped(gate, up, how->alpha, how->limit, gate, 16);
                else
                    mp_host_set_portable.swiglu(gate, up, gate, 16);
                num_put(l->operand, l->inner, line * l->intermediate + n,
                        num_rounded(l->operand, gate[0]));
            }
            for (uint32_t n = 0; n < l->hidden; n++)
                l->partial[(uint64_t)l->rows[i] * l->hidden + n] =
                    naive_product(l, l->inner, line, l->dtypes[MP_DOWN], expert->down, n,
                                  expert->down_bias, l->intermediate);
        }
    }
}

typedef struct result {
    void *inner;
    float *partial;
    uint64_t inner_bytes;
    uint64_t partial_bytes;
} result;

static result take_result(const launch *l)
{
    result r = {.inner_bytes = (uint64_t)l->n_rows * l->intermediate * num_bytes(l->operand),
                .partial_bytes = (uint64_t)l->n_tokens * TOP_K * l->hidden * 4};
    r.inner = malloc(r.inner_bytes);
    r.partial = malloc(r.partial_bytes);
    assert_non_null(r.inner);
    assert_non_null(r.partial);
    memcpy(r.inner, l->inner, r.inner_bytes);
    memcpy(r.partial, l->partial, r.partial_bytes);
    return r;
}

static void expect_result(const launch *l, const result *want)
{
    assert_memory_equal(l->inner, want->inner, want->inner_bytes);
    assert_memory_equal(l->partial, want->partial, want->partial_bytes);
}

static void drop_result(result *r)
{
    free(r->inner);
    free(r->partial);
}

/* ---- EXPERTS ---- */

static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

static void compare_with_naive(launch *l)
{
    naive_launch(l);
    result want = take_result(l);
    for (size_t s = 0; s < n_kernel_sets; s++) {
        poison(l);
        run_launch(kernel_sets[s], l, 1);
        expect_result(l, &want);
    }
    drop_result(&want);
    close_launch(l);
}

static void expect_naive_sums(uint32_t hidden, uint32_t intermediate, const uint32_t *counts)
{
    for (size_t d = 0; d < 3; d++) {
        for (size_t m = 0; m < 2; m++) {
            launch l;
            open_launch(&l, dtypes[d], maths[m], hidden, intermediate, counts, d != m);
            compare_with_naive(&l);
        }
    }
}

static void test_host_kernels_sum_in_the_documented_order(void **state)
{
    static const uint32_t counts[] = {1, 0, 7, 4};
    static const uint32_t sizes[][2] = {{1, 1}, {15, 17}, {16, 32}, {33, 31}, {64, 48}, {47, 130}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_naive_sums(sizes[i][0], sizes[i][1], counts);
}

/* Longer than one piece of a row, in either direction, for one group of rows and for several. */
static void test_host_kernels_sum_long_rows_in_the_documented_order(void **state)
{
    static const uint32_t counts[] = {2, 13, 0, 1};
    (void)state;
    expect_naive_sums(4131, 5, counts);
    expect_naive_sums(6, 4131, counts);
}

/* Weight rows so long that a panel is cut short to stay in the cache. */
static void test_host_kernels_sum_very_long_rows_in_the_documented_order(void **state)
{
    static const uint32_t counts[] = {1, 7, 0, 0};
    (void)state;
    expect_naive_sums(40003, 6, counts);
}

/* Rows of gate and up so long that their panels differ in height. */
static void test_host_kernels_each_matrix_has_its_own_dtype(void **state)
{
    static const uint32_t counts[] = {1, 0, 7, 4}, many[] = {7, 0, 0, 0};
    (void)state;
    for (size_t m = 0; m < 2; m++)
        for (size_t d = 0; d < 27; d++) {
            const uint32_t mixed[] = {dtypes[d % 3], dtypes[d / 3 % 3], dtypes[d / 9]};
            launch l;
            open_mixed(&l, mixed, dtypes[d % 2], maths[m], 33, 47, counts, 1);
            compare_with_naive(&l);
            if (d == 2 || d == 6) {
                open_mixed(&l, mixed, dtypes[d % 2], maths[m], 5003, 35, many, 1);
                compare_with_naive(&l);
            }
        }
}

static void test_host_kernels_have_the_same_bits_in_any_number_of_parts(void **state)
{
    static const uint32_t counts[] = {9, 0, 20, 1};
    static const uint32_t parts[] = {2, 3, 5, 16, 301};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t m = 0; m < 2; m++) {
            launch l;
            open_launch(&l, MOEPAGE_DTYPE_BF16, maths[m], 70, 83, counts, 1);
            run_launch(kernel_sets[s], &l, 1);
            result want = take_result(&l);
            for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
                poison(&l);
                run_launch(kernel_sets[s], &l, parts[p]);
                expect_result(&l, &want);
            }
            drop_result(&want);
            close_launch(&l);
        }
    }
}

/* A row computed alone and the same row among any number of others. */
static void test_host_kernels_have_the_same_bits_for_a_row_in_any_company(void **state)
{
    static const uint32_t counts[] = {20, 0, 0, 0};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t m = 0; m < 2; m++) {
            launch l;
            open_launch(&l, MOEPAGE_DTYPE_F16, maths[m], 133, 37, counts, 1);
            run_launch(kernel_sets[s], &l, 1);
            result want = take_result(&l);
            for (uint32_t company = 1; company < 20; company++) {
                poison(&l);
                for (uint32_t first = 0; first < 20; first += company) {
                    l.experts[0].first_row = INNER_BASE + first;
                    l.experts[0].n_rows = 20 - first < company ? 20 - first : company;
                    run_launch(kernel_sets[s], &l, 1);
                }
                expect_result(&l, &want);
            }
            l.experts[0].n_rows = 20;
            drop_result(&want);
            close_launch(&l);
        }
    }
}

static uint64_t written(const launch *l, uint32_t *times)
{
    const uint64_t n = (uint64_t)l->n_tokens * TOP_K * l->hidden;
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = num_bits(l->partial[i]);
        if (bits != 0xa5a5a5a5u) {
            times[i]++;
            count++;
        }
    }
    return count;
}

static void test_host_kernels_parts_are_disjoint_complete_and_even(void **state)
{
    enum { PARTS = 7, HIDDEN = 256 };
    static const uint32_t counts[] = {100, 8, 0, 30};
    (void)state;
    launch l;
    open_launch(&l, MOEPAGE_DTYPE_F32, MOEPAGE_MATH_FP32, HIDDEN, 3, counts, 0);
    const uint64_t n = (uint64_t)l.n_tokens * TOP_K * HIDDEN;
    uint32_t *times = calloc(n, sizeof *times);
    assert_non_null(times);
    mp_host_kernel_run(kernel_sets[0], MP_KERNEL_EXPERTS, &l.args, 0, 0, 1);
    for (uint32_t part = 0; part < PARTS; part++) {
        memset(l.partial, POISON, n * 4);
        mp_host_kernel_run(kernel_sets[0], MP_KERNEL_EXPERTS, &l.args, 1, part, PARTS);
        assert_true(written(&l, times) <= 138 * HIDDEN / PARTS + 100 * 16);
    }
    for (uint32_t i = 0; i < l.n_tokens * TOP_K; i++) {
        uint32_t named = 0;
        for (uint32_t r = 0; r < l.n_rows; r++)
            named += l.rows[INNER_BASE + r] == i;
        for (uint32_t h = 0; h < HIDDEN; h++)
            assert_int_equal(times[(uint64_t)i * HIDDEN + h], named);
    }
    free(times);
    close_launch(&l);
}

/* Rounding upwards, and denormals flushed where that can be asked for. Returns the mode set. */
static unsigned set_odd_mode(void)
{
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr((_mm_getcsr() | _MM_FLUSH_ZERO_ON) & ~_MM_EXCEPT_MASK);
    return _mm_getcsr();
#else
    return (unsigned)fegetround();
#endif
}

/* Returns the mode found, less the exception flags, and goes back to the default. */
static unsigned reset_mode(void)
{
#if defined(__x86_64__)
    unsigned found = _mm_getcsr() & ~_MM_EXCEPT_MASK;
    _mm_setcsr(_mm_getcsr() & ~_MM_FLUSH_ZERO_ON);
#else
    unsigned found = (unsigned)fegetround();
#endif
    fesetround(FE_TONEAREST);
    return found;
}

static void test_host_kernels_ignore_and_keep_the_floating_point_mode(void **state)
{
    static const uint32_t counts[] = {3, 0, 8, 0};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t m = 0; m < 2; m++) {
            launch l;
            open_launch(&l, MOEPAGE_DTYPE_BF16, maths[m], 65, 40, counts, 1);
            run_launch(kernel_sets[s], &l, 1);
            result want = take_result(&l);
            poison(&l);
            unsigned before = set_odd_mode();
            run_launch(kernel_sets[s], &l, 2);
            unsigned after = reset_mode();
            assert_int_equal(after, before);
            expect_result(&l, &want);
            drop_result(&want);
            close_launch(&l);
        }
    }
}

static void test_host_kernels_pass_infinities_and_nans_on(void **state)
{
    static const uint32_t counts[] = {2, 0, 0, 0};
    (void)state;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        for (size_t m = 0; m < 2; m++) {
            launch l;
            open_launch(&l, MOEPAGE_DTYPE_F32, maths[m], 20, 4, counts, 0);
            l.args.experts.activation = (mp_activation){0}; /* the other one bounds infinities */
            const uint64_t first = l.rows[INNER_BASE], second = l.rows[INNER_BASE + 1];
            assert_true(first / TOP_K == second / TOP_K);
            num_put(l.operand, l.x, first / TOP_K * 20 + 19, NAN);
            run_launch(kernel_sets[s], &l, 1);
            for (uint32_t h = 0; h < 20; h++)
                assert_true(isnan(l.partial[first * 20 + h]));
            num_put(l.operand, l.x, first / TOP_K * 20 + 19, INFINITY);
            run_launch(kernel_sets[s], &l, 1);
            for (uint32_t h = 0; h < 20; h++)
                assert_false(isfinite(l.partial[first * 20 + h]));
            close_launch(&l);
        }
    }
}

/* ---- Choosing ---- */

static bool is_intel(void)
{
    char line[256];
    bool found = false;
    FILE *cpus = fopen("/proc/cpuinfo", "r");
    assert_non_null(cpus);
    while (!found && fgets(line, sizeof line, cpus))
        found = strstr(line, "GenuineIntel") != NULL;
    fclose(cpus);
    return found;
}

/* Of the two sets that need AVX512-BF16, the last is best on Intel's processors alone. */
static void test_host_kernels_best_is_the_last_that_suits_this_processor(void **state)
{
    (void)state;
    const char *last = mp_host_kernels_name(kernel_sets[n_kernel_sets - 1]);
    const bool is_fma = strcmp(last, "avx512-bf16-fma") == 0;
    const mp_host_kernel_set *best = mp_host_kernels_best();
    assert_string_equal(mp_host_kernels_name(best), is_fma && !is_intel() ? "avx512-bf16" : last);
    assert_ptr_equal(mp_host_kernels_find(mp_host_kernels_name(best)), best);
    assert_non_null(mp_host_kernels_find("portable"));
    assert_null(mp_host_kernels_find("avx1024"));
}

static void test_host_kernels_work_counts_what_is_routed(void **state)
{
    static const uint32_t counts[] = {100, 0, 1, 20};
    (void)state;
    launch l;
    open_launch(&l, MOEPAGE_DTYPE_F32, MOEPAGE_MATH_FP32, 10, 6, counts, 0);
    assert_int_equal(mp_host_kernel_work(MP_KERNEL_EXPERTS, &l.args), (100 + 8 + 20) * 3 * 60);
    assert_int_equal(mp_host_kernel_phases(MP_KERNEL_EXPERTS), 2);
    assert_int_equal(mp_host_kernel_phases(MP_KERNEL_CONVERT), 1);
    assert_int_equal(mp_host_kernel_phases(MP_KERNEL_COMBINE), 1);
    close_launch(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_kernels_sum_in_the_documented_order),
        cmocka_unit_test(test_host_kernels_sum_long_rows_in_the_documented_order),
        cmocka_unit_test(test_host_kernels_sum_very_long_rows_in_the_documented_order),
        cmocka_unit_test(test_host_kernels_each_matrix_has_its_own_dtype),
        cmocka_unit_test(test_host_kernels_have_the_same_bits_in_any_number_of_parts),
        cmocka_unit_test(test_host_kernels_have_the_same_bits_for_a_row_in_any_company),
        cmocka_unit_test(test_host_kernels_parts_are_disjoint_complete_and_even),
        cmocka_unit_test(test_host_kernels_ignore_and_keep_the_floating_point_mode),
        cmocka_unit_test(test_host_kernels_pass_infinities_and_nans_on),
        cmocka_unit_test(test_host_kernels_best_is_the_last_that_suits_this_processor),
        cmocka_unit_test(test_host_kernels_work_counts_what_is_routed),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
