/* The dot products of rows of x with a weight matrix: choosing tiles, and converting weights for them. */
#include "device/host_dots.h"

#include <assert.h>
#include <string.h>

/* The tiles that read weights of the matrix's dtype, or of their converted form, where so many rows share it
 * that it pays. */
static void choose_tiles(mp_dots *dots, uint32_t math, uint32_t n_rows)
{
    const uint32_t dtype = dots->weight_dtype;
    dots->w_element = mp_element_bytes(dtype);
    if (math == MOEPAGE_MATH_BF16) {
        const bool in_place = n_rows <= dots->set->rounding_rows && dtype != MOEPAGE_DTYPE_F8_E4M3;
        dots->kind = !in_place                    ? MP_TILE_DOT
                     : dtype == MOEPAGE_DTYPE_F16 ? MP_TILE_DOT_F16
                     : dtype == MOEPAGE_DTYPE_F32 ? MP_TILE_DOT_F32
                                                  : MP_TILE_DOT;
        dots->convert = !in_place && dtype != MOEPAGE_DTYPE_BF16;
        dots->x_element = 2;
    } else {
        dots->kind = dtype == MOEPAGE_DTYPE_BF16  ? MP_TILE_BF16
                     : dtype == MOEPAGE_DTYPE_F16 ? MP_TILE_F16
                                                  : MP_TILE_F32;
        dots->convert = dtype == MOEPAGE_DTYPE_F8_E4M3;
        dots->x_element = 4;
    }
    dots->row_bytes = dots->k * dots->w_element;
}

/* Tiles that read integers, or tiles of the operands that integers are converted to. */
static void choose_integers(mp_dots *dots, const mp_kernel_experts_args *args, uint32_t math)
{
    const mp_integer_set *integers = dots->set->integers;
    const uint32_t which = args->form - MOEPAGE_FORM_INT8;
    const bool narrow = math == MOEPAGE_MATH_BF16;
    dots->kind = narrow ? MP_TILE_DOT : MP_TILE_F32;
    dots->x_element = narrow ? 2 : 4;
    dots->direct = narrow ? integers->tile_dot[which] : integers->tile_f32[which];
    dots->integers = narrow ? integers->as_bf16[which] : integers->as_f32[which];
    dots->bits = mp_quant_bits_of(args->form);
    dots->group = args->group;
    dots->convert = !dots->direct;
    dots->row_bytes = ((uint64_t)dots->k * dots->bits + 7) / 8;
}

/* Tiles that read blocks, which are for few rows, or tiles of the operands that blocks are decoded
 * to. */
static void choose_blocks(mp_dots *dots, uint32_t math, uint32_t n_rows)
{
    const mp_block_set *blocks = dots->set->blocks;
    const uint32_t which = dots->weight_dtype - MOEPAGE_DTYPE_Q4_0;
    const bool narrow = math == MOEPAGE_MATH_BF16;
    dots->kind = narrow ? MP_TILE_DOT : MP_TILE_F32;
    dots->x_element = narrow ? 2 : 4;
    if (n_rows <= blocks->tile_rows)
        dots->direct = narrow ? blocks->tile_dot[which] : blocks->tile_f32[which];
    dots->decode = blocks->as_f32[which];
    dots->convert = !dots->direct;
    dots->row_bytes = dots->k / dots->blocks->weights * dots->blocks->bytes;
}

bool mp_dots_in_integers(const mp_kernel_experts_args *args, uint32_t which)
{
    return args->math == MOEPAGE_MATH_INT8 && !mp_quant_bits_of(args->form) &&
           mp_block_format_of(args->dtypes[which]);
}

mp_dots mp_dots_of(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                   uint32_t which, uint32_t n_rows)
{
    const uint32_t math = args->math == MOEPAGE_MATH_INT8 ? MOEPAGE_MATH_BF16 : args->math;
    mp_dots dots = {.set = set, .weight_dtype = args->dtypes[which], .scale = args->scale};
    dots.k = which == MP_DOWN ? args->intermediate : args->hidden;
    dots.blocks = mp_block_format_of(dots.weight_dtype);
    dots.in_integers = mp_dots_in_integers(args, which);
    /* A single group reads each weight once: without reuse, the whole length in one piece is best. */
    dots.lone = n_rows <= (dots.in_integers ? 1 : MP_TILE_ROWS);
    if (mp_quant_bits_of(args->form))
        choose_integers(&dots, args, math);
    else if (dots.blocks)
        choose_blocks(&dots, math, n_rows);
    else
        choose_tiles(&dots, math, n_rows);
    dots.x_bytes =
        args->math == MOEPAGE_MATH_INT8 ? mp_int8_row_bytes(dots.k) : dots.k * dots.x_element;
    dots.piece = dots.convert ? MP_CONVERTED
                 : dots.lone  ? dots.k
                              : MP_PIECE_BYTES / (uint32_t)dots.x_element;
    dots.ahead = MP_TILE_WEIGHTS;
    while (dots.in_integers && dots.ahead < MP_PANEL &&
           dots.ahead * dots.row_bytes < MP_AHEAD_BYTES)
        dots.ahead += MP_TILE_WEIGHTS;
    const uint64_t fit = MP_PANEL_BYTES / dots.row_bytes & ~(MP_TILE_WEIGHTS - 1ull);
    dots.panel = MP_PANEL;
    if (!dots.lone && !dots.in_integers && fit < MP_PANEL)
        dots.panel = fit > 0 ? (uint32_t)fit : MP_TILE_WEIGHTS;
    return dots;
}

