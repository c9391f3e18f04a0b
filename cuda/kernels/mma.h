/* mma.h — a warp's matrix product: D[16][8] += A[16][16] B[16][8] of BF16s, accumulated in FP32.
 *
 * The instruction is mma.sync.m16n8k16; which lane holds what is the PTX ISA's: with group = lane /
 * 4 and pair = 2 * (lane % 4), a lane's
 *     A0 = A[group][pair, pair + 1]         A2 = A[group][pair + 8, pair + 9]
 *     A1 = A[group + 8][pair, pair + 1]     A3 = A[group + 8][pair + 8, pair + 9]
 *     B0 = B[pair, pair + 1][group]         B1 = B[pair + 8, pair + 9][group]
 *     D[0], D[1] = D[group][pair, pair + 1]    D[2], D[3] = D[group + 8][pair, pair + 1]
 * with the first of two BF16s in the lower half of a word. The order in which the hardware adds an
 * element's 16 products is not specified, but it is the same for every element, wherever it stands
 * and whatever its neighbours are. The CPU adds them one after another. */
#ifndef MP_KERNELS_MMA_H
#define MP_KERNELS_MMA_H

#include "lanes.h"

#if MP_ON_GPU

MP_GPU void mp_mma_run(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                       uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* In a function over a warp: D (float[4]) and the operands are expressions of each lane's `own`. */
#define MP_LANES_MMA(thread_type, D, A0, A1, A2, A3, B0, B1) \
    MP_EACH_LANE(thread_type)                                \
        mp_mma_run((D), (A0), (A1), (A2), (A3), (B0), (B1)); \
    MP_EACH_LANE_END

#else

typedef struct mp_mma_lanes {
    float *d[MP_LANES];
    uint32_t a[MP_LANES][4];
    uint32_t b[MP_LANES][2];
} mp_mma_lanes;

static inline float mp_mma_half(uint32_t word, uint32_t upper)
{
    const uint32_t bits = upper ? word & 0xffff0000u : word << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void mp_mma_run(const mp_mma_lanes *lanes)
{
    float a[16][16], b[16][8], d[16][8];
    for (uint32_t lane = 0; lane < MP_LANES; lane++) {
        const uint32_t group = lane / 4, pair = lane % 4 * 2;
        for (uint32_t i = 0; i < 8; i++)
            a[group + i / 2 % 2 * 8][pair + i / 4 * 8 + i % 2] =
                mp_mma_half(lanes->a[lane][i / 2], i % 2);
        for (uint32_t i = 0; i < 4; i++)
            b[pair + i / 2 * 8 + i % 2][group] = mp_mma_half(lanes->b[lane][i / 2], i % 2);
        for (uint32_t i = 0; i < 4; i++)
            d[group + i / 2 * 8][pair + i % 2] = lanes->d[lane][i];
    }
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t k = 0; k < 16; k++) {
            for (uint32_t column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column]; /* the product is exact */
        }
    }
    for (uint32_t lane = 0; lane < MP_LANES; lane++) {
        const uint32_t group = lane / 4, pair = lane % 4 * 2;
        for (uint32_t i = 0; i < 4; i++)
            lanes->d[lane][i] = d[group + i / 2 * 8][pair + i % 2];
    }
}

#define MP_LANES_MMA(thread_type, D, A0, A1, A2, A3, B0, B1) \
    do {                                                     \
        mp_mma_lanes mp_lanes;                               \
        MP_EACH_LANE(thread_type)                            \
            mp_lanes.d[lane] = (D);                          \
            mp_lanes.a[lane][0] = (A0);                      \
            mp_lanes.a[lane][1] = (A1);                      \
            mp_lanes.a[lane][2] = (A2);                      \
            mp_lanes.a[lane][3] = (A3);                      \
            mp_lanes.b[lane][0] = (B0);                      \
            mp_lanes.b[lane][1] = (B1);                      \
        MP_EACH_LANE_END                                     \
        mp_mma_run(&mp_lanes);                               \
    } while (0)

#endif

#endif
