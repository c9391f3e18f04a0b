/* guesses.h — what predictors have in common: how far a sequence's iteration has come, how many
 * experts are worth naming, and which of them come first. */
#ifndef MP_POLICY_GUESSES_H
#define MP_POLICY_GUESSES_H

#include "policy/predictor.h"

/* Zero-filled: no layer of the iteration has been seen. */
typedef struct mp_progress {
    uint32_t any;
    uint32_t last;  /* layer seen last */
    uint32_t width; /* experts that it used */
} mp_progress;

static inline void mp_progress_note(mp_progress *progress, const mp_seen *seen)
{
    *progress = (mp_progress){1, seen->layer, seen->n_experts};
}

/* Is `layer` to be the next iteration's? */
static inline bool mp_progress_is_past(const mp_progress *progress, uint32_t layer)
{
    return progress->any && layer <= progress->last;
}

/* How many experts `layer` may use: as many as the layer before, at least top_k; top_k where there
 * is none in its iteration, for nobody knows how many tokens the next will have. */
static inline uint32_t mp_progress_width(const mp_progress *progress, uint32_t layer,
                                         uint32_t top_k)
{
    bool known = progress->any && !mp_progress_is_past(progress, layer);
    return known && progress->width > top_k ? progress->width : top_k;
}

/* Moves the `keep` most probable of n guesses to the front, most probable first, equals by lower
 * id, and leaves out those of probability 0; returns how many there are then. */
uint32_t mp_guesses_best(mp_guess *guesses, uint32_t n, uint32_t keep);

#endif
