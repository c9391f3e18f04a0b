/* Products in integers in scalar C: the definition that the vector sets must equal. */
#include "device/host_int8.h"

#include <math.h>

#include "base/floats.h"
#include "codec/blocks.h"

/* ---- Rows of x ---- */

/* The bits of the greatest magnitude: of NaNs and infinities they are the greatest of all. */
static uint32_t greatest(const float *in)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < MP_INT8_GROUP; i++) {
        const uint32_t bits = mp_bits_of(in[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

static void round_group(const float *in, mp_int8_row out)
{
    const float infinity = mp_float_of(0x7f800000u), most = mp_float_of(greatest(in));
    const float inverse = most >= MP_INT8_LEAST && most < infinity ? 127 / most : 0;
    for (uint32_t i = 0; i < MP_INT8_GROUP; i++)
        out.q[i] = inverse > 0 ? (int8_t)rintf(in[i] * inverse) : 0;
    out.scale[0] = inverse > 0 ? most / 127 : most < MP_INT8_LEAST ? 0 : mp_float_of(0x7fc00000u);
}

static void add_group(mp_int8_row out)
{
    int32_t sums[2] = {0};
    for (uint32_t i = 0; i < MP_INT8_GROUP; i++)
        sums[i / 16] += out.q[i];
    for (uint32_t half = 0; half < 2; half++) {
        out.sum[MP_INT8_BY_16][half] = out.scale[0] * (float)sums[half];
        out.negative[MP_INT8_BY_16][half] = -128 * sums[half];
    }
    out.sum[MP_INT8_BY_32][0] = out.scale[0] * (float)(sums[0] + sums[1]);
    out.negative[MP_INT8_BY_32][0] = -128 * (sums[0] + sums[1]);
}

static void quantise(const float *in, uint32_t n_groups, mp_int8_row row)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        const mp_int8_row group = mp_int8_row_from(row, g);
        round_group(in + g * MP_INT8_GROUP, group);
        add_group(group);
    }
}

/* ---- Products ---- */

/* A block's groups, of which the first is number `first` of its row. */
static void add_block(const mp_block_format *format, const mp_block_integers *block,
                      const mp_int8_row *x, uint32_t first, float *lanes)
{
    const uint32_t by = format->group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    for (uint32_t g = 0; g < format->weights / format->group; g++) {
        const uint32_t number = first + g, from = number * format->group;
        float *lane = &lanes[number % MP_INT8_LANES];
        int32_t dot = 0;
        for (uint32_t i = 0; i < format->group; i++)
            dot += x->q[from + i] * block->q[g * format->group + i];
        const float scale = block->scale[g] * x->scale[from / MP_INT8_GROUP];
        *lane = fmaf(scale, (float)dot, *lane);
        if (format->has_minimum)
            *lane = fmaf(-block->minimum[g], x->sum[by][number], *lane);
    }
}

static float dot(const mp_block_format *format, const uint8_t *weights, const mp_int8_row *x,
                 uint32_t k)
{
    float lanes[MP_INT8_LANES] = {0};
    mp_block_integers block;
    for (uint32_t i = 0; i < k; i += format->weights, weights += format->bytes) {
        format->unpack(weights, &block);
        add_block(format, &block, x, i / format->group, lanes);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

static void multiply(const mp_int8_product *product)
{
    const mp_block_format *format = mp_block_format_of(product->dtype);
    for (uint32_t r = 0; r < product->n_rows; r++) {
        const mp_int8_row x = mp_int8_row_at(product->x[r], product->k);
        for (uint32_t c = 0; c < product->n_weights; c++)
            product->out[r * product->stride + c] =
                dot(format, product->weights + c * product->row_bytes, &x, product->k);
    }
}

const mp_int8_set mp_int8_portable = {.quantise = quantise, .multiply = multiply};
