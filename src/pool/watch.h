/* watch.h — what pools tell whoever watches them: which experts and which KV were used, in order.
 *
 * A pool has one watch at most, set while no step is open. */
#ifndef MP_POOL_WATCH_H
#define MP_POOL_WATCH_H

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

typedef struct mp_watch_use {
    uint64_t seq;
    uint32_t blocks;
} mp_watch_use;

typedef struct mp_watch mp_watch;
struct mp_watch {
    /* A routed set, keys distinct, in the order in which they were routed; sets in the order of their
     * routing. Under the expert pool's lock. */
    void (*experts)(mp_watch *watch, const uint32_t *keys, uint32_t n);
    /* The KV sequences that a step names, one at least, and the blocks of each now. `again`: the
     * session has named just these lately, so that nothing has come back. Under the KV pool's
     * lock. */
    void (*kv)(mp_watch *watch, const mp_watch_use *uses, uint32_t n, bool again);
    /* A sequence is no more. Under the KV pool's lock. */
    void (*kv_freed)(mp_watch *watch, uint64_t seq);
    /* A step has ended. No lock is held; sessions' threads. */
    void (*step)(mp_watch *watch, const mp_watch_step *step);
    uint32_t *keys; /* [experts of a layer] scratch of the expert pool */
};

#endif
