/* sim_blas.h — a simulated cuBLAS over the simulated driver: what cuda/blas.h declares.
 *
 * A product runs when its stream comes to it, reads its pointers then, from device memory, and
 * writes over the ends of the workspace that it was given. Sums are taken from the last element to
 * the first. What a program gets wrong by mistake (handles, sizes, alignment, a workspace that the
 * last set_stream took away, memory that is not the GPU's) is counted and printed. */
#ifndef MP_TESTS_SIM_BLAS_H
#define MP_TESTS_SIM_BLAS_H

#include "blas.h"

typedef enum sim_blas_call {
#define SIM_BLAS_CALL(field, symbol, parameters) SIM_BLAS_##field,
    MP_BLAS_FUNCTIONS(SIM_BLAS_CALL)
#undef SIM_BLAS_CALL
        SIM_BLAS_CALLS
} sim_blas_call;

/* A table over an open simulated driver; forgets what was before. */
const mp_cuda_blas *sim_blas_open(const mp_cuda_driver *driver);

/* Fails the running test when handles are left, or something was wrong. */
void sim_blas_close(void);

/* The nth call from now on (1: the next one) does nothing but return `result`. */
void sim_blas_fail(sim_blas_call call, uint64_t nth, mp_blas_status result);

uint64_t sim_blas_calls(sim_blas_call call);
uint64_t sim_blas_products(void); /* of all batches */

#endif
