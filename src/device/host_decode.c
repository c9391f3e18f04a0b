/* DECODE on the host. The chunks of all jobs follow each other on a line, each as long as its cost; a
 * part gets the chunks that begin in its stretch of the line. */
#include "device/host_decode.h"

#include <string.h>

/* A coded chunk costs by its symbols, whatever their dtype. A copy of as many bytes of BF16 runs at
 * about twice the speed. */
#define RAW_CHUNK_BYTES (64u << 10)
#define CODED_COST (MP_EXPH_CHUNK * 2u)
#define RAW_COST (RAW_CHUNK_BYTES / 2u)

typedef struct job_cut {
    uint64_t chunks;
    uint64_t cost; /* of each: the last one, if shorter, counts in full */
} job_cut;

static job_cut cut(const mp_decode_job *job)
{
    if (job->form == MOEPAGE_FORM_EXPH)
        return (job_cut){.chunks = mp_exph_chunks(job->elements), .cost = CODED_COST};
    return (job_cut){.chunks = (job->src_bytes + RAW_CHUNK_BYTES - 1) / RAW_CHUNK_BYTES,
                     .cost = RAW_COST};
}

/* Chunks of a job that begin before `mark`; the job itself begins at `start`. */
static uint64_t chunks_before(uint64_t mark, uint64_t start, job_cut job)
{
    if (mark <= start)
        return 0;
    uint64_t chunks = (mark - start + job.cost - 1) / job.cost;
    return chunks < job.chunks ? chunks : job.chunks;
}

static void bring(const mp_exph_decoder *decoder, const mp_decode_job *job, uint64_t first,
                  uint64_t count)
{
    if (job->form == MOEPAGE_FORM_EXPH) {
        mp_exph_decode(decoder, job->src, job->src_bytes, job->dtype, job->elements, first, count,
                       job->dst);
        return;
    }
    uint64_t from = first * RAW_CHUNK_BYTES, to = (first + count) * RAW_CHUNK_BYTES;
    to = to < job->src_bytes ? to : job->src_bytes;
    memcpy((unsigned char *)job->dst + from, (const unsigned char *)job->src + from, to - from);
}

uint64_t mp_host_decode_work(const mp_kernel_decode_args *args)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < args->n_jobs; i++) {
        job_cut job = cut(&args->jobs[i]);
        work += job.chunks * job.cost;
    }
    return work;
}

/* total * part / n_parts, without overflow. */
static uint64_t share_end(uint64_t total, uint32_t part, uint32_t n_parts)
{
    return total / n_parts * part + total % n_parts * part / n_parts;
}

void mp_host_decode(const mp_exph_decoder *decoder, const mp_kernel_decode_args *args,
                    uint32_t part, uint32_t n_parts)
{
    const uint64_t total = mp_host_decode_work(args);
    const uint64_t begin = share_end(total, part, n_parts);
    const uint64_t end = share_end(total, part + 1, n_parts);
    uint64_t start = 0;
    for (uint32_t i = 0; i < args->n_jobs && start < end; i++) {
        job_cut job = cut(&args->jobs[i]);
        uint64_t first = chunks_before(begin, start, job);
        uint64_t last = chunks_before(end, start, job);
        if (first < last && !mp_decode_skips(args, i))
            bring(decoder, &args->jobs[i], first, last - first);
        start += job.chunks * job.cost;
    }
}
