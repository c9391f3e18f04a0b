/* Any numbers as a matrix to quantise: it is refused exactly when a weight is not finite or too
 * large for any scale; else each integer is the nearest to its weight under the group's scale, that
 * scale is the smallest that covers the group, and one that was searched for is no worse. And any
 * bytes as a quantised matrix: the check refuses what no encoder makes (integers out of range, scales
 * that are not finite, or negative without four levels, padding that is not zero), no more.
 *
 *   u8 shape: bits (low 2), group (next 2), dtype (next 2); u8 rows; u16 columns; bytes
 *
 * The bytes are repeated to as many weights as there are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "fuzz.h"

enum { MOST_ROWS = 8, MOST_COLUMNS = 300 };

typedef struct matrix {
    mp_quant_shape shape;
    mp_quant_layout layout;
    uint32_t dtype, element;
    fuzz_fence weights;
} matrix;

/* ---- Numbers, from their definitions ----------------------------------------------------- */

/* sign, exponent and mantissa fields of so many bits. */
static double number(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> mantissa_bits) & top;
    double mantissa = bits & ((1u << mantissa_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (exponent == top)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent)
        mantissa += 1u << mantissa_bits;
    return sign * ldexp(mantissa, (exponent ? exponent : 1) - bias - mantissa_bits);
}

static double weight_at(const matrix *m, uint64_t i)
{
    uint32_t bits = 0;
    memcpy(&bits, m->weights.bytes + i * m->element, m->element);
    switch (m->dtype) {
    case MOEPAGE_DTYPE_F32: return number(bits, 8, 23);
    case MOEPAGE_DTYPE_F16: return number(bits, 5, 10);
    default: return number(bits, 8, 7);
    }
}

static double scale_at(const matrix *m, const uint8_t *image, uint64_t row, uint64_t group)
{
    uint16_t bits;
    uint64_t at = m->layout.scale_offset + (row * m->layout.row_groups + group) * sizeof bits;
    memcpy(&bits, image + at, sizeof bits);
    return number(bits, 5, 10);
}

static int integer_at(const matrix *m, const uint8_t *image, uint64_t row, uint64_t column)
{
    uint32_t bits = m->shape.bits, per_byte = 8 / bits;
    int field =
        image[row * m->layout.row_bytes + column / per_byte] >> (bits * (column % per_byte));
    field &= (1 << bits) - 1;
    return field >> (bits - 1) ? field - (1 << bits) : field;
}

/* ---- What an encoding must be ------------------------------------------------------------ */

static int top_of(const matrix *m)
{
    return m->shape.bits == 8 ? 127 : m->shape.bits == 4 ? 7 : 1;
}

/* No smaller half would do; the largest weight of the group is `largest`. */
static void check_covers(double scale, double largest, int top)
{
    FUZZ_CHECK(scale * top >= largest, "scale %g, largest %g", scale, largest);
    if (scale > 0) {
        double step = scale < 0x1p-14 ? 0x1p-24 : ldexp(1, ilogb(scale) - 10);
        double below =
            ilogb(scale) > -14 && scale == ldexp(1, ilogb(scale)) ? scale - step / 2 : scale - step;
        FUZZ_CHECK(below * top < largest, "scale %g, largest %g", scale, largest);
    }
}

static bool has_four_levels(const matrix *m, double scale)
{
    return m->shape.bits == 2 && scale < 0;
}

static double value_of(const matrix *m, int q, double scale)
{
    return has_four_levels(m, scale) ? (q + 0.5) * -scale : q * scale;
}

/* The squared error of a group, each integer of which must be the nearest. */
static double check_group(const matrix *m, const uint8_t *image, uint64_t row, uint64_t group,
                          bool searched)
{
    uint64_t first = group * m->shape.group, end = first + m->shape.group;
    double scale = scale_at(m, image, row, group), largest = 0, sum = 0;
    const bool four = has_four_levels(m, scale);
    FUZZ_CHECK(isfinite(scale) && (four || !signbit(scale)));
    for (uint64_t c = first; c < end && c < m->shape.columns; c++) {
        double weight = weight_at(m, row * m->shape.columns + c);
        int q = integer_at(m, image, row, c), top = top_of(m);
        double exact = scale > 0 ? nearbyint(weight / scale) : 0;
        exact = fmin(fmax(exact, -top), top);
        if (four)
            exact = fmin(fmax(floor(weight / -scale), -2), 1);
        FUZZ_CHECK(q == (int)exact, "row %llu, column %llu: weight %a, scale %a, integer %d",
                   (unsigned long long)row, (unsigned long long)c, weight, scale, q);
        largest = fmax(largest, fabs(weight));
        sum += pow(weight - value_of(m, q, scale), 2);
    }
    if (!searched)
        check_covers(fabs(scale), largest, four ? 2 : top_of(m));
    return sum;
}

static void check_decode(const matrix *m, const uint8_t *image, const fuzz_fence *in)
{
    uint64_t columns = m->shape.columns, rows = m->shape.rows;
    for (uint64_t row = 0; row < rows; row++) {
        /* From different columns on, to the end. */
        uint64_t first = row * 7 % columns;
        fuzz_fence out = fuzz_fence_make((columns - first) * sizeof(float));
        mp_quant_decode_row(&m->shape, in->bytes, row, first, columns - first, (float *)out.bytes);
        for (uint64_t c = first; c < columns; c++) {
            float value = ((float *)out.bytes)[c - first];
            double exact = value_of(m, integer_at(m, image, row, c),
                                    scale_at(m, image, row, c / m->shape.group));
            FUZZ_CHECK(value == exact || (isnan(value) && isnan(exact)), "%a is not %a",
                       (double)value, exact);
        }
        fuzz_fence_free(&out);
    }
}

