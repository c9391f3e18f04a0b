/* host_int8.h — products in integers, of MATH_INT8: rows of x rounded to 8 bits, and weights in blocks.
 *
 * docs/host-kernels.md has the arithmetic. A row of x of k elements takes 4 * k bytes: as BF16, for
 * matrices that are not in blocks, and in groups of 32 if k is a multiple of that. */
#ifndef MP_DEVICE_HOST_INT8_H
#define MP_DEVICE_HOST_INT8_H

#include <stdint.h>

/* Elements of x that share a scale. */
#define MP_INT8_GROUP 32
/* Rows of x that meet each weight once it is taken apart. */
#define MP_INT8_ROWS 64
/* A dot product is summed in this many lanes, group after group. */
#define MP_INT8_LANES 4
/* A group whose greatest magnitude is below this counts as zeros. */
#define MP_INT8_LEAST 0x1p-100f

/* What a row is in integers. Element i is scale[i / 32] * q[i]. Sums are of q in sixteens and in groups:
 * times the scale, and times -128. */
typedef struct mp_int8_row {
    int8_t *q;
    float *scale;
    float *sum[2];
    int32_t *negative[2];
} mp_int8_row;

enum { MP_INT8_BY_16, MP_INT8_BY_32 };

static inline mp_int8_row mp_int8_row_at(const void *row, uint32_t k)
{
    char *groups = (char *)(uintptr_t)row + 3ull * k;
    return (mp_int8_row){
        .q = (int8_t *)(uintptr_t)row + 2ull * k,
        .scale = (float *)(void *)groups,
        .sum = {(float *)(void *)(groups + k / 8), (float *)(void *)(groups + k / 8 * 3)},
        .negative = {(int32_t *)(void *)(groups + k / 2), (int32_t *)(void *)(groups + k / 4 * 3)},
    };
}

/* Bytes of a row. */
static inline uint64_t mp_int8_row_bytes(uint32_t k)
{
    return 4ull * k;
}

/* The same row from group g on. */
static inline mp_int8_row mp_int8_row_from(mp_int8_row row, uint32_t g)
{
    return (mp_int8_row){
        .q = row.q + g * MP_INT8_GROUP,
        .scale = row.scale + g,
        .sum = {row.sum[0] + 2 * g, row.sum[1] + g},
        .negative = {row.negative[0] + 2 * g, row.negative[1] + g},
    };
}

/* Rows of x times rows of weights in blocks. */
typedef struct mp_int8_product {
    const uint8_t *weights;
    uint64_t row_bytes; /* of weights */
    uint32_t dtype, k, n_weights;
    uint32_t n_rows;      /* of x, 1..MP_INT8_ROWS */
    const void *const *x; /* [n_rows] */
    uint64_t ahead_bytes; /* prefetch this far past what is read; 0 = nothing to prefetch */
    float *out;           /* [n_rows][stride] */
    uint32_t stride;
} mp_int8_product;

typedef struct mp_int8_set {
    /* n_groups groups of `in` to where `row` begins. */
    void (*quantise)(const float *in, uint32_t n_groups, mp_int8_row row);
    /* out[r][c] = row r of x times row c of the weights */
    void (*multiply)(const mp_int8_product *product);
} mp_int8_set;

extern const mp_int8_set mp_int8_portable;
#if defined(__x86_64__)
extern const mp_int8_set mp_int8_avx2;
extern const mp_int8_set mp_int8_vnni;

/* For every vector set. */
void mp_int8_quantise_avx2(const float *in, uint32_t n_groups, mp_int8_row row);
#endif

#endif
