/* Swaps of versions: deciding on them, and moving each from state to state. Nothing here waits. The
 * pool's lock is held throughout. */
#include "ahead/versions_inside.h"

#include <math.h>

/* ---- what sessions see ---- */

/* Returns true if no open step began before this window. */
static bool is_past(const mp_versions *versions, uint64_t window)
{
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
        uint64_t seen = atomic_load(&versions->readers[c].window);
        if (seen && seen < window)
            return false;
    }
    return true;
}

/* Begins the next window if any swap waits to publish. The lock is held, so no session copies
 * `published` half changed. */
static void publish(mp_versions *versions)
{
    uint64_t next = atomic_load(&versions->window) + 1;
    bool changed = false;
    for (uint32_t i = 0; i < versions->n_swaps; i++) {
        mp_swap *swap = &versions->swaps[i];
        if (swap->state == MP_SWAP_UNPUBLISH) {
            swap->slot = versions->published[swap->out] & ~MP_VERSION_HIGH;
            versions->published[swap->out] = swap->place;
            versions->counters.demotions++;
            swap->state = MP_SWAP_LEAVE;
        } else if (swap->state == MP_SWAP_PUBLISH) {
            swap->place = versions->published[swap->in];
            versions->published[swap->in] = MP_VERSION_HIGH | swap->slot;
            versions->counters.promotions++;
            swap->state = versions->config.lo_fetched ? MP_SWAP_RELEASE : MP_SWAP_NONE;
        } else {
            continue;
        }
        swap->window = next;
        changed = true;
    }
    if (!changed)
        return;
    atomic_store(&versions->window, next);
    versions->counters.windows++;
}

/* ---- one swap's way ---- */

static void fail_swap(mp_versions *versions, mp_swap *swap)
{
    if (swap->in != MP_NO_EXPERT_KEY)
        versions->high[swap->in] = false;
    versions->counters.failed++;
    swap->state = MP_SWAP_NONE;
}

/* The low version of `out` could not be fetched: `out` stays high. It gets the hotness of `in`, so
 * that it has to cool down before it is chosen again, instead of failing at every decision. */
static void fail_fetch(mp_versions *versions, mp_swap *swap)
{
    versions->free_places[versions->n_free++] = swap->place;
    versions->high[swap->out] = true;
    if (swap->in != MP_NO_EXPERT_KEY)
        versions->hotness[swap->out] = versions->hotness[swap->in];
    fail_swap(versions, swap);
}

/* The high version of `in` could not be loaded: `in` stays low, and has to become hot again. */
static void fail_load(mp_versions *versions, mp_swap *swap)
{
    versions->hotness[swap->in] = 0;
    fail_swap(versions, swap);
}

static void look_at_fetch(mp_versions *versions, mp_swap *swap)
{
    mp_stream *bus = mp_transfer_last(versions->transfer, MP_PIPE_PREFETCH).stream;
    if (versions->home->device->ops->completed(bus) < swap->tick)
        return;
    if (atomic_load(&swap->result)) {
        fail_fetch(versions, swap);
        return;
    }
    mp_image image;
    mp_model_find_image(versions->model, swap->out / versions->experts,
                        swap->out % versions->experts, versions->config.lo_form, &image);
    versions->counters.bytes += image.bytes;
    swap->state = MP_SWAP_UNPUBLISH;
}

bool mp_swap_has_slot(const mp_versions *versions, const mp_swap *swap)
{
    mp_slot_view slot = mp_shard_view(versions->shard, swap->slot);
    return slot.key == swap->in &&
           (slot.state == MP_SLOT_LOADING || slot.state == MP_SLOT_RESIDENT);
}

static void look_at_load(mp_versions *versions, mp_swap *swap)
{
    if (swap->slot == MP_NO_SLOT)
        return;
    mp_shard_settle(versions->shard, swap->slot);
    if (!mp_swap_has_slot(versions, swap)) {
        fail_load(versions, swap);
        return;
    }
    if (mp_shard_view(versions->shard, swap->slot).state != MP_SLOT_RESIDENT)
        return;
    mp_image image;
    mp_model_find_image(versions->model, swap->in / versions->experts, swap->in % versions->experts,
                        versions->config.hi_form, &image);
    versions->counters.bytes += image.bytes;
    swap->state = MP_SWAP_PUBLISH;
}

