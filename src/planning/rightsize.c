/* Sizes a working set from counts of uses. */
#include "planning/rightsize.h"

#include <math.h>

/* The chance that a bound does not hold. */
#define DOUBT 0.05

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

static mp_working_set count(const uint32_t *uses, uint64_t n)
{
    mp_working_set set = {0};
    for (uint64_t i = 0; i < n; i++) {
        set.choices += uses[i];
        set.seen += uses[i] > 0;
        set.singletons += uses[i] == 1;
    }
    return set;
}

void mp_rightsize(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out)
{
    *out = count(uses, n);
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

bool mp_rightsize_surely(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out)
{
    *out = count(uses, n);
    out->unseen = 1;
    if (!out->choices)
        return false;
    const double choices = (double)out->choices;
    const double once = n > out->seen ? (double)out->singletons / choices : 0;
    out->unseen = fmin(1, once + (1 + sqrt(2)) * sqrt(log(2 / DOUBT) / choices));
    const double wanted = ceil(coverage * choices / (1 - out->unseen));
    if (!(wanted <= choices))
        return false;
    out->experts = most_used(uses, n, (uint64_t)wanted);
    return true;
}

uint64_t mp_rightsize_seen(const uint32_t *uses, uint64_t n, double coverage)
{
    return most_used(uses, n, (uint64_t)ceil(coverage * (double)count(uses, n).choices));
}

/* The experts used more than `least` times, and `room` of those used as often. */
typedef struct top_set {
    uint64_t least, room;
} top_set;

static top_set top_of(const uint32_t *uses, uint64_t n, uint64_t most)
{
    const bool enough = used_at_least(uses, n, 1).experts >= most;
    const uint64_t least = enough ? threshold(uses, n, most, false) : 0;
    const uint64_t above = used_at_least(uses, n, least + 1).experts;
    return (top_set){least, most > above ? most - above : 0};
}

/* Asked once for each expert, in order. */
static bool is_in(top_set *top, uint32_t uses)
{
    const bool fits = uses == top->least && top->room;
    top->room -= fits;
    return fits || uses > top->least;
}

void mp_rightsize_mark(const uint32_t *uses, uint64_t n, uint64_t most, uint8_t *marks)
{
    top_set top = top_of(uses, n, most);
    for (uint64_t i = 0; i < n; i++)
        if (is_in(&top, uses[i]) && uses[i])
            marks[i] = 1;
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
    top_set top = top_of(uses, n, cap);
    uint64_t all = 0, held = 0;
    for (uint64_t i = 0; i < n; i++) {
        all += choices[i];
        held += is_in(&top, uses[i]) ? choices[i] : 0;
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
