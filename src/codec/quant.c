/* Group quantisation to integers of 8, 4 and 2 bits, and back.
 *
 * A weight counts as (q + offset) * s. The offset is 0 on symmetric levels and 1/2 on the four levels
 * that a group of int2 may have instead, which the sign of its stored scale says.
 *
 * Without a search, a group's scale is the smallest half that covers its largest weight: nothing is
 * clamped, and no weight is off by more than half a scale. The search trades accuracy of the
 * largest weights for that of the others: it tries smaller scales and takes the best one only if
 * its squared error is lower. */
#include "codec/quant_inside.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/floats.h"
#include "base/status.h"

#define MAX_GROUP MP_QUANT_MAX_GROUP
#define MAX_BYTES (1ull << 48)
#define ALIGN 16u
#define HALF_INFINITY 0x7c00u
#define FOUR_LEVELS 0x8000u /* in a stored scale */

/* ---- Shape ---- */

/* Returns the largest integer; the smallest is its negative. */
static int32_t top_of(uint32_t bits)
{
    return (1 << (bits - 1)) - 1;
}

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

static uint64_t align_up(uint64_t bytes)
{
    return divide_up(bytes, ALIGN) * ALIGN;
}

static bool is_known(const mp_quant_shape *shape)
{
    bool bits = shape->bits == 8 || shape->bits == 4 || shape->bits == 2;
    bool group = shape->group == 32 || shape->group == 64 || shape->group == 128;
    return bits && group && shape->rows > 0 && shape->columns > 0;
}

int mp_quant_layout_of(const mp_quant_shape *shape, mp_quant_layout *out)
{
    if (!is_known(shape))
        return false;
    mp_quant_layout layout = {.row_bytes = divide_up(shape->columns, 8 / shape->bits),
                              .row_groups = divide_up(shape->columns, shape->group)};
    uint64_t packed, scales;
    if (__builtin_mul_overflow(shape->rows, layout.row_bytes, &packed) ||
        __builtin_mul_overflow(shape->rows, layout.row_groups * sizeof(uint16_t), &scales) ||
        packed > MAX_BYTES || scales > MAX_BYTES)
        return false;
    layout.scale_offset = align_up(packed);
    layout.bytes = align_up(layout.scale_offset + scales);
    if (layout.bytes > MAX_BYTES)
        return false;
    *out = layout;
    return true;
}

/* ---- One group ---- */

typedef mp_quant_levels levels;

static levels symmetric_levels(uint32_t bits)
{
    const int32_t top = top_of(bits);
    return (levels){-top, top, 0, top};
}

static const levels four_levels = {-2, 1, 0.5f, 2};

/* Rounds to an integer, ties to even; |x| must be far below 2^51. */
static double to_integer(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

/* The double quotient of a float by a half is a tie, or a whole number, only if the exact one is: they
 * have too few digits for a near miss. */
static int32_t quantised(float weight, float scale, const levels *to)
{
    const double ratio = (double)weight / scale;
    const double q = to->offset != 0 ? floor(ratio) : to_integer(ratio);
    return q > to->most ? to->most : q < to->least ? to->least : (int32_t)q;
}

static double squared_error(const float *weights, uint32_t n, float scale, const levels *to)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double error = weights[i] - ((double)quantised(weights[i], scale, to) + to->offset) * scale;
        sum += error * error;
    }
    return sum;
}

/* Returns the bits of the smallest half s with s * reach >= largest; infinity's if there is no such
 * half. */
static uint16_t covering_scale(float largest, int32_t reach)
{
    uint16_t bits = mp_to_f16(largest / (float)reach);
    while (bits < HALF_INFINITY && (double)mp_from_f16(bits) * reach < largest)
        bits++;
    return bits;
}

/* ---- Search ---- */

/* The search runs in single precision, in units of the covering scale. It need not be exact:
 * squared_error judges the scale that it ends at. */
#define LANES 4
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t integers __attribute__((vector_size(LANES * sizeof(int32_t))));

