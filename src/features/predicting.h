/* predicting.h — a session's predictor at work: what is routed goes to it, what it names is fetched.
 *
 *   session's thread                        device's task thread
 *   begin, route, end --> bounded queue --> observe, predict --> the pool's prefetcher
 *                         (newest wins)
 *
 * The step's path copies what was routed into the queue and goes on. Where the task falls behind,
 * the oldest layers in the queue are lost to it, and counted. Guesses are judged against what is
 * routed whether they were acted on or not; planning/payoff.h decides from that and from measured
 * steps whether they are (WiSP section 4), per layer and for the session. */
#ifndef MP_FEATURES_PREDICTING_H
#define MP_FEATURES_PREDICTING_H

#include "moepage.h"

/* With MOEPAGE_PREFETCH_PREDICTOR; nothing otherwise. ARGUMENT for a predictor of another model's
 * shape; NO_MEMORY. */
moepage_status mp_predicting_attach(struct moepage_session *session);

moepage_status mp_predicting_info(struct moepage_session *session, uint32_t layer,
                                  moepage_prefetch_info *info);

#endif
