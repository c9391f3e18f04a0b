/* share.h — the pool's door to its share of memory: how much of the arena it has, moving that
 * boundary, its watch, and slots set aside for one session. Except for the watch, only for pools on
 * one device. No lock is held when these functions are called. */
#ifndef MP_POOL_SHARE_H
#define MP_POOL_SHARE_H

#include "pool/pool.h"

/* The part of the arena that a pool has, or is to have. */
typedef struct mp_extent {
    uint32_t compressed; /* experts of each layer; their images take slots [0, first) */
    uint32_t first;
    uint32_t slots; /* from `first` on */
} mp_extent;

/* The state of a pool at one moment. */
typedef struct mp_pool_survey {
    mp_extent extent;
    uint32_t least; /* slots that every scope must have: for sessions and pins, or low versions */
    uint32_t pinned_end; /* slots up to the last pinned one; 0: none is, or pins are of versions */
    double load_ns;      /* for one expert over the bus; 0 = not known yet */
    double bus_ns;       /* for one byte over the bus; 0 = not known yet */
    /* Of dense experts, measured while serving or, until then, at creation; 0 = not known. */
    uint64_t bus_bytes_per_s;
    uint64_t decode_bytes_per_s;
} mp_pool_survey;

/* ---- looking ---- */

/* Tells the policy and the watch of all hits so far. */
void mp_pool_replay_hits(struct moepage_expert_pool *pool);
/* Replays hits, then surveys the pool. */
mp_pool_survey mp_pool_look(struct moepage_expert_pool *pool);
/* As mp_cache_concentrate. */
void mp_pool_concentrate(struct moepage_expert_pool *pool, double *part);
mp_extent mp_pool_get_extent(struct moepage_expert_pool *pool);

/* Sets the pool's one watch, or removes it (NULL). No step is open. */
void mp_pool_set_watch(struct moepage_expert_pool *pool, struct mp_watch *watch);
bool mp_pool_is_watched(const struct moepage_expert_pool *pool);

/* ---- moving ---- */

/* Returns the extent of a pool with so many compressed experts per layer and `slots` slots. */
mp_extent mp_pool_extent(const struct moepage_expert_pool *pool, uint32_t compressed,
                         uint32_t slots);
/* Checks that the pool could have that extent if the KV side had nothing. May fail with ARGUMENT,
 * BUDGET or UNSUPPORTED. */
moepage_status mp_pool_check_move(struct moepage_expert_pool *pool, const mp_extent *to);
/* Tries to move the pool to an extent. On OK, the arena has back what the pool gives up. Fails with
 * BUDGET if the arena has no room, and with BUSY while slots that are to go are in use. With
 * `once`, it waits for loads and kernels under way, and BUSY leaves everything as it was, apart
 * from evicted experts. Without, BUSY leaves the slots that are to go fenced, and another call goes
 * on. Any other failure removes the fence. */
moepage_status mp_pool_move(struct moepage_expert_pool *pool, const mp_extent *to, bool once);
/* Ends a move under way: removes its fence. */
void mp_pool_stay(struct moepage_expert_pool *pool);
/* Counts a move of the split that has ended, as wanted or refused. */
void mp_pool_count_resize(struct moepage_expert_pool *pool, bool as_wanted);

/* ---- setting aside ---- */

/* Slots that one session has to itself. To other sessions they look pinned. */
typedef struct mp_set_aside {
    uint32_t slots;     /* in all */
    uint32_t per_scope; /* of each scope */
} mp_set_aside;

/* Takes `asked` slots (0 = as many as the session may hold) away from those divided among
 * sessions. Fails with BUDGET if that is more than the session's share, or leaves one layer
 * fewer than `least`. */
moepage_status mp_pool_set_aside(struct moepage_expert_pool *pool, const mp_client *client,
                                 uint32_t asked, uint32_t least, mp_set_aside *out);
void mp_pool_put_back(struct moepage_expert_pool *pool, const mp_set_aside *aside);

#endif
