/* precision.h — a session over a pool with two versions of every expert: what it may ask for, and what
 * its layers hold and count. */
#ifndef MP_FEATURES_PRECISION_H
#define MP_FEATURES_PRECISION_H

#include "session/step_hooks.h"

/* Checks that the pool can serve the config. AUTO becomes the regime that it has. UNSUPPORTED. */
moepage_status mp_precision_check(const mp_pool_shape *shape, moepage_session_config *config);

/* Attaches what the pool's versions ask for; nothing for other pools. */
void mp_precision_attach(struct moepage_session *session);

#endif
