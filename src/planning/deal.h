/* deal.h — which of a pool's devices has which experts. Pure functions of numbers.
 *
 * Every layer's experts are dealt out alike, one after the other, in proportion to what each device weighs,
 * such as the slots that it has: the next one goes to the device d for which weight_d / (2 n_d + 1) is
 * largest, n_d being the experts that it has by then (Sainte-Laguë), ties to the first. Before that each
 * device gets one, so that none is without. Devices of one weight so take turns: device e mod n has expert e.
 * Parts of fewer experts, of whatever kind, are those of the first of them: no more than a device has, and
 * never fewer for more. */
#ifndef MP_PLANNING_DEAL_H
#define MP_PLANNING_DEAL_H

#include <stdint.h>

#define MP_DEAL_MOST 16u /* devices */

typedef struct mp_deal {
    uint32_t n; /* devices, at most MP_DEAL_MOST */
    uint32_t experts;
    uint64_t weights[MP_DEAL_MOST];
    uint32_t members[MP_DEAL_MOST]; /* experts of a layer */
    uint8_t *device_of;             /* [experts] */
    uint32_t *rank_of;              /* [experts] among its device's, in their order */
    /* [experts] in the order of devices and ranks; those of device d begin at first[d] */
    uint32_t *expert_at;
    uint32_t first[MP_DEAL_MOST];
} mp_deal;

/* Fills in the tables, whose arrays the caller gives; n and weights are set. n <= experts. One device needs
 * no tables: n, experts, weights and members are enough. */
void mp_deal_out(mp_deal *deal, uint32_t experts);

/* Returns one device's part of `total` of each layer's experts. */
uint32_t mp_deal_part(const mp_deal *deal, uint32_t device, uint32_t total);

/* Returns one device's share of an amount: in proportion to the weights, whole units by largest
 * remainder, ties to the first. If it is no more than the weights' sum, no share is more than a weight. */
uint64_t mp_deal_share(const mp_deal *deal, uint32_t device, uint64_t total);

/* Returns the device of an expert, by its key in whichever layer (layer * experts + expert). */
static inline uint32_t mp_deal_device(const mp_deal *deal, uint32_t key)
{
    return deal->n == 1 ? 0 : deal->device_of[key % deal->experts];
}

static inline uint32_t mp_deal_expert(const mp_deal *deal, uint32_t device, uint32_t rank)
{
    return deal->n == 1 ? rank : deal->expert_at[deal->first[device] + rank];
}

#endif
