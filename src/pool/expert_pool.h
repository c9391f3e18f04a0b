/* expert_pool.h — experts in slots: who is where, who may go, who is on the way.
 *
 * An expert's key is layer * experts + expert. entry[key] names its slot, and each slot has one
 * 64-bit word {key, state, users} that decides every race:
 *
 *        take             last byte landed           users == 0
 *   FREE -----> LOADING ------------------> RESIDENT -----------> FREE
 *                  |        its source failed                |
 *                  +----------------------> FAILED           | its slot goes to the KV side
 *                                                            v
 *                                                         DRAINING
 *
 * FAILED and DRAINING slots are found by nobody, and FREE when their last user lets go.
 *
 * A session holds an expert by adding 1 to the word of the slot that entry[key] names, and looks
 * at what it got: the same key and RESIDENT is a hit. An evictor changes the word only by a
 * compare-and-swap that expects users == 0. So a slot that a plan uses cannot be given away, and
 * finding everything resident takes no lock.
 *
 * Everything else, the policy's state included, is under the pool's one lock; hits reach the
 * policy through touch rings. Experts of a pool on several devices are dealt out round-robin, one
 * shard per device. */
#ifndef MP_POOL_EXPERT_POOL_H
#define MP_POOL_EXPERT_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ahead/prefetch.h"
#include "arena/home.h"
#include "cache/compressed.h"
#include "cache/slots.h"
#include "cache/touch_ring.h"
#include "model/model.h"
#include "policy/policy.h"
#include "pool/hints.h"
#include "pool/published_stats.h"
#include "pool/share.h"
#include "pool/watch.h"
#include "transfer/host_tier.h"
#include "transfer/probe.h"

#define MP_MAX_CLIENTS 64
#define MP_MAX_KEYS 0x7fffffffu /* a touch needs one bit more */

/* What is timed while serving: bytes as they cross the bus, dense ones out of the decoder and of the
 * cold tier. */
typedef enum mp_probe_kind {
    MP_PROBE_BUS,
    MP_PROBE_DECODE,
    MP_PROBE_COLD,
    MP_PROBES
} mp_probe_kind;

/* Slots that compete with each other: all of a shard's, or one layer's share. */
typedef struct mp_scope {
    void *policy_state;
    uint32_t first_key;        /* policy key = key - first_key */
    uint32_t members;          /* experts that compete here */
    _Atomic uint32_t capacity; /* slots they may have */
    _Atomic uint32_t aim;      /* slots that sessions may count on: fewer while the pool shrinks */
    _Atomic uint32_t pinned;
    uint32_t used;       /* slots they have: not FREE, not FAILED */
    uint32_t scans;      /* of those, with `scan` set */
    uint32_t transients; /* of those, in the window */
} mp_scope;

/* Slots [first, end). */
typedef struct mp_span {
    uint32_t first, end;
} mp_span;

typedef struct mp_shard {
    struct moepage_expert_pool *pool;
    struct moepage_device *home;
    mp_pipe pipes[MP_PIPES];
    mp_staging_ring staging; /* none when nothing is decoded */
    mp_host_tier *tier;      /* or NULL */
    mp_compressed compressed;
    mp_decode_job *jobs; /* [max_slots][MOEPAGE_MAX_EXPERT_TENSORS] of loads that are decoded */
    mp_rates rates;      /* measured when the pool was created */
    mp_probe probes[MP_PROBES]; /* and while it serves */
    unsigned char *base;        /* slot s is at base + s * slot_bytes */
    uint32_t first_slot;        /* below it the slots hold images of compressed experts, or
                                   low versions */
    uint32_t n_slots;           /* from there on, for dense experts */
    mp_span open;               /* those that take experts: all of them, but while a move goes on */
    mp_extent move;             /* what that one is to lead to; no slots: there is none */
    uint32_t max_slots;         /* length of the arrays */
    _Atomic uint64_t *words;
    mp_slot *slots;
    uint32_t *free_slots; /* stack */
    uint32_t n_free;
    uint64_t n_loads;                   /* ever begun */
    mp_stream *readers[MP_MAX_CLIENTS]; /* each session's compute stream; readers.c */
    _Atomic mp_tick *reads; /* [max_slots][MP_MAX_CLIENTS] of these streams: until when they read
                               the slot; NULL where nothing outlasts its call */
    _Atomic bool orphans;   /* loads may be under way, or have landed, that no plan waits for */
    mp_scope *scopes;
    uint32_t *kept;         /* [layers] slots whose experts are not in the window */
    struct mp_link *window; /* [max_slots + 2] window.c */
    mp_prefetcher prefetcher;
} mp_shard;

