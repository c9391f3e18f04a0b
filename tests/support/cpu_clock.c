/* The machine's clock, or a test's. */
#include "cpu_clock.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

#include "kernels/path.h"

static const cpu_clock *current;

void cpu_clock_set(const cpu_clock *clock)
{
    current = clock;
}

uint64_t mp_cpu_clock_ns(void)
{
    if (current)
        return current->now_ns(current->user);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void mp_cpu_pause(void)
{
    if (current)
        current->pause(current->user);
    else
        sched_yield();
}
