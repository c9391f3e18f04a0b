/* The table of block formats, and their values. */
#include "codec/blocks.h"

#include <stddef.h>

#include "codec/blocks_inside.h"

#define NO_ZERO MOEPAGE_DTYPE_NONE
#define W4(name, weights, scale, function)                                                \
    {                                                                                     \
#name, MOEPAGE_DTYPE_##name, weights, 4 + weights / 2, MP_NO_GGML_TYPE, 32, true, \
            MOEPAGE_DTYPE_##scale, mp_unpack_##function                                   \
    }

#define NVFP4(name, weights, function)                                                             \
    {                                                                                              \
#name, MOEPAGE_DTYPE_##name, weights, 4 + weights / 16 + weights / 2, MP_NO_GGML_TYPE, 16, \
            false, NO_ZERO, mp_unpack_##function                                                   \
    }

static const mp_block_format formats[] = {
    {"Q4_0", MOEPAGE_DTYPE_Q4_0, 32, 18, 2, 32, false, NO_ZERO, mp_unpack_q4_0},
    {"Q4_1", MOEPAGE_DTYPE_Q4_1, 32, 20, 3, 32, true, NO_ZERO, mp_unpack_q4_1},
    {"Q5_0", MOEPAGE_DTYPE_Q5_0, 32, 22, 6, 32, false, NO_ZERO, mp_unpack_q5_0},
    {"Q5_1", MOEPAGE_DTYPE_Q5_1, 32, 24, 7, 32, true, NO_ZERO, mp_unpack_q5_1},
    {"Q8_0", MOEPAGE_DTYPE_Q8_0, 32, 34, 8, 32, false, NO_ZERO, mp_unpack_q8_0},
    {"Q2_K", MOEPAGE_DTYPE_Q2_K, 256, 84, 10, 16, true, NO_ZERO, mp_unpack_q2_k},
    {"Q3_K", MOEPAGE_DTYPE_Q3_K, 256, 110, 11, 16, false, NO_ZERO, mp_unpack_q3_k},
    {"Q4_K", MOEPAGE_DTYPE_Q4_K, 256, 144, 12, 32, true, NO_ZERO, mp_unpack_q4_k},
    {"Q5_K", MOEPAGE_DTYPE_Q5_K, 256, 176, 13, 32, true, NO_ZERO, mp_unpack_q5_k},
    {"Q6_K", MOEPAGE_DTYPE_Q6_K, 256, 210, 14, 16, false, NO_ZERO, mp_unpack_q6_k},
    {"IQ4_NL", MOEPAGE_DTYPE_IQ4_NL, 32, 18, 20, 32, false, NO_ZERO, mp_unpack_iq4_nl},
    {"IQ4_XS", MOEPAGE_DTYPE_IQ4_XS, 256, 136, 23, 32, false, NO_ZERO, mp_unpack_iq4_xs},
    {"MXFP4", MOEPAGE_DTYPE_MXFP4, 32, 17, 39, 32, false, NO_ZERO, mp_unpack_mxfp4},
    {"NVFP4", MOEPAGE_DTYPE_NVFP4, 64, 36, 40, 16, false, NO_ZERO, mp_unpack_nvfp4},
    W4(W4G32_F16, 32, F16, w4g32_f16),
    W4(W4G64_F16, 64, F16, w4g64_f16),
    W4(W4G128_F16, 128, F16, w4g128_f16),
    W4(W4G32_BF16, 32, BF16, w4g32_bf16),
    W4(W4G64_BF16, 64, BF16, w4g64_bf16),
    W4(W4G128_BF16, 128, BF16, w4g128_bf16),
    NVFP4(NVFP4G64_F32, 64, nvfp4g64_f32),
    NVFP4(NVFP4G128_F32, 128, nvfp4g128_f32),
    NVFP4(NVFP4G256_F32, 256, nvfp4g256_f32),
};

#define N_FORMATS (sizeof formats / sizeof *formats)

const mp_block_format *mp_block_format_of(uint32_t dtype)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

const mp_block_format *mp_block_format_of_ggml(uint32_t ggml_type)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (formats[i].ggml_type == ggml_type && ggml_type != MP_NO_GGML_TYPE)
            return &formats[i];
    return NULL;
}

static float rounded(uint32_t dtype, float value)
{
    return dtype == MOEPAGE_DTYPE_F16 ? mp_from_f16(mp_to_f16(value))
                                      : mp_from_bf16(mp_to_bf16(value));
}

static void decode_with_zero(const mp_block_format *format, const mp_block_integers *in, float *out)
{
    for (uint32_t i = 0; i < format->weights; i++)
        out[i] = rounded(format->scale_dtype,
                         in->scale[i / format->group] * (float)(in->q[i] - in->zero));
}

static void decode(const mp_block_format *format, const mp_block_integers *in, float *out)
{
    for (uint32_t i = 0; i < format->weights; i++) {
        const uint32_t g = i / format->group;
        const float product = in->scale[g] * (float)in->q[i];
        out[i] = format->has_minimum ? product - in->minimum[g] : product;
    }
}

void mp_block_decode(const mp_block_format *format, const void *blocks, uint64_t n_blocks,
                     float *out)
{
    const uint8_t *at = blocks;
    mp_block_integers integers;
    for (; n_blocks > 0; n_blocks--, at += format->bytes, out += format->weights) {
        format->unpack(at, &integers);
        if (format->scale_dtype)
            decode_with_zero(format, &integers, out);
        else
            decode(format, &integers, out);
    }
}
