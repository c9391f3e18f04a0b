/* Rounding with error feedback: the integers of GPTQ as its paper gives it, in double precision with an
 * inverse; plain rounding where inputs do not correlate; and moments that no inputs have. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "moe_maker.h"
#include "numbers.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define MOST_ROWS 6
#define MOST_COLUMNS 100

/* ---- A matrix, and inputs of it ---- */

typedef struct matrix {
    mp_quant_shape shape;
    mp_quant_layout layout;
    float weights[MOST_ROWS * MOST_COLUMNS];
    double moments[MOST_COLUMNS * MOST_COLUMNS];
    unsigned char coded[MOST_ROWS * MOST_COLUMNS * 2];
} matrix;

static double unit(void)
{
    return num_random_bits() / 4294967296.0;
}

static double gaussian(void)
{
    return sqrt(-2 * log(1 - unit())) * cos(6.283185307179586 * unit());
}

/* Gives moments of n inputs whose values go along with those of a few hidden ones. */
static void correlate(matrix *m, uint32_t n)
{
    const uint64_t columns = m->shape.columns;
    double mixing[MOST_COLUMNS][4], x[MOST_COLUMNS];
    for (uint64_t c = 0; c < columns; c++)
        for (int h = 0; h < 4; h++)
            mixing[c][h] = gaussian();
    memset(m->moments, 0, sizeof m->moments);
    for (uint32_t i = 0; i < n; i++) {
        double hidden[4] = {gaussian(), gaussian(), gaussian(), gaussian()};
        for (uint64_t c = 0; c < columns; c++) {
            x[c] = 0.5 * gaussian();
            for (int h = 0; h < 4; h++)
                x[c] += mixing[c][h] * hidden[h];
        }
        for (uint64_t a = 0; a < columns; a++)
            for (uint64_t b = 0; b < columns; b++)
                m->moments[a * columns + b] += x[a] * x[b];
    }
    for (uint64_t i = 0; i < columns * columns; i++) /* what the library is given */
        m->moments[i] = (float)m->moments[i];
}

static void make(matrix *m, uint64_t rows, uint64_t columns, uint32_t bits, uint32_t group)
{
    m->shape = (mp_quant_shape){rows, columns, bits, group};
    assert_true(mp_quant_layout_of(&m->shape, &m->layout));
    assert_true(m->layout.bytes <= sizeof m->coded);
    for (uint64_t i = 0; i < rows * columns; i++)
        m->weights[i] = (float)(0.02 * gaussian());
}

/* The lower triangle is not to be read. */
static moepage_status encode(matrix *m, int search)
{
    float moments[MOST_COLUMNS * MOST_COLUMNS];
    const uint64_t columns = m->shape.columns;
    for (uint64_t a = 0; a < columns; a++)
        for (uint64_t b = 0; b < columns; b++)
            moments[a * columns + b] = a <= b ? (float)m->moments[a * columns + b] : NAN;
    memset(m->coded, 0xee, sizeof m->coded);
    moepage_status status =
        mp_quant_encode_for(&m->shape, F32, m->weights, search, moments, m->coded);
    if (!status)
        assert_int_equal(mp_quant_check(&m->shape, m->coded, m->layout.bytes), MOEPAGE_OK);
    assert_int_equal(m->coded[m->layout.bytes], 0xee);
    return status;
}

static void expect_same(const matrix *m, const unsigned char *want)
{
    assert_memory_equal(m->coded, want, m->layout.bytes);
}

/* e M e' over all rows, e the weights less their values. */
static double error_of(const matrix *m)
{
    const uint64_t columns = m->shape.columns;
    double sum = 0;
    for (uint64_t row = 0; row < m->shape.rows; row++) {
        float values[MOST_COLUMNS];
        double e[MOST_COLUMNS];
        mp_quant_decode_row(&m->shape, m->coded, row, 0, columns, values);
        for (uint64_t c = 0; c < columns; c++)
            e[c] = (double)m->weights[row * columns + c] - (double)values[c];
        for (uint64_t a = 0; a < columns; a++)
            for (uint64_t b = 0; b < columns; b++)
                sum += e[a] * m->moments[a * columns + b] * e[b];
    }
    return sum;
}

/* ---- GPTQ, naively ---- */

/* The inverse, by Gauss-Jordan without pivoting: the moments are positive. */
static void invert(const double *of, uint64_t n, double *out)
{
    double a[MOST_COLUMNS * MOST_COLUMNS];
    memcpy(a, of, n * n * sizeof *a);
    for (uint64_t i = 0; i < n * n; i++)
        out[i] = i / n == i % n;
    for (uint64_t k = 0; k < n; k++) {
        const double pivot = a[k * n + k];
        for (uint64_t c = 0; c < n; c++) {
            a[k * n + c] /= pivot;
            out[k * n + c] /= pivot;
        }
        for (uint64_t r = 0; r < n; r++) {
            const double factor = a[r * n + k];
            for (uint64_t c = 0; r != k && c < n; c++) {
                a[r * n + c] -= factor * a[k * n + c];
                out[r * n + c] -= factor * out[k * n + c];
            }
        }
    }
}

