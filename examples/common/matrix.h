/* matrix.h — a row-major matrix of weights as a model stores it, and its values. */
#ifndef EXAMPLE_MATRIX_H
#define EXAMPLE_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

/* In the model's memory, or decoded. data NULL = absent from this model. */
typedef struct matrix {
    const void *data;
    uint32_t dtype; /* F32, F16, BF16, or the blocks of a GGUF file */
    uint32_t rows;
    uint32_t columns;
    size_t blocks; /* bytes of a row in blocks; 0 = in floats */
} matrix;

static inline size_t matrix_row_bytes(const matrix *m)
{
    return m->blocks ? m->blocks : (size_t)m->columns * (m->dtype == MOEPAGE_DTYPE_F32 ? 4 : 2);
}

/* Returns where a value lies, in bytes from the matrix' beginning; of blocks it is the first of one. */
size_t matrix_offset(const matrix *m, uint32_t row, uint32_t column);

/* Returns rows [first, first + n). */
matrix matrix_rows(const matrix *m, uint32_t first, uint32_t n);

/* Writes n stored values, of whole blocks, as floats: exactly. */
void matrix_values(const matrix *m, const void *stored, uint32_t n, float *out);

/* The same of a row, from column `first` on. */
void matrix_read(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out);

#endif
