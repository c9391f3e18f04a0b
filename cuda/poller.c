/* Threads that poll shared memory for a path. While a model decodes, a message may come at any moment, and
 * the device waits for its answer: a poller spins as long as anything has happened lately, a step of the
 * path's included. Between requests nothing happens, and it sleeps most of the time. */
#include "poller.h"

#include <pthread.h>
#include <time.h>

#include "base/alloc.h"
#include "base/status.h"
#include "context.h"
#include "device/thread.h"

#define SPIN_NS \
    20000000u            /* of silence before the first sleep: longer than most steps of a decode */
#define SLEEP_NS 200000u /* a hundredth of that at most, so that it adds little to what it delays */
#define POLLS_PER_CLOCK 16u /* reading the clock costs as much as several polls */

struct mp_cuda_poller {
    mp_cuda_poll_fn poll;
    void *user;
    _Atomic bool stop;
    pthread_t thread;
};

static bool is_stopped(mp_cuda_poller *poller)
{
    return atomic_load_explicit(&poller->stop, memory_order_relaxed);
}

uint64_t mp_cuda_poller_sleep_ns(uint64_t silence_ns)
{
    return silence_ns < SPIN_NS ? 0 : SLEEP_NS;
}

/* Polls a few times in a row, without a look at the clock. Returns true as soon as one finds something. */
static bool poll_some(mp_cuda_poller *poller)
{
    for (uint32_t i = 0; i < POLLS_PER_CLOCK && !is_stopped(poller); i++) {
        if (poller->poll(poller->user))
            return true;
        mp_thread_relax();
    }
    return false;
}

static void *run(void *arg)
{
    mp_cuda_poller *poller = arg;
    uint64_t last_ns = mp_clock_ns();
    while (!is_stopped(poller)) {
        bool found = poll_some(poller);
        uint64_t now_ns = mp_clock_ns();
        last_ns = found ? now_ns : last_ns;
        struct timespec sleep = {.tv_nsec = (long)mp_cuda_poller_sleep_ns(now_ns - last_ns)};
        if (sleep.tv_nsec && !is_stopped(poller))
            nanosleep(&sleep, NULL);
    }
    return NULL;
}

moepage_status mp_cuda_poller_start(mp_device *device, mp_cuda_poll_fn poll, void *user,
                                    mp_cuda_poller **out)
{
    mp_cuda_poller *poller = mp_alloc(sizeof *poller);
    if (!poller)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for a poller", device->name);
    poller->poll = poll;
    poller->user = user;
    moepage_status status = mp_thread_start(&poller->thread, "mp-poll", run, poller);
    if (status) {
        mp_free(poller);
        return status;
    }
    *out = poller;
    return MOEPAGE_OK;
}

void mp_cuda_poller_stop(mp_cuda_poller *poller)
{
    if (!poller)
        return;
    atomic_store_explicit(&poller->stop, true, memory_order_relaxed);
    pthread_join(poller->thread, NULL);
    mp_free(poller);
}
