/* versions.h — experts in two versions, high and low (DynaExq 3.2 to 3.4): this room's second door.
 *
 * High versions are in the pool's slots. Low versions are in places of one size at the low end of
 * the experts' side of the arena, which together take whole slots:
 *
 *   base                     first_slot
 *   | place | place | ... |  | slot | slot | ...
 *
 * The version that an expert computes with is one number: a place, or MP_VERSION_HIGH and a slot. With
 * SERVE_VERSIONS, `published` has every expert's. A step sees what was published when it began and
 * nothing else: its session has a copy, and states which window the copy belongs to. A version that a
 * window takes out of `published` is left untouched until no step of an earlier window is open. So a step
 * finds every version whole, waits for none, and takes no lock while no swap is under way.
 *
 * A swap gives one expert of a layer the high version of another:
 *
 *            the low version      `out` is low      no step sees      the high version
 *            of `out` has come    from here on      the old one       of `in` has come
 *   FETCH -----------------> UNPUBLISH -------> LEAVE -------> LOAD ---------------> PUBLISH
 *                                                                                       |
 *   `in` is high from here on; its low place is free when no step sees it: RELEASE <----+
 *
 * FETCH and RELEASE occur only if low versions are fetched (lo_fetched). A swap that has a free slot
 * begins with LOAD. UNPUBLISH and PUBLISH end when a step begins. If a source fails, FETCH leaves
 * everything as it was, and LOAD leaves `in` low and a slot free for another swap. Kernels of steps that
 * have ended may still read what is free: the copies of FETCH and LOAD wait for them on the device.
 *
 * Either half of a swap may be missing: without `out` it begins with LOAD, without `in`, a departure, it
 * ends with LEAVE. Departures make room for a move of the split (versions_move.c).
 *
 * With SERVE_CACHE the slots are a cache like any other, and all low versions are always resident. */
#ifndef MP_AHEAD_VERSIONS_H
#define MP_AHEAD_VERSIONS_H

#include "ahead/ahead.h"
#include "cache/bounds.h"

typedef struct mp_versions mp_versions;

/* ---- life; the lock is not held ---- */

/* For mp_pool_sizes: gives the form of slots, and computes the slots that low versions take, and those
 * that the config asks for as high ones, on the device that needs most. *slots: in, those of a cache on
 * each device. */
moepage_status mp_versions_sizes(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t n_devices,
                                 uint32_t *slot_form, uint64_t *low_slots, uint64_t *slots);
/* Reads a pool's precision config, checks it against the rest and the model, and fills in defaults. */
moepage_status mp_versions_read_config(const struct moepage_model *model,
                                       const moepage_expert_pool_config *config, uint32_t n_devices,
                                       moepage_precision_config *out);
/* Sets versions up on device `part` of the deal, for its experts; the experts' side of its arena is attached
 * and still empty. *first: the slots that low versions take. *slots: those of high ones; left alone with
 * SERVE_CACHE. */
moepage_status mp_versions_open(const moepage_precision_config *config,
                                const struct moepage_model *model, struct moepage_device *home,
                                const mp_deal *deal, uint32_t part, uint32_t *first,
                                uint32_t *slots, mp_versions **out);
/* Connects versions with the rooms that load them. Called before they are filled. NO_MEMORY. */
moepage_status mp_versions_connect(mp_versions *versions, mp_ahead *ahead, mp_shard *shard,
                                   pthread_mutex_t *lock);
/* Copies every low version to its place and waits. FORMAT or IO if one cannot be read. The lock is held. */
moepage_status mp_versions_fill_low(mp_versions *versions);
/* Returns true if the expert begins with its high version. */
bool mp_versions_begins_high(const mp_versions *versions, uint32_t key);
/* Publishes the high version that an expert begins with, in a slot that it keeps. */
void mp_versions_begin_high(mp_versions *versions, uint32_t key, uint32_t slot);
/* Begins the first interval: every published version is resident. */
void mp_versions_start(mp_versions *versions);
/* Frees the versions; nothing may be under way. NULL is a no-op. */
void mp_versions_close(mp_versions *versions);

const moepage_precision_config *mp_versions_config(const mp_versions *versions);
/* Adds to the fields of *info that concern versions. The lock is held. */
void mp_versions_describe(const mp_versions *versions, moepage_expert_pool_info *info);

/* ---- steps of SERVE_VERSIONS; `reader` is a client's index ---- */

/* Gives the client a copy of `published`, until it leaves. May fail with NO_MEMORY. */
moepage_status mp_versions_join(mp_versions *versions, uint32_t reader);
void mp_versions_leave(mp_versions *versions, uint32_t reader);
/* Bracket a step. Neither waits for anything but the lock, which they take only while swaps are
 * under way, or when a decision is due. */
void mp_versions_enter_step(mp_versions *versions, uint32_t reader);
void mp_versions_leave_step(mp_versions *versions, uint32_t reader);
/* Holds those of the n experts that are here in the versions that the step sees: ready ones. Lock-free. */
void mp_versions_hold_all(const mp_versions *versions, uint32_t reader, mp_hold *holds, uint32_t n);
/* Counts an expert's selections: `heat` tokens, or that much weight. Lock-free. */
void mp_versions_heat(mp_versions *versions, uint32_t key, uint32_t heat);

/* ---- pins of SERVE_VERSIONS; the lock is held ---- */

/* Makes the expert high as soon as there is a place, and keeps it so. BUDGET if as many experts of its
 * layer are pinned as can be high. */
moepage_status mp_versions_pin(mp_versions *versions, uint32_t key);
/* Takes one pin away; returns false if the expert is not pinned. */
bool mp_versions_unpin(mp_versions *versions, uint32_t key);

/* ---- moves of the split (versions_move.c), of SERVE_VERSIONS; the lock is held ---- */

/* Returns the fewest high versions per layer, for pins and for want of places for low ones. */
uint32_t mp_versions_least(const mp_versions *versions);
/* Makes high versions leave, those outside of `kept` and then the coldest, until each layer has at most
 * n_high. Slots are free when no step sees them; until then another call goes on. `once`: waits for the
 * bus, and fails with BUSY, changing nothing, if a step is open or a pinned expert outside. */
moepage_status mp_versions_shrink(mp_versions *versions, mp_span kept, uint32_t n_high, bool once);
/* Ends a move: from now on each layer has up to n_high high versions, the hottest. */
void mp_versions_set_high(mp_versions *versions, uint32_t n_high);

/* ---- SERVE_CACHE ---- */

/* Gives the hold the expert's low version. */
void mp_versions_hold_low(const mp_versions *versions, mp_hold *hold);
/* States that a client's work on a held low version ends with `tick` of its stream: what is fetched to
 * the same place later is copied after that. Lock-free. */
void mp_versions_read_until(const mp_versions *versions, const mp_hold *hold, uint32_t reader,
                            mp_tick tick);

#endif
