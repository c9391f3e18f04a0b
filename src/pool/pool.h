/* pool.h — the door of the expert pool: what it is, its clients, and holding experts. cache/client.h, a
 * part of this door, has what a client does for itself; hints.h what may be asked ahead of need.
 *
 * Every function here takes the locks that it needs, and no lock is held when it is called. */
#ifndef MP_POOL_POOL_H
#define MP_POOL_POOL_H

#include "cache/client.h"
#include "device/seam.h"

struct moepage_model;
struct mp_watch;
struct mp_watch_step;

/* What never changes about a pool. An expert's key is layer * experts + expert. */
typedef struct mp_pool_shape {
    struct moepage_model *model;
    uint32_t layers, experts, keys;
    uint32_t n_devices; /* experts are dealt out round-robin */
    uint32_t n_scopes;  /* sets of slots that do not compete with each other: 1, or one per layer */
    uint32_t scan_percent;        /* slots that prefill may take, 0 = as many as decode */
    uint32_t bus_form, slot_form; /* MOEPAGE_FORM_* */
    uint64_t slot_bytes;
    unsigned char *slots; /* slot s of a pool on one device is at slots + s * slot_bytes */
    uint64_t image_bytes; /* of a compressed expert in device memory; 0 = the model has none */
    bool decodes;         /* images are staged for a decoder */
    const moepage_precision_config *precision; /* of two versions of every expert, or NULL */
} mp_pool_shape;

static inline uint32_t mp_pool_device_of(const mp_pool_shape *shape, uint32_t key)
{
    return shape->n_devices == 1 ? 0 : key % shape->experts % shape->n_devices;
}

/* ---- the pool ---- */

moepage_status mp_pool_create(struct moepage_device *const *devices, uint32_t n_devices,
                              struct moepage_model *model, const moepage_expert_pool_config *config,
                              struct moepage_expert_pool **out);
void mp_pool_destroy(struct moepage_expert_pool *pool);
/* Bytes of workspace and arena that one of n_devices gives; see moepage_expert_pool_sizes. */
moepage_status mp_pool_sizes(const struct moepage_model *model,
                             const moepage_expert_pool_config *config, uint32_t n_devices,
                             uint64_t *workspace_bytes, uint64_t *arena_bytes);

mp_pool_shape mp_pool_get_shape(const struct moepage_expert_pool *pool);
struct moepage_device *mp_pool_home(const struct moepage_expert_pool *pool, uint32_t device);
uint32_t mp_pool_sessions(const struct moepage_expert_pool *pool);
void mp_pool_get_info(struct moepage_expert_pool *pool, moepage_expert_pool_info *info);
/* Sums over all sessions, past ones too. */
void mp_pool_get_stats(struct moepage_expert_pool *pool, moepage_session_stats *out);
void mp_pool_lookup(struct moepage_expert_pool *pool, uint32_t key, moepage_residency *out);
moepage_status mp_pool_pin(struct moepage_expert_pool *pool, uint32_t key);
moepage_status mp_pool_unpin(struct moepage_expert_pool *pool, uint32_t key);
/* Returns true if the expert has a slot, resident or on its way. Lock-free. */
bool mp_pool_has(const struct moepage_expert_pool *pool, uint32_t key);

/* ---- clients ---- */

/* BUDGET if a session's share of the slots would be nothing; NO_MEMORY. */
moepage_status mp_client_open(struct moepage_expert_pool *pool, mp_client **out);
/* Frees the client; NULL is a no-op. */
void mp_client_close(struct moepage_expert_pool *pool, mp_client *client);
/* The stream on which a session's work reads slots of a device, from its creation to before its
 * destruction (NULL), when all of that work is done. */
void mp_pool_set_reader(struct moepage_expert_pool *pool, const mp_client *client, uint32_t device,
                        mp_stream *stream);
/* Tells the pool's watch, if it has one, of a step that has ended. */
void mp_pool_tell_step(struct moepage_expert_pool *pool, const struct mp_watch_step *step);

/* ---- holding experts, after mp_client_hold_resident ---- */

/* Marks those of the n that are not held and may be computed in place. `pieces`: the caller can run
 * experts that are in pieces. */
void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces);
/* Holds the rest, starting loads for what is absent; blocks only for a slot. On failure no hold of the
 * n is left. BUSY if every slot is in open plans. */
moepage_status mp_pool_hold_rest(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n);
/* Returns true if mp_pool_wait would return at once, also with a failure. Never blocks. */
bool mp_pool_landed(struct moepage_expert_pool *pool, const mp_hold *hold);
/* With `reader` NULL: waits for a held expert's bytes and publishes it, or says why its load failed.
 * With a stream of its device: what is submitted to that stream from now on finds the bytes there;
 * returns when nothing but the device itself can fail them any more. */
moepage_status mp_pool_wait(struct moepage_expert_pool *pool, mp_hold *hold, mp_stream *reader);
/* The session's work on a held slot ends with `tick` of its stream; before it lets go. */
void mp_pool_read_until(struct moepage_expert_pool *pool, const mp_client *client,
                        const mp_hold *hold, mp_tick tick);
/* Lets go of what is held among the n. */
void mp_pool_release(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n);
/* Returns true if any slot, or the slot of a held expert, is to be given up. Lock-free. */
bool mp_pool_any_draining(const struct moepage_expert_pool *pool);
bool mp_pool_is_draining(const struct moepage_expert_pool *pool, const mp_hold *hold);

#endif
