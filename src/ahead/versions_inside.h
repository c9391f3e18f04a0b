/* versions_inside.h — the private header of versions_config.c, versions.c, versions_move.c and swaps.c:
 * a pool's versions, and the swaps between them. */
#ifndef MP_AHEAD_VERSIONS_INSIDE_H
#define MP_AHEAD_VERSIONS_INSIDE_H

#include <stdatomic.h>

#include "ahead/versions.h"
#include "planning/hotness.h"
#include "transfer/tiers.h"

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
    uint32_t in, out; /* keys; either may be MP_NO_EXPERT_KEY */
    uint32_t place;   /* FETCH, UNPUBLISH: of out's low version; RELEASE: to be freed */
    uint32_t slot;    /* LEAVE: out's; LOAD: in's, or MP_NO_SLOT before it has one */
    /* LEAVE, RELEASE: steps of earlier windows may see the version that is to be freed. */
    uint64_t window;
    mp_tick tick;           /* FETCH: of the copy */
    _Atomic int32_t result; /* FETCH: a moepage_status once the copy has failed */
} mp_swap;

/* Swaps that the last decision asked for and that have not begun: each layer's best, then each
 * layer's second best, and so on. */
typedef struct mp_swap_queue {
    mp_precision_swap *swaps; /* [layers][experts] */
    uint32_t *n;              /* [layers] */
    uint32_t rank, turn;      /* the next one: the rank-th of the turn-th layer from `first` on */
    uint32_t first;           /* a different layer for each decision */
    uint32_t left;
} mp_swap_queue;

typedef struct mp_version_counters {
    uint64_t promotions, demotions, refused, failed, bytes, decisions, windows;
} mp_version_counters;

/* What one client's open step sees. */
typedef struct mp_version_reader {
    _Atomic uint64_t window; /* whose versions its step sees; 0 = no step is open */
    uint64_t copied;         /* the window of `published` below; used by its own thread alone */
    uint32_t *published;     /* [keys] */
} mp_version_reader;

struct mp_versions {
    moepage_precision_config config; /* defaults filled in */
    mp_precision_law law;
    const struct moepage_model *model;
    struct moepage_device *home;
    mp_ahead *ahead;
    mp_shard *shard;
    mp_transfer *transfer;
    pthread_mutex_t *lock;
    uint32_t layers, experts, keys;
    const mp_deal *deal;
    uint32_t part;    /* the device's number there; entries of others' experts are unused below */
    uint32_t members; /* of a layer */
    uint64_t slot_bytes;
    uint32_t first_slot; /* of high ones */
    uint32_t n_high;     /* per layer, at most; 0 with SERVE_CACHE */
    bool moving;         /* high versions leave for a move of the split: none is promoted */
    /* low versions */
    unsigned char *memory; /* the arena's base */
    uint64_t unit;         /* bytes of a place */
    uint32_t n_places;
    uint32_t first_read;   /* place 0 among those whose readers are known; or MP_NO_READERS */
    uint32_t *free_places; /* stack; of fetched ones */
    uint32_t n_free;
    /* SERVE_VERSIONS; under the lock, except atomics */
    mp_version_reader readers[MP_MAX_CLIENTS];
    uint32_t *published;      /* [keys] */
    _Atomic uint64_t window;  /* the window that the next step enters; the first is 1 */
    _Atomic uint64_t begun;   /* steps */
    _Atomic bool busy;        /* there are swaps under way, or to begin */
    _Atomic uint32_t *counts; /* [keys] selections in this interval, or their weight */
    _Atomic uint64_t next_ns; /* when the next decision is due */
    double *hotness;          /* [keys] */
    uint32_t *pins;           /* [keys] */
    uint32_t *pinned;         /* [layers] experts with pins */
    bool *high;               /* [keys] published high, or on its way there */
    uint32_t *layer_counts;   /* [experts] scratch */
    double *worth;            /* [experts] scratch */
    uint32_t *order;          /* [experts] scratch */
    mp_swap *swaps;           /* [config.transitions] decided, then departures */
    uint32_t n_swaps;         /* config.transitions and the departures under way */
    mp_swap_queue queue;
    mp_version_counters counters;
};

static inline unsigned char *mp_versions_address(const mp_versions *versions, uint32_t place)
{
    return versions->memory + (uint64_t)place * versions->unit;
}

static inline bool mp_versions_has(const mp_versions *versions, uint32_t key)
{
    return mp_deal_device(versions->deal, key) == versions->part;
}

/* The place of an expert's low version where all of them are resident. */
static inline uint32_t mp_versions_own_place(const mp_versions *versions, uint32_t key)
{
    return key / versions->experts * versions->members +
           versions->deal->rank_of[key % versions->experts];
}

/* Places per layer for fetched low versions beyond those of experts that are low: a swap fetches
 * one before it frees one. */
#define MP_SPARE_PER_LAYER 1u

/* ---- versions_config.c ---- */

/* Return the places of low versions if n_high of a layer's `members` are high, and the slots that so
 * many places take. */
uint64_t mp_version_places(const struct moepage_model *model,
                           const moepage_precision_config *precision, uint32_t members,
                           uint32_t n_high);
uint64_t mp_version_slots(const struct moepage_model *model,
                          const moepage_precision_config *precision, uint64_t places);

/* ---- swaps.c; the lock is held ---- */

/* Moves all swaps as far as they can go now. `boundary`: a step is about to begin, and sees the
 * versions published here. */
void mp_swaps_advance(mp_versions *versions, bool boundary);
/* Decides, at the end of an interval, which experts should be high. */
void mp_swaps_decide(mp_versions *versions);
/* The same with the hotness of the last interval, in place of what that asked for and has not begun. */
void mp_swaps_choose(mp_versions *versions);
/* Returns true if the slot of a swap that loads has its expert, or is to have it. */
bool mp_swap_has_slot(const mp_versions *versions, const mp_swap *swap);
/* Begins a departure: the expert becomes low, and its slot free. Returns false if its low version would
 * have to be fetched and there is no place for it now. */
bool mp_swaps_depart(mp_versions *versions, uint32_t out);
/* Ends promotions that have no slot yet; the experts that they were to replace become low all the
 * same. */
void mp_swaps_drop_promotions(mp_versions *versions);

#endif
