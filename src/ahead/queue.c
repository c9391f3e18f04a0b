/* The queue of wants: hints in their order, then guesses by urgency (FineMoE 4.5). A want is
 * dropped when its layer's turn has come. The lock is held. */
#include "ahead/inside.h"

static void forget(mp_ahead *ahead, const mp_want *want)
{
    ahead->wanted[want->key] = false;
    atomic_fetch_sub(&ahead->pending, 1);
}

/* Returns p / (layers until its turn), for the nearest session that may have wanted it. */
static float urgency(const mp_ahead *ahead, const mp_want *want)
{
    uint32_t layer = want->key / ahead->experts;
    if (want->p >= MP_HINTED)
        return want->p;
    return want->p / (float)(want->client != MP_SHARED_WANT
                                 ? mp_cache_layers_to(ahead->cache, want->client, layer)
                                 : mp_cache_nearest(ahead->cache, layer));
}

void mp_wants_bring_forward(mp_prefetcher *prefetcher)
{
    uint32_t best = 0;
    float most = -1;
    for (uint32_t i = 0; i < prefetcher->count && most < MP_HINTED; i++) {
        float urgent = urgency(prefetcher->ahead, mp_want_at(prefetcher, i));
        if (urgent > most) {
            most = urgent;
            best = i;
        }
    }
    mp_want want = *mp_want_at(prefetcher, best);
    for (uint32_t i = best; i > 0; i--)
        *mp_want_at(prefetcher, i) = *mp_want_at(prefetcher, i - 1);
    *mp_want_at(prefetcher, 0) = want;
}

mp_want mp_wants_pop(mp_prefetcher *prefetcher)
{
    mp_want want = *mp_want_at(prefetcher, 0);
    prefetcher->head = (prefetcher->head + 1) % prefetcher->capacity;
    prefetcher->count--;
    forget(prefetcher->ahead, &want);
    return want;
}

void mp_wants_drop(mp_prefetcher *prefetcher, uint32_t client, uint32_t layer)
{
    mp_ahead *ahead = prefetcher->ahead;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < prefetcher->count; i++) {
        mp_want want = *mp_want_at(prefetcher, i);
        bool drop = (client == UINT32_MAX || want.client == client) &&
                    (layer == UINT32_MAX || want.key / ahead->experts == layer);
        if (!drop) {
            *mp_want_at(prefetcher, kept++) = want;
            continue;
        }
        forget(ahead, &want);
        ahead->cancelled++;
    }
    prefetcher->count = kept;
}
