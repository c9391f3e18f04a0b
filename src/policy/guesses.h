/* guesses.h — common parts of predictors: the progress of a sequence's iteration, the number of
 * experts to name, and the selection of the most probable ones. */
#ifndef MP_POLICY_GUESSES_H
#define MP_POLICY_GUESSES_H

#include "policy/predictor.h"

/* Zero-filled: no layer of the iteration has been observed. */
typedef struct mp_progress {
    uint32_t any;
    uint32_t last;  /* most recently observed layer */
    uint32_t width; /* number of experts that it used */
} mp_progress;

static inline void mp_progress_note(mp_progress *progress, const mp_seen *seen)
{
    *progress = (mp_progress){1, seen->layer, seen->n_experts};
}

/* Returns true if `layer` belongs to the next iteration. */
static inline bool mp_progress_is_past(const mp_progress *progress, uint32_t layer)
{
    return progress->any && layer <= progress->last;
}

/* Returns how many experts `layer` may use: as many as the preceding layer, at least top_k; top_k
 * if its iteration has no observed layer yet, since the number of tokens is unknown. */
static inline uint32_t mp_progress_width(const mp_progress *progress, uint32_t layer,
                                         uint32_t top_k)
{
    bool known = progress->any && !mp_progress_is_past(progress, layer);
    return known && progress->width > top_k ? progress->width : top_k;
}

/* Moves the `keep` most probable of n guesses to the front, most probable first, equals by lower
 * id, and drops those of probability 0; returns the number left. */
uint32_t mp_guesses_best(mp_guess *guesses, uint32_t n, uint32_t keep);

#endif
