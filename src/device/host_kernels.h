/* host_kernels.h — the host device's compute kernels: CONVERT, EXPERTS, COMBINE and LINEAR on a CPU.
 *
 * A kernel runs as a few phases; a phase is cut into `n_parts` disjoint shares that any threads
 * may run in any order. The caller puts a barrier between phases. How many parts there are, and
 * which rows are computed together, never changes a bit of the result: docs/host-kernels.md has the one
 * order in which a dot product is summed.
 *
 * Nothing here allocates, locks, fails or keeps state. A call uses less than 64 KiB of stack. The
 * caller's floating-point mode (rounding, flush-to-zero) neither matters nor is changed.
 * Arguments have been validated before: sizes above zero, dtypes and math among those named in
 * device/kernels.h. Weights, biases, x and y need only the alignment of their element. */
#ifndef MP_DEVICE_HOST_KERNELS_H
#define MP_DEVICE_HOST_KERNELS_H

#include "device/kernels.h"

/* The kernels for one instruction set. Immutable, static storage. */
typedef struct mp_host_kernel_set mp_host_kernel_set;

/* The fastest set that this CPU runs. Cheap, but meant to be asked once and kept. [any] */
const mp_host_kernel_set *mp_host_kernels_best(void);

/* A set by name: "portable", "avx2", "avx512", "avx512-vnni", "avx512-bf16" or "avx512-bf16-fma". NULL if there is no such set or
 * this CPU cannot run it. [any] */
const mp_host_kernel_set *mp_host_kernels_find(const char *name);

const char *mp_host_kernels_name(const mp_host_kernel_set *set);

/* Phases of a kernel: EXPERTS has two (0 writes `inner`, 1 writes `partial`), the others one. */
uint32_t mp_host_kernel_phases(mp_kernel kernel);

/* A kernel's size, for choosing how many threads are worth waking: multiply-adds of EXPERTS, both
 * phases together, and of LINEAR; elements touched by the others. A launch that reads cold weights for few rows
 * is bound by memory and counts as 8 rows per matrix, as many as its bytes are worth. */
uint64_t mp_host_kernel_work(mp_kernel kernel, const mp_kernel_args *args);

/* Runs share `part` of `n_parts` (part < n_parts) of one phase. Shares may be empty. */
void mp_host_kernel_run(const mp_host_kernel_set *set, mp_kernel kernel, const mp_kernel_args *args,
                        uint32_t phase, uint32_t part, uint32_t n_parts);

#endif
