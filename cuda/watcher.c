/* What waits for completed ticks without a thread that sleeps on them: posted tasks, and streams that
 * wait across the boundary between the GPU and the host.
 *
 * One thread, the watcher, reads the words of the streams concerned. The GPU signals no condition
 * variable, so that GPU streams are polled, at longer and longer intervals while nothing completes;
 * COLD streams report their progress. With no stream to watch the thread sleeps. */
#include <assert.h>
#include <stddef.h>
#include <time.h>

#include "device/thread.h"
#include "issue.h"

#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 500000u
/* A dead GPU writes no word: after so long without news the driver is asked. */
#define DOUBT_NS 50000000u

/* ---- The list of streams to look at (with the issuer's lock) ----------------------------- */

/* A linear search: few streams are watched at a time. */
static void unwatch(mp_cuda_issuer *issuer, mp_cuda_stream *stream)
{
    mp_cuda_stream **link = &issuer->watched;
    if (!stream->watched)
        return;
    while (*link != stream)
        link = &(*link)->next_watched;
    *link = stream->next_watched;
    stream->watched = false;
}

/* ---- Tasks ------------------------------------------------------------------------------ */

/* Runs one due task on the executor's task thread, then posts itself again behind tasks that came
 * meanwhile: streams take turns. */
static void run_one(mp_task *runner)
{
    mp_cuda_stream *stream =
        (mp_cuda_stream *)(void *)((char *)runner - offsetof(mp_cuda_stream, runner));
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    mp_executor *executor = stream->cuda->executor;
    pthread_mutex_lock(&issuer->lock);
    mp_task *task = mp_task_take(&stream->due);
    pthread_mutex_unlock(&issuer->lock);
    if (task)
        task->run(task); /* may free the task or post it again: it is not touched afterwards */
    pthread_mutex_lock(&issuer->lock);
    bool again = stream->due.first != NULL;
    stream->running = again;
    if (!again)
        pthread_cond_broadcast(&issuer->tasks_ran);
    pthread_mutex_unlock(&issuer->lock);
    if (again)
        mp_executor_post(executor, NULL, 0, runner);
}

/* Moves tasks whose ticks have completed to those that are due. Returns true if the caller has to post
 * the runner once it has given up the lock: the executor's lock comes before the issuer's. */
static bool take_due(mp_cuda_stream *stream, mp_tick done)
{
    while (stream->tasks.first && stream->tasks.first->due <= done) {
        mp_task *task = mp_task_take(&stream->tasks);
        task->due = 0; /* equal keys: `due` keeps the order in which tasks fell due */
        mp_task_insert(&stream->due, task);
    }
    if (!stream->due.first || stream->running)
        return false;
    stream->running = true;
    stream->runner.run = run_one;
    return true;
}

void mp_cuda_watch_post(mp_cuda_stream *stream, mp_tick tick, mp_task *task)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    mp_executor *executor = stream->cuda->executor;
    task->due = tick;
    pthread_mutex_lock(&issuer->lock);
    mp_task_insert(&stream->tasks, task);
    /* The tick may have completed already: then the task does not wait for the watcher's next look. */
    bool starts = take_due(stream, mp_cuda_completed(stream));
    if (stream->tasks.first)
        mp_cuda_watch(issuer, stream);
    pthread_mutex_unlock(&issuer->lock);
    if (starts)
        mp_executor_post(executor, NULL, 0, &stream->runner);
}

void mp_cuda_watch_drain(mp_cuda_stream *stream)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    while (stream->tasks.first || stream->due.first || stream->running)
        pthread_cond_wait(&issuer->tasks_ran, &issuer->lock);
    pthread_mutex_unlock(&issuer->lock);
}

void mp_cuda_watch_remove(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    assert(!stream->tasks.first);
    unwatch(issuer, stream);
    mp_cuda_list_split(&stream->until_completed, UINT64_MAX, freed);
    pthread_mutex_unlock(&issuer->lock);
}

void mp_cuda_cold_progress(void *user, mp_tick tick)
{
    mp_cuda_stream *stream = user;
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    /* The word before the lock: a stream that parks either sees the tick or is watched by then. */
    atomic_store_explicit(stream->word, tick, memory_order_release);
    pthread_mutex_lock(&issuer->lock);
    if (stream->watched) {
        issuer->has_news = true;
        pthread_cond_signal(&issuer->watch);
    }
    pthread_mutex_unlock(&issuer->lock);
}

/* ---- The watcher ------------------------------------------------------------------------ */

