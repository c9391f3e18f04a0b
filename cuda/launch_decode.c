/* DECODE: from a list of jobs to its grid. Blocks find their work in the list by themselves, so any
 * grid is correct; this file finds one that is large enough to fill the GPU. */
#include <string.h>

#include "base/status.h"
#include "codec/exph_format.h"
#include "kernels/decode.h"
#include "launch.h"

#define SAME_PLACE(type, field) \
    _Static_assert(offsetof(type, field) == offsetof(mp_gpu_decode_job, field), #field)
#define SAME_JOB(type)                                                       \
    _Static_assert(sizeof(type) == sizeof(mp_gpu_decode_job), "job tables"); \
    SAME_PLACE(type, src);                                                   \
    SAME_PLACE(type, src_bytes);                                             \
    SAME_PLACE(type, dst);                                                   \
    SAME_PLACE(type, elements);                                              \
    SAME_PLACE(type, form);                                                  \
    SAME_PLACE(type, dtype)
SAME_JOB(mp_decode_job);
SAME_JOB(moepage_cuda_decode_job);

#define SAME(a, b) _Static_assert((uint64_t)(a) == (uint64_t)(b), #a)
SAME(MP_DECODE_CHUNK, MP_EXPH_CHUNK);
SAME(MP_DECODE_TILE, MP_EXPH_TILE);
SAME(MP_DECODE_TILES, MP_EXPH_TILES);
SAME(MP_DECODE_GROUP, MP_EXPH_GROUP);
SAME(MP_DECODE_LANES, MP_EXPH_LANES);
SAME(MP_DECODE_RUN, MP_EXPH_RUN);
SAME(MP_DECODE_MAX_ELEMENTS, MP_EXPH_MAX_ELEMENTS);
SAME(MP_DECODE_AT_EXPONENTS, MP_EXPH_AT_EXPONENTS);
SAME(MP_DECODE_AT_LENGTHS, MP_EXPH_AT_LENGTHS);
SAME(MP_DECODE_AT_TABLE, MP_EXPH_AT_TABLE);
SAME(MP_DECODE_ENTRY_BYTES, MP_EXPH_ENTRY_BYTES);
SAME(MP_DECODE_CODED, MP_EXPH_CODED);
SAME(MP_DECODE_CONSTANT, MP_EXPH_CONSTANT);
SAME(MP_DECODE_RAW, MP_EXPH_RAW);
SAME(MP_DECODE_F16, MOEPAGE_DTYPE_F16);
SAME(MP_DECODE_BF16, MOEPAGE_DTYPE_BF16);
SAME(MP_DECODE_E4M3, MOEPAGE_DTYPE_F8_E4M3);
SAME(MP_DECODE_E5M2, MOEPAGE_DTYPE_F8_E5M2);
SAME(MP_DECODE_EXPH, MOEPAGE_FORM_EXPH);

/* As many blocks as fit on the device, and no more than there may be units. `small`: the jobs, if they go into the
 * arguments, else NULL. */
static moepage_status launch(mp_cuda *cuda, mp_cu_stream stream, const void *jobs, uint32_t n_jobs,
                             uint64_t units, const void *small)
{
    const uint32_t fit = mp_cuda_resident_blocks(cuda, "mp_gpu_decode", MP_DECODE_THREADS,
                                                 sizeof(mp_gpu_decode_shared));
    mp_gpu_decode_args args = {.jobs = jobs, .n_jobs = n_jobs};
    if (small)
        memcpy(args.tables, small, n_jobs * sizeof(mp_gpu_decode_job));
    return mp_cuda_launch(cuda, stream, "mp_gpu_decode", units < fit ? (uint32_t)units : fit,
                          MP_DECODE_THREADS, sizeof(mp_gpu_decode_shared), &args);
}

moepage_status mp_cuda_launch_decode(mp_cuda *cuda, mp_cu_stream stream,
                                     const mp_kernel_decode_args *host,
                                     const mp_kernel_decode_args *gpu)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < host->n_jobs; i++) {
        const mp_decode_job *job = &host->jobs[i];
        const mp_gpu_decode_job same = {job->src,      job->src_bytes, job->dst,
                                        job->elements, job->form,      job->dtype};
        if (job->form == MOEPAGE_FORM_EXPH && !mp_bits_aligned(job->src, MP_EXPH_ALIGN))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "the stream of decode job %u begins at %p, it must be aligned to %u "
                           "bytes",
                           i, job->src, MP_EXPH_ALIGN);
        units += mp_decode_units(&same);
    }
    return launch(cuda, stream, gpu->jobs, gpu->n_jobs, units, gpu->jobs ? NULL : host->jobs);
}

/* Decodes from a table in device memory. Only the kernel sees its jobs; it writes NaNs for a stream
 * that is not aligned. */
moepage_status mp_cuda_call_decode(mp_cuda *cuda, mp_cu_stream stream,
                                   const moepage_cuda_decode *args)
{
    uint64_t units = UINT32_MAX;
    if (args->n_jobs == 0)
        return MOEPAGE_OK;
    if (!args->jobs || !mp_bits_aligned(args->jobs, 8))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "jobs is %p, it must be device memory aligned to 8 bytes",
                       (const void *)args->jobs);
    if (args->total_elements) /* each job may have a chunk that is not full */
        units = args->total_elements / MP_DECODE_CHUNK + args->n_jobs;
    return launch(cuda, stream, args->jobs, args->n_jobs, units, NULL);
}
