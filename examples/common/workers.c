/* Threads that sleep on a condition variable between jobs and take items from a shared counter. */
#include "common/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Work, in multiply-adds, below which waking the threads, tens of microseconds, does not pay. */
#define WORTH_WAKING (1u << 18)

typedef struct worker {
    workers *pool;
    float *scratch;
    pthread_t thread;
} worker;

struct workers {
    worker *members; /* [0] is the caller of workers_run */
    uint32_t n_members;
    float *scratch;
    pthread_mutex_t lock;
    pthread_cond_t job_changed;
    pthread_cond_t all_idle;
    uint64_t job;     /* number of jobs so far; under the lock, like all below but `next` */
    uint32_t running; /* threads that have not finished this job */
    bool stopping;
    workers_fn fn;
    void *arg;
    uint32_t n_items;
    _Atomic uint32_t next;
};

static void take_items(workers *pool, float *scratch)
{
    for (;;) {
        uint32_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->n_items)
            return;
        pool->fn(pool->arg, item, scratch);
    }
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    workers *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->job == seen && !pool->stopping)
            pthread_cond_wait(&pool->job_changed, &pool->lock);
        if (pool->stopping)
            break;
        seen = pool->job;
        pthread_mutex_unlock(&pool->lock);
        take_items(pool, self->scratch);
        pthread_mutex_lock(&pool->lock);
        if (--pool->running == 0)
            pthread_cond_signal(&pool->all_idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

workers *workers_start(uint32_t threads, size_t scratch_floats)
{
    workers *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->job_changed, NULL);
    pthread_cond_init(&pool->all_idle, NULL);
    scratch_floats = (scratch_floats + 15) / 16 * 16; /* whole cache lines: no false sharing */
    pool->members = calloc(threads, sizeof *pool->members);
    pool->scratch = aligned_alloc(64, threads * scratch_floats * sizeof(float));
    if (!pool->members || !pool->scratch)
        goto fail;
    for (uint32_t i = 0; i < threads; i++) {
        pool->members[i] = (worker){.pool = pool, .scratch = pool->scratch + i * scratch_floats};
        if (i && pthread_create(&pool->members[i].thread, NULL, worker_main, &pool->members[i]))
            goto fail;
        pool->n_members = i + 1;
    }
    return pool;
fail:
    workers_stop(pool);
    return NULL;
}

void workers_stop(workers *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->job_changed);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i < pool->n_members; i++)
        pthread_join(pool->members[i].thread, NULL);
    pthread_cond_destroy(&pool->all_idle);
    pthread_cond_destroy(&pool->job_changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->scratch);
    free(pool->members);
    free(pool);
}

uint32_t workers_count(const workers *pool)
{
    return pool->n_members;
}

void workers_run(workers *pool, uint32_t n_items, uint64_t work, workers_fn fn, void *arg)
{
    if (pool->n_members == 1 || n_items < 2 || work < WORTH_WAKING) {
        for (uint32_t item = 0; item < n_items; item++)
            fn(arg, item, pool->members[0].scratch);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->n_items = n_items;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->running = pool->n_members - 1;
    pool->job++;
    pthread_cond_broadcast(&pool->job_changed);
    pthread_mutex_unlock(&pool->lock);
    take_items(pool, pool->members[0].scratch);
    pthread_mutex_lock(&pool->lock);
    while (pool->running)
        pthread_cond_wait(&pool->all_idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
