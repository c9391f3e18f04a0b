/* PagedTensor's part of the arena: its buffers at the low end, and above them the compressed experts, whose
 * number may change while layers come and go. Views never move. */
#include "base/status.h"
#include "paged_tensor/paged.h"

uint64_t mp_paged_bytes(const struct moepage_paged *paged, uint32_t compressed)
{
    const uint64_t view_bytes = paged->home->device->view_bytes;
    uint64_t images = (uint64_t)compressed * paged->n_layers * mp_images_bytes(paged->transfer);
    return paged->n_buffers * paged->layout.unit +
           (images + view_bytes - 1) / view_bytes * view_bytes;
}

uint32_t mp_paged_compressed(struct moepage_paged *paged)
{
    pthread_mutex_lock(&paged->loads);
    uint32_t compressed = mp_images_rounds(paged->transfer);
    pthread_mutex_unlock(&paged->loads);
    return compressed;
}

moepage_status mp_paged_claim(struct moepage_paged *paged, uint32_t compressed)
{
    return mp_arena_resize(&paged->home->arena, MP_SIDE_EXPERTS,
                           mp_paged_bytes(paged, compressed) / paged->home->device->view_bytes);
}

/* Images that go are decoded from no more; BUSY until the last decoding is done. */
static moepage_status shrink(struct moepage_paged *paged, uint32_t compressed)
{
    mp_images_limit(paged->transfer, compressed);
    if (!mp_images_quiet(paged->transfer, compressed))
        return mp_fail(MOEPAGE_E_BUSY, "compressed experts that go are still decoded or copied");
    mp_images_set(paged->transfer, compressed);
    return mp_paged_claim(paged, compressed);
}

static moepage_status grow(struct moepage_paged *paged, uint32_t compressed)
{
    mp_images_limit(paged->transfer, compressed); /* ends a shrink that was begun */
    moepage_status status = mp_paged_claim(paged, compressed);
    if (!status)
        mp_images_set(paged->transfer, compressed);
    return status ? mp_fail_within(status, "%u compressed experts per layer", compressed) : status;
}

moepage_status mp_paged_resize(struct moepage_paged *paged, uint32_t compressed)
{
    pthread_mutex_lock(&paged->lock);
    pthread_mutex_lock(&paged->loads);
    moepage_status status =
        compressed ? mp_images_check(paged->transfer, compressed, "the PagedTensor") : MOEPAGE_OK;
    if (!status)
        status = compressed < mp_images_rounds(paged->transfer) ? shrink(paged, compressed)
                                                                : grow(paged, compressed);
    /* Also where a failure has taken a shrink back. */
    paged->copying = mp_images_pending(paged->transfer);
    pthread_mutex_unlock(&paged->loads);
    paged->copied = (mp_event){0};
    if (paged->copying)
        mp_paged_kick(paged);
    pthread_mutex_unlock(&paged->lock);
    return status;
}
