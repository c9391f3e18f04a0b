/* session_stats.h — sums of moepage_session_stats. */
#ifndef MP_BASE_SESSION_STATS_H
#define MP_BASE_SESSION_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

/* The first published form of moepage_session_stats ends before this. */
#define MP_STATS_MIN_BYTES offsetof(moepage_session_stats, streamed_layers)

/* Behind the size, moepage_session_stats is 64-bit counters and nothing else. */
#define MP_STATS_HEAD offsetof(moepage_session_stats, steps)
#define MP_STATS_COUNTERS ((sizeof(moepage_session_stats) - MP_STATS_HEAD) / sizeof(uint64_t))

typedef struct mp_stats_counters {
    uint64_t of[MP_STATS_COUNTERS];
} mp_stats_counters;

mp_stats_counters mp_stats_counters_of(const moepage_session_stats *stats);
void mp_stats_add_counters(moepage_session_stats *sum, const mp_stats_counters *more);

/* *sum += *one, counter by counter. */
void mp_stats_add(moepage_session_stats *sum, const moepage_session_stats *one);

#endif
