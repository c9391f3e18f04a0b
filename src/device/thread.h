/* thread.h — the host device's threads and clock, from the operating system. */
#ifndef MP_DEVICE_THREAD_H
#define MP_DEVICE_THREAD_H

#include <pthread.h>

#include "moepage.h"

/* Starts a thread that leaves every signal to the host program's own threads. `name`, at most 15
 * characters, is shown by debuggers and top. NO_MEMORY if the system refuses a thread. */
moepage_status mp_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg);

/* Returns the number of CPUs that are online; at least 1. */
uint32_t mp_thread_cpus(void);

/* CLOCK_MONOTONIC in nanoseconds. Never blocks. */
uint64_t mp_clock_ns(void);

/* Returns at `when_ns` or a fraction of a microsecond later: sleeps, then spins for the last tens of
 * microseconds, because a sleep may end that much late. */
void mp_clock_wait(uint64_t when_ns);

/* A hint to the CPU inside a spinning loop. */
static inline void mp_thread_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
