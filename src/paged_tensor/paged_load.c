/* A layer's bytes: a load of each of its experts, handed to the device's transfers.
 *
 * A passage is an expert of a buffer. All of a layer's are begun at once, unless the host tier has no
 * entry for one: then the rest waits for a transfer under way. On the bus they give way to the KV pool's
 * demands, in transfers of at most CHUNK_BYTES. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/status.h"
#include "paged_tensor/paged.h"

#define CHUNK_BYTES (2u << 20)
#define IMAGES_BYTES (8u << 20) /* copied in one go */

/* ---- life ---- */

moepage_status mp_paged_open_loads(struct moepage_paged *paged, const moepage_paged_config *config)
{
    const mp_paged_layout *layout = &paged->layout;
    const moepage_expert_pool_config tiers = mp_paged_tiers(config, paged->bus_form);
    paged->deal = (mp_deal){.n = 1,
                            .experts = paged->n_experts,
                            .weights = {1},
                            .members = {paged->n_experts}};
    mp_transfer_setup setup = {
        .home = paged->home,
        .model = paged->model,
        .lock = &paged->loads,
        .place_bytes = layout->unit,
        .slot_bytes = paged->model->info.slot_bytes,
        .images_at = paged->n_buffers * layout->unit,
        .scatter = layout->scatter,
        .deal = &paged->deal,
        .bus_form = paged->bus_form,
        .slot_form = MOEPAGE_FORM_DENSE,
        .in_turn = true,
    };
    const uint64_t passages = (uint64_t)paged->n_buffers * paged->n_experts;
    paged->open = mp_alloc_array(passages, sizeof *paged->open);
    if (!paged->open || passages >= UINT32_MAX)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the loads of %llu experts",
                       (unsigned long long)passages);
    moepage_status status = mp_transfer_open(&setup, &tiers, &paged->transfer);
    return status ? status : mp_transfer_set_passages(paged->transfer, (uint32_t)passages);
}

/* ---- ending ---- */

static void note_failure(struct moepage_paged *paged, uint32_t passage)
{
    mp_paged_buffer *buffer = &paged->buffers[passage / paged->n_experts];
    moepage_status status = mp_passage_result(paged->transfer, passage);
    if (!status || buffer->failure)
        return;
    buffer->failure = status;
    buffer->failed = passage % paged->n_experts;
}

/* Ends a passage that can fail no more. Returns false if its bytes in host memory are still being read: then
 * *obstacle is what it waits for. */
static bool end(struct moepage_paged *paged, uint32_t passage, mp_event *obstacle)
{
    mp_transfer *transfer = paged->transfer;
    if (!paged->open[passage])
        return true;
    if (mp_passage_uses_host_tier(transfer, passage) &&
        mp_passage_next_event(transfer, passage, obstacle))
        return false;
    note_failure(paged, passage);
    mp_passage_end(transfer, passage);
    paged->open[passage] = false;
    return true;
}

/* Ends what has landed, in any buffer; else *obstacle is what one of them waits for. */
static void end_landed(struct moepage_paged *paged, mp_event *obstacle)
{
    for (uint32_t p = 0; p < paged->n_buffers * paged->n_experts; p++)
        if (paged->open[p] && mp_passage_uses_host_tier(paged->transfer, p))
            (void)end(paged, p, obstacle);
}

moepage_status mp_paged_result(struct moepage_paged *paged, uint32_t layer, uint32_t index,
                               char why[MP_PAGED_WHY])
{
    const mp_paged_buffer *buffer = &paged->buffers[index];
    mp_event obstacle;
    char sentence[MP_PAGED_WHY];
    pthread_mutex_lock(&paged->loads);
    for (uint32_t p = index * paged->n_experts; p < (index + 1) * paged->n_experts; p++) {
        if (paged->open[p])
            note_failure(paged, p);
        (void)end(paged, p, &obstacle); /* or the next load does */
    }
    moepage_status status = buffer->failure;
    uint32_t key = layer * paged->n_experts + buffer->failed;
    pthread_mutex_unlock(&paged->loads);
    if (status)
        snprintf(why, MP_PAGED_WHY, "%s",
                 mp_transfer_explain(paged->transfer, key, status, sentence, sizeof sentence));
    return status;
}

