/* inside.h — the cache room's private header: slot words, shards, scopes, touch
 * rings, the window. */
#ifndef MP_CACHE_INSIDE_H
#define MP_CACHE_INSIDE_H

#include <stdatomic.h>

#include "cache/bounds.h"
#include "cache/published_stats.h"
#include "cache/slots.h"
#include "planning/watch.h"

/* Slot word: users in bits 0-23, state in 24-31, key in 32-63. A free slot has key 0. */
#define MP_WORD(key, state) (((uint64_t)(key) << 32) | ((uint64_t)(state) << 24))
#define MP_WORD_USERS(word) ((uint32_t)((word)&0xffffffu))
#define MP_WORD_STATE(word) ((uint32_t)((word) >> 24) & 0xffu)
#define MP_WORD_KEY(word) ((uint32_t)((word) >> 32))
#define MP_WORD_IDENTITY(word) ((word) & ~(uint64_t)0xffffffu)

/* Where a slot's expert stands: among those that its layer keeps, which the policy ranks; or in the
 * window (window.c), waiting for its layer's turn or past it. The window's two are not ranked. */
enum { MP_PLACE_KEPT = 0, MP_PLACE_AHEAD = 1, MP_PLACE_PAST = 2 };

/* What the lock protects about a slot. Clocks are the cache's. */
typedef struct mp_slot {
    uint64_t taken;       /* when the expert got the slot */
    uint64_t touched;     /* when it was last routed */
    uint64_t promised;    /* in the window: when it was last wanted for a turn to come */
    uint64_t load;        /* which of the shard's loads brings it */
    uint64_t ahead_bytes; /* its bytes that crossed the bus ahead of need */
    uint32_t pins;
    uint32_t client; /* that it was fetched for ahead of need, or MP_SHARED_WANT */
    bool prefetched; /* fetched as a guess */
    bool used;       /* routed since it came */
    bool scan;       /* came with prefill, and decode has not used it */
    bool ranked;     /* the policy knows it */
    bool attended;   /* load_ended is called for its load */
    uint8_t place;   /* MP_PLACE_* */
} mp_slot;

/* Slots that compete with each other: all of a class, or one layer's share of it. */
typedef struct mp_scope {
    void *policy_state;
    uint32_t first_key;        /* policy key = key - first_key */
    uint32_t class;            /* of its slots, in a bundle */
    uint32_t layers;           /* whose experts compete here */
    uint32_t members;          /* these experts */
    _Atomic uint32_t capacity; /* slots they may have */
    _Atomic uint32_t aim;      /* slots that sessions may count on: fewer while the shard shrinks */
    _Atomic uint32_t pinned;
    uint32_t used;       /* slots they have: not FREE, not FAILED */
    uint32_t scans;      /* of those, with `scan` set */
    uint32_t transients; /* of those, in the window */
} mp_scope;

/* A stack. */
typedef struct mp_free_slots {
    uint32_t *slots;
    uint32_t n;
} mp_free_slots;

struct mp_shard {
    mp_cache *cache;
    mp_transfer *transfer;
    uint32_t device;
    unsigned char **address; /* [max_slots] */
    mp_span all;             /* the device's slots */
    mp_span open;            /* the slots that take experts: all, except behind a fence */
    uint32_t max_slots;      /* length of the arrays */
    _Atomic uint64_t *words;
    mp_slot *slots;
    mp_free_slots free[MP_MAX_LAYOUTS]; /* of each class */
    uint64_t n_loads;                   /* ever begun */
    _Atomic bool orphans; /* loads may be under way, or have landed, that no plan waits for */
    mp_scope *scopes;
    uint32_t *kept;         /* [layers] slots whose experts are not in the window */
    struct mp_link *window; /* [max_slots + 2] window.c */
};