/* A session, as the pool knows it. */
struct mp_client {
    uint32_t index;
    mp_touch_ring ring;
    /* Slots that open layers hold or will hold at once, all together, and the one with most. The
     * session's thread writes them. */
    _Atomic uint32_t reserved[MOEPAGE_MAX_DEVICES];
    _Atomic uint32_t widest;
    _Atomic bool routing;     /* a layer is being opened: what it reserves cannot be seen yet */
    _Atomic uint32_t layer;   /* that it routed last */
    mp_prefetch_tally *tally; /* [layers] under the lock; NULL: nobody asks */
    bool *streams;            /* [layers] that it streams; the session's thread only */
    uint32_t n_streams;       /* how many */
    _Atomic uint64_t
        window;          /* that its open step sees the versions of; 0 = no step, or no versions */
    uint64_t copied;     /* of which window this is; the session's thread only */
    uint32_t *published; /* [keys] what it computes with; NULL without SERVE_VERSIONS */
    mp_published_stats published_stats;
};

/* Counters of moepage_expert_pool_info, under the lock. */
typedef struct mp_pool_counters {
    uint64_t hits, misses, late, evictions, demand_bytes, prefetch_bytes;
    uint64_t prefetch_useful, prefetch_late, prefetch_wasted, prefetch_cancelled, prefetch_refused;
    uint64_t useful_bytes, late_bytes, wasted_bytes; /* of prefetch_bytes */
    uint64_t failed_loads, decodes, compressed_loads;
    uint64_t resizes, resizes_refused, pins_refused;
} mp_pool_counters;

struct moepage_expert_pool {
    mp_handle handle;
    struct moepage_model *model;
    _Atomic uint32_t *entry; /* [keys] slot on the key's shard, or MP_NO_SLOT */
    uint32_t experts;        /* per layer */
    uint32_t layers;
    uint32_t keys;
    uint32_t n_shards;
    uint32_t n_scopes; /* per shard: 1 or layers */
    uint32_t scan_percent;
    uint32_t chunk_bytes;
    uint32_t bus_form;  /* MOEPAGE_FORM_DENSE or _EXPH; or slot_form */
    uint32_t slot_form; /* of the images in slots: MOEPAGE_FORM_DENSE, but for versions */
    uint64_t slot_bytes;
    const mp_policy *policy;
    uint32_t *routed; /* [experts] the set that the policy is being told of */
    mp_shard *shards;
    bool *wanted;             /* [keys] queued for prefetch */
    _Atomic uint32_t pending; /* wants queued and prefetches under way */
    pthread_mutex_t lock;
    _Atomic uint64_t touch_clock;       /* routed groups so far */
    mp_client *clients[MP_MAX_CLIENTS]; /* by index, NULL where free */
    _Atomic uint32_t n_clients;
    _Atomic uint32_t n_apart;    /* of these, whose slots are set aside */
    _Atomic uint32_t n_draining; /* slots */
    mp_pool_counters counters;
    moepage_session_stats past_stats; /* of sessions that have left; under the lock */
    uint32_t *streams;                /* [layers] sessions that stream it */
    _Atomic uint32_t n_streamers;     /* sessions that stream any */
    _Atomic uint64_t *turns;      /* [layers] the clock when a streaming session last routed it */
    mp_watch *watch;              /* or NULL */
    struct mp_versions *versions; /* or NULL; versions.h */
};

static inline uint32_t mp_pool_shard_of(const struct moepage_expert_pool *pool, uint32_t key)
{
    return pool->n_shards == 1 ? 0 : key % pool->experts % pool->n_shards;
}

static inline mp_scope *mp_pool_scope_of(const struct moepage_expert_pool *pool, mp_shard *shard,
                                         uint32_t key)
{
    return &shard->scopes[pool->n_scopes == 1 ? 0 : key / pool->experts];
}

/* Experts of a layer that live on a shard. */
static inline uint32_t mp_pool_members(const struct moepage_expert_pool *pool, uint32_t shard_index)
{
    return (pool->experts - shard_index + pool->n_shards - 1) / pool->n_shards;
}

/* Sessions that divide the slots that are not pinned: those with slots set aside do not. Without the
 * lock it may be wrong by those that are just coming and going. */
static inline uint32_t mp_pool_sharers(const struct moepage_expert_pool *pool)
{
    uint32_t clients = atomic_load_explicit(&pool->n_clients, memory_order_relaxed);
    uint32_t apart = atomic_load_explicit(&pool->n_apart, memory_order_relaxed);
    return clients > apart ? clients - apart : 0;
}

