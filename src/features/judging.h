/* judging.h — the regime of MOEPAGE_REGIME_AUTO: counts what turns cost a session, and what they
 * would have cost it under the other regime.
 *
 * Layers share their slots, so the regime is one for all of them: a layer that caches beside others
 * that stream has neither regime's cost. Steps of decode alone have a choice of their own, and so
 * have the others: a prompt uses nearly all experts, and the steps between two prompts few. */
#ifndef MP_FEATURES_JUDGING_H
#define MP_FEATURES_JUDGING_H

#include "planning/regime.h"
#include "session/step_hooks.h"

typedef struct mp_judge mp_judge;

/* `step` outlives the judge. Fails with NO_MEMORY. */
moepage_status mp_judge_open(mp_step_view *step, mp_judge **out);
/* NULL is a no-op. */
void mp_judge_close(mp_judge *judge);
/* Forgets everything: caches. */
void mp_judge_reset(mp_judge *judge);

void mp_judge_begin(mp_judge *judge);
/* Returns the regime for the open step's layers. */
mp_regime mp_judge_regime(const mp_judge *judge);
/* Takes in what a layer was routed to. `before`: the n experts of its last turn. */
void mp_judge_routed(mp_judge *judge, const mp_flight *flight, const uint32_t *before, uint32_t n);
/* Takes in how the turn went; returns true if the regime has changed. */
bool mp_judge_retired(mp_judge *judge, const mp_flight *flight);

#endif