/* What a look at the watched streams has found, to be acted on without the lock. */
typedef struct findings {
    mp_cuda_list freed;
    mp_cuda_stream *runners[16]; /* to be posted; the rest at the next look */
    uint32_t n_runners;
    bool polls; /* a GPU stream is being watched: there is no signal to wait for */
} findings;

static void look_at(mp_cuda_stream *stream, findings *out)
{
    mp_tick done = mp_cuda_completed(stream);
    mp_cuda_list_split(&stream->until_completed, done, &out->freed);
    if (out->n_runners < sizeof out->runners / sizeof *out->runners && take_due(stream, done))
        out->runners[out->n_runners++] = stream;
}

static void look(mp_cuda_issuer *issuer, findings *out)
{
    mp_cuda_stream *next;
    *out = (findings){.n_runners = 0};
    for (mp_cuda_stream *i = issuer->watched; i; i = next) {
        next = i->next_watched;
        look_at(i, out);
        if (!i->tasks.first && !i->until_completed.first)
            unwatch(issuer, i);
        else
            out->polls |= !mp_cuda_is_cold(i);
    }
}

/* A GPU stream that is being watched, with a reference, or NULL. */
static mp_cuda_stream *any_gpu_stream(const mp_cuda_issuer *issuer)
{
    mp_cuda_stream *i = issuer->watched;
    while (i && mp_cuda_is_cold(i))
        i = i->next_watched;
    if (i)
        mp_cuda_retain(i);
    return i;
}

static void sleep_ns(mp_cuda_issuer *issuer, uint64_t ns)
{
    uint64_t at = mp_clock_ns() + ns;
    struct timespec until = {.tv_sec = (time_t)(at / 1000000000u),
                             .tv_nsec = (long)(at % 1000000000u)};
    pthread_cond_timedwait(&issuer->watch, &issuer->lock, &until);
}

static bool act_on(mp_cuda *cuda, findings *found)
{
    if (!found->freed.first && !found->n_runners)
        return false;
    /* Without the lock: posting takes the executor's, pumping takes streams', and both come before it. */
    pthread_mutex_unlock(&cuda->issuer->lock);
    for (uint32_t i = 0; i < found->n_runners; i++)
        mp_executor_post(cuda->executor, NULL, 0, &found->runners[i]->runner);
    mp_cuda_pump_all(&found->freed);
    pthread_mutex_lock(&cuda->issuer->lock);
    return true;
}

static void *run_watcher(void *arg)
{
    mp_cuda *cuda = arg;
    mp_cuda_issuer *issuer = cuda->issuer;
    uint64_t nap_ns = SLEEP_MIN_NS, silent_ns = 0;
    pthread_mutex_lock(&issuer->lock);
    while (!issuer->stop) {
        findings found;
        if (issuer->has_news)
            nap_ns = SLEEP_MIN_NS;
        issuer->has_news = false;
        look(issuer, &found);
        if (act_on(cuda, &found)) {
            nap_ns = SLEEP_MIN_NS;
            silent_ns = 0;
            continue;
        }
        if (issuer->has_news || issuer->stop) /* came while the lock was given up */
            continue;
        if (!found.polls) {
            pthread_cond_wait(&issuer->watch, &issuer->lock);
            continue;
        }
        sleep_ns(issuer, nap_ns);
        silent_ns += nap_ns;
        nap_ns = nap_ns * 2 < SLEEP_MAX_NS ? nap_ns * 2 : SLEEP_MAX_NS;
        mp_cuda_stream *stream = silent_ns < DOUBT_NS ? NULL : any_gpu_stream(issuer);
        if (stream) {
            silent_ns = 0;
            pthread_mutex_unlock(&issuer->lock);
            mp_cuda_query(stream);
            mp_cuda_release(stream);
            pthread_mutex_lock(&issuer->lock);
        }
    }
    pthread_mutex_unlock(&issuer->lock);
    return NULL;
}

moepage_status mp_cuda_watch_start(mp_cuda *cuda)
{
    mp_cuda_issuer *issuer = cuda->issuer;
    moepage_status status = mp_thread_start(&issuer->watcher, "mp-watch", run_watcher, cuda);
    issuer->started = !status;
    return status;
}

void mp_cuda_watch_stop(mp_cuda *cuda)
{
    mp_cuda_issuer *issuer = cuda->issuer;
    if (!issuer->started)
        return;
    pthread_mutex_lock(&issuer->lock);
    assert(!issuer->watched);
    issuer->stop = true;
    pthread_cond_signal(&issuer->watch);
    pthread_mutex_unlock(&issuer->lock);
    pthread_join(issuer->watcher, NULL);
}
