/* Random bytes, and halves where a format has them. */
#include "random_blocks.h"

#include <string.h>

#include "codec/blocks.h"
#include "numbers.h"

/* Where a block's halves are, and the exponents that they get: 2^low to 2^(low + 3). */
static const struct {
    uint32_t dtype, n_halves, at[2];
    int low;
} formats[] = {
    {MOEPAGE_DTYPE_Q4_0, 1, {0}, -6},         {MOEPAGE_DTYPE_Q4_1, 2, {0, 2}, -6},
    {MOEPAGE_DTYPE_Q5_0, 1, {0}, -6},         {MOEPAGE_DTYPE_Q5_1, 2, {0, 2}, -6},
    {MOEPAGE_DTYPE_Q8_0, 1, {0}, -8},         {MOEPAGE_DTYPE_Q2_K, 2, {80, 82}, -6},
    {MOEPAGE_DTYPE_Q3_K, 1, {108}, -9},       {MOEPAGE_DTYPE_Q4_K, 2, {0, 2}, -11},
    {MOEPAGE_DTYPE_Q5_K, 2, {0, 2}, -12},     {MOEPAGE_DTYPE_Q6_K, 1, {208}, -14},
    {MOEPAGE_DTYPE_IQ4_NL, 1, {0}, -9},       {MOEPAGE_DTYPE_IQ4_XS, 1, {0}, -14},
    {MOEPAGE_DTYPE_MXFP4, 0, {0}, 0},         {MOEPAGE_DTYPE_NVFP4, 0, {0}, 0},
    {MOEPAGE_DTYPE_W4G32_F16, 1, {0}, -6},    {MOEPAGE_DTYPE_W4G64_F16, 1, {0}, -6},
    {MOEPAGE_DTYPE_W4G128_F16, 1, {0}, -6},   {MOEPAGE_DTYPE_W4G32_BF16, 1, {0}, -6},
    {MOEPAGE_DTYPE_W4G64_BF16, 1, {0}, -6},   {MOEPAGE_DTYPE_W4G128_BF16, 1, {0}, -6},
    {MOEPAGE_DTYPE_NVFP4G64_F32, 0, {0}, 0},  {MOEPAGE_DTYPE_NVFP4G128_F32, 0, {0}, 0},
    {MOEPAGE_DTYPE_NVFP4G256_F32, 0, {0}, 0},
};

static uint32_t random_below(uint32_t n)
{
    return (num_random_bits() >> 8) % n;
}

static void random_bytes(uint8_t *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = (uint8_t)(num_random_bits() >> 13);
}

/* A normal half of either sign, or BF16 number. */
static void put_half(uint8_t *at, int low, bool is_bf16)
{
    const uint32_t exponent = (uint32_t)(low + (is_bf16 ? 127 : 15)) + random_below(4);
    const uint32_t bits =
        is_bf16 ? exponent << 7 | random_below(128) : exponent << 10 | random_below(1024);
    const uint16_t half = (uint16_t)(random_below(2) << 15 | bits);
    memcpy(at, &half, sizeof half);
}

/* Scales of 2^-5 to 2^-1. */
static void tame_nvfp4(uint8_t *scales, uint32_t n)
{
    for (uint32_t g = 0; g < n; g++)
        scales[g] = (uint8_t)((random_below(4) + 2) << 3 | random_below(8));
}

/* A factor of 0.5 to 2, or to be divided by. */
static void put_factor(uint8_t *at)
{
    const uint32_t bits =
        random_below(2) << 31 | (126 + random_below(2)) << 23 | random_below(1 << 23);
    memcpy(at, &bits, sizeof bits);
}

static void tame(size_t f, uint8_t *block)
{
    const mp_block_format *format = mp_block_format_of(formats[f].dtype);
    if (formats[f].dtype == MOEPAGE_DTYPE_MXFP4)
        block[0] = (uint8_t)(121 + random_below(4));
    if (formats[f].dtype == MOEPAGE_DTYPE_NVFP4)
        tame_nvfp4(block, 4);
    if (formats[f].dtype >= MOEPAGE_DTYPE_NVFP4G64_F32) {
        put_factor(block);
        tame_nvfp4(block + 4, format->weights / 16);
    }
    for (uint32_t h = 0; h < formats[f].n_halves; h++)
        put_half(block + formats[f].at[h], formats[f].low,
                 format->scale_dtype == MOEPAGE_DTYPE_BF16);
}

void random_blocks(uint32_t dtype, uint64_t n_blocks, void *out)
{
    const uint32_t bytes = mp_block_format_of(dtype)->bytes;
    size_t f = 0;
    while (formats[f].dtype != dtype)
        f++;
    random_bytes(out, n_blocks * bytes);
    for (uint64_t b = 0; b < n_blocks; b++)
        tame(f, (uint8_t *)out + b * bytes);
}

/* Of what has no halves: E8M0 of MXFP4, E4M3 of NVFP4, the factor of NVFP4G. */
static void put_odd_scale(uint32_t dtype, uint8_t *block)
{
    static const uint8_t e8m0[] = {0, 1, 2, 254, 255}, e4m3[] = {0, 1, 0x7e, 0x7f, 0xff};
    static const uint32_t factors[] = {0,          0x80000000, 1,          0x807fffff,
                                       0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000};
    if (dtype == MOEPAGE_DTYPE_MXFP4)
        block[0] = e8m0[random_below(5)];
    if (dtype == MOEPAGE_DTYPE_NVFP4)
        block[random_below(4)] = e4m3[random_below(5)];
    if (dtype >= MOEPAGE_DTYPE_NVFP4G64_F32)
        memcpy(block, &factors[random_below(8)], sizeof *factors);
}

void random_blocks_wild(uint32_t dtype, uint64_t n_blocks, void *out)
{
    static const uint16_t odd_ones[] = {0,      0x8000, 1,      0x83ff, 0x7bff, 0x7c00,
                                        0xfc00, 0x7e00, 0x7f7f, 0x7f80, 0xff80, 0x7fff};
    const uint32_t bytes = mp_block_format_of(dtype)->bytes;
    size_t f = 0;
    while (formats[f].dtype != dtype)
        f++;
    random_bytes(out, n_blocks * bytes);
    for (uint64_t b = 0; b < n_blocks; b++) {
        uint8_t *block = (uint8_t *)out + b * bytes;
        for (uint32_t h = 0; h < formats[f].n_halves; h++)
            if (random_below(4) == 0)
                memcpy(block + formats[f].at[h], &odd_ones[random_below(12)], 2);
        if (!formats[f].n_halves && random_below(4) == 0)
            put_odd_scale(dtype, block);
    }
}
