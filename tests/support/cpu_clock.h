/* cpu_clock.h — time and pauses of kernels that wait, in their CPU form (cuda/kernels/path.h). A
 * test may act as the clock itself, and as the other side that a kernel waits for. */
#ifndef CPU_CLOCK_H
#define CPU_CLOCK_H

#include <stdint.h>

typedef struct cpu_clock {
    uint64_t (*now_ns)(void *user);
    void (*pause)(void *user);
    void *user;
} cpu_clock;

/* From now on; NULL: the machine's clock, and a pause lets other threads run. While no kernel
 * waits. */
void cpu_clock_set(const cpu_clock *clock);

#endif
