/* The cold tier's cache: its entries, the experts in them, and the reads that fill them.
 *
 * A read's result and byte count are written on an I/O thread and read only after its tick has been
 * seen completed. That orders the two, so the accesses themselves are relaxed. */
#include "transfer/host_tier.h"

#include <assert.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- Life ------------------------------------------------------------------------------- */

static void init_arrays(mp_host_tier *tier)
{
    for (uint32_t k = 0; k < tier->n_keys; k++)
        tier->entry_of[k] = MP_NO_ENTRY;
    while (tier->n_empty < tier->n_entries) { /* the first entry on top */
        tier->empty[tier->n_empty] = tier->n_entries - 1 - tier->n_empty;
        tier->n_empty++;
    }
    mp_ring_reset(tier->links, tier->valid);
}

static moepage_status open_lanes(mp_host_tier *tier)
{
    mp_device *device = tier->home->device;
    uint32_t most = tier->n_entries < MP_MAX_COLD_LANES ? tier->n_entries : MP_MAX_COLD_LANES;
    uint32_t wanted = device->io_threads < most ? device->io_threads : most;
    moepage_status status;
    do {
        mp_cold_lane *lane = &tier->lanes[tier->n_lanes];
        if (tier->model->spans && !mp_direct_desk_open(&lane->desk))
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u reads at a time", wanted);
        lane->reading = tier->valid + 1 + tier->n_lanes;
        mp_ring_reset(tier->links, lane->reading);
        status = device->ops->stream_create(device, MP_STREAM_COLD, &lane->stream);
        if (!status)
            tier->n_lanes++;
    } while (!status && tier->n_lanes < wanted);
    return status;
}

static moepage_status build(mp_host_tier *tier)
{
    mp_device *device = tier->home->device;
    tier->entries = mp_alloc_array(tier->n_entries, sizeof *tier->entries);
    tier->entry_of = mp_alloc_array(tier->n_keys, sizeof *tier->entry_of);
    tier->empty = mp_alloc_array(tier->n_entries, sizeof *tier->empty);
    tier->links =
        mp_alloc_array((uint64_t)tier->n_entries + 1 + MP_MAX_COLD_LANES, sizeof *tier->links);
    if (!tier->entries || !tier->entry_of || !tier->empty || !tier->links)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a host tier of %u experts",
                       tier->n_entries);
    init_arrays(tier);
    moepage_status status =
        device->ops->host_map(device, tier->n_entries * tier->unit, &tier->memory);
    return status ? status : open_lanes(tier);
}

moepage_status mp_host_tier_create(struct moepage_device *home, const struct moepage_model *model,
                                   uint32_t form, uint64_t bytes, mp_host_tier **out)
{
    uint64_t keys = (uint64_t)model->info.moe_layers * model->info.experts;
    uint64_t unit = mp_model_image_room(model, form);
    assert(keys < MP_NO_ENTRY && unit > 0);
    uint64_t fit = bytes / unit < keys ? bytes / unit : keys;
    if (fit == 0)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "a host tier of %llu bytes holds no expert: one takes %llu bytes",
                       (unsigned long long)bytes, (unsigned long long)unit);
    mp_host_tier *tier = mp_alloc(sizeof *tier);
    if (!tier)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a host tier");
    tier->home = home;
    tier->model = model;
    tier->form = form;
    tier->unit = unit;
    tier->timed =
        mp_quant_bits_of(form) ? mp_model_most_bytes(model, form) : model->info.slot_bytes;
    tier->n_entries = (uint32_t)fit;
    tier->n_keys = (uint32_t)keys;
    tier->valid = tier->n_entries;
    mp_failure_open(&tier->failure);
    moepage_status status = build(tier);
    if (status) {
        mp_host_tier_destroy(tier);
        return status;
    }
    *out = tier;
    return MOEPAGE_OK;
}

