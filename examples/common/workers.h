/* workers.h — a small pool of threads that run independent items, and their scratch memory.
 *
 * Which thread runs an item must not matter to its result: items write disjoint outputs and use
 * scratch only within the item. */
#ifndef EXAMPLE_WORKERS_H
#define EXAMPLE_WORKERS_H

#include <stddef.h>
#include <stdint.h>

typedef struct workers workers;

/* Runs one item; `scratch` is the running thread's own. */
typedef void (*workers_fn)(void *arg, uint32_t item, float *scratch);

/* Starts `threads` - 1 threads: the caller of workers_run is the first worker. Each has
 * `scratch_floats` floats. NULL when threads or memory cannot be had. */
workers *workers_start(uint32_t threads, size_t scratch_floats);
void workers_stop(workers *pool);

/* Runs items 0..n_items-1 and returns when all are done. `work` estimates the whole in
 * multiply-adds: little work is not worth waking anybody. One caller at a time. */
void workers_run(workers *pool, uint32_t n_items, uint64_t work, workers_fn fn, void *arg);

#endif
