/* published_stats.h — the counters of a cache's sessions, readable from any thread.
 *
 * A session publishes its sums at the end of each step. Only its own thread writes them, and
 * without a lock, so that the end of a step costs no more than the stores. There are two places,
 * and the writer fills the one that readers are not directed to. A reader starts again only if a
 * step ended while it was reading, never waits for a writer that was interrupted half way, and sees
 * each step whole or not at all. The sums of sessions that have left stay with the cache. */
#ifndef MP_CACHE_PUBLISHED_STATS_H
#define MP_CACHE_PUBLISHED_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/session_stats.h"
#include "cache/cache.h"

typedef struct mp_published_stats {
    _Atomic uint32_t turn; /* steps published; the last one is in counters[turn % 2] */
    _Atomic uint64_t counters[2][MP_STATS_COUNTERS];
} mp_published_stats;

/* Adds what a leaving client has published to the cache's own sums. The lock is held. */
void mp_cache_keep_stats(mp_cache *cache, const mp_client *client);

/* Sums over all clients, including those that have left. Takes the lock. */
void mp_cache_get_stats(mp_cache *cache, moepage_session_stats *out);

#endif
