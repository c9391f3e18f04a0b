/* pool.h — the door of the expert pool: its life, its clients, and holding experts.
 *
 * Two other doors belong to it: hints.h for the optional parts of a session, and share.h for
 * the pool's part of the arena. cache/client.h, which is included here, has the calls that go
 * straight to the cache. Every function here takes the locks that it needs; none is held when
 * it is called. */
#ifndef MP_POOL_POOL_H
#define MP_POOL_POOL_H

#include "cache/bundle.h"
#include "cache/client.h"
#include "device/seam.h"
#include "planning/deal.h"

struct moepage_model;
struct mp_policy;
struct mp_watch;
struct mp_watch_step;

/* The properties of a pool that never change. An expert's key is layer * experts + expert. */
typedef struct mp_pool_shape {
    struct moepage_model *model;
    uint32_t layers, experts, keys;
    uint32_t n_devices;
    uint32_t
        indirect; /* as moepage_expert_pool_info.indirect_devices: none, or all but the first */
    const mp_deal *deal; /* which of them has which experts; lives as long as the pool */
    uint32_t
        n_scopes; /* sets of experts that do not compete with each other: 1, or one per layer */
    bool fills;   /* its slots were to be as many as the arena has room for */
    uint32_t step_slots;            /* slots come and go by so many */
    uint32_t scan_percent;          /* slots that prefill may take, 0 = as many as decode */
    uint32_t bus_form, slot_form;   /* MOEPAGE_FORM_* */
    const struct mp_policy *policy; /* by which experts are evicted */
    const mp_bundle *bundle;        /* lives as long as the pool */
    uint64_t slot_bytes;            /* of the largest slots */
    unsigned char *slots;           /* slot 0 of a pool on one device */
    uint64_t slot_stride;           /* between slots as plans number them (mp_bundle_number) */
    uint32_t low_slots;             /* that low versions take, below all others */
    uint64_t image_bytes; /* of a compressed expert in device memory; 0 = the model has none */
    bool decodes;         /* images are staged for a decoder */
    /* Of a pool with two versions of every expert, or NULL. */
    const moepage_precision_config *precision;
} mp_pool_shape;

/* What so many slots of the arena take. */
static inline uint64_t mp_pool_slots_bytes(const mp_pool_shape *shape, uint64_t slots)
{
    return mp_bundle_bytes(shape->bundle, slots);
}

/* ---- the pool ---- */

moepage_status mp_pool_create(struct moepage_device *const *devices, uint32_t n_devices,
                              struct moepage_model *model, const moepage_expert_pool_config *config,
                              struct moepage_expert_pool **out);
void mp_pool_destroy(struct moepage_expert_pool *pool);
/* Computes the bytes of workspace and of arena that one of n_devices devices has to
 * provide; see moepage_expert_pool_sizes. */
moepage_status mp_pool_sizes(const struct moepage_model *model,
                             const moepage_expert_pool_config *config, uint32_t n_devices,
                             uint64_t *workspace_bytes, uint64_t *arena_bytes);

mp_pool_shape mp_pool_get_shape(const struct moepage_expert_pool *pool);
struct moepage_device *mp_pool_home(const struct moepage_expert_pool *pool, uint32_t device);
uint32_t mp_pool_sessions(const struct moepage_expert_pool *pool);
void mp_pool_get_info(struct moepage_expert_pool *pool, moepage_expert_pool_info *info);
/* Sums over all sessions, including those that have ended. */
void mp_pool_get_stats(struct moepage_expert_pool *pool, moepage_session_stats *out);
void mp_pool_lookup(struct moepage_expert_pool *pool, uint32_t key, moepage_residency *out);
moepage_status mp_pool_pin(struct moepage_expert_pool *pool, uint32_t key);
moepage_status mp_pool_unpin(struct moepage_expert_pool *pool, uint32_t key);
/* Returns true if the expert has a slot, resident or on its way. Lock-free. */
bool mp_pool_has(const struct moepage_expert_pool *pool, uint32_t key);

/* ---- clients ---- */

/* `need`: as for mp_client_join. Fails with BUDGET if a session's share of the slots would be nothing,
 * and with NO_MEMORY. */
moepage_status mp_client_open(struct moepage_expert_pool *pool, uint32_t need, mp_client **out);
/* Frees the client; NULL is a no-op. */
void mp_client_close(struct moepage_expert_pool *pool, mp_client *client);
/* Sets the stream on which a session's work reads a device's slots, after the stream's creation;
 * and NULL before its destruction, when all of that work is done. */
void mp_pool_set_reader(struct moepage_expert_pool *pool, const mp_client *client, uint32_t device,
                        mp_stream *stream);
/* Tells the pool's watch, if it has one, of a step that has ended. */
void mp_pool_tell_step(struct moepage_expert_pool *pool, const struct mp_watch_step *step);

/* ---- holding experts, after mp_client_hold_resident ---- */

/* Keeps may_run_in_place of those of the n experts that are not held and lie in host memory. `pieces`: the caller can
 * run experts whose tensors lie apart. `reads`: images that are in a file, where there is no host tier, are read for
 * it; else they are not there. */
void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces, bool reads);
/* Holds the rest of the n experts and starts loads for the absent ones; blocks only for a slot. On
 * failure, none of the n is held any more. BUSY if every slot is in use by open plans. `decodes`: as
 * mp_client_begin_step has it. */
moepage_status mp_pool_hold_rest(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                                 uint32_t decodes);
/* Returns true if mp_pool_wait would return at once, also with a failure. Never blocks. */
bool mp_pool_landed(struct moepage_expert_pool *pool, const mp_hold *hold);
/* With `reader` NULL: waits for a held expert's bytes and publishes it, or reports why its load
 * failed. With a stream of its device: work submitted to that stream from now on runs after the
 * load; returns as soon as nothing but a failure of the device can still fail the load. */
moepage_status mp_pool_wait(struct moepage_expert_pool *pool, mp_hold *hold, mp_stream *reader);
/* States that the session's work on a held expert ends with `tick` of its stream. Called before the
 * hold is released. */
void mp_pool_read_until(struct moepage_expert_pool *pool, const mp_client *client,
                        const mp_hold *hold, mp_tick tick);
/* Releases those of the n that are held. */
void mp_pool_release(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n);
/* Return true if any slot in use is to be given up, and if that of a held expert is. Lock-free. */
bool mp_pool_any_draining(const struct moepage_expert_pool *pool);
bool mp_pool_is_draining(const struct moepage_expert_pool *pool, const mp_hold *hold);

#endif
