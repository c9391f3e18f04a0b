/* Where the values of a matrix are, and what they are as floats. */
#include "common/matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/kernels.h"

size_t matrix_offset(const matrix *m, uint32_t row, uint32_t column)
{
    return row * matrix_row_bytes(m) + matrix_row_bytes(m) * column / m->columns;
}

matrix matrix_scales(const matrix *m)
{
    return (matrix){.data = m->scales,
                    .dtype = m->scale_dtype,
                    .rows = (m->rows - 1) / m->block_rows + 1,
                    .columns = (m->columns - 1) / m->block_columns + 1};
}

uint64_t matrix_bytes(const matrix *m)
{
    const uint64_t bytes = (uint64_t)matrix_row_bytes(m) * m->rows;
    if (!m->scales)
        return bytes;
    const matrix scales = matrix_scales(m);
    return bytes + matrix_bytes(&scales);
}

bool matrix_parts(const matrix *m, uint32_t step)
{
    return !m->scales || step % m->block_rows == 0;
}

matrix matrix_rows(const matrix *m, uint32_t first, uint32_t n)
{
    matrix out = *m;
    out.data = (const unsigned char *)m->data + first * matrix_row_bytes(m);
    out.rows = n;
    if (m->scales) {
        const matrix scales = matrix_scales(m);
        out.scales =
            (const unsigned char *)m->scales + matrix_offset(&scales, first / m->block_rows, 0);
    }
    return out;
}

void matrix_values(const matrix *m, const void *stored, uint32_t n, float *out)
{
    if (!m->blocks)
        kernels_choose()->widen(out, stored, m->dtype, n);
    else
        (void)moepage_blocks_decode(m->dtype, stored, matrix_row_bytes(m) * n / m->columns, out,
                                    n); /* cannot fail: the shape was checked */
}

/* F8_E4M3 has no infinities, and one NaN of each sign. */
static float value_of(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, digits = bits & 7;
    float value = exponent ? ldexpf((float)(8 + digits), exponent - 10) : ldexpf((float)digits, -9);
    if (exponent == 15 && digits == 7)
        value = NAN;
    return bits >> 7 ? -value : value;
}

static void read_scaled(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out)
{
    const uint8_t *stored = (const uint8_t *)m->data + matrix_offset(m, row, first);
    const matrix scales = matrix_scales(m);
    float scale = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t column = first + i;
        if (i == 0 || column % m->block_columns == 0)
            matrix_read(&scales, row / m->block_rows, column / m->block_columns, 1, &scale);
        out[i] = value_of(stored[i]) * scale;
    }
}

void matrix_read(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out)
{
    if (m->scales)
        read_scaled(m, row, first, n, out);
    else
        matrix_values(m, (const unsigned char *)m->data + matrix_offset(m, row, first), n, out);
}

bool matrix_transpose(const matrix *m, uint32_t first, uint32_t columns, unsigned char *to)
{
    const size_t size = m->blocks ? sizeof(float) : matrix_row_bytes(m) / m->columns;
    float *row = malloc(m->columns * sizeof *row);
    if (!row)
        return false;
    for (uint32_t c = 0; c < columns; c++) {
        const unsigned char *at = (const unsigned char *)m->data + matrix_offset(m, first + c, 0);
        if (m->blocks) {
            matrix_read(m, first + c, 0, m->columns, row);
            at = (const unsigned char *)row;
        }
        for (uint32_t r = 0; r < m->columns; r++)
            memcpy(to + ((size_t)r * columns + c) * size, at + r * size, size);
    }
    free(row);
    return true;
}
