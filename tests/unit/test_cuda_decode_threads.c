/* The decoder's kernel with a thread for each of a block's threads and a barrier at each end of a
 * phase, as on a GPU. Under ThreadSanitizer this shows what a phase-by-phase run cannot: threads
 * that share memory inside a phase, or write in one what others still read behind the last. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* kernels/phase.h, third form. Barriers take turns: a thread that is late out of one must not seem
 * to be behind what others did before they came to the next. */
#define MP_KERNELS_PHASE_H
#define MP_ON_GPU 0
#define MP_GPU static inline
#define MP_BLOCK_PARAMETERS(args_type, shared_type, thread_type)                         \
    const args_type *args, shared_type *shared, thread_type *self, const uint32_t block, \
        const uint32_t n_blocks, const uint32_t thread, pthread_barrier_t *barriers
#define MP_PHASE {
#define MP_PHASE_END                                  \
    }                                                 \
    pthread_barrier_wait(&barriers[phases_done % 2]); \
    phases_done++;
static _Thread_local uint32_t phases_done;
#include "kernels/decode.h"

#include "device/kernels.h"
#include "exph_data.h"

typedef struct launch {
    const mp_gpu_decode_args *args;
    mp_gpu_decode_shared *shared;
    pthread_barrier_t *barriers;
    uint32_t block, n_blocks;
} launch;

typedef struct member {
    const launch *of;
    uint32_t thread;
} member;

static void *run_thread(void *user)
{
    const member *me = user;
    const launch *of = me->of;
    mp_gpu_decode_thread own;
    memset(&own, 0x77, sizeof own);
    mp_gpu_decode_block(of->args, of->shared, &own, of->block, of->n_blocks, me->thread,
                        of->barriers);
    return NULL;
}

static void run_block(const mp_gpu_decode_args *args, uint32_t block, uint32_t n_blocks)
{
    pthread_t threads[MP_DECODE_THREADS];
    member members[MP_DECODE_THREADS];
    pthread_barrier_t barriers[2];
    mp_gpu_decode_shared *shared = aligned_alloc(128, (sizeof *shared + 127) / 128 * 128);
    assert_non_null(shared);
    memset(shared, 0x77, sizeof *shared);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_barrier_init(&barriers[i], NULL, MP_DECODE_THREADS), 0);
    const launch of = {args, shared, barriers, block, n_blocks};
    for (uint32_t i = 0; i < MP_DECODE_THREADS; i++) {
        members[i] = (member){&of, i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_thread, &members[i]), 0);
    }
    for (uint32_t i = 0; i < MP_DECODE_THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 2; i++)
        pthread_barrier_destroy(&barriers[i]);
    free(shared);
}

/* Coded chunks with and without escapes, chunks of the other modes, copies, and nothing, one after
 * the other in the same block. */
static const struct {
    uint32_t dtype, kind, n, dense;
} shapes[] = {
    {0, EXPH_GAUSSIAN, 70000, 0},  {0, EXPH_TWO, 70000, 0},      {0, EXPH_CONSTANT, 40000, 0},
    {0, EXPH_LANES, 9000, 0},      {1, EXPH_GEOMETRIC, 9000, 0}, {0, EXPH_GAUSSIAN, 0, 0},
    {0, EXPH_NOISE, 70000, 1},     {0, EXPH_NOISE, 40000, 0},    {2, EXPH_GAUSSIAN, 32768, 0},
    {3, EXPH_TWO, 9000, 0},        {0, EXPH_GAUSSIAN, 1, 0},     {0, EXPH_NOISE, 0, 1},
    {0, EXPH_GEOMETRIC, 40000, 0}, {0, EXPH_TWO, 300, 0},
};
enum { JOBS = sizeof shapes / sizeof *shapes };

static void add_job(exph_random *random, uint32_t i, mp_gpu_decode_job *job, uint8_t **wanted)
{
    const uint32_t dtype = exph_dtypes[shapes[i].dtype], n = shapes[i].n;
    const uint64_t bytes = n * exph_element_bytes(dtype);
    const uint64_t room = (mp_exph_bound(dtype, n) + 63) / 64 * 64;
    uint8_t *src = aligned_alloc(64, room);
    *wanted = malloc(bytes + 1);
    job->dst = malloc(bytes + 16);
    assert_non_null(src);
    assert_non_null(*wanted);
    assert_non_null(job->dst);
    exph_fill(random, dtype, shapes[i].kind, *wanted, n);
    memset(job->dst, 0x77, bytes);
    job->src = src;
    job->elements = n;
    job->dtype = dtype;
    job->form = shapes[i].dense ? MOEPAGE_FORM_DENSE : MOEPAGE_FORM_EXPH;
    job->src_bytes = bytes;
    if (job->form == MOEPAGE_FORM_EXPH)
        job->src_bytes = mp_exph_encode(dtype, *wanted, n, src);
    else
        memcpy(src, *wanted, bytes);
}

static void test_cuda_decode_threads_meet_before_they_share(void **state)
{
    (void)state;
    exph_random random = exph_random_of(11);
    for (uint32_t n_blocks = 1; n_blocks <= 3; n_blocks += 2) {
        mp_gpu_decode_job jobs[JOBS];
        uint8_t *wanted[JOBS];
        const mp_gpu_decode_args args = {.jobs = jobs, .n_jobs = JOBS};
        for (uint32_t i = 0; i < JOBS; i++)
            add_job(&random, i, &jobs[i], &wanted[i]);
        for (uint32_t block = 0; block < n_blocks; block++)
            run_block(&args, block, n_blocks);
        for (uint32_t i = 0; i < JOBS; i++) {
            assert_memory_equal(jobs[i].dst, wanted[i],
                                jobs[i].elements * exph_element_bytes(jobs[i].dtype));
            free((void *)(uintptr_t)jobs[i].src);
            free(jobs[i].dst);
            free(wanted[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_decode_threads_meet_before_they_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
