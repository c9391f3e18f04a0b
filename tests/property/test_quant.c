/* Group quantisation of random matrices, against the definition in double precision: bytes are read
 * here as the header says, halves and BF16s as test numbers are. */

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "numbers.h"
#include "testing.h"

static uint32_t below(uint32_t n)
{
    return (uint32_t)((uint64_t)num_random_bits() * n >> 32);
}

static double unit(void)
{
    return num_random_bits() / 4294967296.0;
}

static double gaussian(void)
{
    return sqrt(-2 * log(1 - unit())) * cos(6.283185307179586 * unit());
}

/* ---- A random matrix and what it becomes ---- */

typedef struct matrix {
    mp_quant_shape shape;
    mp_quant_layout layout;
    uint32_t dtype;
    void *weights;
    unsigned char *coded; /* ends where readable memory does, as weights do */
    uint64_t weight_bytes;
} matrix;

/* Weights of one of several kinds of group: ordinary, heavy-tailed, with an outlier, tiny, nothing,
 * on the grid, alternating. */
static double random_weight(uint32_t kind, uint64_t i)
{
    switch (kind) {
    case 0: return 0.02 * gaussian();
    case 1: return pow(gaussian(), 3);
    case 2: return i == 3 ? 40 : gaussian();
    case 3: return gaussian() * ldexp(1, -20 - (int)below(10));
    case 4: return 0;
    case 5: return (double)below(255) - 127;
    default: return i % 2 ? 0.75 : -0.5;
    }
}

/* Halves under test are normal, which is what num_put stores. */
static double storable(uint32_t dtype, double weight)
{
    if (dtype == MOEPAGE_DTYPE_F16 && fabs(weight) < 0x1p-14)
        weight = copysign(0x1p-14, weight);
    return num_rounded(dtype, (float)weight);
}

static void open_matrix(matrix *m)
{
    static const uint32_t bits[] = {8, 4, 2}, groups[] = {32, 64, 128},
                          dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    m->shape = (mp_quant_shape){1 + below(4), 1 + below(300), bits[below(3)], groups[below(3)]};
    m->dtype = dtypes[below(3)];
    assert_true(mp_quant_layout_of(&m->shape, &m->layout));
    const uint64_t n = m->shape.rows * m->shape.columns;
    m->weight_bytes = n * num_bytes(m->dtype);
    m->weights = guarded_alloc(m->weight_bytes);
    m->coded = guarded_alloc(m->layout.bytes);
    for (uint64_t row = 0; row < m->shape.rows; row++) {
        uint32_t kind = 0;
        for (uint64_t c = 0; c < m->shape.columns; c++) {
            if (c % m->shape.group == 0)
                kind = below(7);
            num_put(m->dtype, m->weights, row * m->shape.columns + c,
                    storable(m->dtype, random_weight(kind, c % m->shape.group)));
        }
    }
}

static void close_matrix(matrix *m)
{
    guarded_free(m->weights, m->weight_bytes);
    guarded_free(m->coded, m->layout.bytes);
}

static void encode(matrix *m, int search)
{
    memset(m->coded, 0xee, m->layout.bytes);
    assert_int_equal(mp_quant_encode(&m->shape, m->dtype, m->weights, search, m->coded),
                     MOEPAGE_OK);
    assert_int_equal(mp_quant_check(&m->shape, m->coded, m->layout.bytes), MOEPAGE_OK);
}

static double weight_of(const matrix *m, uint64_t row, uint64_t column)
{
    return num_get(m->dtype, m->weights, row * m->shape.columns + column);
}

/* ---- Reading by the definition ---- */

static int top_of(uint32_t bits)
{
    return bits == 8 ? 127 : bits == 4 ? 7 : 1;
}

/* The integer whose bits, two's complement, lie at b * (j % (8 / b)) of byte j / (8 / b). */
static int integer_of(const matrix *m, uint64_t row, uint64_t j)
{
    const uint32_t b = m->shape.bits, values = 1u << b;
    const unsigned byte = m->coded[row * m->layout.row_bytes + j / (8 / b)];
    const int field = (int)((byte >> (b * (j % (8 / b)))) % values);
    return field >= (int)values / 2 ? field - (int)values : field;
}

static uint64_t group_of(const matrix *m, uint64_t row, uint64_t column)
{
    return row * m->layout.row_groups + column / m->shape.group;
}

/* Negative in a group of four levels. */
static double stored_scale_of(const matrix *m, uint64_t row, uint64_t column)
{
    return num_get(MOEPAGE_DTYPE_F16, m->coded + m->layout.scale_offset, group_of(m, row, column));
}

