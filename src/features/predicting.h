/* predicting.h — a session's predictor at work: what is routed goes to it, what it names is fetched.
 *
 *   session's thread                        device's task thread
 *   begin, route, end --> bounded queue --> observe, predict --> the pool's prefetcher
 *                         (newest wins)
 *
 * The step's path copies what was routed into the queue and goes on. Where the task falls behind,
 * the oldest layers in the queue are lost to it, and counted. Guesses are judged against what is
 * routed whether they were acted on or not; control/payoff.h decides from that and from measured
 * steps whether they are (WiSP section 4), per layer and for the session. */
#ifndef MP_FEATURES_PREDICTING_H
#define MP_FEATURES_PREDICTING_H

#include <stdbool.h>

#include "moepage.h"

struct moepage_session;
struct mp_flight;

/* With MOEPAGE_PREFETCH_PREDICTOR; nothing otherwise. ARGUMENT for a predictor of another model's
 * shape; NO_MEMORY. The session has joined its pool. */
moepage_status mp_predicting_open(struct moepage_session *session);
/* Waits for the task. */
void mp_predicting_close(struct moepage_session *session);

/* ARGUMENT for embeddings of another length than the predictor's. */
moepage_status mp_predicting_check(const struct moepage_session *session, const moepage_step *step);
void mp_predicting_begin(struct moepage_session *session, const moepage_step *step);
/* The layer's turn has come: nothing is fetched for it any more. Before what is wanted for it is
 * dropped; `routed` comes after. */
void mp_predicting_came(struct moepage_session *session, uint32_t layer);
void mp_predicting_routed(struct moepage_session *session, const struct mp_flight *flight,
                          const moepage_routing *routing);
/* The step's stats are complete; `whole`: it was not cancelled. */
void mp_predicting_end(struct moepage_session *session, bool whole);

moepage_status mp_predicting_info(struct moepage_session *session, uint32_t layer,
                                  moepage_prefetch_info *info);

#endif
