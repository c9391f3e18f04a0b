/* CONVERT and COMBINE as kernels, block by block on the CPU: to the bit what device/kernels.h says,
 * whatever the grid is, and nothing outside a row. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_reach.h"
#include "kernels/elementwise.h"
#include "moepage.h"
#include "numbers.h"
#include "reference.h"
#include "testing.h"

#define ENTRY(name, args, shared, thread, threads, blocks) MP_CPU_ENTRY(name, args, shared, thread)
#define ROW(name, args, shared, thread, threads, blocks) MP_CPU_ROW(name, args, shared, thread),
MP_ELEMENTWISE_ENTRIES(ENTRY)
static const mp_cpu_kernel kernels[] = {MP_ELEMENTWISE_ENTRIES(ROW)};
enum { CONVERT, COMBINE };

static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};

static uint32_t below(uint32_t n)
{
    return num_random_bits() % n;
}

static void *new_bytes(size_t n)
{
    void *bytes = calloc(n ? n : 1, 1);
    assert_non_null(bytes);
    return bytes;
}

static void launch(uint32_t which, const void *args, uint32_t n_blocks)
{
    const mp_cpu_kernel *kernel = &kernels[which];
    if (gpu_reach()) {
        gpu_reach_launch(kernel->name, args, n_blocks, MP_ELEMENTWISE_THREADS,
                         kernel->shared_bytes);
        return;
    }
    uint32_t order[MP_ELEMENTWISE_THREADS];
    void *threads = new_bytes((size_t)kernel->thread_bytes * MP_ELEMENTWISE_THREADS);
    uint32_t shared = 0;
    assert_int_equal(kernel->shared_bytes, MP_ELEMENTWISE_SHARED);
    for (uint32_t b = n_blocks; b-- > 0;) {
        const uint32_t turn = below(MP_ELEMENTWISE_THREADS);
        for (uint32_t i = 0; i < MP_ELEMENTWISE_THREADS; i++)
            order[i] = (i * 37 + turn) % MP_ELEMENTWISE_THREADS;
        memset(threads, 0xff, (size_t)kernel->thread_bytes * MP_ELEMENTWISE_THREADS);
        kernel->run(args, &shared, threads, b, n_blocks,
                    &(mp_cpu_block){MP_ELEMENTWISE_THREADS, order});
    }
    free(threads);
}

/* Equal bits, or both NaN. */
static void assert_same(const void *got, const void *want, size_t n, uint32_t dtype)
{
    const uint32_t size = reference_size(dtype);
    for (size_t i = 0; i < n; i++) {
        double a = reference_load(got, i, dtype), b = reference_load(want, i, dtype);
        if ((!isnan(a) || !isnan(b)) &&
            memcmp((const char *)got + i * size, (const char *)want + i * size, size))
            fail_msg("element %zu is %.17g, should be %.17g", i, a, b);
    }
}

/* ---- CONVERT ---- */

/* Rows of `stride` elements, all halves of floats' bits among them, at ties and around them. */
static void check_convert(uint32_t tokens, uint32_t hidden, uint32_t stride, uint32_t dtype,
                          uint32_t to, uint32_t n_blocks)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    const size_t n = (size_t)tokens * stride, n_out = (size_t)tokens * hidden;
    char *x = new_bytes(n * reference_size(dtype));
    char *out = new_bytes((n_out + 4) * 4), *want = new_bytes((n_out + 4) * 4);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i << 16 | low[below(6)];
        if (dtype != MOEPAGE_DTYPE_F32)
            bits >>= 16;
        memcpy(x + i * reference_size(dtype), &bits, reference_size(dtype));
    }
    memset(out, 0x5b, (n_out + 4) * 4);
    memset(want, 0x5b, (n_out + 4) * 4);
    for (size_t i = 0; i < n_out; i++)
        reference_store(want, i, to, reference_load(x, i / hidden * stride + i % hidden, dtype));
    launch(CONVERT,
           &(mp_gpu_convert_args){.x = x,
                                  .out = out,
                                  .x_stride = stride,
                                  .x_dtype = dtype,
                                  .to_bf16 = to == MOEPAGE_DTYPE_BF16,
                                  .n_tokens = tokens,
                                  .hidden = hidden},
           n_blocks);
    assert_same(out, want, n_out, to);
    assert_memory_equal(out + n_out * reference_size(to), want + n_out * reference_size(to), 8);
    free(x);
    free(out);
    free(want);
}

