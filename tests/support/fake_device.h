/* fake_device.h — a device without threads or time of its own, for deterministic tests.
 *
 * A copy or a launch is done when its submission returns, on streams of every class, tasks run when
 * the test pumps, the clock stands until the test moves it, and any allocation, submission or
 * transfer can be made to fail. Its only kernel is DECODE. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdint.h>

#include "arena/home.h"

/* Countdowns: 0 = never, 1 = the next one fails, and every later one while `persistent`. A failed
 * transfer has moved half of its bytes. */
typedef struct fake_faults {
    uint64_t alloc; /* of host_map and of memory for the arena too */
    uint64_t stream;
    uint64_t submit; /* copies and launches */
    uint64_t transfer;
    bool persistent;
} fake_faults;

typedef struct fake_device {
    mp_device device;
    fake_faults faults;
    bool poisoned;
    uint64_t now_ns;
    uint64_t copies;
    uint64_t copied_bytes;
    uint64_t launches;
    uint64_t held_bytes[3]; /* by mp_memory_kind */
    uint64_t mapped_bytes;  /* by host_map */
    uint64_t arena_bytes;   /* of the arena's addresses */
    uint64_t available;     /* that the system could give, as it says */
    uint32_t streams;       /* open */
    mp_task *first;         /* posted, in order */
    mp_task **last;
} fake_device;

void fake_device_init(fake_device *fake);

/* Runs posted tasks, and those that they post, until none is left; says how many. */
uint32_t fake_device_pump(fake_device *fake);

/* A home on the fake, as moepage_device_open would build it. `arena_bytes` is a multiple of 4096;
 * the budget is exactly arena and workspace. */
struct moepage_device *fake_home_open(fake_device *fake, uint64_t arena_bytes,
                                      uint64_t workspace_bytes);
/* The same with addresses for a larger arena. */
struct moepage_device *fake_home_open_part(fake_device *fake, uint64_t max_arena_bytes,
                                           uint64_t arena_bytes, uint64_t workspace_bytes);
/* Asserts that nothing is left on it. */
void fake_home_close(struct moepage_device *home);

#endif
