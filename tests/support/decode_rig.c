/* The launch's blocks and each block's threads are visited in random orders. */
#include "decode_rig.h"

#include <stdlib.h>
#include <string.h>

#include "gpu_reach.h"
#include "kernels/decode.h"
#include "numbers.h"
#include "testing.h"

MP_CPU_ENTRY(decode, mp_gpu_decode_args, mp_gpu_decode_shared, mp_gpu_decode_thread)
static const mp_cpu_kernel kernel =
    MP_CPU_ROW(decode, mp_gpu_decode_args, mp_gpu_decode_shared, mp_gpu_decode_thread);

static void shuffled(exph_random *random, uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint64_t at = exph_below(random, i);
        const uint32_t last = order[i - 1];
        order[i - 1] = order[at];
        order[at] = last;
    }
}

static void launch_on_gpu(const mp_decode_job *jobs, uint32_t n_jobs, uint32_t n_blocks)
{
    const uint64_t bytes = (n_jobs ? n_jobs : 1) * sizeof *jobs;
    void *table = guarded_alloc(bytes);
    if (n_jobs)
        memcpy(table, jobs, bytes);
    const mp_gpu_decode_args args = {.jobs = table, .n_jobs = n_jobs};
    gpu_reach_launch("mp_gpu_decode", &args, n_blocks, MP_DECODE_THREADS, kernel.shared_bytes);
    guarded_free(table, bytes);
}

void decode_rig_launch(exph_random *random, const mp_decode_job *jobs, uint32_t n_jobs,
                       uint32_t n_blocks)
{
    if (gpu_reach()) {
        launch_on_gpu(jobs, n_jobs, n_blocks);
        return;
    }
    const uint64_t table_bytes = n_jobs * sizeof *jobs;
    const uint64_t shared_bytes = (kernel.shared_bytes + 127) / 128 * 128;
    const uint64_t thread_bytes = (uint64_t)kernel.thread_bytes * MP_DECODE_THREADS;
    void *table = guarded_alloc(table_bytes), *shared = guarded_alloc(shared_bytes);
    void *threads = guarded_alloc(thread_bytes);
    uint32_t order[MP_DECODE_THREADS], *blocks = malloc(n_blocks * sizeof *blocks);
    const mp_gpu_decode_args args = {.jobs = table, .n_jobs = n_jobs};
    assert_non_null(blocks);
    if (n_jobs)
        memcpy(table, jobs, table_bytes);
    shuffled(random, blocks, n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) {
        const mp_cpu_block cpu = {.n_threads = MP_DECODE_THREADS, .order = order};
        shuffled(random, order, MP_DECODE_THREADS);
        memset(shared, (int)exph_below(random, 256), shared_bytes);
        memset(threads, (int)exph_below(random, 256), thread_bytes);
        kernel.run(&args, shared, threads, blocks[i], n_blocks, &cpu);
    }
    free(blocks);
    guarded_free(threads, thread_bytes);
    guarded_free(shared, shared_bytes);
    guarded_free(table, table_bytes);
}

void decode_rig_run(exph_random *random, const mp_decode_job *jobs, uint32_t n_jobs)
{
    const uint64_t dice = exph_below(random, 4);
    decode_rig_launch(random, jobs, n_jobs, dice ? 1 + (uint32_t)exph_below(random, 7) : 40);
}
