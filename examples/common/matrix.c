/* Where the values of a matrix are, and what they are as floats. */
#include "common/matrix.h"

#include "common/kernels.h"

size_t matrix_offset(const matrix *m, uint32_t row, uint32_t column)
{
    return row * matrix_row_bytes(m) + matrix_row_bytes(m) * column / m->columns;
}

matrix matrix_rows(const matrix *m, uint32_t first, uint32_t n)
{
    matrix out = *m;
    out.data = (const unsigned char *)m->data + first * matrix_row_bytes(m);
    out.rows = n;
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

void matrix_read(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out)
{
    matrix_values(m, (const unsigned char *)m->data + matrix_offset(m, row, first), n, out);
}
