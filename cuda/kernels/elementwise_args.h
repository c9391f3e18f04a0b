/* elementwise_args.h — the arguments of the kernels in elementwise.h, and how they are launched. */
#ifndef MP_KERNELS_ELEMENTWISE_ARGS_H
#define MP_KERNELS_ELEMENTWISE_ARGS_H

#include "phase.h"
#include "small_tables.h"

typedef struct mp_gpu_convert_args {
    const void *x; /* [n_tokens][hidden], rows x_stride elements apart */
    void *out;     /* [n_tokens][hidden]: BF16, or float */
    uint64_t x_stride;
    uint32_t x_dtype; /* MP_SCALAR_* */
    uint32_t to_bf16;
    uint32_t n_tokens;
    uint32_t hidden;
} mp_gpu_convert_args;

typedef struct mp_gpu_combine_args {
    const float *partial; /* [n_tokens * top_k][hidden] */
    const float *weights; /* [n_tokens][top_k] device memory; NULL: tables begins with them */
    const int32_t *ids;   /* [n_tokens][top_k] device memory; NULL: in tables */
    /* Device memory: when it holds anything but 0 there are no results, and y is filled with NaN.
     * May be NULL. */
    const uint32_t *given_up;
    void *y; /* rows y_stride elements apart */
    uint64_t y_stride;
    uint32_t y_dtype; /* MP_SCALAR_* */
    uint32_t n_tokens;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t accumulate;
    uint32_t ids_at;      /* in tables */
    uint32_t reserved[2]; /* no padding: arguments are defined to the last byte */
    MP_SMALL_ROOM(MP_SMALL_COMBINE);
} mp_gpu_combine_args;

/* Columns of a token that a block takes at a time; it takes several such pieces if the
 * grid is small. */
#define MP_ELEMENTWISE_THREADS 256
#define MP_ELEMENTWISE_COLUMNS 1024
#define MP_ELEMENTWISE_EACH (MP_ELEMENTWISE_COLUMNS / MP_ELEMENTWISE_THREADS)

#define MP_ELEMENTWISE_SHARED 4u /* bytes of dynamic shared memory */

typedef struct mp_gpu_elementwise_shared {
    uint32_t unused;
} mp_gpu_elementwise_shared;

#endif
