/* Sizes a working set from counts of uses. */
#include "planning/rightsize.h"

#include <math.h>
#include <stdbool.h>

typedef struct top_uses {
    uint64_t experts;
    uint64_t uses; /* sum of their uses */
} top_uses;

/* Counts the experts used at least `least` times, and their uses. */
static top_uses used_at_least(const uint32_t *uses, uint64_t n, uint64_t least)
{
    top_uses found = {0};
    for (uint64_t i = 0; i < n; i++) {
        found.experts += uses[i] >= least;
        found.uses += uses[i] >= least ? uses[i] : 0;
    }
    return found;
}

/* Returns the largest threshold, at least 1, such that `enough` experts (or, with `of_uses`, uses)
 * are at or above it. */
static uint64_t threshold(const uint32_t *uses, uint64_t n, uint64_t enough, bool of_uses)
{
    uint64_t low = 1, high = UINT32_MAX;
    while (low < high) {
        uint64_t middle = (low + high + 1) / 2;
        top_uses top = used_at_least(uses, n, middle);
        if ((of_uses ? top.uses : top.experts) >= enough)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Returns the least number of experts that have `wanted` uses together; the experts have that many
 * in total. */
static uint64_t most_used(const uint32_t *uses, uint64_t n, uint64_t wanted)
{
    if (!wanted)
        return 0;
    uint64_t least = threshold(uses, n, wanted, true);
    top_uses above = used_at_least(uses, n, least + 1);
    return above.experts + (wanted - above.uses + least - 1) / least;
}

void mp_rightsize(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out)
{
    *out = (mp_working_set){0};
    for (uint64_t i = 0; i < n; i++) {
        out->choices += uses[i];
        out->seen += uses[i] > 0;
        out->singletons += uses[i] == 1;
    }
    if (!out->choices)
        return;
    const uint64_t not_seen = n - out->seen, lost = not_seen ? out->singletons : 0;
    const double choices = (double)out->choices, kept = (double)(out->choices - lost);
    out->unseen = (double)lost / choices;
    /* kept / choices * uses / choices >= coverage, without a quotient that rounds before
     * the final one */
    double wanted = kept > 0 ? ceil(coverage * choices * choices / kept) : INFINITY;
    if (wanted <= choices) {
        out->experts = most_used(uses, n, (uint64_t)wanted);
        return;
    }
    /* lost > 0: without a loss, the seen experts alone would have covered everything. */
    double more = ceil((coverage * choices - kept) * (double)not_seen / (double)lost);
    out->experts = out->seen + (more < (double)not_seen ? (uint64_t)more : not_seen);
}

uint64_t mp_rightsize_per_layer(const uint32_t *uses, uint32_t layers, uint32_t experts,
                                double coverage)
{
    uint64_t cap = 0;
    for (uint32_t l = 0; l < layers; l++) {
        mp_working_set set;
        mp_rightsize(uses + (uint64_t)l * experts, experts, coverage, &set);
        cap = set.experts > cap ? set.experts : cap;
    }
    return cap;
}

double mp_rightsize_covered(const uint32_t *uses, const uint32_t *choices, uint64_t n, uint64_t cap)
{
    bool enough = used_at_least(uses, n, 1).experts >= cap;
    uint64_t all = 0, held = 0, least = enough ? threshold(uses, n, cap, false) : 0;
    uint64_t above = used_at_least(uses, n, least + 1).experts,
             room = cap > above ? cap - above : 0;
    for (uint64_t i = 0; i < n; i++) {
        bool fits = uses[i] == least && room;
        room -= fits;
        all += choices[i];
        held += fits || uses[i] > least ? choices[i] : 0;
    }
    return all ? (double)held / (double)all : 0;
}

void mp_next_expert_count(mp_next_expert *count, const uint32_t *predicted, uint32_t n_predicted,
                          uint32_t top_k, const uint32_t *routed, uint32_t n_routed)
{
    uint32_t n = n_predicted < top_k ? n_predicted : top_k;
    count->predicted += n;
    for (uint32_t i = 0; i < n; i++) {
        bool right = false;
        for (uint32_t j = 0; j < n_routed; j++)
            right = right || routed[j] == predicted[i];
        count->routed += right;
    }
}

double mp_next_expert_precision(const mp_next_expert *count)
{
    return count->predicted ? (double)count->routed / (double)count->predicted : 0;
}
