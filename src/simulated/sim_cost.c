/* The durations of transfers and kernels on a machine. */
#include <assert.h>

#include "codec/blocks.h"
#include "simulated/sim_run.h"

#define PER_S 1000000000u

/* Returns the bytes of an element that kernels read or write. */
static uint64_t width_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_F32: return 4;
    case MOEPAGE_DTYPE_F16:
    case MOEPAGE_DTYPE_BF16: return 2;
    default: return 1;
    }
}

/* Nanoseconds for `amount` at `per_s`, rounded up. */
static uint64_t ns_of(uint64_t amount, uint64_t per_s)
{
    if (amount <= (UINT64_MAX - per_s) / PER_S) /* 128-bit division is slow */
        return (amount * PER_S + per_s - 1) / per_s;
    unsigned __int128 ns = ((unsigned __int128)amount * PER_S + per_s - 1) / per_s;
    return ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : (uint64_t)ns;
}

uint64_t mp_sim_compute_ns(const mp_sim_profile *profile, uint64_t flops, uint64_t bytes)
{
    uint64_t arithmetic = ns_of(flops, profile->compute_flops);
    uint64_t memory = ns_of(bytes, profile->memory_bytes_per_s);
    return arithmetic > memory ? arithmetic : memory;
}

static uint64_t on_device(const mp_sim_profile *profile, uint64_t flops, uint64_t bytes)
{
    return profile->launch_ns + mp_sim_compute_ns(profile, flops, bytes);
}

static uint64_t convert_ns(const mp_sim_profile *profile, const mp_kernel_convert_args *args)
{
    uint64_t out = args->math == MOEPAGE_MATH_FP32 ? 4 : 2;
    uint64_t elements = (uint64_t)args->n_tokens * args->hidden;
    return on_device(profile, 0, elements * (width_of(args->x_dtype) + out));
}

/* Of a matrix as kernels read it. */
static uint64_t matrix_bytes(const mp_kernel_experts_args *args, uint32_t which, uint64_t rows,
                             uint64_t columns)
{
    const mp_quant_shape shape = {rows, columns, mp_quant_bits_of(args->form), args->group};
    mp_quant_layout layout;
    if (shape.bits && mp_quant_layout_of(&shape, &layout))
        return layout.bytes;
    const mp_block_format *blocks = mp_block_format_of(args->dtypes[which]);
    if (blocks)
        return rows * (columns / blocks->weights * blocks->bytes);
    return rows * columns * width_of(args->dtypes[which]);
}

/* Rows of x go to the host and their results come back. */
static uint64_t on_host(const mp_sim_profile *profile, uint64_t flops, uint64_t bytes,
                        uint64_t moved)
{
    const uint64_t arithmetic = ns_of(flops, profile->host_compute_flops);
    const uint64_t memory = ns_of(bytes, profile->host_memory_bytes_per_s);
    return 2 * profile->bus_latency_ns + ns_of(moved, profile->bus_bytes_per_s) +
           (arithmetic > memory ? arithmetic : memory);
}

/* Three matrices per expert. A row is read once, its product written and read again,
 * its result written. */
static uint64_t experts_ns(const mp_sim_profile *profile, const mp_kernel_experts_args *args)
{
    const uint64_t operand = args->math == MOEPAGE_MATH_FP32 ? 4 : 2;
    const uint64_t h = args->hidden, i = args->intermediate;
    const uint64_t weights = matrix_bytes(args, MP_GATE, i, h) + matrix_bytes(args, MP_UP, i, h) +
                             matrix_bytes(args, MP_DOWN, h, i);
    uint64_t rows = 0;
    for (uint32_t e = 0; e < args->n_experts; e++)
        rows += args->experts[e].n_rows;
    const uint64_t outer = rows * h * (operand + 4);
    const uint64_t bytes = args->n_experts * weights + outer + rows * 2 * i * operand;
    const uint64_t flops = 6 * h * i * rows;
    return args->on_host ? on_host(profile, flops, bytes, outer) : on_device(profile, flops, bytes);
}

static uint64_t combine_ns(const mp_sim_profile *profile, const mp_kernel_combine_args *args)
{
    uint64_t partial = (uint64_t)args->n_tokens * args->top_k * args->hidden * 4;
    uint64_t out = (uint64_t)args->n_tokens * args->hidden * width_of(args->y_dtype);
    return on_device(profile, 0, partial + out * (args->accumulate ? 2 : 1));
}

uint64_t mp_sim_decode_ns(const mp_sim_profile *profile, const mp_kernel_decode_args *args,
                          uint64_t *out_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < args->n_jobs; i++) {
        const mp_decode_job *job = &args->jobs[i];
        if (mp_decode_skips(args, i))
            continue;
        bytes +=
            job->form == MOEPAGE_FORM_DENSE ? job->src_bytes : job->elements * width_of(job->dtype);
    }
    *out_bytes = bytes;
    return profile->decode_latency_ns + ns_of(bytes, profile->decode_bytes_per_s);
}

mp_sim_entry mp_sim_kernel_work(const mp_sim_profile *profile, mp_kernel kernel, const void *args)
{
    mp_sim_entry entry = {.unit = MP_SIM_COMPUTE};
    switch (kernel) {
    case MP_KERNEL_CONVERT: entry.ns = convert_ns(profile, args); break;
    case MP_KERNEL_EXPERTS: entry.ns = experts_ns(profile, args); break;
    case MP_KERNEL_COMBINE: entry.ns = combine_ns(profile, args); break;
    default:
        assert(kernel == MP_KERNEL_DECODE);
        entry.unit = MP_SIM_DECODER;
        entry.decode = *(const mp_kernel_decode_args *)args;
        break;
    }
    return entry;
}

mp_sim_entry mp_sim_copy_work(const mp_sim_profile *profile, mp_stream_class cls, uint64_t bytes)
{
    mp_sim_entry entry = {.bytes = bytes};
    switch (cls) {
    case MP_STREAM_DEMAND:
    case MP_STREAM_PREFETCH:
        entry.unit = MP_SIM_BUS;
        entry.ns = profile->bus_latency_ns + ns_of(bytes, profile->bus_bytes_per_s);
        break;
    case MP_STREAM_COLD: /* its bytes share the bandwidth with other reads */
        entry.unit = MP_SIM_COLD;
        entry.ns = profile->cold_latency_ns;
        break;
    default: /* inside the device: read and written */
        entry.unit = MP_SIM_COMPUTE;
        entry.ns = on_device(profile, 0, 2 * bytes);
        break;
    }
    return entry;
}
