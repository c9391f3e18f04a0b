/* remapping.h — remapping at work in a session: which layers it is asked for, with which law, and
 * where the effective ids and weights are kept.
 *
 * What is remapped is the caller's routing, before anything else sees it: plans, groups, the FFN and
 * predictors have the effective one. A trace has what the router chose. */
#ifndef MP_FEATURES_REMAPPING_H
#define MP_FEATURES_REMAPPING_H

#include "moepage.h"

/* Turns it on, or off (NULL). STATE while a step is open, or while a path runs the session's layers. */
moepage_status mp_remapping_set(struct moepage_session *session,
                                const moepage_remap_config *config);

#endif
