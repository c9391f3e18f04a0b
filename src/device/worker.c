/* One thread, one queue of tasks. A single thread, so that tasks need no lock against each other. */
#include "device/worker.h"

#include <assert.h>

#include "device/thread.h"

void mp_task_insert(mp_task_list *list, mp_task *task)
{
    mp_task *before =
        list->last; /* ticks are mostly posted in ascending order: search from the end */
    if (before && before->due > task->due) {
        before = NULL;
        for (mp_task *i = list->first; i->due <= task->due; i = i->next)
            before = i;
    }
    mp_task **link = before ? &before->next : &list->first;
    task->next = *link;
    *link = task;
    if (!task->next)
        list->last = task;
}

mp_task *mp_task_take(mp_task_list *list)
{
    mp_task *task = list->first;
    if (task) {
        list->first = task->next;
        if (!list->first)
            list->last = NULL;
    }
    return task;
}

static void *run_tasks(void *arg)
{
    mp_worker *worker = arg;
    pthread_mutex_lock(worker->lock);
    for (;;) {
        mp_task *task = mp_task_take(&worker->due);
        if (task) {
            /* `run` may free the task or post it again, so the task is not touched afterwards. The
             * lock is released, because a task submits and posts. */
            pthread_mutex_unlock(worker->lock);
            task->run(task);
            pthread_mutex_lock(worker->lock);
            worker->n_run++; /* after the task: mp_worker_settle waits for its end */
            if (worker->watchers)
                pthread_cond_broadcast(&worker->settled);
        } else if (worker->stop) { /* only when no task is left: posted tasks are run to the end */
            break;
        } else {
            pthread_cond_wait(&worker->work, worker->lock);
        }
    }
    pthread_mutex_unlock(worker->lock);
    return NULL;
}

moepage_status mp_worker_start(mp_worker *worker, pthread_mutex_t *lock)
{
    worker->lock = lock;
    pthread_cond_init(&worker->work, NULL);
    pthread_cond_init(&worker->settled, NULL);
    moepage_status status = mp_thread_start(&worker->thread, "mp-tasks", run_tasks, worker);
    if (status) {
        pthread_cond_destroy(&worker->work);
        pthread_cond_destroy(&worker->settled);
    }
    return status;
}

void mp_worker_stop(mp_worker *worker)
{
    pthread_mutex_lock(worker->lock);
    worker->stop = true;
    pthread_cond_signal(&worker->work);
    pthread_mutex_unlock(worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->work);
    pthread_cond_destroy(&worker->settled);
}

void mp_worker_add(mp_worker *worker, mp_task *task)
{
    task->next = NULL;
    if (worker->due.last)
        worker->due.last->next = task;
    else
        worker->due.first = task;
    worker->due.last = task;
    worker->n_due++;
    pthread_cond_signal(&worker->work);
}

void mp_worker_settle(mp_worker *worker)
{
    assert(!pthread_equal(pthread_self(), worker->thread)); /* a task would wait for itself */
    /* By counts rather than an empty list: the last task is off the list while it still runs. */
    uint64_t goal = worker->n_due;
    worker->watchers++;
    while (worker->n_run < goal)
        pthread_cond_wait(&worker->settled, worker->lock);
    worker->watchers--;
}