static bool has_four_levels(const matrix *m, uint64_t row, uint64_t column)
{
    return m->shape.bits == 2 && stored_scale_of(m, row, column) < 0;
}

static double scale_of(const matrix *m, uint64_t row, uint64_t column)
{
    return fabs(stored_scale_of(m, row, column));
}

static double value_of(const matrix *m, uint64_t row, uint64_t column)
{
    const double offset = has_four_levels(m, row, column) ? 0.5 : 0;
    return (integer_of(m, row, column) + offset) * scale_of(m, row, column);
}

/* ---- Plain ---- */

static int quantised(double weight, double scale, int top)
{
    double q = scale > 0 ? nearbyint(weight / scale) : 0;
    return (int)fmax(-top, fmin(top, q));
}

static int quantised_to_four(double weight, double scale)
{
    return (int)fmax(-2, fmin(1, floor(weight / scale)));
}

static void check_integers(const matrix *m)
{
    for (uint64_t row = 0; row < m->shape.rows; row++)
        for (uint64_t c = 0; c < m->shape.columns; c++) {
            const double weight = weight_of(m, row, c), scale = scale_of(m, row, c);
            assert_true(stored_scale_of(m, row, c) >= 0 || has_four_levels(m, row, c));
            assert_int_equal(integer_of(m, row, c),
                             has_four_levels(m, row, c)
                                 ? quantised_to_four(weight, scale)
                                 : quantised(weight, scale, top_of(m->shape.bits)));
        }
}

/* The smallest half that covers the group, found among all halves. */
static double covering_scale(double largest, int top)
{
    uint16_t low = 0, high = 0x7bff;
    while (low < high) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (num_get(MOEPAGE_DTYPE_F16, &middle, 0) * (double)top >= largest)
            high = middle;
        else
            low = (uint16_t)(middle + 1);
    }
    return num_get(MOEPAGE_DTYPE_F16, &low, 0);
}

/* The covering scale; of a group of two bits, that of the levels with the lower squared error. */
static void check_scales(const matrix *m, uint32_t *n_four)
{
    for (uint64_t row = 0; row < m->shape.rows; row++)
        for (uint64_t first = 0; first < m->shape.columns; first += m->shape.group) {
            const uint64_t end = first + m->shape.group;
            double largest = 0;
            for (uint64_t c = first; c < end && c < m->shape.columns; c++)
                largest = fmax(largest, fabs(weight_of(m, row, c)));
            const int top = top_of(m->shape.bits);
            const double three = covering_scale(largest, top), four = covering_scale(largest, 2);
            double three_error = 0, four_error = 0;
            for (uint64_t c = first; c < end && c < m->shape.columns; c++) {
                const double w = weight_of(m, row, c);
                three_error += pow(w - quantised(w, three, top) * three, 2);
                four_error += four > 0 ? pow(w - (quantised_to_four(w, four) + 0.5) * four, 2) : 0;
            }
            const bool has_four = has_four_levels(m, row, first);
            assert_true(scale_of(m, row, first) == (has_four ? four : three));
            if (m->shape.bits == 2 && has_four)
                assert_true(four_error <= three_error);
            else if (m->shape.bits == 2)
                assert_true(three_error <= four_error || largest == 0);
            *n_four += has_four;
        }
}

/* Every bit that is no weight's and no scale's is zero: the same matrix always gives the same
 * bytes. */
static void check_padding(const matrix *m)
{
    const uint64_t packed = m->shape.rows * m->layout.row_bytes;
    const uint64_t scales = m->layout.scale_offset + m->shape.rows * m->layout.row_groups * 2;
    for (uint64_t i = packed; i < m->layout.scale_offset; i++)
        assert_int_equal(m->coded[i], 0);
    for (uint64_t i = scales; i < m->layout.bytes; i++)
        assert_int_equal(m->coded[i], 0);
    const uint64_t per_byte = 8 / m->shape.bits;
    for (uint64_t row = 0; row < m->shape.rows; row++)
        for (uint64_t c = m->shape.columns; c < m->layout.row_bytes * per_byte; c++)
            assert_int_equal(integer_of(m, row, c), 0);
}

static void check_decoding(const matrix *m)
{
    const uint64_t row = below((uint32_t)m->shape.rows);
    const uint64_t first = below((uint32_t)m->shape.columns);
    const uint64_t n = 1 + below((uint32_t)(m->shape.columns - first));
    float *out = guarded_alloc(n * sizeof *out);
    mp_quant_decode_row(&m->shape, m->coded, row, first, n, out);
    for (uint64_t i = 0; i < n; i++)
        assert_true(out[i] == value_of(m, row, first + i));
    guarded_free(out, n * sizeof *out);
}