/* A group's magnitudes, padded with zeros to whole vectors. */
typedef struct magnitudes {
    vector of[MAX_GROUP / LANES];
    uint32_t n; /* number of vectors */
    uint32_t n_padding;
    float most, offset; /* of the levels */
} magnitudes;

/* Returns a group's squared error under `ratio` times the covering scale. */
static float error_at(const magnitudes *m, float ratio)
{
    const vector zero = {0}, most = zero + m->most, offset = zero + m->offset;
    const float inverse = 1 / ratio;
    vector error = zero;
    for (uint32_t i = 0; i < m->n; i++) {
        vector w = m->of[i];
        vector q = (w * inverse - offset + 0x1.8p23f) - 0x1.8p23f; /* to the nearest integer */
        integers above = q > most;
        q = (vector)(((integers)most & above) | ((integers)q & ~above));
        vector e = w - (q + offset) * ratio;
        error += e * e;
    }
    const float of_zero = m->offset * ratio;
    float sum = -(float)m->n_padding * of_zero * of_zero;
    for (uint32_t l = 0; l < LANES; l++)
        sum += error[l];
    return sum;
}

/* The search tries ratios downwards in fixed steps: from 1, or, on four levels, from 4/3, at which the
 * outer level is the largest magnitude. Clamping pays more the fewer the levels. */
#define CANDIDATES 56

static float candidate(float most, float offset, uint32_t i)
{
    if (offset != 0)
        return 4 / 3.0f - (float)i * (1 / 60.0f);
    return 1 - (float)i * (most == 1 ? 1 / 57.0f : most == 7 ? 1 / 96.0f : 1 / 384.0f);
}

static float best_ratio(const magnitudes *m)
{
    float best = 1, least = error_at(m, best);
    for (uint32_t i = 0; i < CANDIDATES; i++) {
        float ratio = candidate(m->most, m->offset, i);
        float error = error_at(m, ratio);
        if (error < least) {
            least = error;
            best = ratio;
        }
    }
    return best;
}

static uint16_t searched_scale(const float *weights, uint32_t n, uint16_t covering,
                               const levels *to)
{
    const float unit = mp_from_f16(covering);
    magnitudes m = {.n = (n + LANES - 1) / LANES, .most = (float)to->most, .offset = to->offset};
    m.n_padding = m.n * LANES - n;
    for (uint32_t i = 0; i < n; i++)
        m.of[i / LANES][i % LANES] = fabsf(weights[i]) / unit;
    uint16_t bits = mp_to_f16(best_ratio(&m) * unit);
    if (bits == 0 || bits == covering || bits >= HALF_INFINITY)
        return covering;
    double found = squared_error(weights, n, mp_from_f16(bits), to);
    return found < squared_error(weights, n, unit, to) ? bits : covering;
}

/* ---- Encoding ---- */

float mp_quant_load(uint32_t dtype, const void *weights, uint64_t i)
{
    uint16_t half;
    float value;
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy(&value, (const char *)weights + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)weights + i * sizeof half, sizeof half);
    return dtype == MOEPAGE_DTYPE_F16 ? mp_from_f16(half) : mp_from_bf16(half);
}

/* A group's position, for error sentences. */
typedef struct place {
    uint64_t row;
    uint64_t column;
} place;

static moepage_status find_largest(const float *weights, uint32_t n, place at, float *largest)
{
    *largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(weights[i]))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "the weight in row %llu, column %llu is %s: only finite weights can be "
                           "quantised",
                           (unsigned long long)at.row, (unsigned long long)at.column + i,
                           isnan(weights[i]) ? "NaN" : "infinite");
        *largest = fmaxf(*largest, fabsf(weights[i]));
    }
    return MOEPAGE_OK;
}

static uint16_t scale_for(const float *weights, uint32_t n, float largest, int search,
                          const levels *to)
{
    const uint16_t covering = covering_scale(largest, to->reach);
    const bool usable = covering > 0 && covering < HALF_INFINITY;
    return search && usable ? searched_scale(weights, n, covering, to) : covering;
}

