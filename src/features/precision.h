/* precision.h — sessions over a pool with two versions of every expert: the configurations they may
 * have, and hooks that hold versions and count selections. */
#ifndef MP_FEATURES_PRECISION_H
#define MP_FEATURES_PRECISION_H

#include "session/step_hooks.h"

/* Checks that the pool can serve the config; AUTO is replaced by the pool's only regime.
 * Fails with UNSUPPORTED. */
moepage_status mp_precision_check(const mp_pool_shape *shape, moepage_session_config *config);

/* Attaches the hooks that the pool's versions need; none for other pools. */
void mp_precision_attach(struct moepage_session *session);

#endif