/* No weight is off by more than s / 2: nothing is clamped, as the scale is rounded upwards. */
static void check_bound(const matrix *m)
{
    for (uint64_t row = 0; row < m->shape.rows; row++)
        for (uint64_t c = 0; c < m->shape.columns; c++) {
            double s = scale_of(m, row, c);
            assert_true(fabs(weight_of(m, row, c) - value_of(m, row, c)) <= s / 2);
        }
}

static void test_quant_is_the_definition(void **state)
{
    const int rounds = getenv("MP_TEST_LONG") ? 20000 : 400;
    uint32_t n_four = 0;
    (void)state;
    for (int i = 0; i < rounds; i++) {
        matrix m;
        open_matrix(&m);
        encode(&m, 0);
        check_scales(&m, &n_four);
        check_integers(&m);
        check_bound(&m);
        check_padding(&m);
        check_decoding(&m);
        close_matrix(&m);
    }
    assert_true(n_four > (uint32_t)rounds / 4); /* a third of the matrices have two bits */
}

/* ---- Search ---- */

static void add_errors(const matrix *m, double *errors)
{
    for (uint64_t row = 0; row < m->shape.rows; row++)
        for (uint64_t c = 0; c < m->shape.columns; c++) {
            double e = weight_of(m, row, c) - value_of(m, row, c);
            errors[group_of(m, row, c)] += e * e;
        }
}

static void test_quant_search_never_has_a_larger_error(void **state)
{
    const int rounds = getenv("MP_TEST_LONG") ? 20000 : 400;
    uint32_t smaller = 0;
    (void)state;
    for (int i = 0; i < rounds; i++) {
        matrix m;
        open_matrix(&m);
        const uint64_t groups = m.shape.rows * m.layout.row_groups;
        double *plain = calloc(groups, sizeof *plain), *searched = calloc(groups, sizeof *searched);
        assert_true(plain && searched);
        encode(&m, 0);
        add_errors(&m, plain);
        encode(&m, 1);
        add_errors(&m, searched);
        for (uint64_t g = 0; g < groups; g++) {
            assert_true(searched[g] <= plain[g]);
            smaller += searched[g] < plain[g];
        }
        check_integers(&m);
        check_padding(&m);
        check_decoding(&m);
        free(plain);
        free(searched);
        close_matrix(&m);
    }
    assert_true(smaller > (uint32_t)rounds); /* there are several groups in a matrix */
}

/* The least squared error that any half as a scale gives. */
static double least_error(const float *weights, uint32_t n, uint32_t bits)
{
    const int top = top_of(bits);
    float largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(weights[i]));
    double least = INFINITY;
    for (uint16_t half = 1; half < 0x7c00; half++) {
        double scale = num_get(MOEPAGE_DTYPE_F16, &half, 0), error = 0, four_error = 0;
        if (scale < largest / 20 / top || scale > 1.5 * largest)
            continue;
        for (uint32_t i = 0; i < n && fmin(error, four_error) < least; i++) {
            const double w = weights[i];
            error += pow(w - quantised(w, scale, top) * scale, 2);
            four_error += pow(w - (quantised_to_four(w, scale) + 0.5) * scale, 2);
        }
        least = fmin(least, bits == 2 ? fmin(error, four_error) : error);
    }
    return least;
}

/* Over many groups of ordinary weights, with 2 and 4 bits. */
static void test_quant_search_comes_close_to_the_best_scale(void **state)
{
    enum { GROUPS = 12, N = 64 };
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits *= 2) {
        matrix m = {.shape = {GROUPS, N, bits, N}, .dtype = MOEPAGE_DTYPE_F32};
        assert_true(mp_quant_layout_of(&m.shape, &m.layout));
        m.weight_bytes = GROUPS * N * sizeof(float);
        m.weights = guarded_alloc(m.weight_bytes);
        m.coded = guarded_alloc(m.layout.bytes);
        for (uint64_t i = 0; i < GROUPS * N; i++)
            num_put(m.dtype, m.weights, i, (float)(0.03 * gaussian()));
        double errors[GROUPS] = {0}, found = 0, best = 0;
        encode(&m, 1);
        add_errors(&m, errors);
        for (int g = 0; g < GROUPS; g++) {
            found += errors[g];
            best += least_error((const float *)m.weights + g * N, N, bits);
        }
        assert_true(found >= best * (1 - 1e-12));
        assert_true(found <= best * 1.01);
        close_matrix(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quant_is_the_definition),
        cmocka_unit_test(test_quant_search_never_has_a_larger_error),
        cmocka_unit_test(test_quant_search_comes_close_to_the_best_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
