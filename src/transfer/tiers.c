/* What other rooms ask about a device's tiers: images lent out of host memory, why one cannot be
 * read, bandwidths, and sums for moepage_expert_pool_info. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"
#include "transfer/inside.h"

#define OWN_ALIGN 256u

/* ---- images in host memory ---- */

/* Kernels need the alignment of an element; a caller's banks promise nothing. */
static bool has_aligned_pieces(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    if (!model->sources)
        return false;
    const mp_layout *layout = mp_model_layout(model, layer);
    const void **sources = model->sources + mp_model_source_index(model, layer, expert);
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        const moepage_expert_tensor *tensor = &layout->tensors[layout->pieces[p].tensor];
        if ((uintptr_t)sources[p] % mp_dtype_align(tensor->dtype))
            return false;
    }
    return true;
}

/* Reads an expert's image to private memory, with the memory's own address before it. Returns NULL if
 * it cannot be read, or is damaged: its load, which must fail, reports why. */
static const unsigned char *read_own(const mp_transfer *transfer, uint32_t layer, uint32_t expert)
{
    const struct moepage_model *model = transfer->model;
    mp_image_read read;
    mp_image found;
    mp_model_find_image(model, layer, expert, transfer->slot_form, &found);
    unsigned char *block = mp_realloc(NULL, found.bytes + 2 * OWN_ALIGN);
    if (!block)
        return NULL;
    unsigned char *image = block + 2 * OWN_ALIGN - (uintptr_t)block % OWN_ALIGN;
    moepage_status status =
        found.stored
            ? mp_model_read_stored(model, layer, expert, transfer->slot_form, 0, found.bytes, image)
            : mp_model_read_cold(model, layer, expert, transfer->slot_form, NULL, image, &read);
    memcpy(image - sizeof block, &block, sizeof block);
    if (!status)
        return image;
    mp_free(block);
    return NULL;
}

void mp_transfer_free_image(const unsigned char *image)
{
    void *block;
    memcpy(&block, image - sizeof block, sizeof block);
    mp_free(block);
}

bool mp_transfer_may_lend(const mp_transfer *transfer, uint32_t layer, uint32_t expert,
                          bool in_pieces, bool reads, const unsigned char **image, bool *owned)
{
    const struct moepage_model *model = transfer->model;
    *image = NULL;
    *owned = false;
    if (transfer->tier)
        return transfer->tier->form == transfer->slot_form;
    if (model->sources)
        return in_pieces && has_aligned_pieces(model, layer, expert);
    mp_image found;
    mp_model_find_image(model, layer, expert, transfer->slot_form, &found);
    *owned = found.stored || model->spans;
    if (*owned && !reads)
        return *owned = false;
    *image = *owned ? read_own(transfer, layer, expert) : found.address;
    *owned = *owned && *image;
    return *image != NULL;
}

/* Returns true if an entry is left for others, besides this one and those in use. A load lets go of
 * its entry when it ends. An entry that is computed from is kept until its plan ends, and that plan
 * may itself need another entry: lending out the last one would be a deadlock. */
static bool leaves_room(const mp_host_tier *tier, uint32_t index)
{
    uint32_t other = tier->links[tier->valid].next;
    if (tier->n_empty > 0)
        return true;
    while (other != tier->valid && (other == index || tier->entries[other].users > 0))
        other = tier->links[other].next;
    return other != tier->valid;
}

bool mp_transfer_lend(mp_transfer *transfer, uint32_t key, uint32_t *out,
                      const unsigned char **address)
{
    mp_host_tier *tier = transfer->tier;
    *out = MP_NO_ENTRY;
    if (!tier)
        return true;
    uint32_t entry = mp_host_tier_find(tier, key);
    if (entry == MP_NO_ENTRY || tier->entries[entry].state != MP_ENTRY_VALID ||
        !leaves_room(tier, entry))
        return false;
    mp_host_tier_use(tier, entry);
    *out = entry;
    *address = mp_host_tier_image(tier, entry);
    return true;
}

void mp_transfer_take_back(mp_transfer *transfer, uint32_t entry)
{
    mp_host_tier_let_go(transfer->tier, entry);
}

