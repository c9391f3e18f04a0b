/* Instances of the loops, and the choice between them. */
#include "common/kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "moepage.h"

#define LANES 16
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t bit_lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t half_lanes __attribute__((vector_size(LANES * sizeof(uint16_t))));

#define STRING_(x) #x
#define STRING(x) STRING_(x)

/* Rows and sums of a tile whose sums stay in registers: LONG vectors of a row with FEW sums, or one with
 * MANY. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define NAME(x) generic##x
#define TARGET
#define LONG 1
#define FEW 1
#define MANY 1
static inline __attribute__((always_inline)) void genericadd_product(lanes *sum, const lanes *a,
                                                                     const lanes *b)
{
    for (int i = 0; i < LANES; i++)
        (*sum)[i] = fmaf((*a)[i], (*b)[i], (*sum)[i]);
}
#include "common/kernels_body.h"

#if defined(__x86_64__)
#define NAME(x) avx2##x
#define TARGET __attribute__((target("avx2,fma")))
#define LONG 1
#define FEW 4
#define MANY 4
static inline __attribute__((always_inline)) TARGET void avx2add_product(lanes *sum, const lanes *a,
                                                                         const lanes *b)
{
    __m256 x[2], y[2], z[2];
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    memcpy(z, sum, sizeof z);
    z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]);
    z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
    memcpy(sum, z, sizeof z);
}
#include "common/kernels_body.h"

#define NAME(x) avx512##x
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define LONG 4
#define FEW 4
#define MANY 8
static inline __attribute__((always_inline)) TARGET void
avx512add_product(lanes *sum, const lanes *a, const lanes *b)
{
    *sum = (lanes)_mm512_fmadd_ps((__m512)*a, (__m512)*b, (__m512)*sum);
}
#include "common/kernels_body.h"
#endif

static bool runs(const kernels *table)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (table == &avx512table)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (table == &avx2table)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return table == &generictable;
}

static const kernels *const tables[] = {
    &generictable,
#if defined(__x86_64__)
    &avx2table,
    &avx512table,
#endif
};

#define N_TABLES (sizeof tables / sizeof *tables)

const kernels *kernels_at(uint32_t i)
{
    for (size_t t = 0; t < N_TABLES; t++)
        if (runs(tables[t]) && i-- == 0)
            return tables[t];
    return NULL;
}

const kernels *kernels_choose(void)
{
    size_t last = N_TABLES - 1;
    while (!runs(tables[last]))
        last--;
    return tables[last];
}
