/* watch.h — what an expert pool tells its watch: which experts were used, in order, and what steps were.
 *
 * A pool has one watch at most, set while no step is open. */
#ifndef MP_CONTROL_WATCH_H
#define MP_CONTROL_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* What one step of a session was. */
typedef struct mp_watch_step {
    uint32_t tokens;
    uint32_t layers; /* routed */
    bool prefill;    /* nothing but */
    uint64_t wall_ns;
    uint64_t stall_ns;   /* for absent experts */
    uint64_t compute_ns; /* of experts' kernels; 0 where the caller runs them */
    uint64_t misses;     /* late ones included */
} mp_watch_step;

typedef struct mp_watch mp_watch;
struct mp_watch {
    /* A routed set, keys distinct, in the order in which they were routed; sets in the order of their
     * routing. Under the expert pool's lock. */
    void (*experts)(mp_watch *watch, const uint32_t *keys, uint32_t n);
    /* A step has ended. No lock is held; sessions' threads. */
    void (*step)(mp_watch *watch, const mp_watch_step *step);
    uint32_t *keys; /* [experts of a layer] scratch of the expert pool */
};

#endif
