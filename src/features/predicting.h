/* predicting.h — a session's predictor at work: it observes the routing, and the experts that it
 * names are fetched.
 *
 *   session's thread                        device's task thread
 *   begin, route, end --> bounded queue --> observe, predict --> the pool's prefetcher
 *                         (newest wins)
 *
 * The step copies its routing into the queue and goes on. If the task falls behind, the oldest
 * layers in the queue are dropped and counted. Guesses are compared with the routing whether or not
 * they were acted on. From this and from measured steps, planning/payoff.h decides whether to act
 * on them (WiSP section 4), per layer and for the session. */
#ifndef MP_FEATURES_PREDICTING_H
#define MP_FEATURES_PREDICTING_H

#include "moepage.h"

/* Attaches prediction with MOEPAGE_PREFETCH_PREDICTOR, nothing otherwise. Fails with ARGUMENT for a
 * predictor of another model's shape, and with NO_MEMORY. */
moepage_status mp_predicting_attach(struct moepage_session *session);

moepage_status mp_predicting_info(struct moepage_session *session, uint32_t layer,
                                  moepage_prefetch_info *info);

#endif
