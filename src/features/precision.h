/* precision.h — a session over a pool with two versions of every expert: what it may ask for, and what
 * its layers hold and count. Whoever has no such pool pays one comparison. */
#ifndef MP_FEATURES_PRECISION_H
#define MP_FEATURES_PRECISION_H

#include "session/session.h"

/* Is the config one that the pool can serve? AUTO becomes the regime that it has. UNSUPPORTED. */
moepage_status mp_precision_check(const struct moepage_expert_pool *pool,
                                  moepage_session_config *config);

/* A step is about to begin; nothing can fail any more. Or has ended, and holds nothing. */
void mp_precision_begin(struct moepage_session *session);
void mp_precision_end(struct moepage_session *session);

/* Holds a group's experts in the versions that the session computes with, without waiting. False:
 * this session waits for its experts. */
bool mp_precision_hold(struct moepage_session *session, mp_hold *holds, uint32_t n);

/* The layer is open: its choices count. */
void mp_precision_routed(struct moepage_session *session, const mp_flight *flight);

/* A group's low versions go to the stats: entries [first, first + n) of the flight. */
void mp_precision_count_low(struct moepage_session *session, const mp_flight *flight,
                            uint32_t first, uint32_t n);

#endif
