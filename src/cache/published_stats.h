/* published_stats.h — what the sessions of a cache have done, readable from any thread.
 *
 * A session publishes its sums when a step ends: its thread alone writes them, without a lock, so
 * that a step's end costs no more than its stores. They go to the one of two places that readers are
 * not told of: a reader looks again only if a step ended while it read, and never waits for a writer
 * that has been stopped half way. It sees each step whole or not at all. The sums of sessions that have
 * left stay with the cache. */
#ifndef MP_CACHE_PUBLISHED_STATS_H
#define MP_CACHE_PUBLISHED_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/session_stats.h"
#include "cache/cache.h"

typedef struct mp_published_stats {
    _Atomic uint32_t turn; /* what was published so often is at its parity */
    _Atomic uint64_t counters[2][MP_STATS_COUNTERS];
} mp_published_stats;

/* The client leaves: what it published becomes the cache's. The lock is held. */
void mp_cache_keep_stats(mp_cache *cache, const mp_client *client);

/* Sums over all clients, past ones too. Takes the lock. */
void mp_cache_get_stats(mp_cache *cache, moepage_session_stats *out);

#endif
