/* lanes.h — a warp that works as one: statements for each of its 32 lanes, and ways to
 * combine their results.
 *
 *     MP_EACH_LANE(mp_x_thread, warp) { own->sum = own->value[lane]; }
 *     MP_EACH_LANE_END
 *     MP_LANES_SUM(warp, sum);          now every lane's own->sum is the sum of all
 *     MP_LANES_SCAN(n);                 and every lane's own->n that of the lanes up to it
 *
 * On a GPU each lane is a thread that runs the statements once, and combining is a shuffle; on the
 * CPU they are a loop over the warp's 32 entries of the block's array of threads, and combining is
 * a loop that adds in the very order of the shuffles. Between two statements for each lane, lanes
 * see what others wrote to memory if they have met (MP_LANES_MEET), otherwise only what was combined. Control
 * flow around these macros is the same for all lanes of a warp. */
#ifndef MP_KERNELS_LANES_H
#define MP_KERNELS_LANES_H

#include "phase.h"

#define MP_LANES 32u

/* The arguments of a block function, handed on as those of block `b` of `n`. */
#if MP_ON_GPU
#define MP_BLOCK_PASS(b, n) args, shared, self, (b), (n), thread
#define MP_BLOCK_THREADS blockDim.x
#else
#define MP_BLOCK_PASS(b, n) args, shared, threads, (b), (n), cpu
#define MP_BLOCK_THREADS cpu->n_threads
#endif

#if MP_ON_GPU

/* The parameters of a function over a warp, with its family's thread type. */
#define MP_LANES_PARAMETERS(thread_type) thread_type *const mp_own, const uint32_t mp_lane
#define MP_LANES_PASS mp_own, mp_lane

#define MP_EACH_LANE(thread_type)        \
    {                                    \
        thread_type *const own = mp_own; \
        const uint32_t lane = mp_lane;   \
        (void)own;                       \
        (void)lane;
#define MP_EACH_LANE_END }

/* Brings a warp's lanes together after code in which they may have diverged: a warp's instructions, such as a
 * product of matrices, need them at the same place. */
#define MP_LANES_MEET() __syncwarp()

#define MP_LANES_MAX(field) (mp_own->field = __reduce_max_sync(0xffffffffu, mp_own->field))
#define MP_LANES_MIN(field) (mp_own->field = __reduce_min_sync(0xffffffffu, mp_own->field))
#define MP_LANES_SUM(field)                                                                     \
    do {                                                                                        \
        for (uint32_t mp_step = MP_LANES / 2; mp_step; mp_step /= 2)                            \
            mp_own->field =                                                                     \
                __fadd_rn(mp_own->field, __shfl_xor_sync(0xffffffffu, mp_own->field, mp_step)); \
    } while (0)
#define MP_LANES_SCAN(field)                                                               \
    do {                                                                                   \
        for (uint32_t mp_step = 1; mp_step < MP_LANES; mp_step *= 2) {                     \
            const uint32_t mp_below = __shfl_up_sync(0xffffffffu, mp_own->field, mp_step); \
            mp_own->field += mp_lane >= mp_step ? mp_below : 0;                            \
        }                                                                                  \
    } while (0)

/* In a phase of a block: `warp` is its index, and functions may be given MP_LANES_PASS. */
#define MP_WARPS(thread_type)                       \
    {                                               \
        thread_type *const mp_own = self;           \
        const uint32_t mp_lane = thread % MP_LANES; \
        const uint32_t warp = thread / MP_LANES;    \
        const uint32_t n_warps = blockDim.x / MP_LANES;
#define MP_WARPS_END \
    }                \
    __syncthreads();

#else

/* `mp_skew` chooses the order in which lanes are visited, which must not matter. */
#define MP_LANES_PARAMETERS(thread_type) thread_type *const mp_own, const uint32_t mp_skew
#define MP_LANES_PASS mp_own, mp_skew

#define MP_EACH_LANE(thread_type)                         \
    for (uint32_t mp_at = 0; mp_at < MP_LANES; mp_at++) { \
        const uint32_t lane = mp_at ^ mp_skew;            \
        thread_type *const own = &mp_own[lane];           \
        (void)own;
#define MP_EACH_LANE_END }

#define MP_LANES_MEET() (void)0

#define MP_LANES_FOLD(field, better)                        \
    do {                                                    \
        uint32_t mp_best = mp_own[0].field;                 \
        for (uint32_t mp_at = 1; mp_at < MP_LANES; mp_at++) \
            if (mp_own[mp_at].field better mp_best)         \
                mp_best = mp_own[mp_at].field;              \
        for (uint32_t mp_at = 0; mp_at < MP_LANES; mp_at++) \
            mp_own[mp_at].field = mp_best;                  \
    } while (0)
#define MP_LANES_MAX(field) MP_LANES_FOLD(field, >)
#define MP_LANES_MIN(field) MP_LANES_FOLD(field, <)
#define MP_LANES_SUM(field)                                                           \
    do {                                                                              \
        for (uint32_t mp_step = MP_LANES / 2; mp_step; mp_step /= 2) {                \
            float mp_sums[MP_LANES];                                                  \
            for (uint32_t mp_at = 0; mp_at < MP_LANES; mp_at++)                       \
                mp_sums[mp_at] = mp_own[mp_at].field + mp_own[mp_at ^ mp_step].field; \
            for (uint32_t mp_at = 0; mp_at < MP_LANES; mp_at++)                       \
                mp_own[mp_at].field = mp_sums[mp_at];                                 \
        }                                                                             \
    } while (0)
#define MP_LANES_SCAN(field)                                \
    do {                                                    \
        for (uint32_t mp_at = 1; mp_at < MP_LANES; mp_at++) \
            mp_own[mp_at].field += mp_own[mp_at - 1].field; \
    } while (0)

#define MP_WARPS(thread_type)                                                    \
    for (uint32_t mp_warp = 0; mp_warp < cpu->n_threads / MP_LANES; mp_warp++) { \
        const uint32_t n_warps = cpu->n_threads / MP_LANES;                      \
        const uint32_t warp = (mp_warp + cpu->order[0] / MP_LANES) % n_warps;    \
        thread_type *const mp_own = &threads[warp * MP_LANES];                   \
        const uint32_t mp_skew = cpu->order[0] % MP_LANES;
#define MP_WARPS_END }

#endif

#endif
