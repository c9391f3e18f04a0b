/* What stands behind a device's places, as told to others: images lent out of host memory, why one
 * cannot be had, bandwidths, and sums for moepage_expert_pool_info. */
#include <stdio.h>

#include "base/status.h"
#include "model/dtype.h"
#include "transfer/inside.h"

/* ---- images in host memory ---- */

/* Kernels need the alignment of an element; a checkpoint's mapping promises nothing. */
static bool has_aligned_pieces(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    if (!model->sources)
        return false;
    const void **sources = model->sources + mp_model_source_index(model, layer, expert);
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        const moepage_expert_tensor *tensor = &model->tensors[model->pieces[p].tensor];
        if ((uintptr_t)sources[p] % mp_dtype_bytes(tensor->dtype))
            return false;
    }
    return true;
}

/* A damaged image is not computed with: its load, which must fail, says what is wrong. */
static const unsigned char *sound_image(const mp_transfer *transfer, uint32_t layer,
                                        uint32_t expert)
{
    mp_image image;
    mp_model_find_image(transfer->model, layer, expert, MOEPAGE_FORM_DENSE, &image);
    if (image.mapped && mp_home_has_bytes(transfer->home) &&
        mp_model_check_mapped(transfer->model, layer, expert, MOEPAGE_FORM_DENSE))
        return NULL;
    return image.mapped;
}

bool mp_transfer_may_lend(const mp_transfer *transfer, uint32_t layer, uint32_t expert,
                          bool in_pieces, const unsigned char **mapped)
{
    *mapped = NULL;
    if (transfer->tier)
        return transfer->tier->form == MOEPAGE_FORM_DENSE;
    if (!mp_model_keeps_images(transfer->model))
        return in_pieces && has_aligned_pieces(transfer->model, layer, expert);
    *mapped = sound_image(transfer, layer, expert);
    return *mapped != NULL;
}

/* Returns true if an entry is left for others, besides those in use and this one. A load lets go of its
 * entry when it ends; an entry that is computed from stays until its plan ends, which may itself need
 * another. */
static bool leaves_room(const mp_host_tier *tier, uint32_t index)
{
    uint32_t other = tier->valid.oldest;
    if (tier->n_empty > 0)
        return true;
    while (other != MP_NO_ENTRY && (other == index || tier->entries[other].users > 0))
        other = tier->entries[other].newer;
    return other != MP_NO_ENTRY;
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
    *out = '\0';
    if (status == MOEPAGE_E_BUSY || status == MOEPAGE_E_DEVICE)
        return moepage_status_text(status); /* not the image's fault */
    if (transfer->tier)
        mp_host_tier_failure(transfer->tier, key, out, capacity);
    else if (model->pack && mp_model_check_mapped(model, key / transfer->experts,
                                                  key % transfer->experts, transfer->bus_form))
        snprintf(out, capacity, "%s", moepage_last_error());
    return *out ? out : moepage_status_text(status);
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

/* Dense bytes per byte on the bus. */
static double gain(const mp_transfer *transfer)
{
    return (double)transfer->place_bytes / (double)bytes_on_bus(transfer);
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

/* The smaller of two figures; 0 is not known. */
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

mp_transfer_counters *mp_transfer_get_counters(mp_transfer *transfer)
{
    return &transfer->counters;
}

/* Adds to sums over devices; of rates, page sizes and nodes keeps the worst. */
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