static float scale_at(const mp_dots *dots, const char *scales, uint64_t i)
{
    float scale;
    if (dots->scale.dtype == MOEPAGE_DTYPE_BF16)
        dots->set->widen[MOEPAGE_DTYPE_BF16](scales + i * 2, &scale, 1);
    else
        memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    return scale;
}

/* FP8 weights [from, from + n) of a row, each times the scale of its block. */
static void widen_scaled(const mp_dots *dots, const mp_matrix *matrix, uint32_t row, uint32_t from,
                         uint32_t n, float *out)
{
    const char *weights = matrix->weights + (uint64_t)row * dots->k;
    if (!matrix->scales) {
        dots->set->widen_f8(weights + from, 1, out, n);
        return;
    }
    const uint32_t columns = dots->scale.columns, end = from + n;
    const uint64_t blocks = (dots->k - 1) / columns + 1;
    const uint64_t first = row / dots->scale.rows * blocks;
    while (from < end) {
        const uint32_t left = columns - from % columns;
        const uint32_t run = left < end - from ? left : end - from;
        const float scale = scale_at(dots, matrix->scales, first + from / columns);
        dots->set->widen_f8(weights + from, scale, out, run);
        from += run;
        out += run;
    }
}

/* Weights [from, from + n) of a row, as they lie; integers and blocks are cut between bytes. */
static const char *weights_at(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                              uint32_t from)
{
    const uint64_t at = dots->bits     ? from * dots->bits / 8
                        : dots->blocks ? from / dots->blocks->weights * dots->blocks->bytes
                                       : from * dots->w_element;
    return matrix->weights + row * dots->row_bytes + at;
}

static void decode_blocks(const mp_dots *dots, const char *weights, uint32_t n,
                          uint64_t ahead_bytes, float *out)
{
    const mp_blocks in = {.blocks = (const uint8_t *)weights,
                          .dtype = dots->weight_dtype,
                          .n = n,
                          .ahead_bytes = ahead_bytes};
    dots->decode(&in, out);
}

/* Weights [from, from + n) of a row to the tiles' operand type: `out` is 4 bytes per weight. */
static void convert_weights(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                            uint32_t from, uint32_t n, uint64_t ahead_bytes, float *out)
{
    const bool narrow = dots->kind == MP_TILE_DOT;
    float wide[MP_CONVERTED];
    float *to = narrow ? wide : out;
    assert(n <= MP_CONVERTED);
    if (dots->blocks)
        decode_blocks(dots, weights_at(dots, matrix, row, from), n, ahead_bytes, to);
    else if (dots->weight_dtype == MOEPAGE_DTYPE_F8_E4M3)
        widen_scaled(dots, matrix, row, from, n, to);
    else
        dots->set->widen[dots->weight_dtype](weights_at(dots, matrix, row, from), to, n);
    if (narrow)
        dots->set->narrow[MOEPAGE_DTYPE_BF16](wide, out, n);
}

/* Integer weights [from, from + n) of a row to the tiles' operand type; `from` starts a group. */
static void convert_integers(const mp_dots *dots, const void *weights, const void *scales,
                             uint32_t n, uint64_t ahead_bytes, void *out)
{
    const mp_integers in = {.packed = weights,
                            .scales = scales,
                            .ahead_bytes = ahead_bytes,
                            .group = dots->group,
                            .n = n};
    dots->integers(&in, out);
}

static const char *scales_at(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                             uint32_t from)
{
    const uint64_t groups = (dots->k - 1) / dots->group + 1;
    return matrix->scales + (row * groups + from / dots->group) * sizeof(uint16_t);
}

void mp_dots_take_weights(const mp_dots *dots, const mp_matrix *matrix, uint32_t first,
                          uint32_t n_weights, uint32_t from, uint64_t ahead_bytes, mp_tile *tile,
                          float (*converted)[MP_CONVERTED])
{
    tile->group = dots->group;
    tile->ahead_bytes = dots->convert ? 0 : ahead_bytes;
    for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
        const uint32_t row = c < n_weights ? first + c : first;
        tile->w[c] =
            dots->convert ? (const void *)converted[c] : weights_at(dots, matrix, row, from);
        tile->scales[c] = dots->bits ? scales_at(dots, matrix, row, from) : NULL;
        if (dots->convert && dots->bits)
            convert_integers(dots, weights_at(dots, matrix, row, from), tile->scales[c], tile->k,
                             ahead_bytes, converted[c]);
        else if (dots->convert)
            convert_weights(dots, matrix, row, from, tile->k, ahead_bytes, converted[c]);
    }
}
