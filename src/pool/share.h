/* share.h — the expert pool's part of the arena, and of its slots: what it has, what it may be moved
 * to, its watch, and slots that a session has for itself. Of pools on one device, but for the
 * watch. No lock is held when these functions are called. */
#ifndef MP_POOL_SHARE_H
#define MP_POOL_SHARE_H

#include "pool/pool.h"

/* What a pool on one device has of the arena. */
typedef struct mp_extent {
    uint32_t compressed; /* experts of each layer, their images in slots [0, first) */
    uint32_t first;
    uint32_t slots; /* from `first` on */
} mp_extent;

/* What a pool is at one moment. */
typedef struct mp_pool_survey {
    mp_extent extent;
    uint32_t sessions;
    uint32_t pinned;             /* slots, in the scope with most */
    double load_ns;              /* to bring one expert over the bus; 0 = nothing is known yet */
    double bus_ns;               /* per byte that crosses the bus; 0 likewise */
    uint64_t bus_bytes_per_s;    /* of dense experts, as measured while serving, or before; */
    uint64_t decode_bytes_per_s; /* 0 = nothing is known yet */
} mp_pool_survey;

/* ---- looking ---- */

/* Tells the policy, and the watch, of all hits so far. */
void mp_pool_replay_hits(struct moepage_expert_pool *pool);
/* Replays hits, and looks. */
mp_pool_survey mp_pool_look(struct moepage_expert_pool *pool);
mp_extent mp_pool_get_extent(struct moepage_expert_pool *pool);

/* Sets the pool's only watch, or takes it away (NULL); no step is open. */
void mp_pool_set_watch(struct moepage_expert_pool *pool, struct mp_watch *watch);
bool mp_pool_is_watched(const struct moepage_expert_pool *pool);

/* ---- moving ---- */

/* Where a pool with so many compressed experts per layer would have `slots` slots. */
mp_extent mp_pool_extent(const struct moepage_expert_pool *pool, uint32_t compressed,
                         uint32_t slots);
/* Checks that the pool could have that if the KV side had nothing. BUDGET, UNSUPPORTED. */
moepage_status mp_pool_check_move(struct moepage_expert_pool *pool, const mp_extent *to);
/* Tries to bring the pool there. What goes has left the arena on OK; BUDGET if the arena has no
 * room. BUSY while what has to go is in use: with `once` that leaves everything as it was but for
 * evicted experts, and loads and kernels that are under way are waited for; else the slots that go
 * are fenced, and another call goes on. Any other failure takes the fence away. */
moepage_status mp_pool_move(struct moepage_expert_pool *pool, const mp_extent *to, bool once);
/* No move goes on from here on. */
void mp_pool_stay(struct moepage_expert_pool *pool);
/* A move of the split has ended, as wanted or not. */
void mp_pool_count_resize(struct moepage_expert_pool *pool, bool as_wanted);

/* ---- setting aside ---- */

/* What a session has for itself: as if pinned, for the others. */
typedef struct mp_set_aside {
    uint32_t slots;     /* in all */
    uint32_t per_scope; /* and of one scope */
} mp_set_aside;

/* Takes `asked` slots, 0 = as many as the session may hold, out of what sessions divide; `least` of
 * them must do for one layer. BUDGET. */
moepage_status mp_pool_set_aside(struct moepage_expert_pool *pool, const mp_client *client,
                                 uint32_t asked, uint32_t least, mp_set_aside *out);
void mp_pool_put_back(struct moepage_expert_pool *pool, const mp_set_aside *aside);

#endif
