/* versions_inside.h — what versions_config.c, versions.c and swaps.c share. */
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

/* What one client's open step sees. */
typedef struct mp_version_reader {
    _Atomic uint64_t window; /* that its step sees the versions of; 0 = no step is open */
    uint64_t copied;         /* the window of `published`; its own thread only */
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
    uint64_t slot_bytes;
    uint32_t first_slot; /* of high ones */
    uint32_t n_high;     /* per layer, at most; 0 with SERVE_CACHE */
    /* low versions */
    unsigned char *memory; /* the arena's base */
    uint64_t unit;         /* bytes of a place */
    uint32_t n_places;
    uint32_t *free_places; /* stack; of fetched ones */
    uint32_t n_free;
    /* SERVE_VERSIONS; under the lock but for what is atomic */
    mp_version_reader readers[MP_MAX_CLIENTS];
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
};

static inline unsigned char *mp_versions_address(const mp_versions *versions, uint32_t place)
{
    return versions->memory + (uint64_t)place * versions->unit;
}

/* Places of fetched low versions beyond those of experts without a high one. */
#define MP_SPARE_PER_LAYER 1u

/* ---- versions_config.c ---- */

/* Reads the precision config of a pool, checks it against the rest and the model, and fills in what it
 * leaves to the library. */
moepage_status mp_versions_read_config(const struct moepage_model *model,
                                       const moepage_expert_pool_config *config, uint32_t n_devices,
                                       moepage_precision_config *out);
/* Bytes of any expert's place in a form; of a slot. */
uint64_t mp_version_unit(const struct moepage_model *model, uint32_t form);
uint64_t mp_version_slot_bytes(const struct moepage_model *model,
                               const moepage_precision_config *precision);
/* Places of low versions when so many of each layer are high; slots that places take. */
uint64_t mp_version_places(const struct moepage_model *model,
                           const moepage_precision_config *precision, uint32_t n_high);
uint64_t mp_version_slots(const struct moepage_model *model,
                          const moepage_precision_config *precision, uint64_t places);

/* ---- swaps.c; the lock is held ---- */

/* Goes on with all swaps as far as they can now; `boundary`: a step is about to begin, and sees what is
 * published here. */
void mp_swaps_advance(mp_versions *versions, bool boundary);
/* An interval is over: decides what should be high. */
void mp_swaps_decide(mp_versions *versions);

#endif
