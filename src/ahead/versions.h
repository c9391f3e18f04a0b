/* versions.h — every expert in two versions (DynaExq 3.2 to 3.4).
 *
 * High versions are what the pool's slots hold. Low ones lie in places of one size at the low end of
 * the experts' side of the arena, which take whole slots:
 *
 *   base                     first_slot
 *   | place | place | ... |  | slot | slot | ...
 *
 * Which of the two an expert computes with is one number, its version: a place, or MP_VERSION_HIGH
 * and a slot. With SERVE_VERSIONS `published` has that of every expert. A step sees what was
 * published when it began and nothing else: its session has a copy, and says which window the copy is
 * of. What a window takes out of `published` stays as it is until no step of an earlier window is
 * open. So a step finds every version whole, waits for none, and takes no lock while nothing is on
 * its way.
 *
 * A swap gives one expert of a layer the high version of another:
 *
 *            the low version      `out` is low      nobody sees       the high version
 *            of `out` is there    from here on      the old one       of `in` is there
 *   FETCH -----------------> UNPUBLISH -------> LEAVE -------> LOAD ---------------> PUBLISH
 *                                                                                       |
 *   `in` is high from here on; its low place is free when nobody sees it: RELEASE <-----+
 *
 * FETCH and RELEASE are of pools whose low versions are fetched; where no version need go a swap
 * begins with LOAD. UNPUBLISH and PUBLISH end where a step begins. When a source fails, FETCH leaves
 * everything as it was, and LOAD leaves `in` low and a slot free for the next one.
 *
 * With SERVE_CACHE the slots are a cache like any other, and the low versions are just there. */
#ifndef MP_AHEAD_VERSIONS_H
#define MP_AHEAD_VERSIONS_H

#include "control/hotness.h"
#include "pool/expert_pool.h"

#define MP_VERSION_HIGH 0x80000000u
#define MP_NO_EXPERT_KEY UINT32_MAX

typedef enum mp_swap_state {
    MP_SWAP_NONE,
    MP_SWAP_FETCH,
    MP_SWAP_UNPUBLISH,
    MP_SWAP_LEAVE,
    MP_SWAP_LOAD,
    MP_SWAP_PUBLISH,
    MP_SWAP_RELEASE
} mp_swap_state;

typedef struct mp_swap {
    mp_swap_state state;
    uint32_t in, out; /* keys; out may be MP_NO_EXPERT_KEY */
    uint32_t place;   /* FETCH, UNPUBLISH: that out's low version gets; RELEASE: to be freed */
    uint32_t slot;    /* LEAVE: out's; LOAD: in's, MP_NO_SLOT: it has none yet */
    uint64_t window;  /* LEAVE, RELEASE: steps of earlier ones may see what is to go */
    mp_tick tick;     /* FETCH: of the copy */
    _Atomic int32_t result; /* FETCH: a moepage_status once the copy has failed */
} mp_swap;

/* What the last decision asked for and has not begun: each layer's best first, then each layer's
 * second ... */
typedef struct mp_swap_queue {
    mp_precision_swap *swaps; /* [layers][experts] */
    uint32_t *n;              /* [layers] */
    uint32_t rank, turn;      /* the next one: the rank-th of the turn-th layer from `first` on */
    uint32_t first;           /* another layer every time */
    uint32_t left;
} mp_swap_queue;

typedef struct mp_version_counters {
    uint64_t promotions, demotions, refused, failed, bytes, decisions, windows;
} mp_version_counters;

