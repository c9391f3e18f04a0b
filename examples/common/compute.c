/* The loops over rows and elements. */
#include "common/compute.h"

#include <math.h>

void compute_rms_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                      const float *scale, float eps, float *out)
{
    for (uint32_t r = 0; r < n; r++, x += width, out += width) {
        float mean = c->kernels->dot(x, x, width) / (float)width;
        float inverse = 1.0f / sqrtf(mean + eps);
        for (uint32_t i = 0; i < width; i++)
            out[i] = x[i] * inverse * scale[i];
    }
}

void compute_layer_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                        const norm_weights *norm, float eps, float *out)
{
    for (uint32_t r = 0; r < n; r++, x += width, out += width) {
        double sum = 0;
        for (uint32_t i = 0; i < width; i++)
            sum += (double)x[i];
        float mean = (float)(sum / width);
        for (uint32_t i = 0; i < width; i++)
            out[i] = x[i] - mean;
        float inverse = 1.0f / sqrtf(c->kernels->dot(out, out, width) / (float)width + eps);
        for (uint32_t i = 0; i < width; i++)
            out[i] = out[i] * inverse * norm->scale[i] + norm->shift[i];
    }
}

void compute_swiglu(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void compute_round(const compute *c, float *x, size_t n)
{
    if (c->math != MOEPAGE_MATH_BF16 && c->math != MOEPAGE_MATH_BF16_FAST)
        return;
    const size_t most = 1u << 30; /* the kernel counts in 32 bits */
    for (; n > most; x += most, n -= most)
        c->kernels->round_bf16(x, (uint32_t)most);
    c->kernels->round_bf16(x, (uint32_t)n);
}

void compute_softmax(float *x, uint32_t n)
{
    kernels_choose()->softmax(x, n, 1);
}
