/* workers.h — a small pool of threads that run independent items, with scratch memory.
 *
 * The thread that runs an item must not affect the result: items write disjoint outputs and use
 * scratch only within the item. */
#ifndef EXAMPLE_WORKERS_H
#define EXAMPLE_WORKERS_H

#include <stddef.h>
#include <stdint.h>

typedef struct workers workers;

/* Runs one item; `scratch` belongs to the running thread. */
typedef void (*workers_fn)(void *arg, uint32_t item, float *scratch);

/* Starts `threads` - 1 threads: the caller of workers_run is the first worker. Each has
 * `scratch_floats` floats. NULL if threads or memory are unavailable. */
workers *workers_start(uint32_t threads, size_t scratch_floats);
void workers_stop(workers *pool);

/* Returns the number of workers. */
uint32_t workers_count(const workers *pool);

/* Runs items 0..n_items-1 and returns when all are done. `work` estimates the total in
 * multiply-adds: the caller runs small jobs alone. One caller at a time. */
void workers_run(workers *pool, uint32_t n_items, uint64_t work, workers_fn fn, void *arg);

#endif
