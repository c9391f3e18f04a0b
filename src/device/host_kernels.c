/* Host kernels: choosing a set, and running one share of one phase under a known floating-point
 * mode. */
#include "device/host_kernels.h"

#include <string.h>

#include "device/host_kernel_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

/* ---- Choosing ---- */

static bool runs_anywhere(void)
{
    return true;
}

#if defined(__x86_64__)

/* The builtins also ask whether the operating system saves the registers. */
static bool runs_avx2(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool runs_avx512_vnni(void)
{
    const unsigned avx512_vnni = 1u << 11;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return runs_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & avx512_vnni);
}

static bool runs_avx512_bf16(void)
{
    const unsigned avx512_bf16 = 1u << 5;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return runs_avx512_vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16);
}

/* Intel's processors take two cycles for VDPBF16PS, as for four fused multiply-adds; AMD's one, as for one. */
static bool prefers_fma(void)
{
    return __builtin_cpu_is("intel");
}

static bool prefers_pairs(void)
{
    return !prefers_fma();
}

#endif

/* Fastest first. The last runs anywhere. Some are best only on certain processors. */
static const struct {
    const mp_host_kernel_set *set;
    bool (*runs_here)(void);
    bool (*is_preferred)(void);
} choices[] = {
#if defined(__x86_64__)
    {&mp_host_set_avx512_bf16_fma, runs_avx512_bf16, prefers_fma},
    {&mp_host_set_avx512_bf16, runs_avx512_bf16, prefers_pairs},
    {&mp_host_set_avx512_vnni, runs_avx512_vnni, runs_anywhere},
    {&mp_host_set_avx512, runs_avx512, runs_anywhere},
    {&mp_host_set_avx2, runs_avx2, runs_anywhere},
#endif
    {&mp_host_set_portable, runs_anywhere, runs_anywhere},
};

const mp_host_kernel_set *mp_host_kernels_best(void)
{
    size_t i = 0;
    while (!choices[i].runs_here() || !choices[i].is_preferred())
        i++;
    return choices[i].set;
}

const mp_host_kernel_set *mp_host_kernels_find(const char *name)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (strcmp(choices[i].set->name, name) == 0)
            return choices[i].runs_here() ? choices[i].set : NULL;
    }
    return NULL;
}

const char *mp_host_kernels_name(const mp_host_kernel_set *set)
{
    return set->name;
}

/* ---- Running ---- */

uint32_t mp_host_kernel_phases(mp_kernel kernel)
{
    return kernel == MP_KERNEL_EXPERTS ? 2 : 1;
}

static uint64_t experts_work(const mp_kernel_experts_args *args)
{
    uint64_t rows = 0;
    for (uint32_t e = 0; e < args->n_experts; e++)
        rows += mp_host_rows_cost(args->experts[e].n_rows);
    return rows * args->hidden * args->intermediate * 3;
}

uint64_t mp_host_kernel_work(mp_kernel kernel, const mp_kernel_args *args)
{
    switch (kernel) {
    case MP_KERNEL_CONVERT: return (uint64_t)args->convert.n_tokens * args->convert.hidden;
    case MP_KERNEL_EXPERTS: return experts_work(&args->experts);
    case MP_KERNEL_LINEAR:
        return mp_host_rows_cost(args->linear.n_rows) * args->linear.n_in * args->linear.n_out;
    case MP_KERNEL_COMBINE:
        return (uint64_t)args->combine.n_tokens * args->combine.top_k * args->combine.hidden;
    default: return 0;
    }
}

static void dispatch(const mp_host_kernel_set *set, mp_kernel kernel, const mp_kernel_args *args,
                     uint32_t phase, uint32_t part, uint32_t n_parts)
{
    switch (kernel) {
    case MP_KERNEL_CONVERT: mp_host_convert(set, &args->convert, part, n_parts); break;
    case MP_KERNEL_EXPERTS: mp_host_experts(set, &args->experts, phase, part, n_parts); break;
    case MP_KERNEL_COMBINE: mp_host_combine(set, &args->combine, part, n_parts); break;
    case MP_KERNEL_LINEAR: mp_host_linear(set, &args->linear, part, n_parts); break;
    default: break;
    }
}

/* Threads that run shares may have been left in different modes by their owners. */
void mp_host_kernel_run(const mp_host_kernel_set *set, mp_kernel kernel, const mp_kernel_args *args,
                        uint32_t phase, uint32_t part, uint32_t n_parts)
{
#if defined(__x86_64__)
    unsigned mode = _mm_getcsr();
    _mm_setcsr(MP_MODE_DEFAULT);
    dispatch(set, kernel, args, phase, part, n_parts);
    _mm_setcsr(mode);
#else
    fenv_t mode;
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    dispatch(set, kernel, args, phase, part, n_parts);
    fesetenv(&mode);
#endif
}