const char *mp_transfer_explain(mp_transfer *transfer, uint32_t key, moepage_status status,
                                char *out, size_t capacity)
{
    const struct moepage_model *model = transfer->model;
    mp_failure_recall(&transfer->failure, key, out, capacity);
    if (!*out && transfer->tier)
        mp_failure_recall(&transfer->tier->failure, key, out, capacity);
    if (*out)
        return out;
    if (status == MOEPAGE_E_BUSY || status == MOEPAGE_E_DEVICE)
        return moepage_status_text(status); /* the image is not at fault */

    /* Another expert's failure came after this one's. */
    if (mp_model_check_image(model, key / transfer->experts, key % transfer->experts,
                             transfer->bus_form) == status) {
        snprintf(out, capacity, "%s", moepage_last_error());
        return out;
    }
    char last[MP_FAILURE_BYTES];
    mp_failure_recall_status(&transfer->failure, status, last, sizeof last);
    if (!*last && transfer->tier)
        mp_failure_recall_status(&transfer->tier->failure, status, last, sizeof last);
    if (!*last)
        return moepage_status_text(status);
    snprintf(out, capacity, "%s; the last such failure: %s", moepage_status_text(status), last);
    return out;
}

/* ---- rates ---- */

bool mp_transfer_decodes(const mp_transfer *transfer)
{
    return transfer->staging.n > 0;
}

static uint64_t bytes_on_bus(const mp_transfer *transfer)
{
    return mp_transfer_image(transfer, 0, transfer->bus_form).bytes;
}

/* Returns the dense bytes that one byte on the bus stands for. */
static double gain(const mp_transfer *transfer)
{
    return (double)transfer->slot_bytes / (double)bytes_on_bus(transfer);
}

mp_rates mp_transfer_measured_rates(const mp_transfer *transfer)
{
    return transfer->rates;
}

mp_rates mp_transfer_live_rates(const mp_transfer *transfer)
{
    uint64_t bus = mp_rate_per_s(&transfer->probes[MP_PROBE_BUS].rate);
    return (mp_rates){
        .bus = (uint64_t)((double)bus * gain(transfer)),
        .decode = mp_rate_per_s(&transfer->probes[MP_PROBE_DECODE].rate),
        .cold = mp_rate_per_s(&transfer->probes[MP_PROBE_COLD].rate),
    };
}

double mp_transfer_bus_ns(const mp_transfer *transfer)
{
    double measured = transfer->rates.bus ? 1e9 / (double)transfer->rates.bus * gain(transfer) : 0;
    return mp_rate_ns(&transfer->probes[MP_PROBE_BUS].rate, measured);
}

double mp_transfer_load_ns(const mp_transfer *transfer)
{
    return mp_transfer_bus_ns(transfer) * (double)bytes_on_bus(transfer);
}

/* ---- sums ---- */

/* Returns the smaller of two figures, of which 0 means not known. */
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

mp_transfer_counters *mp_transfer_get_counters(mp_transfer *transfer)
{
    return &transfer->counters;
}

/* Adds to the sums over devices; for rates, page sizes and nodes it keeps the worst. */
void mp_transfer_describe(const mp_transfer *transfer, moepage_expert_pool_info *info)
{
    const mp_transfer_counters *counters = &transfer->counters;
    mp_rates live = mp_transfer_live_rates(transfer);
    info->demand_bytes += counters->demand_bytes;
    info->prefetch_bytes += counters->prefetch_bytes;
    info->decodes += counters->decodes;
    info->compressed_loads += counters->compressed_loads;
    info->compressed_experts += transfer->compressed.landed / transfer->layers;
    info->staging_bytes += transfer->staging.bytes;
    info->bus_bytes_per_s = smaller(info->bus_bytes_per_s, transfer->rates.bus);
    info->decode_bytes_per_s = smaller(info->decode_bytes_per_s, transfer->rates.decode);
    info->cold_bytes_per_s = smaller(info->cold_bytes_per_s, transfer->rates.cold);
    info->live_bus_bytes_per_s = smaller(info->live_bus_bytes_per_s, live.bus);
    info->live_decode_bytes_per_s = smaller(info->live_decode_bytes_per_s, live.decode);
    info->live_cold_bytes_per_s = smaller(info->live_cold_bytes_per_s, live.cold);
    const mp_host_tier *tier = transfer->tier;
    if (!tier)
        return;
    bool first = info->host_tier_bytes == 0;
    info->host_tier_bytes += tier->memory.bytes;
    info->host_tier_experts += tier->n_entries;
    info->host_tier_resident += tier->n_valid;
    info->host_page_bytes = (uint32_t)smaller(info->host_page_bytes, tier->memory.page_bytes);
    info->host_node = first || tier->memory.node < 0 ? tier->memory.node : info->host_node;
    info->host_hits += tier->hits;
    info->cold_reads += tier->reads;
    info->cold_bytes += tier->cold_bytes;
    info->cold_buffered_reads += tier->buffered;
}