/* A shard's part of what is divided among all. */
static inline uint64_t mp_pool_share(const struct moepage_expert_pool *pool, uint32_t shard_index,
                                     uint64_t total)
{
    return total / pool->n_shards + (shard_index < total % pool->n_shards);
}

/* The expert in a slot that is not free; it stays while the lock is held. */
static inline uint32_t mp_pool_key_in(const mp_shard *shard, uint32_t slot)
{
    return MP_WORD_KEY(atomic_load_explicit(&shard->words[slot], memory_order_relaxed));
}

/* May the slot take experts? */
static inline bool mp_pool_is_open(const mp_shard *shard, uint32_t slot)
{
    return slot >= shard->open.first && slot < shard->open.end;
}

static inline unsigned char *mp_pool_slot_address(const mp_shard *shard, uint32_t slot)
{
    return shard->base + (uint64_t)slot * shard->pool->slot_bytes;
}

/* ---- life (expert_pool.c) ---- */

moepage_status mp_pool_create(struct moepage_device *const *devices, uint32_t n_devices,
                              struct moepage_model *model, const moepage_expert_pool_config *config,
                              struct moepage_expert_pool **out);
void mp_pool_destroy(struct moepage_expert_pool *pool);

/* Bytes of workspace and arena that one of n_devices gives; see moepage_expert_pool_sizes. */
moepage_status mp_pool_sizes(const struct moepage_model *model,
                             const moepage_expert_pool_config *config, uint32_t n_devices,
                             uint64_t *workspace_bytes, uint64_t *arena_bytes);

/* Registers a session: BUDGET when a session's share of the slots would be nothing. */
moepage_status mp_pool_join(struct moepage_expert_pool *pool, mp_client *client,
                            uint64_t ring_words);
void mp_pool_leave(struct moepage_expert_pool *pool, mp_client *client);

void mp_pool_get_info(struct moepage_expert_pool *pool, moepage_expert_pool_info *info);
void mp_pool_lookup(struct moepage_expert_pool *pool, uint32_t key, moepage_residency *out);

/* ---- pins (pins.c) ---- */

moepage_status mp_pool_pin(struct moepage_expert_pool *pool, uint32_t key);
moepage_status mp_pool_unpin(struct moepage_expert_pool *pool, uint32_t key);

/* ---- what it has of the arena (resize.c); pools on one device ---- */

/* Where a pool with so many compressed experts per layer would have `slots` slots. */
mp_extent mp_pool_extent(const struct moepage_expert_pool *pool, uint32_t compressed,
                         uint32_t slots);

/* Could it have that, what the KV side has of the arena apart? BUDGET, UNSUPPORTED. Takes the lock. */
moepage_status mp_pool_check_move(struct moepage_expert_pool *pool, const mp_extent *to);

/* Tries to bring the pool there. What goes has left the arena on OK; BUDGET when the arena has no
 * room. BUSY while what has to go is in use: with `once` that leaves everything as it was but for
 * evicted experts, and loads and kernels that are under way are waited for; else the slots that go
 * are fenced, and another call goes on. Any other failure takes the fence away. Takes the lock. */
moepage_status mp_pool_move(struct moepage_expert_pool *pool, const mp_extent *to, bool once);

/* No move goes on from here on. Takes the lock. */
void mp_pool_stay(struct moepage_expert_pool *pool);

/* A move of the split has ended, as wanted or not. Takes the lock. */
void mp_pool_count_resize(struct moepage_expert_pool *pool, bool as_wanted);

/* ---- holding experts (hold.c) ---- */

/* Around the opening of a layer, which asks for quotas and reserves what they allow. */
void mp_pool_begin_routing(mp_client *client);
void mp_pool_end_routing(mp_client *client);

/* Most experts of `layer` on one shard that a client may hold at once, what it has reserved for
 * other layers set aside; UINT32_MAX when nothing can ever be evicted. `scan`: for prefill
 * alone. Between begin and end of routing. */
uint32_t mp_pool_quota(const struct moepage_expert_pool *pool, const mp_client *client,
                       uint32_t layer, uint32_t shard, bool scan);

/* Holds every one of `holds` that is resident; returns how many of the n are now held. Lock-free.
 * If all are, the touch is recorded and nothing else is to be done. */
uint32_t mp_pool_hold_resident(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                               uint32_t n);

/* The same for sessions that compute with the low versions of what is not resident: holds all, waits
 * for nothing, and has the absent ones fetched for the next time. Of pools with SERVE_CACHE. */
void mp_pool_hold_any(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n);

/* Holds the rest, starting loads for what is absent; blocks only for a slot. On failure no hold
 * of the n is left. BUSY when every slot is in open plans. */
