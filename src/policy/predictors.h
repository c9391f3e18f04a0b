/* predictors.h — the predictors there are, one line each. docs/adding-a-predictor.md says how to add
 * one. */
#ifndef MP_POLICY_PREDICTORS_H
#define MP_POLICY_PREDICTORS_H

#include "policy/predictor.h"

extern const mp_predictor mp_predictor_none;      /* nothing */
extern const mp_predictor mp_predictor_previous;  /* what the layer used in the last iteration */
extern const mp_predictor mp_predictor_hit_count; /* the request's counts so far (MoE-Infinity) */
extern const mp_predictor mp_predictor_gate;      /* later routers on this hidden state */
extern const mp_predictor mp_predictor_coactivation; /* decayed conditionals (WiSP app. C) */
extern const mp_predictor mp_predictor_maps;         /* expert maps (FineMoE section 4) */

/* How often each expert was used, [layers * experts], as a state of mp_predictor_coactivation has it:
 * what right-sizing counts. */
const uint32_t *mp_predictor_coactivation_uses(const void *state);

#endif
