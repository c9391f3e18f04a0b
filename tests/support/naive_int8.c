/* Products in 8 bits by loops. */
#include "naive_int8.h"

#include <math.h>
#include <stdbool.h>

#include "codec/blocks.h"

void naive_int8_round(const float *in, int *q, float *scale)
{
    float most = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(in[i]);
        most = fmaxf(most, fabsf(in[i]));
    }
    const float inverse = 127.0f / most;
    *scale = !finite ? NAN : most < 0x1p-100f ? 0 : most / 127.0f;
    for (int i = 0; i < 32; i++)
        q[i] = finite && most >= 0x1p-100f ? (int)nearbyint((double)(in[i] * inverse)) : 0;
}

float naive_int8_dot(uint32_t dtype, const uint8_t *weights, const float *x, uint32_t k)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    const uint32_t group = format->group;
    float lanes[4] = {0};
    for (uint32_t i = 0; i < k; i += group) {
        mp_block_integers block;
        int q[32], sum = 0, dot = 0;
        float scale;
        naive_int8_round(x + i / 32 * 32, q, &scale);
        format->unpack(weights + i / format->weights * format->bytes, &block);
        const uint32_t g = i % format->weights / group, lane = i / group % 4;
        for (uint32_t j = 0; j < group; j++) {
            sum += q[i % 32 + j];
            dot += q[i % 32 + j] * block.q[g * group + j];
        }
        lanes[lane] = fmaf(block.scale[g] * scale, (float)dot, lanes[lane]);
        if (format->has_minimum)
            lanes[lane] = fmaf(-block.minimum[g], scale * (float)sum, lanes[lane]);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}