static void test_convert_is_exact_for_every_value(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < 3; d++) {
        for (uint32_t m = 0; m < 2; m++) {
            const uint32_t to = m ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
            check_convert(1, 65536, 65536, dtypes[d], to, 7);
            check_convert(60, 1029, 1100, dtypes[d], to, 120);
            check_convert(3, 1, 2, dtypes[d], to, 1);
        }
    }
}

/* ---- COMBINE ---- */

typedef struct sums {
    uint32_t tokens, top_k, hidden, stride, dtype, accumulate;
    float *partial, *weights;
    int32_t *ids;
    void *y, *want;
} sums;

static void store(void *array, size_t i, uint32_t dtype, float value)
{
    reference_store(array, i, dtype, value);
}

/* The definition, one element at a time; of a layer that was given up, NaN. */
static void define(const sums *s, uint32_t given_up)
{
    for (uint32_t t = 0; t < s->tokens; t++) {
        for (uint32_t h = 0; h < s->hidden; h++) {
            const size_t at = (size_t)t * s->stride + h;
            float sum = 0;
            for (uint32_t k = 0; k < s->top_k; k++) {
                const size_t row = (size_t)t * s->top_k + k;
                if (s->ids[row] >= 0)
                    sum = fmaf(s->weights[row], s->partial[row * s->hidden + h], sum);
            }
            if (s->accumulate)
                sum = (float)reference_load(s->y, at, s->dtype) + sum;
            store(s->want, at, s->dtype, given_up ? NAN : sum);
        }
    }
}

static void check_combine(sums *s, uint32_t given_up, uint32_t n_blocks)
{
    const size_t rows = (size_t)s->tokens * s->top_k, n = (size_t)s->tokens * s->stride;
    s->partial = new_bytes(rows * s->hidden * sizeof *s->partial);
    s->weights = new_bytes(rows * sizeof *s->weights);
    s->ids = new_bytes(rows * sizeof *s->ids);
    s->y = new_bytes(n * 4);
    s->want = new_bytes(n * 4);
    for (size_t i = 0; i < rows * s->hidden; i++)
        s->partial[i] = num_random();
    for (size_t i = 0; i < rows; i++) {
        s->weights[i] = num_random();
        s->ids[i] = below(4) ? (int32_t)below(100) : MOEPAGE_NO_EXPERT;
        for (uint32_t h = 0; h < s->hidden && s->ids[i] < 0; h++)
            s->partial[i * s->hidden + h] = NAN; /* must not be looked at */
    }
    for (size_t i = 0; i < n; i++)
        store(s->y, i, s->dtype, num_random());
    uint32_t *word = new_bytes(sizeof *word);
    *word = given_up;
    memcpy(s->want, s->y, n * 4);
    define(s, given_up);
    launch(COMBINE,
           &(mp_gpu_combine_args){.partial = s->partial,
                                  .weights = s->weights,
                                  .ids = s->ids,
                                  .given_up = given_up || below(2) ? word : NULL,
                                  .y = s->y,
                                  .y_stride = s->stride,
                                  .y_dtype = s->dtype,
                                  .n_tokens = s->tokens,
                                  .top_k = s->top_k,
                                  .hidden = s->hidden,
                                  .accumulate = s->accumulate},
           n_blocks);
    assert_same(s->y, s->want, n, s->dtype);
    free(word);
    free(s->partial);
    free(s->weights);
    free(s->ids);
    free(s->y);
    free(s->want);
}

static void test_combine_is_exact(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        sums s = {.tokens = 1 + below(6),
                  .top_k = 1 + below(9),
                  .hidden = i % 4 ? 1 + below(300) : 1000 + below(1300),
                  .dtype = dtypes[i % 3],
                  .accumulate = i / 3 % 2};
        s.stride = s.hidden + below(3);
        check_combine(&s, 0, 1 + below(10));
    }
}

static void test_combine_fills_a_layer_given_up_with_nan(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        sums s = {.tokens = 3,
                  .top_k = 2,
                  .hidden = 1500,
                  .stride = 1501,
                  .dtype = dtypes[i % 3],
                  .accumulate = i / 3};
        check_combine(&s, 1 + below(3), 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_is_exact_for_every_value),
        cmocka_unit_test(test_combine_is_exact),
        cmocka_unit_test(test_combine_fills_a_layer_given_up_with_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
