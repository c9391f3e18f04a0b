/* Chooses the experts of a layer to keep in high precision. */
#include "planning/hotness.h"

void mp_precision_age(const mp_precision_law *law, double *hotness, uint32_t *counts,
                      uint32_t experts)
{
    for (uint32_t e = 0; e < experts; e++) {
        hotness[e] = law->alpha * hotness[e] + (1 - law->alpha) * counts[e];
        counts[e] = 0;
    }
}

/* Returns the hottest expert outside the set, or the coldest inside, that is not taken; UINT32_MAX
 * if there is none. */
static uint32_t extreme(const double *hotness, const bool *high, const uint32_t *taken,
                        uint32_t experts, bool inside)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t e = 0; e < experts; e++) {
        if (high[e] != inside || taken[e])
            continue;
        if (best == UINT32_MAX ||
            (inside ? hotness[e] < hotness[best] : hotness[e] > hotness[best]))
            best = e;
    }
    return best;
}

/* Pairs the hottest expert outside with the coldest inside as long as the exchange is worth it: one
 * pass over the experts per change, and changes are few. */
uint32_t mp_precision_select(const mp_precision_law *law, const double *hotness, const bool *high,
                             uint32_t experts, uint32_t n_hi, uint32_t *order,
                             mp_precision_swap *out)
{
    uint32_t n = 0, size = 0;
    for (uint32_t e = 0; e < experts; e++) {
        size += high[e];
        order[e] = 0;
    }
    while (n < n_hi) {
        bool full = size >= n_hi;
        uint32_t hottest = extreme(hotness, high, order, experts, false);
        uint32_t coldest = full ? extreme(hotness, high, order, experts, true) : UINT32_MAX;
        if (hottest == UINT32_MAX || (full && coldest == UINT32_MAX))
            break;
        double least = full ? hotness[coldest] : 0;
        if (!(hotness[hottest] > (1 + law->margin) * least + law->floor))
            break;
        order[hottest] = 1;
        if (full)
            order[coldest] = 1;
        else
            size++;
        out[n++] = (mp_precision_swap){.in = hottest, .out = coldest};
    }
    return n;
}

uint32_t mp_precision_capacity(uint64_t bytes, uint32_t layers, uint32_t experts, uint64_t hi_bytes,
                               uint64_t lo_bytes, bool lo_always, uint32_t spare)
{
    typedef unsigned __int128 wide;
    wide low = lo_always ? experts : (wide)experts + spare;
    wide fixed = low * lo_bytes * layers, each = hi_bytes;
    if (fixed > bytes)
        return UINT32_MAX;
    if (!lo_always) /* a high version replaces a low one */
        each = hi_bytes > lo_bytes ? hi_bytes - lo_bytes : 0;
    each *= layers;
    if (each == 0)
        return experts;
    wide n = (bytes - fixed) / each;
    return n < experts ? (uint32_t)n : experts;
}
