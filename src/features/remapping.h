/* remapping.h — remapping at work in a session: the layers it applies to, their laws, and the
 * effective ids and weights.
 *
 * The caller's routing is remapped before anything else sees it: plans, groups, the FFN and
 * predictors work with the effective routing. A trace records the router's own choice. */
#ifndef MP_FEATURES_REMAPPING_H
#define MP_FEATURES_REMAPPING_H

#include "moepage.h"

/* Turns remapping on, or off (NULL). Fails with STATE while a step is open, or while a path runs
 * the session's layers. */
moepage_status mp_remapping_set(struct moepage_session *session,
                                const moepage_remap_config *config);

#endif
