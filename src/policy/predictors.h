/* predictors.h — the available predictors, one line each. docs/adding-a-predictor.md says how to
 * add one. */
#ifndef MP_POLICY_PREDICTORS_H
#define MP_POLICY_PREDICTORS_H

#include "policy/predictor.h"

extern const mp_predictor mp_predictor_none;      /* predicts nothing */
extern const mp_predictor mp_predictor_previous;  /* what the layer used in the last iteration */
extern const mp_predictor mp_predictor_hit_count; /* the request's counts so far (MoE-Infinity) */
extern const mp_predictor mp_predictor_gate;      /* upcoming routers on this hidden state */
extern const mp_predictor mp_predictor_coactivation; /* decayed conditionals (WiSP app. C) */
extern const mp_predictor mp_predictor_maps;         /* expert maps (FineMoE section 4) */

/* Returns how often each expert was used, [layers * experts], from a state of
 * mp_predictor_coactivation: the counts for right-sizing. */
const uint32_t *mp_predictor_coactivation_uses(const void *state);

#endif
