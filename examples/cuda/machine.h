/* machine.h — one GPU as the operations of dense parts see it: memory, one stream, kernels by
 * number, and the first failure, which is reported once and ends everything. */
#ifndef EXAMPLE_CUDA_MACHINE_H
#define EXAMPLE_CUDA_MACHINE_H

#include "common/dense.h"
#include "cuda/driver.h"
#include "cuda/entries.h"

#define MACHINE_MAX_TAKEN 32

#define MACHINE_NUMBER(name, args, shared, threads) MACHINE_##name,
typedef enum machine_kernel { GPU_ENTRIES(MACHINE_NUMBER) MACHINE_KERNELS } machine_kernel;
#undef MACHINE_NUMBER

typedef struct machine {
    gpu_driver driver;
    gpu_blas blas;
    gpu_blas_handle blas_handle; /* NULL: not used */
    gpu_context context;         /* current from open to close */
    int device;
    bool current;
    gpu_stream stream;
    gpu_module module;
    gpu_function kernels[MACHINE_KERNELS];
    gpu_address taken[MACHINE_MAX_TAKEN];
    void *pinned[MACHINE_MAX_TAKEN];
    uint32_t n_taken, n_pinned;
    uint64_t bytes; /* of device memory taken */
    int code;       /* RUN_OK, or what the first failure was */
    dense_fail_fn *fail;
} machine;

/* Of GPU `ordinal`, in its primary context, which the library uses too. Safe to close after a
 * failure. */
int machine_open(machine *m, uint32_t ordinal, bool cublas, dense_fail_fn *report);
void machine_close(machine *m);

/* Device memory, aligned to 256 bytes, and pinned memory of the host; until close. NULL with a
 * line. */
void *machine_take(machine *m, size_t bytes);
void *machine_take_pinned(machine *m, size_t bytes);

/* On the stream, in order; nothing once something has failed. */
void machine_copy(machine *m, void *to, const void *from, size_t bytes);
void machine_zero(machine *m, void *at, size_t bytes);
void machine_launch(machine *m, machine_kernel kernel, uint64_t blocks, void *args);
/* y [n][rows] = x [n][columns] times w [rows][columns], transposed; y's rows are y_stride apart. */
void machine_gemm(machine *m, const void *w, const void *x, bool bf16, uint32_t rows,
                  uint32_t columns, uint32_t n, float *y, uint32_t y_stride);

/* Waits for the stream. What failed so far, or now. */
int machine_settle(machine *m);

#endif
