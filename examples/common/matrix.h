/* matrix.h — a row-major matrix of weights as a model stores it, and its values. */
#ifndef EXAMPLE_MATRIX_H
#define EXAMPLE_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

/* In the model's memory, or decoded. data NULL = absent from this model. */
typedef struct matrix {
    const void *data;
    uint32_t dtype; /* F32, F16, BF16, F8_E4M3 with scales, or blocks that carry theirs */
    uint32_t rows;
    uint32_t columns;
    size_t blocks; /* bytes of a row in blocks that carry their scales; else 0 */
    /* Of F8_E4M3: [ceil(rows / block_rows)][ceil(columns / block_columns)]; else NULL. */
    const void *scales;
    uint32_t scale_dtype; /* F32 or BF16 */
    uint32_t block_rows, block_columns;
} matrix;

static inline size_t matrix_row_bytes(const matrix *m)
{
    const size_t each = m->dtype == MOEPAGE_DTYPE_F32       ? 4
                        : m->dtype == MOEPAGE_DTYPE_F8_E4M3 ? 1
                                                            : 2;
    return m->blocks ? m->blocks : m->columns * each;
}

/* Returns where a value lies, in bytes from the matrix' beginning; of blocks it is the first of one. */
size_t matrix_offset(const matrix *m, uint32_t row, uint32_t column);

/* Returns the bytes of all of it, scales included. */
uint64_t matrix_bytes(const matrix *m);

/* Returns the scales of F8_E4M3 as a matrix. */
matrix matrix_scales(const matrix *m);

/* Returns true if rows from any multiple of `step` on begin a block of scales. */
bool matrix_parts(const matrix *m, uint32_t step);

/* Returns rows [first, first + n), of F8_E4M3 from the beginning of a block on. */
matrix matrix_rows(const matrix *m, uint32_t first, uint32_t n);

/* Writes n stored values, of whole blocks, as floats: exactly. Not of F8_E4M3. */
void matrix_values(const matrix *m, const void *stored, uint32_t n, float *out);

/* Writes n values of a row, from column `first` on, likewise; of F8_E4M3 each times its scale, rounded once. */
void matrix_read(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out);

/* Turns `columns` rows, from `first` on, into a column each. Those in blocks become floats; numbers of F8_E4M3 stay
 * what they are, without scales. Returns false if there is no memory. */
bool matrix_transpose(const matrix *m, uint32_t first, uint32_t columns, unsigned char *to);

#endif
