/* Threads without signals, and a clock that can be waited for precisely. */
#include "device/thread.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/status.h"

#define NS_PER_S 1000000000ull

/* A sleep may end this much late: the kernel's default timer slack. */
#define SLEEP_ERROR_NS 50000

moepage_status mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the system refused to start thread %s: %s", name,
                       mp_errno_text_of(error).text);
    pthread_setname_np(*out, name);
    return MOEPAGE_OK;
}

uint32_t mp_thread_cpus(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

uint64_t mp_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void mp_clock_wait(uint64_t when_ns)
{
    if (when_ns > mp_clock_ns() + SLEEP_ERROR_NS) {
        uint64_t until = when_ns - SLEEP_ERROR_NS;
        struct timespec at = {.tv_sec = (time_t)(until / NS_PER_S),
                              .tv_nsec = (long)(until % NS_PER_S)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
        }
    }
    while (mp_clock_ns() < when_ns)
        mp_thread_relax();
}