/* Chooses a group's levels and scale, as it is stored. */
static moepage_status choose_scale(const mp_quant_shape *shape, const float *weights, uint32_t n,
                                   place at, int search, levels *to, uint16_t *scale)
{
    float largest;
    moepage_status status = find_largest(weights, n, at, &largest);
    if (status)
        return status;
    *to = symmetric_levels(shape->bits);
    *scale = scale_for(weights, n, largest, search, to);
    if (*scale >= HALF_INFINITY)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "row %llu has a weight of magnitude %g in the group at column %llu: with "
                       "FP16 scales int%u goes to %g",
                       (unsigned long long)at.row, (double)largest, (unsigned long long)at.column,
                       shape->bits, 65504.0 * top_of(shape->bits));
    if (shape->bits != 2 || *scale == 0)
        return MOEPAGE_OK;
    const uint16_t four = scale_for(weights, n, largest, search, &four_levels);
    if (squared_error(weights, n, mp_from_f16(four), &four_levels) <
        squared_error(weights, n, mp_from_f16(*scale), to)) {
        *to = four_levels;
        *scale = four | FOUR_LEVELS;
    }
    return MOEPAGE_OK;
}

moepage_status mp_quant_choose(const mp_quant_shape *shape, const float *weights, uint32_t n,
                               uint64_t row, uint64_t column, int search, mp_quant_grid *out)
{
    moepage_status status =
        choose_scale(shape, weights, n, (place){row, column}, search, &out->levels, &out->stored);
    out->scale = fabsf(mp_from_f16(out->stored));
    return status;
}

int mp_quant_candidate(const mp_quant_shape *shape, const float *weights, uint32_t n, uint32_t i,
                       mp_quant_grid *out)
{
    const bool four = i >= CANDIDATES;
    if (i >= (shape->bits == 2 ? 2 * CANDIDATES : CANDIDATES))
        return 0;
    float largest = 0;
    for (uint32_t k = 0; k < n; k++)
        largest = fmaxf(largest, fabsf(weights[k]));
    out->levels = four ? four_levels : symmetric_levels(shape->bits);
    const float unit = mp_from_f16(covering_scale(largest, out->levels.reach));
    const uint16_t bits =
        mp_to_f16(candidate((float)out->levels.most, out->levels.offset, i % CANDIDATES) * unit);
    const bool usable = bits < HALF_INFINITY;
    out->stored = (uint16_t)(usable && four && bits ? bits | FOUR_LEVELS : bits);
    out->scale = usable ? mp_from_f16(bits) : 0;
    return 1;
}

int32_t mp_quant_round(const mp_quant_grid *grid, float weight)
{
    return grid->scale > 0 ? quantised(weight, grid->scale, &grid->levels) : 0;
}

void mp_quant_put(uint8_t *packed, uint64_t i, uint32_t bits, int32_t q)
{
    const uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    packed[i / per_byte] |= (uint8_t)(((uint32_t)q & mask) << (i % per_byte * bits));
}

static moepage_status encode_row(const mp_quant_shape *shape, uint32_t dtype, const void *weights,
                                 uint64_t row, int search, uint8_t *packed, char *scales)
{
    for (uint64_t column = 0; column < shape->columns; column += shape->group) {
        const uint64_t left = shape->columns - column;
        const uint32_t n = left < shape->group ? (uint32_t)left : shape->group;
        float group[MAX_GROUP];
        mp_quant_grid grid;
        for (uint32_t i = 0; i < n; i++)
            group[i] = mp_quant_load(dtype, weights, row * shape->columns + column + i);
        moepage_status status = mp_quant_choose(shape, group, n, row, column, search, &grid);
        if (status)
            return status;
        for (uint32_t i = 0; i < n; i++)
            mp_quant_put(packed, column + i, shape->bits, mp_quant_round(&grid, group[i]));
        memcpy(scales + column / shape->group * sizeof grid.stored, &grid.stored,
               sizeof grid.stored);
    }
    return MOEPAGE_OK;
}

