/* late_device.h — a host device whose callers have streams of their own.
 *
 * A `late_caller` stands for a cudaStream_t: what a test puts on it runs after the call that put it
 * there, in order, behind whatever it was made to follow; a gate can hold it up. Any call of the
 * device that can be refused can be made to fail. */
#ifndef LATE_DEVICE_H
#define LATE_DEVICE_H

#include <semaphore.h>
#include <stdint.h>

#include "arena/home.h"

/* Opens a home over the host device; one at a time. `settles`: loads have fills, so that settling
 * waits for them; else it returns at once. */
struct moepage_device *late_home_open(const moepage_device_config *config, bool settles);
void late_home_close(struct moepage_device *home);

/* The nth refusable call of the device from now on fails with DEVICE (views: NO_MEMORY), once or
 * for good; 0 = none. */
void late_fail(uint64_t nth, bool for_good);
uint64_t late_failures(void); /* refusable calls since late_fail that failed */
uint64_t late_waits(void);    /* calls of `wait` since late_fail */

typedef struct late_caller {
    struct moepage_device *home;
    mp_stream *stream;
    mp_stream *gate; /* of class COLD: it holds nothing else up */
    sem_t open;
    bool gated;
    unsigned char nothing;
} late_caller;

void late_caller_open(late_caller *caller, struct moepage_device *home);
/* Waits for its work. */
void late_caller_close(late_caller *caller);

/* Puts a copy of `bytes` from `src`, readable when it runs, on the stream. */
void late_read(late_caller *caller, void *dst, const void *src, uint64_t bytes);

/* What is put on the stream from now on waits until the gate is opened. */
void late_gate_shut(late_caller *caller);
void late_gate_open(late_caller *caller);
/* Waits for the stream's work; the gate is open. */
void late_wait(late_caller *caller);

#endif
