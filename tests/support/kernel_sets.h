/* kernel_sets.h — every host kernel set that this CPU runs, for tests that try them all. */
#ifndef KERNEL_SETS_H
#define KERNEL_SETS_H

#include <stddef.h>

#include "device/host_kernels.h"

#define KERNEL_SETS_MAX 8

/* Slowest and plainest first: kernel_sets[0] is "portable". */
extern const mp_host_kernel_set *kernel_sets[KERNEL_SETS_MAX];
extern size_t n_kernel_sets;

/* A cmocka group setup: fills the above, and names the sets that cannot run here. */
int kernel_sets_find(void **state);

/* Makes `dtype` that of every matrix and bias. */
void experts_set_dtype(mp_kernel_experts_args *args, uint32_t dtype);

#endif