/* How a session reports hits without taking the pool's lock.
 *
 * One producer (the session's thread) appends a record per routed layer whose experts were all
 * resident; one consumer at a time (the holder of the pool's lock) drains it. Every record carries a
 * stamp from the pool's clock, so that the records of several sessions are replayed in the order in
 * which they happened and recency is exact. */
typedef struct mp_touch_ring {
    uint32_t *words;
    uint32_t mask;
    _Atomic uint32_t head; /* next to write: the producer's */
    _Atomic uint32_t tail; /* next to read: the consumer's */
} mp_touch_ring;

/* Words before a record's keys: stamp low, stamp high, the client's decodes, number of keys. */
#define MP_TOUCH_HEADER 4u

struct mp_client {
    mp_cache *cache;
    uint32_t index;
    uint32_t need; /* slots that it must be able to hold at once */
    mp_touch_ring ring;
    uint32_t decodes; /* of its step; its own thread's */
    /* Slots that the open layers hold or will hold at once: all layers together, and the layer with
     * the most. The session's thread writes them. */
    _Atomic uint32_t reserved[MOEPAGE_MAX_DEVICES][MP_MAX_LAYOUTS]; /* of each class */
    _Atomic uint32_t widest;
    _Atomic bool routing;     /* a layer is being opened: what it reserves cannot be seen yet */
    _Atomic uint32_t layer;   /* routed last */
    mp_prefetch_tally *tally; /* [layers] under the lock, or NULL */
    bool *streams;            /* [layers] which ones it streams; used by its own thread alone */
    uint32_t n_streams;
    mp_published_stats published_stats;
};

/* Under the lock. */
typedef struct mp_cache_counters {
    uint64_t hits, misses, late, evictions, failed_loads;
    uint64_t prefetch_useful, prefetch_late, prefetch_wasted;
    uint64_t useful_bytes, late_bytes, wasted_bytes; /* of what was fetched ahead of need */
} mp_cache_counters;

struct mp_cache {
    mp_cache_setup setup;
    void *owner;           /* of attended loads */
    pthread_mutex_t *lock; /* the owner's */
    const mp_policy *policy;
    uint32_t layers, experts, keys;
    uint32_t n_shards;
    uint32_t n_scopes;        /* per shard: one per class, or per layer */
    uint32_t *scope_of_layer; /* [layers] */
    uint32_t scan_percent;
    mp_shard *shards;
    _Atomic uint32_t *entry;            /* [keys] slot on the key's shard, or MP_NO_SLOT */
    uint8_t *uses;                      /* [keys] recent turns that used the expert (window.c) */
    uint32_t *all_uses;                 /* [layers] the sum over the layer's experts */
    uint32_t *routed;                   /* [experts] the set that is being passed to the policy */
    _Atomic uint64_t clock;             /* routed groups so far */
    mp_client *clients[MP_MAX_CLIENTS]; /* by index, NULL where free */
    _Atomic uint32_t n_clients;
    _Atomic uint32_t n_apart;     /* of these, with slots set aside */
    _Atomic uint32_t n_draining;  /* slots */
    uint32_t *streams;            /* [layers] number of clients that stream the layer */
    _Atomic uint32_t n_streamers; /* clients that stream any layer */
    _Atomic uint64_t *turns;      /* [layers] the clock when a streaming client last routed it */
    struct mp_watch *watch;       /* or NULL */
    mp_cache_counters counters;
    moepage_session_stats past_stats; /* of clients that have left; under the lock */
};

/* The expert in a slot that is not free; it stays while the lock is held. */
static inline uint32_t mp_shard_key_in(const mp_shard *shard, uint32_t slot)
{
    return MP_WORD_KEY(atomic_load_explicit(&shard->words[slot], memory_order_relaxed));
}

/* Takes a slot's key out of the policy's order, if it is there, and out of the count of scans. */
static inline void mp_slot_unrank(mp_shard *shard, mp_scope *scope, uint32_t index, uint32_t key)
{
    mp_slot *slot = &shard->slots[index];
    if (slot->ranked)
        shard->cache->policy->remove(scope->policy_state, key - scope->first_key);
    slot->ranked = false;
    scope->scans -= slot->scan;
    slot->scan = false;
}

