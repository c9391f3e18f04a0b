/* remapping.h — remapping at work in a session: which layers it is asked for, with which law, and
 * where the effective ids and weights are kept.
 *
 * What is remapped is the caller's routing, before anything else sees it: plans, groups, the FFN and
 * predictors have the effective one. A trace has what the router chose. */
#ifndef MP_FEATURES_REMAPPING_H
#define MP_FEATURES_REMAPPING_H

#include "moepage.h"

struct moepage_session;

moepage_status mp_remapping_set(struct moepage_session *session,
                                const moepage_remap_config *config);
void mp_remapping_close(struct moepage_session *session);

/* Remaps a checked routing: points `effective`, a copy of it, to other ids and weights, or leaves it
 * as it is. ARGUMENT without logits, or for logits that are not finite. Ids out of range and weights
 * are for the caller to refuse. */
moepage_status mp_remapping_apply(struct moepage_session *session, uint32_t layer,
                                  moepage_routing *effective);

/* The layer has been routed: counts what was done about it. */
void mp_remapping_routed(struct moepage_session *session);

#endif
