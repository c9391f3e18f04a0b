/* loose_device.h — a single-threaded device that completes everything late, in an order chosen by a
 * seed, and checks every access to memory.
 *
 * Submitted work waits in its stream. The device advances one event at a time, when told to or when
 * a thread waits for it: an event begins an operation at the head of some stream, ends one, or runs
 * a task. So two operations of different streams overlap whenever nothing orders them.
 *
 * At every event and every check:
 *   - both sides of the arena and the workspaces together are what the ledger says, within the
 *     budget;
 *   - an operation under way touches no byte of the arena that its side does not own;
 *   - what the sides own has memory, and memory is within the budget;
 *   - no operation writes bytes that another one in progress reads or writes.
 * A stream belongs to the side that `side` says when it is created. What is found wrong first stays
 * in `failure`. */
#ifndef LOOSE_DEVICE_H
#define LOOSE_DEVICE_H

#include <stdint.h>

#include "arena/home.h"

typedef struct loose_stream loose_stream;

/* A task that runs once its stream has come so far. */
typedef struct loose_task {
    mp_task *task;
    loose_stream *stream;
    mp_tick tick;
} loose_task;

#define LOOSE_TASKS 8
#define LOOSE_PARTS 256

typedef struct loose_device {
    mp_device device;
    struct moepage_device *home;
    mp_side side; /* of streams that are created from now on */
    uint64_t random;
    loose_stream *streams;
    uint32_t n_streams;
    loose_task tasks[LOOSE_TASKS];
    uint32_t n_tasks;
    unsigned char *arena;
    uint64_t arena_bytes;
    bool there[LOOSE_PARTS];   /* parts of the arena that have memory */
    uint64_t most;             /* bytes of the arena that may have memory at once */
    uint32_t refusals;         /* so many times memory is refused next */
    uint64_t backed, unbacked; /* parts, ever */
    uint64_t events;
    uint64_t overlaps; /* events that began an operation while another was under way */
    char failure[256];
} loose_device;

/* A home on it, as moepage_device_open would build it. */
struct moepage_device *loose_open(loose_device *loose, uint64_t arena_bytes,
                                  uint64_t workspace_bytes);
/* The same with addresses for more, in parts, of which loose->most have memory. */
struct moepage_device *loose_open_parts(loose_device *loose, uint64_t max_arena_bytes,
                                        uint64_t part_bytes, uint64_t arena_bytes,
                                        uint64_t workspace_bytes);
/* Nothing of the library's is left on it. */
void loose_close(loose_device *loose);

/* The order of what follows, whatever came before. */
void loose_seed(loose_device *loose, uint64_t seed);
/* At most `n` events; returns how many there were to be had. */
uint32_t loose_run(loose_device *loose, uint32_t n);
/* Looks at the ledger and at what is under way now. */
void loose_check(loose_device *loose);

/* Submits caller's work that reads `bytes` at `at`, and must find `expected` there, at its
 * beginning and at its end; or that writes them. Of one side of the arena. */
void loose_read(mp_stream *stream, mp_side side, const void *at, const void *expected,
                uint64_t bytes);
void loose_write(mp_stream *stream, mp_side side, void *at, const void *data, uint64_t bytes);

#endif