/* The tally that a slot's prefetch counts in, or NULL. */
static inline mp_prefetch_tally *mp_cache_tally(const mp_cache *cache, const mp_slot *slot,
                                                uint32_t key)
{
    if (!slot->prefetched || slot->client >= MP_MAX_CLIENTS || !cache->clients[slot->client])
        return NULL;
    mp_prefetch_tally *tally = cache->clients[slot->client]->tally;
    return tally ? &tally[key / cache->experts] : NULL;
}

/* ---- slots.c; the lock is held, but for the first ---- */

/* Returns the scope in which an expert competes for slots. */
mp_scope *mp_shard_scope(const mp_shard *shard, uint32_t key);
/* Stacks the open slots that are free, so that the lowest come off first. */
void mp_shard_restack(mp_shard *shard);
/* Changes the state in the slot's word and keeps its users, which may come and go meanwhile. */
void mp_shard_set_state(mp_shard *shard, uint32_t slot, uint32_t state);
/* Takes a RESIDENT slot's expert out of the map. Open plans that hold it keep it until
 * they release it. */
void mp_shard_drain(mp_shard *shard, uint32_t slot, uint32_t key);

/* ---- bounds.c ---- */

/* A scope's slots if `slots`, whole bundles, were all. No lock. */
uint32_t mp_scope_capacity_in(const mp_shard *shard, const mp_scope *scope, mp_span slots);

/* ---- claim.c; the lock is held ---- */

/* Evicts one expert of the scope; returns false if none may go. `transient`: for
 * a streaming layer. */
bool mp_shard_evict(mp_shard *shard, mp_scope *scope, mp_purpose purpose, bool transient);

/* ---- window.c ---- */

/* How a scope's slots are divided when layers stream. */
typedef struct mp_window_plan {
    uint32_t keep;  /* experts of a layer that stay */
    uint32_t slots; /* for the other experts of all layers: the window */
} mp_window_plan;

moepage_status mp_window_open(mp_shard *shard);
void mp_window_close(mp_shard *shard);
/* Returns the division for the number of sessions that stream now, but at least one. No lock. */
mp_window_plan mp_window_divide(const mp_shard *shard, const mp_scope *scope);
/* Returns true if a key's layer is streamed and its scope allows streaming. */
bool mp_window_serves(const mp_cache *cache, const mp_scope *scope, uint32_t key);
/* Moves a slot just taken, which counts as kept, into the window; takes one that is given up out of the
 * window or of those kept. */
void mp_window_enter(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
void mp_window_leave(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* Counts a routed expert's use. */
void mp_window_count(mp_cache *cache, uint32_t key);
/* Notes that a slot in the window was routed. If its layer keeps too few, or an expert that is used
 * less, the slot is kept and the policy has to rank it: returns true. Otherwise it is PAST. */
bool mp_window_use(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* Keeps a slot, however many its layer keeps. */
void mp_window_keep(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* Marks a slot of the window as wanted for a coming turn: it is not to be given
 * away before then. */
void mp_window_promise(mp_shard *shard, uint32_t slot);
/* The best of the window's slots of a scope to give away, MP_NO_SLOT if none may be: of wrong guesses and
 * of those that are past, or also of those to come. */
uint32_t mp_window_victim(const mp_shard *shard, const mp_scope *scope, bool to_come);
/* Counts up to `most` slots that the window has for loads to come: unused ones, those that others have
 * of its part, and those that are past. */
uint32_t mp_window_room(const mp_shard *shard, const mp_scope *scope, uint32_t most);
/* Returns true if any streaming layer of the scope keeps more than `keep`. */
bool mp_window_has_excess(const mp_shard *shard, const mp_scope *scope, uint32_t keep);

#endif
