/* CONVERT and COMBINE on the host. Their unit of work is a block of columns of one token. */
#include <string.h>

#include "device/host_kernel_set.h"

#define MP_BLOCK 512

/* One unit: columns [first, first + n) of a token. */
typedef struct mp_block {
    uint64_t token;
    uint32_t first;
    uint32_t n;
} mp_block;

static uint64_t blocks_of(uint32_t n_tokens, uint32_t hidden)
{
    return (uint64_t)n_tokens * ((hidden + MP_BLOCK - 1) / MP_BLOCK);
}

static mp_block block_at(uint64_t unit, uint32_t hidden)
{
    uint32_t per_token = (hidden + MP_BLOCK - 1) / MP_BLOCK;
    mp_block block = {.token = unit / per_token};
    block.first = (uint32_t)(unit % per_token) * MP_BLOCK;
    block.n = hidden - block.first < MP_BLOCK ? hidden - block.first : MP_BLOCK;
    return block;
}

static void put_block(const mp_host_kernel_set *set, uint32_t dtype, const void *in, uint32_t to,
                      void *out, uint32_t n)
{
    float wide[MP_BLOCK];
    if (dtype == to) {
        memcpy(out, in, n * mp_element_bytes(to));
    } else if (to == MOEPAGE_DTYPE_F32) {
        set->widen[dtype](in, out, n);
    } else {
        set->widen[dtype](in, wide, n);
        set->narrow[to](wide, out, n);
    }
}

/* Both parts of a row of MATH_INT8. */
static void round_block(const mp_host_kernel_set *set, const mp_kernel_convert_args *args,
                        const mp_block *block, const void *in)
{
    char *row = (char *)args->out + block->token * mp_int8_row_bytes(args->hidden);
    float wide[MP_BLOCK];
    put_block(set, args->x_dtype, in, MOEPAGE_DTYPE_BF16, row + block->first * sizeof(uint16_t),
              block->n);
    if (args->hidden % MP_INT8_GROUP)
        return;
    set->widen[args->x_dtype](in, wide, block->n);
    set->int8->quantise(wide, block->n / MP_INT8_GROUP,
                        mp_int8_row_from(mp_int8_row_at(row, args->hidden),
                                         block->first / MP_INT8_GROUP));
}

void mp_host_convert(const mp_host_kernel_set *set, const mp_kernel_convert_args *args,
                     uint32_t part, uint32_t n_parts)
{
    const uint32_t to = args->math == MOEPAGE_MATH_FP32 ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    const uint64_t in_bytes = mp_element_bytes(args->x_dtype);
    const uint64_t out_bytes = mp_element_bytes(to);
    const uint64_t n = blocks_of(args->n_tokens, args->hidden);
    const uint64_t end = mp_share_start(n, part + 1, n_parts);
    for (uint64_t unit = mp_share_start(n, part, n_parts); unit < end; unit++) {
        mp_block block = block_at(unit, args->hidden);
        const char *in =
            (const char *)args->x + (block.token * args->x_stride + block.first) * in_bytes;
        char *out = (char *)args->out + (block.token * args->hidden + block.first) * out_bytes;
        if (args->math == MOEPAGE_MATH_INT8)
            round_block(set, args, &block, in);
        else
            put_block(set, args->x_dtype, in, to, out, block.n);
    }
}

static void combine_block(const mp_host_kernel_set *set, const mp_kernel_combine_args *args,
                          const mp_block *block)
{
    float sum[MP_BLOCK] = {0};
    for (uint32_t k = 0; k < args->top_k; k++) {
        uint64_t row = block->token * args->top_k + k;
        if (args->ids[row] >= 0)
            set->axpy(args->weights[row], args->partial + row * args->hidden + block->first, sum,
                      block->n);
    }
    char *y = (char *)args->y +
              (block->token * args->y_stride + block->first) * mp_element_bytes(args->y_dtype);
    if (args->accumulate) {
        float old[MP_BLOCK];
        set->widen[args->y_dtype](y, old, block->n);
        for (uint32_t i = 0; i < block->n; i++)
            sum[i] += old[i];
    }
    set->narrow[args->y_dtype](sum, y, block->n);
}

void mp_host_combine(const mp_host_kernel_set *set, const mp_kernel_combine_args *args,
                     uint32_t part, uint32_t n_parts)
{
    const uint64_t n = blocks_of(args->n_tokens, args->hidden);
    const uint64_t end = mp_share_start(n, part + 1, n_parts);
    for (uint64_t unit = mp_share_start(n, part, n_parts); unit < end; unit++) {
        mp_block block = block_at(unit, args->hidden);
        combine_block(set, args, &block);
    }
}