void mp_host_tier_destroy(mp_host_tier *tier)
{
    if (!tier)
        return;
    mp_device *device = tier->home->device;
    for (uint32_t i = 0; i < tier->n_lanes; i++)
        device->ops->stream_destroy(tier->lanes[i].stream);
    for (uint32_t i = 0; i < MP_MAX_COLD_LANES; i++)
        mp_direct_desk_close(&tier->lanes[i].desk);
    if (tier->memory.base)
        device->ops->host_unmap(device, &tier->memory);
    mp_failure_close(&tier->failure);
    mp_free(tier->links);
    mp_free(tier->empty);
    mp_free(tier->entry_of);
    mp_free(tier->entries);
    mp_free(tier);
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* Reads one image. Runs on an I/O thread, without the owner's lock: a READING entry is not given
 * away before its tick. */
static moepage_status fill_entry(const mp_copy *copy, void *out)
{
    mp_host_tier *tier = (mp_host_tier *)(uintptr_t)copy->fill_user;
    mp_host_entry *entry =
        &tier->entries[(uint64_t)((unsigned char *)copy->dst - tier->memory.base) / tier->unit];
    mp_image_read read = {.bytes = copy->bytes};
    moepage_status status = MOEPAGE_OK;
    if (!(tier->home->device->caps & MP_CAP_NO_BYTES))
        status = mp_model_read_cold(tier->model, copy->fill_key[0], copy->fill_key[1], tier->form,
                                    &tier->lanes[entry->lane].desk, out, &read);
    atomic_store_explicit(&entry->read_bytes, read.bytes, memory_order_relaxed);
    atomic_store_explicit(&entry->buffered, read.buffered, memory_order_relaxed);
    if (status)
        mp_failure_note(&tier->failure, entry->key, status, moepage_last_error());
    return status;
}

static uint64_t under_way(const mp_host_tier *tier, const mp_cold_lane *lane)
{
    return lane->last - tier->home->device->ops->completed(lane->stream);
}

static void submit_read(mp_host_tier *tier, uint32_t index)
{
    const uint32_t experts = tier->model->info.experts;
    mp_host_entry *entry = &tier->entries[index];
    mp_cold_lane *lane = &tier->lanes[entry->lane];
    mp_copy copy = {
        .dst = tier->memory.base + index * tier->unit,
        .bytes = tier->unit,
        .fill = fill_entry,
        .fill_user = tier,
        .fill_key = {entry->key / experts, entry->key % experts},
        .result = &entry->result,
    };
    bool timed = tier->probe && mp_probe_begin(tier->probe, lane->stream, lane->last);
    moepage_status status = tier->home->device->ops->copy(lane->stream, &copy, 1, &entry->tick);
    if (status) {
        atomic_store(&entry->result, status);
        mp_failure_note(&tier->failure, entry->key, status, moepage_last_error());
        return;
    }
    lane->last = entry->tick;
    tier->reads++;
    if (!timed)
        return;

    /* Reads at the same time share the storage: while one of n takes place, about n
     * images are read. */
    uint64_t reads = 0;
    for (uint32_t i = 0; i < tier->n_lanes; i++)
        reads += under_way(tier, &tier->lanes[i]);
    mp_probe_end(tier->probe, NULL, 0, lane->stream, entry->tick,
                 (double)reads * (double)tier->timed);
}

bool mp_host_tier_landed(const mp_host_tier *tier, uint32_t index)
{
    const mp_host_entry *entry = &tier->entries[index];
    const mp_device_ops *ops = tier->home->device->ops;
    return ops->completed(tier->lanes[entry->lane].stream) >= entry->tick;
}

/* ---- Entries ---------------------------------------------------------------------------- */

static void empty_entry(mp_host_tier *tier, uint32_t index)
{
    tier->entries[index].state = MP_ENTRY_EMPTY;
    tier->empty[tier->n_empty++] = index;
}

static void settle_failed(mp_host_tier *tier, uint32_t index, int32_t result)
{
    mp_host_entry *entry = &tier->entries[index];
    /* Skipped by the device: `fill` wrote no sentence. */
    if (result == MOEPAGE_E_DEVICE && entry->tick > 0) {
        char sentence[MP_FAILURE_BYTES];
        snprintf(sentence, sizeof sentence,
                 "layer %u, expert %u was not read: the device had failed before",
                 entry->key / tier->model->info.experts, entry->key % tier->model->info.experts);
        mp_failure_note(&tier->failure, entry->key, MOEPAGE_E_DEVICE, sentence);
    }
    tier->entry_of[entry->key] = MP_NO_ENTRY;
    entry->state = MP_ENTRY_FAILED;
    if (entry->users == 0)
        empty_entry(tier, index);
}

void mp_host_tier_settle(mp_host_tier *tier, uint32_t index)
{
    mp_host_entry *entry = &tier->entries[index];
    if (entry->state != MP_ENTRY_READING || !mp_host_tier_landed(tier, index))
        return;
    mp_ring_unlink(tier->links, index);
    mp_host_tier_demand(tier, index); /* a read that has ended takes no lane from demands */
    tier->cold_bytes += atomic_load_explicit(&entry->read_bytes, memory_order_relaxed);
    tier->buffered += atomic_load_explicit(&entry->buffered, memory_order_relaxed);
    int32_t result = atomic_load_explicit(&entry->result, memory_order_relaxed);
    if (result) {
        settle_failed(tier, index, result);
        return;
    }
    entry->state = MP_ENTRY_VALID;
    mp_ring_append(tier->links, tier->valid, index);
    tier->n_valid++;
}

/* Settles all reads that have ended. No load may be waiting for some of them any more, and only
 * settled entries can be evicted. */
static void settle_landed(mp_host_tier *tier)
{
    for (uint32_t i = 0; i < tier->n_lanes; i++) {
        const mp_link *reading = &tier->links[tier->lanes[i].reading];
        while (reading->next != tier->lanes[i].reading && mp_host_tier_landed(tier, reading->next))
            mp_host_tier_settle(tier, reading->next);
    }
}

/* Returns the entry that would be evicted next, or MP_NO_ENTRY. */
static uint32_t victim(const mp_host_tier *tier)
{
    const mp_link *links = tier->links;
    uint32_t index = tier->valid;
    do
        index = tier->in_turn ? links[index].prev : links[index].next;
    while (index != tier->valid && tier->entries[index].users > 0);
    return index == tier->valid ? MP_NO_ENTRY : index;
}

static void evict_one(mp_host_tier *tier)
{
    uint32_t index = victim(tier);
    if (index == MP_NO_ENTRY)
        return;
    mp_ring_unlink(tier->links, index);
    tier->n_valid--;
    tier->entry_of[tier->entries[index].key] = MP_NO_ENTRY;
    empty_entry(tier, index);
}

uint32_t mp_host_tier_find(mp_host_tier *tier, uint32_t key)
{
    assert(key < tier->n_keys);
    if (tier->entry_of[key] == MP_NO_ENTRY)
        return MP_NO_ENTRY;
    mp_host_tier_settle(tier, tier->entry_of[key]);
    uint32_t index = tier->entry_of[key];
    if (index == MP_NO_ENTRY) /* its read has failed */
        return MP_NO_ENTRY;
    if (tier->entries[index].state == MP_ENTRY_VALID) {
        mp_ring_unlink(tier->links, index);
        mp_ring_append(tier->links, tier->valid, index);
    }
    tier->hits++;
    return index;
}

bool mp_host_tier_has_room(mp_host_tier *tier, uint32_t key)
{
    assert(key < tier->n_keys);
    settle_landed(tier);
    return tier->entry_of[key] != MP_NO_ENTRY || tier->n_empty > 0 || victim(tier) != MP_NO_ENTRY;
}

void mp_host_tier_demand(mp_host_tier *tier, uint32_t index)
{
    tier->n_guesses -= tier->entries[index].guess;
    tier->entries[index].guess = false;
}

uint32_t mp_host_tier_fetch(mp_host_tier *tier, uint32_t key, bool guess)
{
    assert(key < tier->n_keys && tier->entry_of[key] == MP_NO_ENTRY);

    /* Take an empty entry; if there is none, that of a failed read, or of the oldest image. */
    if (tier->n_empty == 0)
        settle_landed(tier);
    if (tier->n_empty == 0)
        evict_one(tier);
    if (tier->n_empty == 0)
        return MP_NO_ENTRY;
    uint32_t index = tier->empty[--tier->n_empty];
    mp_host_entry *entry = &tier->entries[index];
    assert(entry->state == MP_ENTRY_EMPTY && entry->users == 0);
    entry->key = key;
    entry->state = MP_ENTRY_READING;
    entry->tick = 0;
    atomic_store_explicit(&entry->result, MOEPAGE_OK, memory_order_relaxed);
    atomic_store_explicit(&entry->read_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->buffered, false, memory_order_relaxed);
    tier->entry_of[key] = index;
    entry->guess = guess;
    tier->n_guesses += guess;

    /* The lane with the fewest reads under way reads it. */
    uint64_t fewest = UINT64_MAX;
    for (uint32_t i = 0; i < tier->n_lanes && fewest > 0; i++) {
        uint64_t reads = under_way(tier, &tier->lanes[i]);
        if (reads < fewest) {
            fewest = reads;
            entry->lane = i;
        }
    }
    mp_ring_append(tier->links, tier->lanes[entry->lane].reading, index);
    submit_read(tier, index);
    return index;
}

void mp_host_tier_use(mp_host_tier *tier, uint32_t index)
{
    mp_host_entry *entry = &tier->entries[index];
    assert(entry->state == MP_ENTRY_READING || entry->state == MP_ENTRY_VALID);
    entry->users++;
}

void mp_host_tier_let_go(mp_host_tier *tier, uint32_t index)
{
    mp_host_entry *entry = &tier->entries[index];
    assert(entry->users > 0);
    if (--entry->users == 0 && entry->state == MP_ENTRY_FAILED)
        empty_entry(tier, index);
}

const unsigned char *mp_host_tier_image(const mp_host_tier *tier, uint32_t index)
{
    uint32_t key = tier->entries[index].key, experts = tier->model->info.experts;
    mp_image image;
    mp_model_find_image(tier->model, key / experts, key % experts, tier->form, &image);
    return tier->memory.base + index * tier->unit + image.skew;
}

moepage_status mp_host_tier_sync(mp_host_tier *tier)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < tier->n_lanes && !status; i++)
        status = tier->home->device->ops->sync(tier->lanes[i].stream, tier->lanes[i].last);
    return status;
}
