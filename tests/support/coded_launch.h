/* coded_launch.h — a launch of EXPERTS with weights in a code, and the same launch with the F32 weights
 * that they stand for: to be run by every kernel set and compared to the bit. */
#ifndef CODED_LAUNCH_H
#define CODED_LAUNCH_H

#include "device/host_kernels.h"

#define CODED_EXPERTS 3
#define CODED_TOP_K 2
#define CODED_INNER_BASE 3

/* A matrix, and what it stands for. Coded weights and scales end where readable memory does. */
typedef struct coded_matrix {
    uint8_t *coded, *scales; /* scales may be NULL */
    uint64_t coded_bytes, scale_bytes;
    float *values;
} coded_matrix;

typedef struct coded_launch coded_launch;
struct coded_launch {
    /* Set before coded_launch_open. Coded experts have these: */
    uint32_t dtypes[MP_MATRICES], form, group, math, hidden, intermediate;
    /* Allocates and fills matrix `which`. */
    void (*open_matrix)(const coded_launch *launch, uint32_t which, uint32_t rows, uint32_t columns,
                        coded_matrix *out);

    /* Filled by it: */
    uint32_t n_rows, n_tokens;
    uint64_t operand_bytes; /* of an element of x */
    coded_matrix matrices[CODED_EXPERTS][MP_MATRICES];
    uint16_t *bias[MP_MATRICES]; /* BF16, of all experts but the first */
    float *wide_bias[MP_MATRICES];
    mp_ffn_expert coded[CODED_EXPERTS], plain[CODED_EXPERTS];
    mp_kernel_args args;
    float *from; /* what x was converted from */
    void *x, *inner;
    uint32_t *rows;
    float *partial, *want;
};

/* `counts` are rows of each expert. */
void coded_launch_open(coded_launch *launch, const uint32_t *counts);
void coded_launch_close(coded_launch *launch);

/* Runs the coded experts, or the plain ones by the portable set, whose results are `want`. */
void coded_launch_run(coded_launch *launch, const mp_host_kernel_set *set, uint32_t n_parts);
void coded_launch_run_plain(coded_launch *launch);

/* Fails unless the set finds `want` for the coded experts: in one share and in several, in one launch
 * and in one per expert. */
void coded_launch_try(coded_launch *launch, const mp_host_kernel_set *set);

uint64_t coded_launch_partial_bytes(const coded_launch *launch);

#endif
