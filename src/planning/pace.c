/* Medians by groups of tokens, and a burst's mean over them. */
#include "planning/pace.h"

#define EXACT 8u /* numbers of tokens with a group of their own */

static uint32_t group_of(uint32_t tokens)
{
    uint32_t halvings = 0;
    if (tokens <= EXACT)
        return tokens;
    while (tokens >> halvings >= 2 * EXACT)
        halvings++;
    bool upper = tokens >> halvings >= EXACT + EXACT / 2;
    uint32_t group = EXACT + 1 + 2 * halvings + upper;
    return group < MP_PACE_GROUPS ? group : MP_PACE_GROUPS - 1;
}

void mp_pace_add(mp_pace *pace, uint32_t tokens, uint32_t layers, uint64_t routed, double busy_ns)
{
    mp_pace_group *group = &pace->groups[group_of(tokens)];
    if (layers == 0)
        return;
    if (pace->ended)
        for (uint32_t i = 0; i < MP_PACE_GROUPS; i++)
            pace->groups[i].steps = 0;
    pace->ended = false;
    mp_rate_add(&group->layer_ns, layers, busy_ns);
    mp_rate_add(&group->routed, layers, (double)routed);
    group->steps++;
}

void mp_pace_end_burst(mp_pace *pace)
{
    pace->ended = true;
}

/* Returns the mean of one of the medians over the burst's steps of decode alone; over those with prompts if there
 * are no others. */
static double mean(const mp_pace *pace, bool of_routed)
{
    double sum = 0, steps = 0;
    for (uint32_t i = MP_PACE_GROUPS; i-- > 0;) {
        const mp_pace_group *group = &pace->groups[i];
        double value = mp_rate_ns(of_routed ? &group->routed : &group->layer_ns, 0);
        if (value > 0 && (i > 0 || steps == 0)) {
            sum += value * group->steps;
            steps += group->steps;
        }
    }
    return steps > 0 ? sum / steps : 0;
}

double mp_pace_layer_ns(const mp_pace *pace)
{
    return mean(pace, false);
}

double mp_pace_routed(const mp_pace *pace)
{
    return mean(pace, true);
}
