/* Sums of sessions' counters. */
#include "base/session_stats.h"

#include <string.h>

_Static_assert(MP_STATS_HEAD + MP_STATS_COUNTERS * sizeof(uint64_t) ==
                   sizeof(moepage_session_stats),
               "moepage_session_stats is its head and counters of 64 bits");

mp_stats_counters mp_stats_counters_of(const moepage_session_stats *stats)
{
    mp_stats_counters out;
    memcpy(out.of, (const unsigned char *)stats + MP_STATS_HEAD, sizeof out.of);
    return out;
}

void mp_stats_add_counters(moepage_session_stats *sum, const mp_stats_counters *more)
{
    mp_stats_counters all = mp_stats_counters_of(sum);
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        all.of[i] += more->of[i];
    memcpy((unsigned char *)sum + MP_STATS_HEAD, all.of, sizeof all.of);
}

void mp_stats_add(moepage_session_stats *sum, const moepage_session_stats *one)
{
    mp_stats_counters more = mp_stats_counters_of(one);
    mp_stats_add_counters(sum, &more);
}