moepage_status mp_quant_begin(const mp_quant_shape *shape, uint32_t dtype, mp_quant_layout *layout)
{
    if (!mp_quant_layout_of(shape, layout))
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "[%llu, %llu] in %u bits and groups of %u: it must be 8, 4 or 2 bits, groups "
            "of 32, 64 or 128, and less than 2^48 bytes",
            (unsigned long long)shape->rows, (unsigned long long)shape->columns, shape->bits,
            shape->group);
    if (dtype != MOEPAGE_DTYPE_F32 && dtype != MOEPAGE_DTYPE_F16 && dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "weights of dtype %u cannot be quantised: F32, F16 and BF16 can", dtype);
    return MOEPAGE_OK;
}

moepage_status mp_quant_encode(const mp_quant_shape *shape, uint32_t dtype, const void *weights,
                               int search, void *out)
{
    mp_quant_layout layout;
    moepage_status status = mp_quant_begin(shape, dtype, &layout);
    if (status)
        return status;
    memset(out, 0, layout.bytes);
    for (uint64_t row = 0; !status && row < shape->rows; row++) {
        uint8_t *packed = (uint8_t *)out + row * layout.row_bytes;
        char *scales = (char *)out + layout.scale_offset + row * layout.row_groups * 2;
        status = encode_row(shape, dtype, weights, row, search, packed, scales);
    }
    return status;
}

/* ---- Decoding ---- */

static uint16_t load_scale(const char *scales, uint64_t i)
{
    uint16_t bits;
    memcpy(&bits, scales + i * sizeof bits, sizeof bits);
    return bits;
}

static int32_t load_integer(const uint8_t *packed, uint64_t column, uint32_t bits)
{
    const uint32_t per_byte = 8 / bits;
    const uint32_t above = 8 - bits - (uint32_t)(column % per_byte) * bits;
    return (int8_t)(uint8_t)(packed[column / per_byte] << above) >> (8 - bits);
}

void mp_quant_decode_row(const mp_quant_shape *shape, const void *in, uint64_t row, uint64_t first,
                         uint64_t n, float *out)
{
    mp_quant_layout layout;
    const int known = mp_quant_layout_of(shape, &layout);
    assert(known && row < shape->rows && first + n <= shape->columns);
    if (!known)
        return;
    const uint8_t *packed = (const uint8_t *)in + row * layout.row_bytes;
    const char *scales = (const char *)in + layout.scale_offset + row * layout.row_groups * 2;
    for (uint64_t column = first; column < first + n;) {
        const uint64_t group = column / shape->group;
        const float stored = mp_from_f16(load_scale(scales, group));
        const bool four = shape->bits == 2 && stored < 0;
        const float scale = four ? -stored : stored, offset = four ? four_levels.offset : 0;
        const uint64_t next = (group + 1) * shape->group;
        const uint64_t end = next < first + n ? next : first + n;
        for (; column < end; column++)
            out[column - first] =
                ((float)load_integer(packed, column, shape->bits) + offset) * scale;
    }
}

/* ---- Checking ---- */

/* Sixteen bytes of integers: the widest vector that every instruction set supports. */
typedef uint64_t words __attribute__((vector_size(16)));

/* Marks the smallest two's-complement integer, which the symmetric range excludes. Its bits are the
 * highest of each field; XOR with them makes exactly those fields zero, and only a zero field
 * borrows. */
static words least_in(words some, words low, words high)
{
    some ^= high;
    return (some - low) & ~some & high;
}

static bool holds_least(const uint8_t *packed, uint64_t n, uint32_t bits)
{
    const uint64_t lowest = UINT64_MAX / ((1u << bits) - 1);
    const words low = (words){0} + lowest, high = low << (bits - 1);
    words found = {0}, some;
    uint64_t i = 0;
    for (; i + sizeof some <= n; i += sizeof some) {
        memcpy(&some, packed + i, sizeof some);
        found |= least_in(some, low, high);
    }
    some = (words){0};
    memcpy(&some, packed + i, n - i);
    found |= least_in(some, low, high);
    return (found[0] | found[1]) != 0;
}

