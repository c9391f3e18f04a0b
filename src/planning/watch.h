/* watch.h — what an expert pool reports to its watch: the experts used, in order, and the steps.
 *
 * A pool has at most one watch, which is set while no step is open. */
#ifndef MP_PLANNING_WATCH_H
#define MP_PLANNING_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* One step of a session. */
typedef struct mp_watch_step {
    uint32_t tokens;
    uint32_t layers;   /* routed */
    bool prefill;      /* prefill alone */
    bool decode;       /* decode alone */
    uint32_t decodes;  /* named sequences that decode */
    uint64_t routed;   /* distinct experts per layer, summed over layers */
    uint64_t ended_ns; /* by the device's clock */
    uint64_t wall_ns;
    uint64_t stall_ns; /* for absent experts */
    /* The device waits for them by itself: what it lost is to be added to that by the pool. */
    bool unseen;
    uint64_t compute_ns; /* of experts' kernels; 0 where the caller runs them */
    uint64_t misses;     /* late ones included */
} mp_watch_step;

typedef struct mp_watch mp_watch;
struct mp_watch {
    /* Reports a routed set: distinct keys, in the order in which they were routed, of a step of decode alone
     * with so many `decodes` (mp_watch_step), or 0: of any other. Sets come in the order of their routing. Called under
     * the expert pool's lock. */
    void (*experts)(mp_watch *watch, const uint32_t *keys, uint32_t n, uint32_t decodes);
    /* Reports a step that has ended. Called by sessions' threads, without a lock. */
    void (*step)(mp_watch *watch, const mp_watch_step *step);
    uint32_t *keys; /* [experts of a layer] scratch of the expert pool */
};

#endif
