/* slots.h — slots: the words that say who is in them, what else is known about one, and taking
 * and giving them up. */
#ifndef MP_CACHE_SLOTS_H
#define MP_CACHE_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "transfer/pipe.h"

struct moepage_expert_pool;
struct mp_scope;

enum {
    MP_SLOT_FREE = 0,
    MP_SLOT_LOADING = 1,
    MP_SLOT_RESIDENT = 2,
    MP_SLOT_FAILED = 3,
    MP_SLOT_DRAINING = 4
};

/* Slot word: users in bits 0-23, state in 24-31, key in 32-63. A free slot has key 0. */
#define MP_WORD(key, state) (((uint64_t)(key) << 32) | ((uint64_t)(state) << 24))
#define MP_WORD_USERS(word) ((uint32_t)((word)&0xffffffu))
#define MP_WORD_STATE(word) ((uint32_t)((word) >> 24) & 0xffu)
#define MP_WORD_KEY(word) ((uint32_t)((word) >> 32))
#define MP_WORD_IDENTITY(word) ((word) & ~(uint64_t)0xffffffu)

/* What the lock protects about a slot; `result` alone is written by the device too. */
typedef struct mp_slot {
    mp_passage passage;     /* its load, on the pipes */
    uint64_t came;          /* the pool's clock when the expert got the slot */
    uint64_t begun;         /* which of the shard's loads brings it */
    uint64_t touched;       /* and when it was last routed */
    uint64_t ahead_bytes;   /* of it that crossed the bus ahead of need */
    uint32_t pins;          /* moepage_expert_pool_pin */
    uint32_t client;        /* whose want brought it, if prefetched */
    _Atomic int32_t result; /* a moepage_status once its load has failed */
    bool prefetched;        /* came ahead of need */
    bool used;              /* routed since it came */
    bool scan;              /* came with prefill, decode has not used it */
    bool stale;             /* prefetch no longer wanted */
    bool ranked;            /* the policy knows it */
    bool prefetching;       /* in its prefetcher's active list */
    uint8_t place;          /* MP_PLACE_* */
    uint64_t promised;      /* in the window: when it was last wanted for a layer to come */
} mp_slot;

/* Where a slot's expert stands: among those that its layer keeps, which the policy ranks; or in the
 * window (window.c), waiting for its layer's turn or past it. */
enum { MP_PLACE_KEPT = 0, MP_PLACE_AHEAD = 1, MP_PLACE_PAST = 2 };

/* ---- taking and giving up (slots.c); the lock is held ---- */

/* What a slot is wanted for: decides which victims may go. */
typedef enum mp_purpose { MP_FOR_DECODE, MP_FOR_SCAN, MP_FOR_PREFETCH } mp_purpose;

/* A slot for an absent `key`, LOADING, with `users` users; evicts if it must. MP_NO_SLOT if
 * nothing may go. The policy does not know it before the caller ranks it. */
uint32_t mp_pool_take_slot(struct mp_shard *shard, uint32_t key, mp_purpose purpose,
                           uint32_t users);

/* Tells the policy of a new key, or that a key which another session has ranked was used. */
void mp_pool_rank(struct mp_shard *shard, uint32_t slot, uint32_t key);

/* Stacks the free ones of the open slots so that the lowest come off first. */
void mp_pool_restack(struct mp_shard *shard);

/* Takes a slot's expert away: the word {key, state, no users} becomes FREE. False if the word is
 * another by now. */
bool mp_pool_drop(struct mp_shard *shard, uint32_t slot, uint32_t key, uint32_t state);

/* Nobody finds a RESIDENT slot's expert any more; those who hold it keep it until they let go. */
void mp_pool_drain(struct mp_shard *shard, uint32_t slot, uint32_t key);

/* The slot's expert leaves the map, its scope and the policy; the slot's word stays. */
void mp_pool_forget(struct mp_shard *shard, uint32_t slot, uint32_t key);

/* Evicts the policy's choice; false if nothing may go. */
bool mp_pool_evict_one(struct mp_shard *shard, struct mp_scope *scope, mp_purpose purpose);

/* For an absent expert that finds no slot, or no entry of the host tier: ends one load that stands in
 * its way, waiting for it if it must. *ended: there was one, and the expert may try again. Waits for
 * no load but that: others may be lined up behind work of the caller's that is far from done. DEVICE
 * if there is nothing to wait for any more. */
moepage_status mp_pool_end_load(struct mp_shard *shard, uint32_t key, bool *ended);

#endif