/* The grid of a group of weights as they are now: the plain quantiser's of them, rounded to floats. */
static void take_grid(const matrix *m, const double *weights, uint64_t n, double *scale, int *four)
{
    const mp_quant_shape row = {1, n, m->shape.bits, m->shape.group};
    mp_quant_layout layout;
    float rounded[MOST_COLUMNS];
    unsigned char coded[2 * MOST_COLUMNS + 32];
    for (uint64_t i = 0; i < n; i++)
        rounded[i] = (float)weights[i];
    assert_true(mp_quant_layout_of(&row, &layout));
    assert_int_equal(mp_quant_encode(&row, F32, rounded, 0, coded), MOEPAGE_OK);
    const double stored = (double)num_get(MOEPAGE_DTYPE_F16, coded + layout.scale_offset, 0);
    *four = stored < 0;
    *scale = fabs(stored);
}

static double nearest(const matrix *m, double weight, double scale, int four)
{
    const int top = m->shape.bits == 8 ? 127 : m->shape.bits == 4 ? 7 : 1;
    if (four)
        return (fmax(-2, fmin(1, floor(weight / scale))) + 0.5) * scale;
    return fmax(-top, fmin(top, nearbyint(weight / scale))) * scale;
}

/* Frantar et al., equations 2 and 3, a row at a time: each column is rounded, the rest is changed for the
 * least error, and the column leaves the inverse. */
static void gptq(const matrix *m, double *values)
{
    const uint64_t n = m->shape.columns;
    double damped[MOST_COLUMNS * MOST_COLUMNS], full[MOST_COLUMNS * MOST_COLUMNS], mean = 0;
    for (uint64_t i = 0; i < n; i++)
        mean += m->moments[i * n + i] / (double)n;
    memcpy(damped, m->moments, n * n * sizeof *damped);
    for (uint64_t i = 0; i < n; i++)
        damped[i * n + i] += 0.01 * mean;
    invert(damped, n, full);
    for (uint64_t row = 0; row < m->shape.rows; row++) {
        double w[MOST_COLUMNS], inverse[MOST_COLUMNS * MOST_COLUMNS], scale = 0;
        int four = 0;
        memcpy(inverse, full, sizeof inverse);
        for (uint64_t c = 0; c < n; c++)
            w[c] = (double)m->weights[row * n + c];
        for (uint64_t k = 0; k < n; k++) {
            if (k % m->shape.group == 0)
                take_grid(m, w + k, n - k < m->shape.group ? n - k : m->shape.group, &scale, &four);
            const double value = nearest(m, w[k], scale, four);
            const double error = (w[k] - value) / inverse[k * n + k];
            values[row * n + k] = value;
            for (uint64_t c = k + 1; c < n; c++)
                w[c] -= error * inverse[k * n + c];
            for (uint64_t a = k + 1; a < n; a++)
                for (uint64_t b = k + 1; b < n; b++)
                    inverse[a * n + b] -=
                        inverse[a * n + k] * inverse[k * n + b] / inverse[k * n + k];
        }
    }
}

