/* The arena's bytes between a PagedTensor's compressed experts and a KV pool. */
#include "controllers/balance.h"

#include <math.h>

#include "base/status.h"

/* What the arena is divided into: compressed experts of each layer, and KV granules. */
typedef struct division {
    uint32_t compressed;
    uint64_t granules;
} division;

static moepage_status check(const struct moepage_paged *paged, const struct moepage_kv_pool *kv)
{
    if (mp_kv_pool_home(kv) != paged->home)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the PagedTensor and the KV pool live on different devices");
    if (mp_kv_pool_is_watched(kv))
        return mp_fail(MOEPAGE_E_BUSY, "the KV pool has a controller already");
    return MOEPAGE_OK;
}

/* KV gets its peak and the headroom, but what it has in use at least, and no more than the buffers leave; then
 * come as many images as fit, and KV gets what is left. Returns false if not even one granule is. */
static bool divide(const struct moepage_paged *paged, const mp_kv_shape *shape,
                   const mp_kv_survey *kv, double headroom, division *out)
{
    const uint64_t all = mp_arena_divisible(&paged->home->arena), least = mp_paged_bytes(paged, 0);
    const uint64_t left = all > least ? all - least : 0, most = left / shape->granule_bytes;
    uint64_t wanted = (uint64_t)ceil((double)kv->burst_peak * (1 + headroom));
    wanted = wanted > kv->used ? wanted : kv->used;
    uint64_t granules = mp_kv_shape_granules(shape, wanted ? wanted : 1);
    granules = granules < most ? granules : most;
    *out = (division){.granules = granules};
    if (!most)
        return false;
    if (mp_paged_bytes(paged, 1) > least) /* some can be kept compressed */
        while (out->compressed < paged->n_experts &&
               mp_paged_bytes(paged, out->compressed + 1) - least <=
                   left - granules * shape->granule_bytes)
            out->compressed++;
    out->granules =
        (left - (mp_paged_bytes(paged, out->compressed) - least)) / shape->granule_bytes;
    return true;
}

/* The side that shrinks goes first. */
static moepage_status move(struct moepage_paged *paged, struct moepage_kv_pool *kv,
                           uint32_t compressed, const division *to, void *stream)
{
    uint64_t blocks = to->granules * mp_kv_pool_shape(kv)->blocks_per_granule;
    moepage_status status = MOEPAGE_OK;
    if (to->compressed < compressed)
        status = mp_paged_resize(paged, to->compressed);
    if (!status && blocks != mp_kv_pool_look(kv).blocks)
        status = mp_kv_pool_resize(kv, blocks, stream);
    if (!status && to->compressed > compressed)
        status = mp_paged_resize(paged, to->compressed);
    return status;
}

moepage_status mp_balance(struct moepage_paged *paged, struct moepage_kv_pool *kv, double headroom,
                          void *stream, moepage_controller_report *report)
{
    const mp_kv_shape *shape = mp_kv_pool_shape(kv);
    moepage_status status = check(paged, kv);
    if (status)
        return status;
    const mp_kv_survey now = mp_kv_pool_look(kv);
    const uint32_t compressed = mp_paged_compressed(paged);
    division to;
    if (!divide(paged, shape, &now, headroom, &to))
        to = (division){compressed, now.blocks / shape->blocks_per_granule};
    uint64_t blocks = to.granules * shape->blocks_per_granule;
    bool here = to.compressed == compressed && blocks == now.blocks;
    if (!here)
        status = move(paged, kv, compressed, &to, stream);
    if (status != MOEPAGE_E_BUSY)
        mp_kv_pool_begin_burst(kv);
    *report = (moepage_controller_report){
        .outcome = here                       ? MOEPAGE_CONTROL_STAYS
                   : !status                  ? MOEPAGE_CONTROL_MOVED
                   : status == MOEPAGE_E_BUSY ? MOEPAGE_CONTROL_DRAINING
                                              : MOEPAGE_CONTROL_REFUSED,
        .kv_blocks = mp_kv_pool_look(kv).blocks,
        .target_blocks = blocks,
        .compressed_experts = mp_paged_compressed(paged),
        .target_compressed = to.compressed,
    };
    return status == MOEPAGE_E_BUSY || status == MOEPAGE_E_BUDGET ? MOEPAGE_OK : status;
}
