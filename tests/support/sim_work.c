/* What the simulated driver's streams run, and the calls that submit it. Whether memory may be
 * touched is looked at when the work runs, as a GPU does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_inside.h"

/* ---- Running ---------------------------------------------------------------------------- */

static bool reaches(int gpu, uint64_t at, uint64_t bytes)
{
    sim_reach reach = sim_reach_of(gpu, at, bytes);
    if (reach == SIM_REACH_FOREIGN)
        sim_misuse("GPU %d touches memory at %#llx, to which it was given no access", gpu,
                   (unsigned long long)at);
    return reach == SIM_REACH_OK;
}

static bool copy_is_legal(int gpu, const sim_work *work)
{
    bool src = work->plain_src || reaches(gpu, work->src, work->bytes);
    bool dst = work->plain_dst || reaches(gpu, work->dst, work->bytes);
    bool apart =
        work->own || work->dst >= work->src + work->bytes || work->src >= work->dst + work->bytes;
    return src && dst && apart;
}

static bool launch_is_legal(int gpu, const sim_work *work)
{
    for (size_t at = 0; at + 8 <= work->kernel->args_bytes; at += 8) {
        uint64_t word;
        bool foreign;
        memcpy(&word, work->own + at, 8);
        if (sim_word_is_stray(gpu, word, &foreign) && (foreign || !sim.config.kernels_reach_host)) {
            sim_misuse("%s is given %#llx at byte %zu, which %s", work->kernel->name,
                       (unsigned long long)word, at,
                       foreign ? "is memory of a GPU that this one has no access to"
                               : "no GPU reaches");
            return false;
        }
    }
    return true;
}

/* Whether the work may run; a violation sticks to the context. */
static bool admit(mp_cu_stream stream, const sim_work *work)
{
    static const char *const names[] = {"copy", "memset", "write", "launch", "wait", "graph"};
    pthread_mutex_lock(&sim_lock);
    const int gpu = stream->context->gpu;
    bool well = !stream->context->sticky, legal = true;
    if (well && work->kind == SIM_WORK_COPY)
        legal = copy_is_legal(gpu, work);
    else if (well && (work->kind == SIM_WORK_SET || work->kind == SIM_WORK_WRITE))
        legal = reaches(gpu, work->dst, work->bytes);
    else if (well && work->kind == SIM_WORK_LAUNCH)
        legal = launch_is_legal(gpu, work);
    if (!legal) {
        fprintf(stderr, "simulated driver: %s of %llu bytes, %#llx to %#llx: illegal address\n",
                names[work->kind], (unsigned long long)work->bytes, (unsigned long long)work->src,
                (unsigned long long)work->dst);
        sim_poison(stream->context, MP_CU_ILLEGAL_ADDRESS);
    }
    sim.stats.kernels += well && legal && work->kind == SIM_WORK_LAUNCH;
    pthread_mutex_unlock(&sim_lock);
    return well && legal;
}

/* Whoever sees the word sees all that came before it. */
static void write_word(const sim_work *work)
{
    if (work->bytes == 4)
        __atomic_store_n((uint32_t *)work->dst, (uint32_t)work->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)work->dst, work->value, __ATOMIC_RELEASE);
}

void sim_work_run(mp_cu_stream stream, const sim_work *work)
{
    if (!admit(stream, work))
        return;
    switch (work->kind) {
    case SIM_WORK_COPY:
        memcpy((void *)work->dst, work->own ? work->own : (const void *)work->src, work->bytes);
        break;
    case SIM_WORK_SET: memset((void *)work->dst, (int)work->value, work->bytes); break;
    case SIM_WORK_WRITE: write_word(work); break;
    case SIM_WORK_LAUNCH: sim_kernel_run(stream, work); break;
    case SIM_WORK_GRAPH: sim_graph_run(stream, work->graph); break;
    case SIM_WORK_WAIT: break;
    }
}

/* ---- Submitting ------------------------------------------------------------------------- */

mp_cu_result sim_submit(mp_cu_stream stream, const sim_work *work)
{
    mp_cu_result result = stream ? sim_capture_check(stream) : MP_CU_INVALID_HANDLE;
    if (result)
        free(work->own);
    else if (stream->capture)
        result = sim_capture_add(stream, work);
    else
        sim_stream_submit(stream, work);
    return result;
}

/* Plain host memory goes through the driver's own pinned memory: a source has been read when the
 * call returns, and a destination written. */