static void test_rounding_with_feedback_gives_the_values_of_gptq(void **state)
{
    (void)state;
    static const struct {
        uint64_t columns;
        uint32_t bits, group, inputs;
    } cases[] = {{96, 2, 32, 300}, {96, 4, 32, 300}, {96, 8, 32, 300}, {100, 2, 64, 300},
                 {70, 4, 64, 10},  {70, 2, 32, 10},  {31, 2, 128, 60}, {1, 2, 32, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matrix m;
        double want[MOST_ROWS * MOST_COLUMNS];
        make(&m, MOST_ROWS, cases[i].columns, cases[i].bits, cases[i].group);
        correlate(&m, cases[i].inputs);
        gptq(&m, want);
        assert_int_equal(encode(&m, 0), MOEPAGE_OK);
        for (uint64_t row = 0; row < MOST_ROWS; row++) {
            float got[MOST_COLUMNS];
            mp_quant_decode_row(&m.shape, m.coded, row, 0, m.shape.columns, got);
            for (uint64_t c = 0; c < m.shape.columns; c++)
                if ((double)got[c] != want[row * m.shape.columns + c])
                    fail_msg("case %zu, row %u, column %u: %g, not %g", i, (unsigned)row,
                             (unsigned)c, (double)got[c], want[row * m.shape.columns + c]);
        }
    }
}

/* ---- Inputs that do not correlate ---- */

static void test_rounding_for_inputs_that_do_not_correlate_is_plain(void **state)
{
    (void)state;
    static const double squares[] = {1, 3.5, 0, 0x1p-100};
    for (uint32_t bits = 2; bits <= 8; bits *= 2)
        for (size_t i = 0; i < sizeof squares / sizeof *squares; i++) {
            matrix m;
            unsigned char plain[sizeof m.coded];
            make(&m, MOST_ROWS, 77, bits, 32);
            memset(m.moments, 0, sizeof m.moments);
            for (uint64_t c = 0; c < 77; c++)
                m.moments[c * 77 + c] = squares[i];
            assert_int_equal(mp_quant_encode(&m.shape, F32, m.weights, 0, plain), MOEPAGE_OK);
            assert_int_equal(encode(&m, 0), MOEPAGE_OK);
            expect_same(&m, plain);
        }
}

static void test_rounding_takes_any_multiple_of_the_moments(void **state)
{
    (void)state;
    matrix m;
    unsigned char once[sizeof m.coded];
    make(&m, MOST_ROWS, 90, 2, 32);
    correlate(&m, 40);
    assert_int_equal(encode(&m, 1), MOEPAGE_OK);
    memcpy(once, m.coded, sizeof once);
    for (uint64_t i = 0; i < 90 * 90; i++)
        m.moments[i] *= 0x1p-20;
    assert_int_equal(encode(&m, 1), MOEPAGE_OK);
    expect_same(&m, once);
}

/* ---- The products' error ---- */

/* Of one group, the covering grid is one of those that a search compares. */
static void test_searched_grids_have_no_greater_error(void **state)
{
    (void)state;
    uint32_t better = 0, of_plain = 0;
    for (uint32_t i = 0; i < 40; i++) {
        matrix m;
        make(&m, 1, 64, 2u << i % 3, 64);
        correlate(&m, 100);
        assert_int_equal(encode(&m, 0), MOEPAGE_OK);
        double mean = 0;
        for (uint64_t c = 0; c < 64; c++)
            mean += m.moments[c * 64 + c] / 64;
        matrix damped = m; /* the moments that count */
        for (uint64_t c = 0; c < 64; c++)
            damped.moments[c * 64 + c] += 0.01 * mean;
        const double covering = error_of(&damped);
        assert_int_equal(mp_quant_encode(&m.shape, F32, m.weights, 0, damped.coded), MOEPAGE_OK);
        of_plain += covering < error_of(&damped);
        assert_int_equal(encode(&m, 1), MOEPAGE_OK);
        memcpy(damped.coded, m.coded, sizeof m.coded);
        const double searched = error_of(&damped);
        assert_true(searched <= covering * (1 + 1e-5));
        better += searched < 0.99 * covering;
    }
    assert_int_equal(of_plain, 40);
    assert_true(better > 25);
}

/* ---- Refusals ---- */

static void expect_refusal(matrix *m, const char *words)
{
    assert_int_equal(encode(m, 0), MOEPAGE_E_ARGUMENT);
    expect_sentence(words);
}

static void test_moments_of_no_inputs_are_refused(void **state)
{
    (void)state;
    matrix m;
    make(&m, 2, 40, 4, 32);
    correlate(&m, 80);
    const double kept = m.moments[3 * 40 + 7];
    m.moments[3 * 40 + 7] = 1e6;
    expect_refusal(&m, "no inputs|not positive at column 3");
    m.moments[3 * 40 + 7] = NAN;
    expect_refusal(&m, "no inputs|not positive at column 3");
    m.moments[3 * 40 + 7] = kept;
    m.moments[39 * 40 + 39] = INFINITY;
    expect_refusal(&m, "no inputs|diagonal|inf");
    m.moments[39 * 40 + 39] = -1e9;
    expect_refusal(&m, "no inputs|diagonal|-");
}

static void test_weights_are_refused_as_without_moments(void **state)
{
    (void)state;
    matrix m;
    make(&m, 2, 40, 4, 32);
    correlate(&m, 80);
    m.weights[40 + 5] = NAN;
    assert_int_equal(encode(&m, 0), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("row 1|column 5|NaN");
    m.weights[40 + 5] = 1e9f;
    assert_int_equal(encode(&m, 0), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("row 1|int4");
    m.shape.group = 16;
    assert_int_equal(mp_quant_encode_for(&m.shape, F32, m.weights, 0, NULL, m.coded),
                     MOEPAGE_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_with_feedback_gives_the_values_of_gptq),
        cmocka_unit_test(test_rounding_for_inputs_that_do_not_correlate_is_plain),
        cmocka_unit_test(test_rounding_takes_any_multiple_of_the_moments),
        cmocka_unit_test(test_searched_grids_have_no_greater_error),
        cmocka_unit_test(test_moments_of_no_inputs_are_refused),
        cmocka_unit_test(test_weights_are_refused_as_without_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