/* ---- beginning ---- */

/* Makes way for a load into a buffer: ends that of its previous contents, whose readers it has to wait for. */
static moepage_status make_way(struct moepage_paged *paged, uint32_t buffer, mp_tick readers,
                               mp_paged_load *load)
{
    uint32_t first = buffer * paged->n_experts;
    for (uint32_t e = 0; e < paged->n_experts; e++)
        if (!end(paged, first + e, &load->obstacle))
            return MOEPAGE_E_BUSY;
    paged->buffers[buffer].failure = MOEPAGE_OK;
    return mp_transfer_follow(paged->transfer, paged->compute, readers);
}

/* Returns true if the load of an expert can begin, else what it waits for. */
static bool may_begin(struct moepage_paged *paged, uint32_t key, mp_event *obstacle)
{
    mp_transfer *transfer = paged->transfer;
    *obstacle = (mp_event){0};
    if (mp_transfer_may_start(transfer, key, MP_PIPE_DEMAND) == MP_START_NOW)
        return true;
    mp_transfer_flush(transfer); /* what is staged can be waited for */
    end_landed(paged, obstacle);
    if (mp_transfer_may_start(transfer, key, MP_PIPE_DEMAND) == MP_START_NOW)
        return true;
    if (!obstacle->stream)
        (void)mp_transfer_next_read(transfer, obstacle);
    return false;
}

static void begin(struct moepage_paged *paged, uint32_t key, uint32_t buffer, uint32_t passage)
{
    mp_transfer *transfer = paged->transfer;
    paged->open[passage] = true;
    mp_passage_begin(transfer, passage, key, paged->base + buffer * paged->layout.unit,
                     MP_PIPE_DEMAND);
    do
        mp_passage_advance(transfer, passage, MP_PIPE_DEMAND, CHUNK_BYTES);
    while (!mp_passage_is_submitted(transfer, passage));
}

static moepage_status begin_all(struct moepage_paged *paged, uint32_t layer, uint32_t buffer,
                                mp_tick readers, mp_paged_load *load)
{
    const uint32_t n = paged->n_experts, first = buffer * n;
    moepage_status status = MOEPAGE_OK;
    if (load->begun == 0)
        status = make_way(paged, buffer, readers, load);
    if (status)
        return status == MOEPAGE_E_BUSY ? MOEPAGE_OK : status;
    while (load->begun < n && may_begin(paged, layer * n + load->begun, &load->obstacle)) {
        begin(paged, layer * n + load->begun, buffer, first + load->begun);
        load->begun++;
    }
    mp_transfer_flush(paged->transfer);
    for (uint32_t e = 0; e < load->begun; e++)
        mp_passage_ends(paged->transfer, first + e, load->ends);
    return MOEPAGE_OK;
}

moepage_status mp_paged_submit(struct moepage_paged *paged, uint32_t layer, uint32_t buffer,
                               mp_tick readers, mp_paged_load *load)
{
    pthread_mutex_lock(&paged->loads);
    moepage_status status = begin_all(paged, layer, buffer, readers, load);
    pthread_mutex_unlock(&paged->loads);
    return status;
}

/* ---- compressed experts ---- */

bool mp_paged_copy_images(struct moepage_paged *paged, mp_event *next)
{
    mp_transfer *transfer = paged->transfer;
    pthread_mutex_lock(&paged->loads);
    mp_images_sweep(transfer);
    bool left = mp_images_pending(transfer);
    if (left) {
        (void)mp_images_advance(transfer, IMAGES_BYTES);
        *next = mp_transfer_last(transfer, MP_PIPE_PREFETCH);
    }
    pthread_mutex_unlock(&paged->loads);
    return left;
}
