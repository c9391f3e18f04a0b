/* stats.h — sums of moepage_session_stats, and how small a caller's may be. */
#ifndef MP_POOL_STATS_H
#define MP_POOL_STATS_H

#include <stddef.h>

#include "moepage.h"

/* The first published form of moepage_session_stats ends before this. */
#define MP_STATS_MIN_BYTES offsetof(moepage_session_stats, streamed_layers)

/* *sum += *one, counter by counter. */
void mp_stats_add(moepage_session_stats *sum, const moepage_session_stats *one);

#endif
