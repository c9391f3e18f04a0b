/* worker.h — the thread that runs due tasks, one at a time and in the order they fell due.
 *
 * All functions but start and stop are called with the lock that was passed to start held. */
#ifndef MP_DEVICE_WORKER_H
#define MP_DEVICE_WORKER_H

#include <pthread.h>
#include <stdbool.h>

#include "device/seam.h"

typedef struct mp_task_list {
    mp_task *first, *last;
} mp_task_list;

typedef struct mp_worker {
    pthread_mutex_t *lock;
    mp_task_list due;
    uint64_t n_due, n_run; /* ever */
    bool stop;
    uint32_t watchers; /* threads in mp_worker_settle */
    pthread_cond_t work;
    pthread_cond_t settled;
    pthread_t thread;
} mp_worker;

/* Inserts a task; the list is in order of `due`, and of arrival where that is equal. */
void mp_task_insert(mp_task_list *list, mp_task *task);

/* Takes the first task off the list; NULL if it is empty. */
mp_task *mp_task_take(mp_task_list *list);

/* Starts the thread; `worker` is zeroed memory. After NO_MEMORY there is nothing to stop. */
moepage_status mp_worker_start(mp_worker *worker, pthread_mutex_t *lock);

/* Runs all due tasks, and those that they post, then ends the thread. Without the lock. */
void mp_worker_stop(mp_worker *worker);

void mp_worker_add(mp_worker *worker, mp_task *task);

/* Waits until every task that is due by now has run; releases the lock meanwhile. Not callable
 * from a task. */
void mp_worker_settle(mp_worker *worker);

#endif
