/* Q8_0 and Q4_0 in plain arithmetic. */
#include "naive_blocks.h"

#include <math.h>

#include "gguf_writer.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

enum { BLOCK = 32 };

/* Halves below 2^-14 are not numbers.h's: such scales become that. */
static double round_scale(double scale)
{
    double rounded = num_rounded(MOEPAGE_DTYPE_F16, (float)scale);
    return fabs(rounded) < 0x1p-14 ? 0x1p-14 : rounded;
}

/* The weight farthest from zero, with its sign. */
static double farthest(const float *weights)
{
    double most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabs((double)weights[i]) > fabs(most) ? (double)weights[i] : most;
    return most;
}

static int clamp(double x, int low, int high)
{
    double whole = nearbyint(x);
    return whole < low ? low : whole > high ? high : (int)whole;
}

static void quantise_q8(const float *weights, unsigned char *out)
{
    const double d = round_scale(fabs(farthest(weights)) / 127);
    num_put(MOEPAGE_DTYPE_F16, out, 0, d);
    for (int i = 0; i < BLOCK; i++)
        out[2 + i] = (unsigned char)clamp((double)weights[i] / d, -127, 127);
}

/* The farthest weight is -8 steps from zero, so the step has the other sign. */
static void quantise_q4(const float *weights, unsigned char *out)
{
    const double d = round_scale(farthest(weights) / -8);
    num_put(MOEPAGE_DTYPE_F16, out, 0, d);
    for (int i = 0; i < BLOCK / 2; i++) {
        int low = clamp((double)weights[i] / d, -8, 7) + 8;
        int high = clamp((double)weights[i + BLOCK / 2] / d, -8, 7) + 8;
        out[2 + i] = (unsigned char)(low | high << 4);
    }
}

void naive_quantise(uint32_t ggml_type, const float *weights, uint64_t n, unsigned char *out)
{
    assert_int_equal(n % BLOCK, 0);
    for (uint64_t b = 0; b < n / BLOCK; b++, weights += BLOCK) {
        unsigned char block[40];
        const unsigned bytes = ggml_type == GGML_Q8_0 ? 34 : 18;
        if (ggml_type == GGML_Q8_0)
            quantise_q8(weights, block);
        else
            quantise_q4(weights, block);
        for (unsigned i = 0; i < bytes; i++)
            *out++ = block[i];
    }
}

void naive_dequantise(uint32_t ggml_type, const unsigned char *blocks, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *block = blocks + i / BLOCK * (ggml_type == GGML_Q8_0 ? 34 : 18);
        unsigned char scale[2] = {block[0], block[1]};
        const double d = (double)num_get(MOEPAGE_DTYPE_F16, scale, 0);
        const unsigned char pair = block[2 + i % (BLOCK / 2)];
        const int q = ggml_type == GGML_Q8_0  ? (signed char)block[2 + i % BLOCK]
                      : i % BLOCK < BLOCK / 2 ? (pair & 15) - 8
                                              : (pair >> 4) - 8;
        /* -d x 0 is -0 in float arithmetic too. */
        out[i] = (float)(d * q);
    }
}
