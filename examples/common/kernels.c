/* Instances of the loops, and the choice between them. */
#include "common/kernels.h"

#include <stddef.h>
#include <string.h>

#include "moepage.h"

#define LANES 16
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t bit_lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t half_lanes __attribute__((vector_size(LANES * sizeof(uint16_t))));

#define STRING_(x) #x
#define STRING(x) STRING_(x)

#define NAME(x) generic##x
#define TARGET
#include "common/kernels_body.h"

#if defined(__x86_64__)
#define NAME(x) avx2##x
#define TARGET __attribute__((target("avx2")))
#include "common/kernels_body.h"

#define NAME(x) avx512##x
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#include "common/kernels_body.h"
#endif

const kernels *kernels_choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &avx512table;
    if (__builtin_cpu_supports("avx2"))
        return &avx2table;
#endif
    return &generictable;
}