moepage_status mp_pool_hold_rest(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n);

/* Would mp_pool_wait return at once? Never blocks; a failed load is "yes". */
bool mp_pool_landed(struct moepage_expert_pool *pool, const mp_hold *hold);

/* With `reader` NULL: waits for a held expert's bytes and publishes it, or says why its load
 * failed. With a stream of its device: what is submitted to that stream from now on finds the bytes
 * there; returns when nothing but the device itself can fail them any more. */
moepage_status mp_pool_wait(struct moepage_expert_pool *pool, mp_hold *hold, mp_stream *reader);

/* Lets go of what is held among the n. */
void mp_pool_release(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n);

/* ---- readers (readers.c) ---- */

moepage_status mp_readers_open(mp_shard *shard);

/* The stream on which a session's work reads slots of a shard, from its creation to before its
 * destruction (NULL), when all of that work is done. */
void mp_pool_set_reader(struct moepage_expert_pool *pool, const mp_client *client,
                        uint32_t shard_index, mp_stream *stream);

/* The session's work on a held slot ends with `tick` of its stream; before it lets go. */
void mp_pool_read_until(struct moepage_expert_pool *pool, const mp_client *client,
                        const mp_hold *hold, mp_tick tick);

/* What a pipe's bus, or decoder, does from now on waits for the slot's readers; or the caller does.
 * The lock is held. */
moepage_status mp_readers_before_bus(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe);
moepage_status mp_readers_before_decode(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe);
moepage_status mp_readers_sync(mp_shard *shard, uint32_t slot);
/* Has all that reads the slot ended? */
bool mp_readers_done(const mp_shard *shard, uint32_t slot);

/* ---- shares (share.c) ---- */

/* Takes `asked` slots, 0 = as many as the session may hold, out of what sessions divide; `least` of
 * them must do for one layer. BUDGET. Of pools on one device. */
moepage_status mp_pool_set_aside(struct moepage_expert_pool *pool, const mp_client *client,
                                 uint32_t asked, uint32_t least, mp_set_aside *out);
void mp_pool_put_back(struct moepage_expert_pool *pool, const mp_set_aside *aside);

/* ---- touches (touch.c) ---- */

/* Records a session's hits for later, without the lock. False if its ring has no room. */
bool mp_pool_record_touches(struct moepage_expert_pool *pool, mp_client *client,
                            const mp_hold *holds, uint32_t n);

/* Between steps: replays a session's hits before its ring fills up in the middle of a step. */
void mp_pool_relieve(struct moepage_expert_pool *pool, const mp_client *client);

/* Replays all sessions' hits into the policy. The lock is held. */
void mp_pool_drain_touches(struct moepage_expert_pool *pool);

/* A routed, resident expert becomes recent. A scan does not refresh what decode uses. The lock is
 * held. */
void mp_pool_touch(struct moepage_expert_pool *pool, uint32_t key, bool scan, uint64_t stamp);

/* Tells the policy that a layer routes to a set, before victims are asked for: what is collected in
 * pool->routed. A guarded pool tells nothing of scans. The lock is held. */
void mp_pool_collect_routed(struct moepage_expert_pool *pool, uint32_t *n, uint32_t key, bool scan);
void mp_pool_tell_routed(struct moepage_expert_pool *pool, uint32_t n);

/* ---- rates (rates.c); the lock is held ---- */

/* What the probes say so far, 0 where nothing: bytes of dense experts per second. */
void mp_shard_live_rates(const mp_shard *shard, mp_rates *out);

/* Nanoseconds to bring one expert over the bus, as measured while serving, or before; 0 = nothing is
 * known yet. */
double mp_shard_load_ns(const mp_shard *shard);

/* Nanoseconds per byte that crosses the bus; 0 = nothing is known yet. */
double mp_shard_bus_ns(const mp_shard *shard);

/* ---- layers that stream (window.c) ---- */

/* How a scope's slots are divided when layers stream. */
typedef struct mp_window_plan {
    uint32_t keep;  /* experts of a layer that stay */
    uint32_t slots; /* for all others, of all layers: the window */
} mp_window_plan;

moepage_status mp_window_open(mp_shard *shard);
void mp_window_close(mp_shard *shard);

/* The division for as many sessions as stream now, one at least. Lock-free. */
mp_window_plan mp_window_divide(const mp_shard *shard, const mp_scope *scope);

/* A session streams a layer from now on, or no longer. The lock is not held. */
void mp_pool_stream(struct moepage_expert_pool *pool, mp_client *client, uint32_t layer, bool on);

/* Could any layer stream: do layers share slots that are too few for all their experts? Lock-free. */
bool mp_pool_may_stream(const struct moepage_expert_pool *pool);

