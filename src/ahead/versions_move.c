/* Moves of the split: high versions leave the slots that are to go, and the number of high versions per
 * layer follows the slots. The pool's lock is held throughout.
 *
 * A move takes the path of every other change: an expert becomes low in a window, and its slot is free
 * when no step sees its high version. Low versions stay where they are, so that no expert is ever
 * without one. Pinned experts do not leave: a move waits for their slots. The hottest of those that had to
 * leave become high again when the move has ended. */
#include "ahead/versions_inside.h"
#include "base/status.h"

uint32_t mp_versions_least(const mp_versions *versions)
{
    uint32_t least = 1, per_layer = versions->n_places / versions->layers;
    if (versions->config.lo_fetched)
        least = versions->members + MP_SPARE_PER_LAYER - per_layer;
    for (uint32_t l = 0; l < versions->layers; l++)
        least = versions->pinned[l] > least ? versions->pinned[l] : least;
    return least;
}

/* ---- departures ---- */

/* Returns true if the expert's high version is published, does not leave, and is not pinned. */
static bool may_leave(const mp_versions *versions, uint32_t key)
{
    return versions->high[key] && (versions->published[key] & MP_VERSION_HIGH) &&
           versions->pins[key] == 0;
}

static bool is_outside(const mp_versions *versions, uint32_t key, mp_span kept)
{
    uint32_t slot = versions->published[key] & ~MP_VERSION_HIGH;
    return slot < kept.first || slot >= kept.end;
}

static uint32_t find_coldest(const mp_versions *versions, uint32_t layer)
{
    uint32_t coldest = MP_NO_EXPERT_KEY;
    for (uint32_t key = layer * versions->experts; key < (layer + 1) * versions->experts; key++)
        if (may_leave(versions, key) &&
            (coldest == MP_NO_EXPERT_KEY || versions->hotness[key] < versions->hotness[coldest]))
            coldest = key;
    return coldest;
}

/* Begins the departures of one layer that can begin now, and returns their number. */
static uint32_t depart_from(mp_versions *versions, uint32_t layer, mp_span kept)
{
    uint32_t begun = 0, high = 0;
    for (uint32_t key = layer * versions->experts; key < (layer + 1) * versions->experts; key++) {
        if (may_leave(versions, key) && is_outside(versions, key, kept))
            begun += mp_swaps_depart(versions, key);
        high += versions->high[key];
    }
    for (; high > versions->n_high; high--, begun++) {
        uint32_t coldest = find_coldest(versions, layer);
        if (coldest == MP_NO_EXPERT_KEY || !mp_swaps_depart(versions, coldest))
            break;
    }
    return begun;
}

static uint32_t depart(mp_versions *versions, mp_span kept)
{
    uint32_t begun = 0;
    for (uint32_t layer = 0; layer < versions->layers; layer++)
        begun += depart_from(versions, layer, kept);
    return begun;
}

/* ---- a move that is tried once ---- */

static bool any_step_is_open(const mp_versions *versions)
{
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++)
        if (atomic_load(&versions->readers[c].window))
            return true;
    return false;
}

/* Returns MP_NO_EXPERT_KEY if no pinned expert has a slot that is to go. */
static uint32_t find_pinned_outside(const mp_versions *versions, mp_span kept)
{
    for (uint32_t key = 0; key < versions->keys; key++)
        if (versions->pins[key] > 0 && (versions->published[key] & MP_VERSION_HIGH) &&
            is_outside(versions, key, kept))
            return key;
    return MP_NO_EXPERT_KEY;
}

static moepage_status check_once(const mp_versions *versions, mp_span kept)
{
    if (any_step_is_open(versions))
        return mp_fail(MOEPAGE_E_BUSY,
                       "a step is open, and computes with the high versions that it began with");
    uint32_t pinned = find_pinned_outside(versions, kept);
    if (pinned == MP_NO_EXPERT_KEY)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_BUSY, "expert %u of layer %u is pinned in a slot that is to go",
                   pinned % versions->experts, pinned / versions->experts);
}

/* Ends the loads under way: those on the bus as a whole are waited for, the others dropped. */
static void end_loads(mp_versions *versions)
{
    mp_transfer_flush(versions->transfer);
    mp_ahead_abandon(versions->ahead, mp_shard_device(versions->shard));
    for (uint32_t i = 0; i < versions->n_swaps; i++) {
        mp_swap *swap = &versions->swaps[i];
        if (swap->state == MP_SWAP_LOAD && !mp_swap_has_slot(versions, swap))
            swap->slot = MP_NO_SLOT;
    }
    mp_swaps_drop_promotions(versions);
}

/* Goes through departures until all have left. Those of fetched low versions wait for places, which the
 * ones before them do not take for good. */
static moepage_status leave_at_once(mp_versions *versions, mp_span kept)
{
    moepage_status status = MOEPAGE_OK;
    uint64_t failed = versions->counters.failed;
    end_loads(versions);
    mp_swaps_advance(versions, true); /* what has landed is published, and may leave */
    while (!status && depart(versions, kept) > 0 && versions->counters.failed == failed) {
        status = mp_transfer_sync(versions->transfer);
        mp_swaps_advance(versions, true);
    }
    return status;
}

/* ---- moves ---- */

moepage_status mp_versions_shrink(mp_versions *versions, mp_span kept, uint32_t n_high, bool once)
{
    moepage_status status = once ? check_once(versions, kept) : MOEPAGE_OK;
    if (status)
        return status;
    versions->n_high = n_high;
    if (!versions->moving) {
        versions->moving = true;
        versions->counters.refused += versions->queue.left;
        mp_swaps_choose(versions); /* nothing */
        mp_swaps_drop_promotions(versions);
    }
    if (once)
        return leave_at_once(versions, kept);
    depart(versions, kept);
    mp_swaps_advance(versions, true);
    return MOEPAGE_OK;
}

void mp_versions_set_high(mp_versions *versions, uint32_t n_high)
{
    versions->n_high = n_high;
    versions->moving = false;
    mp_swaps_choose(versions);
    mp_swaps_advance(versions, false);
}