static void check_encodes(const matrix *m)
{
    bool finite = true;
    double largest = 0;
    for (uint64_t i = 0; i < m->shape.rows * m->shape.columns; i++) {
        finite = finite && isfinite(weight_at(m, i));
        largest = fmax(largest, fabs(weight_at(m, i)));
    }
    fuzz_fence plain = fuzz_fence_make(m->layout.bytes), found = fuzz_fence_make(m->layout.bytes);
    moepage_status status = mp_quant_encode(&m->shape, m->dtype, m->weights.bytes, 0, plain.bytes);
    bool fits = finite && largest <= 65504.0 * top_of(m);
    FUZZ_CHECK(status == (fits ? MOEPAGE_OK : MOEPAGE_E_UNSUPPORTED), "status %d", status);
    FUZZ_CHECK(mp_quant_encode(&m->shape, m->dtype, m->weights.bytes, 1, found.bytes) == status);
    for (uint64_t row = 0; !status && row < m->shape.rows; row++)
        for (uint64_t g = 0; g < m->layout.row_groups; g++) {
            double without = check_group(m, plain.bytes, row, g, false);
            double with = check_group(m, found.bytes, row, g, true);
            FUZZ_CHECK(with <= without * (1 + 1e-9), "%a with a search, %a without", with, without);
        }
    if (!status) {
        FUZZ_CHECK(!mp_quant_check(&m->shape, plain.bytes, plain.n_bytes));
        check_decode(m, plain.bytes, &plain);
        check_decode(m, found.bytes, &found);
        fuzz_accepted++;
    }
    fuzz_fence_free(&plain);
    fuzz_fence_free(&found);
}

/* Bits of the image that belong to no integer and no scale. */
static bool is_padded(const matrix *m, const uint8_t *image)
{
    const uint64_t row_bits = m->layout.row_bytes * 8, used = m->shape.columns * m->shape.bits;
    const uint64_t scales = m->layout.scale_offset * 8;
    const uint64_t scales_end = scales + m->shape.rows * m->layout.row_groups * 16;
    for (uint64_t bit = 0; bit < m->layout.bytes * 8; bit++) {
        const bool integer = bit < m->shape.rows * row_bits && bit % row_bits < used;
        if (!integer && (bit < scales || bit >= scales_end) && image[bit / 8] >> bit % 8 & 1)
            return false;
    }
    return true;
}

/* The weights' bytes, repeated, as an image. */
static void check_image(const matrix *m)
{
    fuzz_fence image = fuzz_fence_make(m->layout.bytes);
    for (size_t i = 0; i < image.n_bytes; i++)
        image.bytes[i] = m->weights.bytes[i % m->weights.n_bytes];
    bool finite = true, sound = is_padded(m, image.bytes);
    for (uint64_t row = 0; row < m->shape.rows; row++) {
        for (uint64_t g = 0; g < m->layout.row_groups; g++) {
            const double scale = scale_at(m, image.bytes, row, g);
            finite = finite && isfinite(scale);
            sound = sound && isfinite(scale) && (!signbit(scale) || has_four_levels(m, scale));
        }
        for (uint64_t c = 0; c < m->shape.columns; c++)
            sound =
                sound && (has_four_levels(m, scale_at(m, image.bytes, row, c / m->shape.group)) ||
                          integer_at(m, image.bytes, row, c) >= -top_of(m));
    }
    moepage_status status = mp_quant_check(&m->shape, image.bytes, image.n_bytes);
    FUZZ_CHECK(status == (sound ? MOEPAGE_OK : MOEPAGE_E_FORMAT), "status %d", status);
    FUZZ_CHECK(mp_quant_check(&m->shape, image.bytes, image.n_bytes - 1) == MOEPAGE_E_FORMAT);
    if (finite)
        check_decode(m, image.bytes, &image);
    fuzz_fence_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t bits[] = {8, 4, 2, 4}, groups[] = {32, 64, 128, 32};
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_F32,
                                      MOEPAGE_DTYPE_F32};
    fuzz_input in = {data, size};
    unsigned kind = (unsigned)fuzz_take(&in, 1);
    matrix m = {.dtype = dtypes[kind >> 4 & 3]};
    m.element = m.dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
    m.shape = (mp_quant_shape){.bits = bits[kind & 3], .group = groups[kind >> 2 & 3]};
    m.shape.rows = fuzz_take(&in, 1) % MOST_ROWS + 1;
    m.shape.columns = fuzz_take(&in, 2) % MOST_COLUMNS + 1;
    if (!in.left)
        return 0;
    FUZZ_CHECK(mp_quant_layout_of(&m.shape, &m.layout));
    m.weights = fuzz_fence_make(m.shape.rows * m.shape.columns * m.element);
    for (size_t i = 0; i < m.weights.n_bytes; i++)
        m.weights.bytes[i] = in.at[i % in.left];
    check_encodes(&m);
    check_image(&m);
    fuzz_fence_free(&m.weights);
    return 0;
}
