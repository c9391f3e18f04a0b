/* A budget from the system's free memory, with a reserve and a band around it. */
#include "planning/follow.h"

static uint64_t bounded(const mp_follow_input *in, uint64_t budget)
{
    budget = budget < in->most ? budget : in->most;
    return budget > in->least ? budget : in->least;
}

uint64_t mp_follow_budget(const mp_follow_input *in)
{
    uint64_t half = in->reserve / 2, all;
    if (in->available >= half && in->available - half <= in->reserve)
        return bounded(in, in->budget);
    if (__builtin_add_overflow(in->held, in->available, &all))
        return in->most;
    return bounded(in, all > in->reserve ? all - in->reserve : 0);
}