/* Returns true if a group with symmetric levels has the smallest integer. */
static bool row_holds_least(const mp_quant_shape *shape, const mp_quant_layout *layout,
                            const uint8_t *packed, const char *scales)
{
    if (shape->bits != 2)
        return holds_least(packed, layout->row_bytes, shape->bits);
    const uint64_t group_bytes = shape->group * shape->bits / 8;
    for (uint64_t i = 0; i < layout->row_groups; i++) {
        const uint64_t first = i * group_bytes, left = layout->row_bytes - first;
        if (!(load_scale(scales, i) & FOUR_LEVELS) &&
            holds_least(packed + first, left < group_bytes ? left : group_bytes, shape->bits))
            return true;
    }
    return false;
}

static moepage_status check_integers(const mp_quant_shape *shape, const mp_quant_layout *layout,
                                     const uint8_t *packed, const char *scales)
{
    const uint32_t used = (uint32_t)(shape->columns % (8 / shape->bits)) * shape->bits;
    for (uint64_t row = 0; row < shape->rows;
         row++, packed += layout->row_bytes, scales += layout->row_groups * sizeof(uint16_t)) {
        if (row_holds_least(shape, layout, packed, scales))
            return mp_fail(MOEPAGE_E_FORMAT,
                           "row %llu has the integer %d: int%u goes from -%d to %d",
                           (unsigned long long)row, -top_of(shape->bits) - 1, shape->bits,
                           top_of(shape->bits), top_of(shape->bits));
        if (used && packed[layout->row_bytes - 1] >> used)
            return mp_fail(MOEPAGE_E_FORMAT, "row %llu is not padded by zeros",
                           (unsigned long long)row);
    }
    return MOEPAGE_OK;
}

/* As bits, anything above the largest finite half is infinite, NaN or negative. */
static bool is_scale(uint32_t bits, uint16_t scale)
{
    const uint16_t magnitude = scale & ~FOUR_LEVELS;
    const bool four = scale & FOUR_LEVELS;
    return magnitude < HALF_INFINITY && (!four || (bits == 2 && magnitude > 0));
}

static moepage_status check_scales(const mp_quant_shape *shape, const mp_quant_layout *layout,
                                   const char *scales)
{
    for (uint64_t i = 0; i < shape->rows * layout->row_groups; i++) {
        if (!is_scale(shape->bits, load_scale(scales, i)))
            return mp_fail(MOEPAGE_E_FORMAT,
                           "the scale of row %llu, group %llu is 0x%04x: it must be finite%s",
                           (unsigned long long)(i / layout->row_groups),
                           (unsigned long long)(i % layout->row_groups), load_scale(scales, i),
                           shape->bits == 2 ? " and not minus zero" : " and not negative");
    }
    return MOEPAGE_OK;
}

static bool all_zero(const uint8_t *bytes, uint64_t from, uint64_t to)
{
    while (from < to && !bytes[from])
        from++;
    return from == to;
}

moepage_status mp_quant_check(const mp_quant_shape *shape, const void *in, uint64_t bytes)
{
    mp_quant_layout layout;
    if (!mp_quant_layout_of(shape, &layout) || bytes != layout.bytes)
        return mp_fail(
            MOEPAGE_E_FORMAT,
            "%llu bytes are not the size of a [%llu, %llu] matrix in int%u and groups of %u",
            (unsigned long long)bytes, (unsigned long long)shape->rows,
            (unsigned long long)shape->columns, shape->bits, shape->group);
    const uint64_t scales_end =
        layout.scale_offset + shape->rows * layout.row_groups * sizeof(uint16_t);
    const char *scales = (const char *)in + layout.scale_offset;
    moepage_status status = check_integers(shape, &layout, in, scales);
    if (!status)
        status = check_scales(shape, &layout, scales);
    if (!status && (!all_zero(in, shape->rows * layout.row_bytes, layout.scale_offset) ||
                    !all_zero(in, scales_end, layout.bytes)))
        status = mp_fail(MOEPAGE_E_FORMAT, "its integers or its scales are not padded by zeros");
    return status;
}
