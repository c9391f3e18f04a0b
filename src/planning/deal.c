/* Dealing experts, and amounts, to devices of different weights. */
#include "planning/deal.h"

#include <stdbool.h>

typedef unsigned __int128 wide;

/* Returns true if device a comes before b: a's weight for each of its experts is larger. */
static bool comes_first(const mp_deal *deal, uint32_t a, uint32_t b)
{
    return (wide)deal->weights[a] * (2 * (wide)deal->members[b] + 1) >
           (wide)deal->weights[b] * (2 * (wide)deal->members[a] + 1);
}

static uint32_t next_device(const mp_deal *deal, uint32_t expert)
{
    uint32_t best = 0;
    if (expert < deal->n) /* each gets one */
        return expert;
    for (uint32_t d = 1; d < deal->n; d++)
        best = comes_first(deal, d, best) ? d : best;
    return best;
}

void mp_deal_out(mp_deal *deal, uint32_t experts)
{
    uint32_t first = 0;
    deal->experts = experts;
    for (uint32_t d = 0; d < deal->n; d++)
        deal->members[d] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t d = next_device(deal, e);
        deal->device_of[e] = (uint8_t)d;
        deal->rank_of[e] = deal->members[d]++;
    }
    for (uint32_t d = 0; d < deal->n; d++) {
        deal->first[d] = first;
        first += deal->members[d];
    }
    for (uint32_t e = 0; e < experts; e++)
        deal->expert_at[deal->first[deal->device_of[e]] + deal->rank_of[e]] = e;
}

uint32_t mp_deal_part(const mp_deal *deal, uint32_t device, uint32_t total)
{
    uint32_t part = 0;
    if (deal->n == 1)
        return total < deal->experts ? total : deal->experts;
    for (uint32_t e = 0; e < total && e < deal->experts; e++)
        part += deal->device_of[e] == device;
    return part;
}

uint64_t mp_deal_share(const mp_deal *deal, uint32_t device, uint64_t total)
{
    wide sum = 0, remainders[MP_DEAL_MOST];
    uint64_t left = total, share = 0;
    uint32_t ahead = 0; /* devices that get one of those left over before this one does */
    for (uint32_t d = 0; d < deal->n; d++)
        sum += deal->weights[d];
    if (sum == 0)
        return device == 0 ? total : 0;
    for (uint32_t d = 0; d < deal->n; d++) {
        wide part = (wide)total * deal->weights[d];
        remainders[d] = part % sum;
        left -= (uint64_t)(part / sum);
        share = d == device ? (uint64_t)(part / sum) : share;
    }
    for (uint32_t d = 0; d < deal->n; d++)
        ahead += remainders[d] > remainders[device] ||
                 (remainders[d] == remainders[device] && d < device);
    return share + (ahead < left);
}
