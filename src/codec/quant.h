/* quant.h — group quantisation: rows of weights as small integers with a scale per group.
 *
 * The columns of a row are cut into groups of `group` consecutive weights (the last may be short);
 * each group has one FP16 scale s, and weight w is stored as the integer q = round(w / s), ties to
 * even, clamped to the symmetric range: int8 -127..127, int4 -7..7, int2 -1..1. Its value is q * s.
 * A group of zeros has scale 0.
 *
 * A group of int2 may instead have four levels: its scale is stored negative, its integers are
 * q = floor(w / s) clamped to -2..1, and their values (q + 1/2) * s, of the scale's magnitude s.
 * Such a group has no zero, and no code that is never used.
 *
 * Also here: the exact value of the FP8 and MXFP4 numbers that checkpoints hold. Pure functions. */
#ifndef MP_CODEC_QUANT_H
#define MP_CODEC_QUANT_H

#include "moepage.h"

/* How a matrix of [rows, columns] is stored: all rows' packed integers, then, from a multiple of 16
 * bytes, all rows' scales. Element j of a row is in bits [b * (j % (8 / b)), ...) of byte
 * j / (8 / b), b = bits, two's complement; rows start at whole bytes. */
typedef struct mp_quant_shape {
    uint64_t rows;
    uint64_t columns;
    uint32_t bits;  /* 8, 4 or 2 */
    uint32_t group; /* 32, 64 or 128 */
} mp_quant_shape;

typedef struct mp_quant_layout {
    uint64_t row_bytes;    /* of packed integers */
    uint64_t row_groups;   /* number of scales per row */
    uint64_t scale_offset; /* offset of the first row's scales */
    uint64_t bytes;        /* total, a multiple of 16 */
} mp_quant_layout;

/* Returns the bits per weight of an integer form (MOEPAGE_FORM_INT8, _INT4, _INT2); 0 for another
 * form. */
static inline uint32_t mp_quant_bits_of(uint32_t form)
{
    switch (form) {
    case MOEPAGE_FORM_INT8: return 8;
    case MOEPAGE_FORM_INT4: return 4;
    case MOEPAGE_FORM_INT2: return 2;
    default: return 0;
    }
}

/* Computes the sizes; returns false if they exceed 2^48 or the shape is not one of the above. */
int mp_quant_layout_of(const mp_quant_shape *shape, mp_quant_layout *out);

/* Quantises `weights`, row-major in dtype (F32, F16, BF16), to the nearest value. A group's scale is
 * the smallest half that covers its largest magnitude, so that no weight is off by more than s / 2.
 * With `search`: the scale of least squared error among those tried, never one with a greater error
 * than the covering scale's. A group of int2 has the kind of levels with the lower squared error.
 * Writes the same bytes on every machine. UNSUPPORTED for another dtype, for weights that are not
 * finite, and for weights that no half can cover: above 65504 * 127, * 7 or * 1. */
moepage_status mp_quant_encode(const mp_quant_shape *shape, uint32_t dtype, const void *weights,
                               int search, void *out);

/* Quantises for the least error of the products with the matrix's inputs, instead of that of each weight
 * (GPTQ): every column is rounded with the errors of those before it in mind. `moments` are the inputs'
 * second moments, [columns][columns], times any positive number; only their upper triangle is read, and the
 * call uses them up. To the diagonal is added a hundredth of its mean; all zero, each weight is for itself. A
 * group's scale covers what its columns would be without rounding, and a `search` minds the products.
 * Otherwise as mp_quant_encode, which this is if moments have a diagonal of equals alone and `search` is 0.
 * ARGUMENT for moments that no inputs have; NO_MEMORY. */
moepage_status mp_quant_encode_for(const mp_quant_shape *shape, uint32_t dtype, const void *weights,
                                   int search, float *moments, void *out);

/* Decodes columns [first, first + n) of one row to float: exact in FP32. */
void mp_quant_decode_row(const mp_quant_shape *shape, const void *in, uint64_t row, uint64_t first,
                         uint64_t n, float *out);

/* Checks that `bytes` is the layout's size, every integer in its group's range, every scale finite
 * and not negative unless its group has four levels (and never minus zero), and all padding zero:
 * FORMAT otherwise. */
moepage_status mp_quant_check(const mp_quant_shape *shape, const void *in, uint64_t bytes);

/* Scales of FP8 weights: the weight in row r, column c of a matrix counts as its FP8 value times
 * scale[r / rows][c / columns], that product rounded once to FP32. The first row of each matrix
 * starts a block. */
typedef struct mp_block_scale {
    uint32_t dtype; /* F32 or BF16; NONE: unscaled weights */
    uint32_t rows;  /* per block */
    uint32_t columns;
} mp_block_scale;

/* Exact values: E4M3 is the "fn" variant (no infinities, 0x7f and 0xff are NaN); E5M2 is IEEE-like;
 * E8M0 is 2^(b - 127), 0xff is NaN. */
float mp_f8_e4m3_value(uint8_t bits);
float mp_f8_e5m2_value(uint8_t bits);
float mp_f8_e8m0_value(uint8_t bits);

/* MXFP4 as gpt-oss stores it: n (a multiple of 32) E2M1 values, 16 bytes per 32, low nibble first,
 * one E8M0 scale per 32. Exact in float unless the product overflows (to infinity). */
void mp_mxfp4_decode(const uint8_t *blocks, const uint8_t *scales, uint64_t n, float *out);

#endif
