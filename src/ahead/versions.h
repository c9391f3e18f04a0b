/* versions.h — every expert in two versions (DynaExq 3.2 to 3.4); the second door of this room.
 *
 * High versions are what the pool's slots hold. Low ones lie in places of one size at the low end of
 * the experts' side of the arena, which take whole slots:
 *
 *   base                     first_slot
 *   | place | place | ... |  | slot | slot | ...
 *
 * Which of the two an expert computes with is one number, its version: a place, or MP_VERSION_HIGH
 * and a slot. With SERVE_VERSIONS `published` has that of every expert. A step sees what was
 * published when it began and nothing else: its session has a copy, and says which window the copy is
 * of. What a window takes out of `published` stays as it is until no step of an earlier window is
 * open. So a step finds every version whole, waits for none, and takes no lock while nothing is on
 * its way.
 *
 * A swap gives one expert of a layer the high version of another:
 *
 *            the low version      `out` is low      nobody sees       the high version
 *            of `out` is there    from here on      the old one       of `in` is there
 *   FETCH -----------------> UNPUBLISH -------> LEAVE -------> LOAD ---------------> PUBLISH
 *                                                                                       |
 *   `in` is high from here on; its low place is free when nobody sees it: RELEASE <-----+
 *
 * FETCH and RELEASE are of pools whose low versions are fetched; where no version need go a swap
 * begins with LOAD. UNPUBLISH and PUBLISH end where a step begins. When a source fails, FETCH leaves
 * everything as it was, and LOAD leaves `in` low and a slot free for the next one.
 *
 * With SERVE_CACHE the slots are a cache like any other, and the low versions are just there. */
#ifndef MP_AHEAD_VERSIONS_H
#define MP_AHEAD_VERSIONS_H

#include "ahead/ahead.h"

typedef struct mp_versions mp_versions;

/* What is decided before slots are: the forms, and the bytes of a slot. */
typedef struct mp_versions_plan {
    moepage_precision_config config; /* defaults filled in */
    uint64_t slot_bytes;
} mp_versions_plan;

/* ---- life; the lock is not held ---- */

/* For mp_pool_sizes: bytes of a slot, how many the low versions take, and for high ones those that the
 * config names; *slots stays as it is with SERVE_CACHE. */
moepage_status mp_versions_sizes(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t n_devices,
                                 uint64_t *slot_bytes, uint64_t *low_slots, uint64_t *slots);
/* Checks the configuration of a pool with versions. */
moepage_status mp_versions_plan_for(const struct moepage_model *model,
                                    const moepage_expert_pool_config *config, uint32_t n_devices,
                                    mp_versions_plan *out);
/* Sets versions up on one device, whose side of the arena is attached and still empty. *first: slots
 * that the low ones take; *slots: asked for (0 = all that there is room for), and then given, to high
 * ones. */
moepage_status mp_versions_open(const mp_versions_plan *plan, const struct moepage_model *model,
                                struct moepage_device *home, uint32_t *first, uint64_t *slots,
                                mp_versions **out);
/* Says what brings them; before they are filled. */
void mp_versions_connect(mp_versions *versions, mp_ahead *ahead, mp_shard *shard,
                         pthread_mutex_t *lock);
/* Brings every low version; blocks. FORMAT or IO where an image cannot be had. The lock is held. */
moepage_status mp_versions_fill_low(mp_versions *versions);
/* Returns true if the expert's high version has to be there from the start. */
bool mp_versions_begins_high(const mp_versions *versions, uint32_t key);
/* The expert's high version is there from the start, in a slot that it keeps. */
void mp_versions_begin_high(mp_versions *versions, uint32_t key, uint32_t slot);
/* Everything that has to be there is; the first interval begins. */
void mp_versions_start(mp_versions *versions);
/* Nothing is under way any more. NULL is a no-op. */
void mp_versions_close(mp_versions *versions);

const moepage_precision_config *mp_versions_config(const mp_versions *versions);
/* Adds what is known. The lock is held. */
void mp_versions_describe(const mp_versions *versions, moepage_expert_pool_info *info);

/* ---- steps of SERVE_VERSIONS; `reader` is a client's index ---- */

/* Gives the client a copy of what is published, for as long as it stays. NO_MEMORY. */
moepage_status mp_versions_join(mp_versions *versions, uint32_t reader);
void mp_versions_leave(mp_versions *versions, uint32_t reader);
/* Around a step. Neither waits for anything but the lock, and takes that only while something is on its
 * way, or when a decision is due. */
void mp_versions_enter_step(mp_versions *versions, uint32_t reader);
void mp_versions_leave_step(mp_versions *versions, uint32_t reader);
/* Holds all of `holds` in the versions that the step sees; all are ready. Lock-free. */
void mp_versions_hold_all(const mp_versions *versions, uint32_t reader, mp_hold *holds, uint32_t n);
/* An expert was selected by so many tokens, or with so much weight. Lock-free. */
void mp_versions_heat(mp_versions *versions, uint32_t key, uint32_t heat);

/* ---- SERVE_CACHE ---- */

/* Gives the hold the expert's low version. */
void mp_versions_hold_low(const mp_versions *versions, mp_hold *hold);

#endif
