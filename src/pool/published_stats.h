/* published_stats.h — what the sessions of a pool have done, for whoever asks the pool.
 *
 * A session publishes its sums when a step ends: its thread alone writes them, without a lock, so
 * that a step's end costs no more than its stores. They go to the one of two places that nobody is
 * told to read: a reader looks again only if a step ended while it read, and never waits for a writer
 * that has been stopped half way. It sees each step whole or not at all. What sessions that have left
 * had done stays with the pool. */
#ifndef MP_POOL_PUBLISHED_STATS_H
#define MP_POOL_PUBLISHED_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "pool/stats.h"

struct moepage_expert_pool;
struct mp_client;

/* Behind the size, moepage_session_stats is 64-bit counters and nothing else. */
#define MP_STATS_HEAD offsetof(moepage_session_stats, steps)
#define MP_STATS_COUNTERS ((sizeof(moepage_session_stats) - MP_STATS_HEAD) / sizeof(uint64_t))

typedef struct mp_published_stats {
    _Atomic uint32_t turn; /* what was published so often is at its parity */
    _Atomic uint64_t counters[2][MP_STATS_COUNTERS];
} mp_published_stats;

/* The session's sums since its creation, by its thread. Lock-free. */
void mp_pool_publish_stats(struct mp_client *client, const moepage_session_stats *stats);

/* The client leaves: what it published becomes the pool's. The pool's lock is held. */
void mp_pool_keep_stats(struct moepage_expert_pool *pool, const struct mp_client *client);

/* Sums over all sessions, past ones too. Takes the pool's lock. */
void mp_pool_get_stats(struct moepage_expert_pool *pool, moepage_session_stats *out);

#endif