typedef struct mp_versions {
    moepage_precision_config config; /* defaults filled in */
    mp_precision_law law;
    uint32_t n_high; /* per layer, at most; 0 with SERVE_CACHE */
    /* low versions */
    unsigned char *memory; /* the arena's base */
    uint64_t unit;         /* bytes of a place */
    uint32_t n_places;
    uint32_t *free_places; /* stack; of fetched ones */
    uint32_t n_free;
    /* SERVE_VERSIONS; under the pool's lock but for what is atomic */
    uint32_t *published;      /* [keys] */
    _Atomic uint64_t window;  /* which one begins with the next step; 1 is the first */
    _Atomic uint64_t begun;   /* steps */
    _Atomic bool busy;        /* there are swaps under way, or to begin */
    _Atomic uint32_t *counts; /* [keys] selections in this interval, or their weight */
    _Atomic uint64_t next_ns; /* when the next decision is due */
    double *hotness;          /* [keys] */
    bool *high;               /* [keys] is to be high: published so, or on its way there */
    uint32_t *layer_counts;   /* [experts] scratch */
    uint32_t *order;          /* [experts] scratch */
    mp_swap *swaps;           /* [config.transitions] */
    mp_swap_queue queue;
    mp_version_counters counters;
} mp_versions;

static inline unsigned char *mp_versions_address(const mp_versions *versions, uint32_t place)
{
    return versions->memory + (uint64_t)place * versions->unit;
}

/* Do sessions of the pool compute with published versions? */
static inline bool mp_pool_serves_versions(const struct moepage_expert_pool *pool)
{
    return pool->versions && pool->versions->config.serve == MOEPAGE_SERVE_VERSIONS;
}

/* ---- life (versions.c) ---- */

/* For mp_pool_sizes: bytes of a slot, how many the low versions take, and for high ones those that the
 * config names; `*slots` stays as it is with SERVE_CACHE. */
moepage_status mp_versions_sizes(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t n_devices,
                                 uint64_t *slot_bytes, uint64_t *low_slots, uint64_t *slots);

/* Gives a pool that is being created its versions, before anything depends on what a slot is. */
moepage_status mp_versions_prepare(struct moepage_expert_pool *pool,
                                   const moepage_expert_pool_config *config);

/* Sets the pool's versions up on its one device, whose side of the arena is attached and still empty.
 * *first: slots that the low ones take; *slots: for high ones, 0 = as many as there is room for. */
moepage_status mp_versions_open(struct moepage_expert_pool *pool, uint64_t asked, uint32_t *first,
                                uint64_t *slots);

/* Brings every low version, and what else has to be there from the start; blocks. FORMAT or IO where
 * an image cannot be had. */
moepage_status mp_versions_fill(struct moepage_expert_pool *pool);

/* Nothing is under way any more. */
void mp_versions_close(struct moepage_expert_pool *pool);

/* ---- what sessions call, SERVE_VERSIONS (versions.c) ---- */

/* Around a step. Neither waits for anything but the pool's lock, and takes that only while something
 * is on its way, or when a decision is due. */
void mp_versions_begin_step(struct moepage_expert_pool *pool, mp_client *client);
void mp_versions_end_step(struct moepage_expert_pool *pool, mp_client *client);

/* Holds all of `holds` in the versions that the step sees; all are ready. Lock-free. */
void mp_versions_hold(struct moepage_expert_pool *pool, const mp_client *client, mp_hold *holds,
                      uint32_t n);

/* An expert was selected by so many tokens, or with so much weight. Lock-free. */
static inline void mp_versions_count(struct moepage_expert_pool *pool, uint32_t key, uint32_t heat)
{
    atomic_fetch_add_explicit(&pool->versions->counts[key], heat, memory_order_relaxed);
}

/* ---- low versions ---- */

/* The hold gets the expert's low version; SERVE_CACHE. */
void mp_versions_hold_low(const struct moepage_expert_pool *pool, mp_hold *hold);

/* Submits the copy of an expert's low version to a place. The lock is held, and nothing is staged. */
moepage_status mp_versions_copy_low(struct moepage_expert_pool *pool, uint32_t key, uint32_t place,
                                    _Atomic int32_t *result, mp_tick *tick);

/* Adds what it knows. The lock is held. */
void mp_versions_get_info(const struct moepage_expert_pool *pool, moepage_expert_pool_info *info);

/* ---- swaps (swaps.c); the lock is held ---- */

/* Goes on with all swaps as far as they can now; `boundary`: a step is about to begin, and sees what
 * is published here. */
void mp_swaps_advance(struct moepage_expert_pool *pool, bool boundary);

/* An interval is over: what should be high? */
void mp_swaps_decide(struct moepage_expert_pool *pool);

#endif