/* Frees the slot of `out` once no step can see its high version. */
static void leave(mp_versions *versions, mp_swap *swap)
{
    if (!is_past(versions, swap->window) ||
        !mp_shard_drop(versions->shard, swap->slot, swap->out, MP_SLOT_RESIDENT))
        return;
    swap->slot = MP_NO_SLOT;
    swap->state = swap->in == MP_NO_EXPERT_KEY ? MP_SWAP_NONE : MP_SWAP_LOAD;
}

static void release(mp_versions *versions, mp_swap *swap)
{
    if (!is_past(versions, swap->window))
        return;
    versions->free_places[versions->n_free++] = swap->place;
    swap->state = MP_SWAP_NONE;
}

/* Begins to load `in`. If the cold tier has no turn for it now, the next step tries again. */
static void load(mp_versions *versions, mp_swap *swap)
{
    if (swap->slot == MP_NO_SLOT)
        swap->slot = mp_ahead_bring(versions->ahead, swap->in);
}

/* ---- beginning swaps ---- */

/* Begins a swap; returns false if a low version would have to be fetched and there is no place
 * for it now. */
static bool begin(mp_versions *versions, mp_swap *swap, uint32_t in, uint32_t out)
{
    bool fetched = versions->config.lo_fetched && out != MP_NO_EXPERT_KEY;
    if (fetched && versions->n_free == 0)
        return false;
    swap->in = in;
    swap->out = out;
    swap->slot = MP_NO_SLOT;
    if (out != MP_NO_EXPERT_KEY) /* where every expert has a low version, it has its own place */
        swap->place = mp_versions_own_place(versions, out);
    swap->state = out == MP_NO_EXPERT_KEY ? MP_SWAP_LOAD : MP_SWAP_UNPUBLISH;
    if (in != MP_NO_EXPERT_KEY)
        versions->high[in] = true;
    if (out != MP_NO_EXPERT_KEY)
        versions->high[out] = false;
    if (!fetched)
        return true;
    swap->place = versions->free_places[--versions->n_free];
    swap->state = MP_SWAP_FETCH;
    if (mp_transfer_copy_image(versions->transfer, out, versions->config.lo_form,
                               mp_versions_address(versions, swap->place),
                               versions->first_read + swap->place, &swap->result, &swap->tick))
        fail_fetch(versions, swap);
    return true;
}

/* Takes the next swap that the last decision asked for; returns false if there is none left. */
static bool next_of_queue(mp_versions *versions, uint32_t *in, uint32_t *out)
{
    mp_swap_queue *queue = &versions->queue;
    while (queue->left > 0) {
        uint32_t layer = (queue->first + queue->turn) % versions->layers, rank = queue->rank;
        if (++queue->turn == versions->layers) {
            queue->turn = 0;
            queue->rank++;
        }
        if (rank >= queue->n[layer])
            continue;
        uint32_t first = layer * versions->experts;
        const mp_precision_swap *swap = &queue->swaps[first + rank];
        queue->left--;
        *in = first + swap->in;
        *out = swap->out == UINT32_MAX ? MP_NO_EXPERT_KEY : first + swap->out;
        return true;
    }
    return false;
}

/* Returns true if no other swap has moved either expert since the decision. */
static bool still_makes_sense(const mp_versions *versions, uint32_t in, uint32_t out)
{
    if (versions->high[in] || (versions->published[in] & MP_VERSION_HIGH))
        return false;
    return out == MP_NO_EXPERT_KEY ||
           (versions->high[out] && (versions->published[out] & MP_VERSION_HIGH));
}

static void begin_queued(mp_versions *versions)
{
    uint32_t at = 0, in, out;
    for (;;) {
        while (at < versions->config.transitions && versions->swaps[at].state != MP_SWAP_NONE)
            at++;
        if (at == versions->config.transitions || !next_of_queue(versions, &in, &out))
            return;
        if (!still_makes_sense(versions, in, out) ||
            !begin(versions, &versions->swaps[at], in, out))
            versions->counters.refused++;
    }
}