static mp_cu_result submit_copy(mp_cu_stream stream, uint64_t dst, uint64_t src, uint64_t bytes)
{
    sim_work work = {.kind = SIM_WORK_COPY, .dst = dst, .src = src, .bytes = bytes};
    if (!bytes || !stream)
        return stream ? MP_CU_SUCCESS : MP_CU_INVALID_HANDLE;
    work.plain_src = sim_reach_of(SIM_ANY_GPU, src, bytes) == SIM_REACH_PLAIN;
    work.plain_dst = sim_reach_of(SIM_ANY_GPU, dst, bytes) == SIM_REACH_PLAIN;
    sim.stats.staged_copies += work.plain_src || work.plain_dst;
    if (work.plain_src && !stream->capture) {
        work.own = sim_new(bytes);
        memcpy(work.own, (const void *)src, bytes);
    }
    mp_cu_result result = sim_submit(stream, &work);
    if (!result && work.plain_dst && !stream->capture) {
        sim_stream_join(stream);
        result = stream->context->sticky;
    }
    return result;
}

mp_cu_result sim_do_copy(mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream)
{
    SIM_BEGIN(SIM_copy);
    return submit_copy(sim_stream_find(stream), dst, src, bytes);
}

/* Copies of one batch may run in any order among themselves. */
static mp_cu_result submit_batch(mp_cu_stream stream, const mp_cu_ptr *dsts, const mp_cu_ptr *srcs,
                                 const size_t *sizes, size_t count, size_t *failed)
{
    size_t first = (size_t)(sim_random(&stream->random) % count);
    for (size_t i = 0; i < count; i++) {
        size_t at = (first + i) % count;
        mp_cu_result result =
            sizes[at] ? submit_copy(stream, dsts[at], srcs[at], sizes[at]) : MP_CU_INVALID_VALUE;
        if (result) {
            if (failed)
                *failed = at;
            return result;
        }
    }
    return MP_CU_SUCCESS;
}

static bool batch_is_described(const mp_cu_copy_attributes *attributes, const size_t *index,
                               size_t n, size_t count)
{
    bool good = n && n <= count && index[0] == 0;
    for (size_t i = 0; i < n && good; i++) {
        good = attributes[i].source_order == MP_CU_SOURCE_ORDER_STREAM && index[i] < count &&
               (!i || index[i] > index[i - 1]);
    }
    return good;
}

mp_cu_result sim_do_copy_batch(mp_cu_ptr *dsts, mp_cu_ptr *srcs, size_t *sizes, size_t count,
                               mp_cu_copy_attributes *attributes, size_t *attribute_index,
                               size_t n_attributes, size_t *failed, mp_cu_stream handle)
{
    SIM_BEGIN(SIM_copy_batch);
    if (failed)
        *failed = SIZE_MAX;
    mp_cu_stream stream = sim_stream_find(handle);
    if (!stream || stream->legacy || !count ||
        !batch_is_described(attributes, attribute_index, n_attributes, count))
        return MP_CU_INVALID_VALUE;
    if (stream->capture)
        return sim_capture_invalidate(stream->capture, MP_CU_CAPTURE_UNSUPPORTED);
    return submit_batch(stream, dsts, srcs, sizes, count, failed);
}

mp_cu_result sim_do_set_bytes(mp_cu_ptr dst, unsigned char value, size_t bytes, mp_cu_stream stream)
{
    SIM_BEGIN(SIM_set_bytes);
    sim_work work = {.kind = SIM_WORK_SET, .dst = dst, .bytes = bytes, .value = value};
    return sim_submit(sim_stream_find(stream), &work);
}

static mp_cu_result submit_write(mp_cu_stream stream, uint64_t at, uint64_t value, uint64_t bytes,
                                 unsigned flags)
{
    sim_work work = {.kind = SIM_WORK_WRITE, .dst = at, .value = value, .bytes = bytes};
    if (at % bytes || flags)
        return MP_CU_INVALID_VALUE;
    return sim_submit(stream, &work);
}

mp_cu_result sim_do_stream_write32(mp_cu_stream stream, mp_cu_ptr at, uint32_t value,
                                   unsigned flags)
{
    SIM_BEGIN(SIM_stream_write32);
    return submit_write(sim_stream_find(stream), at, value, 4, flags);
}

mp_cu_result sim_do_stream_write64(mp_cu_stream stream, mp_cu_ptr at, uint64_t value,
                                   unsigned flags)
{
    SIM_BEGIN(SIM_stream_write64);
    if (sim.config.gpus[sim_current()->gpu].no_stream_mem_ops_64)
        return MP_CU_NOT_SUPPORTED;
    return submit_write(sim_stream_find(stream), at, value, 8, flags);
}
