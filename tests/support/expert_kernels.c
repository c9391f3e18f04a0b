/* Launches of the expert kernels, without a device. */
#include "expert_kernels.h"

#include <stdlib.h>
#include <string.h>

#include "gpu_reach.h"
#include "kernels/experts.h"
#include "numbers.h"
#include "testing.h"

#define ENTRY(entry, form, dtype, aligned, shared_type, thread_type, blocks) \
    MP_CPU_ENTRY(entry, mp_gpu_experts_args, shared_type, thread_type)
#define ROW(entry, form, dtype, aligned, shared_type, thread_type, blocks) \
    MP_CPU_ROW(entry, mp_gpu_experts_args, shared_type, thread_type),
MP_EXPERTS_KERNELS(ENTRY)
static const mp_cpu_kernel kernels[] = {MP_EXPERTS_KERNELS(ROW)};

void random_order(uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = num_random_bits() % i, swapped = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swapped;
    }
}

static const mp_cpu_kernel *kernel_of(const char *name)
{
    assert_non_null(name);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    }
    fail_msg("no kernel %s", name);
    return NULL;
}

void expert_kernel_launch(const char *name, uint32_t form, const mp_gpu_experts_args *args,
                          uint32_t n_blocks)
{
    static uint32_t order[MP_EXPERTS_THREADS], blocks[4096];
    const mp_cpu_kernel *kernel = kernel_of(name);
    if (gpu_reach()) {
        gpu_reach_launch(name, args, n_blocks, MP_EXPERTS_THREADS, kernel->shared_bytes);
        return;
    }
    const size_t thread_bytes = (size_t)kernel->thread_bytes * MP_EXPERTS_THREADS;
    void *shared = malloc(kernel->shared_bytes), *threads = malloc(thread_bytes);
    assert_true(shared && threads);
    assert_int_equal(kernel->shared_bytes, mp_gpu_experts_shared(form));
    assert_true(n_blocks <= 4096);
    random_order(blocks, n_blocks);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const int garbage = num_random_bits() % 2 ? 0xff : 0x77;
        memset(shared, garbage, kernel->shared_bytes);
        memset(threads, garbage, thread_bytes);
        random_order(order, MP_EXPERTS_THREADS);
        kernel->run(args, shared, threads, blocks[b], n_blocks,
                    &(mp_cpu_block){MP_EXPERTS_THREADS, order});
    }
    free(shared);
    free(threads);
}