/* ---- departures ---- */

bool mp_swaps_depart(mp_versions *versions, uint32_t out)
{
    uint32_t at = versions->config.transitions; /* no expert has two: there is an entry for each */
    while (at < versions->n_swaps && versions->swaps[at].state != MP_SWAP_NONE)
        at++;
    if (!begin(versions, &versions->swaps[at], MP_NO_EXPERT_KEY, out))
        return false;
    if (at == versions->n_swaps)
        versions->n_swaps++;
    return true;
}

void mp_swaps_drop_promotions(mp_versions *versions)
{
    for (uint32_t i = 0; i < versions->n_swaps; i++) {
        mp_swap *swap = &versions->swaps[i];
        bool loads = swap->state == MP_SWAP_LOAD && swap->slot == MP_NO_SLOT;
        bool leaves = swap->state == MP_SWAP_FETCH || swap->state == MP_SWAP_UNPUBLISH ||
                      swap->state == MP_SWAP_LEAVE;
        if (swap->in == MP_NO_EXPERT_KEY || !(loads || leaves))
            continue;
        versions->high[swap->in] = false;
        versions->counters.refused++;
        swap->in = MP_NO_EXPERT_KEY;
        if (loads)
            swap->state = MP_SWAP_NONE;
    }
}

/* ---- all of them ---- */

void mp_swaps_advance(mp_versions *versions, bool boundary)
{
    uint32_t n = versions->n_swaps, under_way = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (versions->swaps[i].state == MP_SWAP_FETCH)
            look_at_fetch(versions, &versions->swaps[i]);
        else if (versions->swaps[i].state == MP_SWAP_LOAD)
            look_at_load(versions, &versions->swaps[i]);
    }
    if (boundary)
        publish(versions);
    for (uint32_t i = 0; i < n; i++) { /* free slots and places before others are taken */
        if (versions->swaps[i].state == MP_SWAP_LEAVE)
            leave(versions, &versions->swaps[i]);
        else if (versions->swaps[i].state == MP_SWAP_RELEASE)
            release(versions, &versions->swaps[i]);
    }
    begin_queued(versions);
    for (uint32_t i = 0; i < n; i++) {
        if (versions->swaps[i].state == MP_SWAP_LOAD)
            load(versions, &versions->swaps[i]);
        under_way += versions->swaps[i].state != MP_SWAP_NONE;
    }
    while (versions->n_swaps > versions->config.transitions &&
           versions->swaps[versions->n_swaps - 1].state == MP_SWAP_NONE)
        versions->n_swaps--;
    atomic_store(&versions->busy, under_way + versions->queue.left > 0);
}

/* A pinned expert is hotter than any other. */
static void weigh(const mp_versions *versions, uint32_t first)
{
    for (uint32_t e = 0; e < versions->experts; e++)
        versions->worth[e] =
            versions->pins[first + e] > 0 ? (double)INFINITY : versions->hotness[first + e];
}

void mp_swaps_choose(mp_versions *versions)
{
    mp_swap_queue *queue = &versions->queue;
    queue->rank = queue->turn = queue->left = 0;
    queue->first = (uint32_t)(versions->counters.decisions % versions->layers);
    for (uint32_t l = 0; l < versions->layers; l++) {
        uint32_t first = l * versions->experts;
        weigh(versions, first);
        queue->n[l] = versions->moving ? 0
                                       : mp_precision_select(&versions->law, versions->worth,
                                                             versions->high + first,
                                                             versions->experts, versions->n_high,
                                                             versions->order, queue->swaps + first);
        queue->left += queue->n[l];
    }
}

void mp_swaps_decide(mp_versions *versions)
{
    versions->counters.refused += versions->queue.left;
    versions->counters.decisions++;
    for (uint32_t l = 0; l < versions->layers; l++) {
        uint32_t first = l * versions->experts;
        for (uint32_t e = 0; e < versions->experts; e++)
            versions->layer_counts[e] =
                atomic_exchange_explicit(&versions->counts[first + e], 0, memory_order_relaxed);
        mp_precision_age(&versions->law, versions->hotness + first, versions->layer_counts,
                         versions->experts);
    }
    mp_swaps_choose(versions);
}
