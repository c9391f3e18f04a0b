/* inside.h — the pool room's private header: the pool's struct, which puts the
 * rooms below together. */
#ifndef MP_POOL_INSIDE_H
#define MP_POOL_INSIDE_H

#include <pthread.h>

#include "ahead/versions.h"
#include "cache/bounds.h"
#include "pool/hints.h"
#include "pool/share.h"
#include "transfer/tiers.h"

struct moepage_expert_pool {
    mp_handle handle;
    struct moepage_model *model;
    uint32_t experts; /* per layer */
    uint32_t layers;
    uint32_t keys;
    uint32_t n_devices;
    uint32_t indirect;   /* of them, those that have to go by host memory to reach the first */
    mp_deal deal;        /* which of them has which experts */
    bool per_layer;      /* a layer's share of the slots is its own */
    bool fills;          /* its slots were to be as many as the arena has room for */
    uint32_t step_slots; /* slots come and go by so many */
    uint32_t scan_percent;
    uint32_t bus_form;   /* MOEPAGE_FORM_* that crosses the bus */
    uint32_t slot_form;  /* of the images in slots: MOEPAGE_FORM_DENSE, but for versions */
    mp_bundle bundle;    /* of slots, as the arena is cut into them */
    uint64_t slot_bytes; /* of the largest */
    struct moepage_device *homes[MOEPAGE_MAX_DEVICES];
    mp_transfer *transfers[MOEPAGE_MAX_DEVICES];
    mp_shard *shards[MOEPAGE_MAX_DEVICES]; /* of the cache */
    mp_cache *cache;
    mp_ahead *ahead;
    mp_versions *versions[MOEPAGE_MAX_DEVICES]; /* or NULL */
    bool serves_versions;                       /* sessions compute with what versions publish */
    uint32_t low_slots[MOEPAGE_MAX_DEVICES];    /* that low versions take, below all others */
    mp_extent move; /* where a move under way is to lead; no slots: there is none */
    unsigned char *slots[MOEPAGE_MAX_DEVICES]; /* slot 0 */
    uint64_t resizes, resizes_refused, pins_refused;
    pthread_mutex_t lock; /* of this room and all below that the pool opens */
};

/* ---- in_place.c ---- */

/* Holds an expert that may run in place. Returns false if a slot has it by now, or host memory does
 * not. The lock is held. */
bool mp_in_place_hold(struct moepage_expert_pool *pool, mp_hold *hold);
/* Frees the private image of a hold that does not run in place after all. */
void mp_in_place_drop(mp_hold *hold);
/* Releases a hold that does. The lock is not held. */
void mp_in_place_release(struct moepage_expert_pool *pool, mp_hold *hold);

#endif