/* The layer's turn has come: what was brought ahead of it and is not used now was a wrong guess.
 * Lock-free. */
static inline void mp_pool_take_turn(struct moepage_expert_pool *pool, uint32_t layer)
{
    uint64_t clock = atomic_load_explicit(&pool->touch_clock, memory_order_relaxed);
    atomic_store_explicit(&pool->turns[layer], clock, memory_order_relaxed);
}

/* Experts of a layer, on all devices, that stay when it streams. Lock-free. */
uint32_t mp_pool_keeps(const struct moepage_expert_pool *pool);

/* What a miss costs, of the slowest device; 0 = not known. False while slots are unused: misses are
 * first sights then, and say nothing about what comes back. Takes the lock. */
bool mp_pool_weigh_miss(struct moepage_expert_pool *pool, double *load_ns);

/* From here on the lock is held. Is a key's layer streamed, and may it be? */
bool mp_window_serves(const struct moepage_expert_pool *pool, const mp_scope *scope, uint32_t key);
/* A slot just taken goes where its key belongs; one that is given up leaves. */
void mp_window_enter(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key, bool transient);
void mp_window_leave(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* A slot in the window was routed: it is kept if its layer keeps too few (true: the policy is to
 * rank it), else past. */
bool mp_window_use(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* Kept, whatever its layer has. */
void mp_window_keep(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key);
/* Wanted for a turn to come: not to be given away before. */
void mp_window_promise(mp_shard *shard, uint32_t slot);
/* The best of the window's slots to give away, MP_NO_SLOT if none may be: of wrong guesses and of
 * those that are past, or also of those to come. */
uint32_t mp_window_victim(const mp_shard *shard, bool to_come);
/* Does any streaming layer keep more than `keep`? */
bool mp_window_has_excess(const mp_shard *shard, uint32_t keep);
/* How many more experts of streaming layers could be brought now, up to `most`. */
uint32_t mp_window_room(const mp_shard *shard, const mp_scope *scope, uint32_t most);

/* ---- loads (load.c); the lock is held ---- */

/* Could a load begin? LATER: a prefetch has to wait for its turn; NEVER: every entry of the host
 * tier is in use. Asked before a slot is taken, so that nobody is evicted for nothing. */
typedef enum mp_start { MP_START_NOW, MP_START_LATER, MP_START_NEVER } mp_start;
mp_start mp_pool_may_start(mp_shard *shard, uint32_t key, mp_pipe_kind pipe);

/* Decides where the bytes of a slot just taken come from, and takes the host tier's entry for them:
 * before anybody else is told that there is room. Staging does so too, for slots that are begun at
 * once. */
void mp_pool_begin_load(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe);

/* Goes on with the load of a LOADING slot: submits or stages up to `limit` of the bytes that it
 * still lacks on the bus, and the decoding after the last; returns how many. A DEMAND goes all the
 * way, waiting where it must; a PREFETCH does what can be done now. What is staged must be flushed
 * before the lock is given up. */
uint64_t mp_pool_stage_load(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe, uint64_t limit);

/* Has all that was submitted for the slot so far completed? Is that all that it takes? */
bool mp_pool_transfers_done(const mp_shard *shard, uint32_t slot);

/* The slot's word gets another state, whatever its users do meanwhile. */
void mp_pool_set_state(mp_shard *shard, uint32_t slot, uint32_t state);

/* The next `bytes` from `offset` on of an image in mapped memory, which is checked before any of it
 * is used; the caller sets dst and result. */
mp_copy mp_pool_copy_mapped(const struct moepage_expert_pool *pool, uint32_t key, uint32_t form,
                            uint64_t offset, uint64_t bytes);

/* Why a load whose transfers have settled failed, or MOEPAGE_OK. */
moepage_status mp_pool_result_of(mp_shard *shard, uint32_t slot);
static inline bool mp_pool_fully_staged(const mp_shard *shard, uint32_t slot)
{
    return shard->slots[slot].passage.complete;
}

/* Does the slot's load wait for a read of the cold tier? */
bool mp_pool_waits_for_cold(const mp_shard *shard, uint32_t slot);

/* Ends the passage of a slot whose load has landed or is given up; nothing of it is in flight. */
void mp_pool_end_passage(mp_shard *shard, uint32_t slot);

/* Settles a LOADING slot if its bytes have all landed: RESIDENT, or FAILED and out of the map. */
void mp_pool_settle(mp_shard *shard, uint32_t slot);
/* The same for every slot whose bytes have landed. */
void mp_pool_settle_landed(mp_shard *shard);

#endif
