/* The kernel sets of this CPU. */
#include "kernel_sets.h"

#include "testing.h"

const mp_host_kernel_set *kernel_sets[KERNEL_SETS_MAX];
size_t n_kernel_sets;

int kernel_sets_find(void **state)
{
    static const char *const names[] = {"portable",    "avx2",        "avx512",
                                        "avx512-vnni", "avx512-bf16", "avx512-bf16-fma"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const mp_host_kernel_set *set = mp_host_kernels_find(names[i]);
        if (set)
            kernel_sets[n_kernel_sets++] = set;
        else
            print_message("not run here: %s\n", names[i]);
    }
    return n_kernel_sets > 0 ? 0 : -1;
}

void experts_set_dtype(mp_kernel_experts_args *args, uint32_t dtype)
{
    for (uint32_t m = 0; m < MP_MATRICES; m++)
        args->dtypes[m] = dtype;
    args->bias_dtype = dtype;
}
