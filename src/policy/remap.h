/* remap.h — batch-level remapping (LYNX section 3, appendix A): a decode batch does without the
 * experts that few of its tokens care about.
 *
 * Per layer, with router logits z (before the gate), and B tokens of top-k each:
 *   bin(t, e) = max(-beta, ceil(alpha * (z_te - max z_t)))          for e in t's own top-k
 *   score(e)  = sum over tokens t with e in their top-k of B^bin(t, e)
 *   z'(t, e)  = z(t, e) + score(e), and `resident` more for experts on the device
 *   kept      = the union over t of top-k(z'(t)) among the routed experts, and every token's first
 *               choice: its own choice with the largest z
 *   ids'(t)   = t's own choices that are kept, in their places; the places of the others take the
 *               best of the kept ones by z. Weights of a token with another set are the gate's over
 *               z at ids', times what gives them the sum of the caller's weights
 * That is the rule of moepage_cuda_remap_run, for any way of choosing the top-k: docs/remapping.md
 * says why it is this one. Exactly k distinct experts per token, none that no token was routed to;
 * a batch of one is left as it is. Deterministic: ties go to the lower id. Tokens with a
 * MOEPAGE_NO_EXPERT or an id twice are not of the batch: they keep what they have, and it is kept
 * for them. A function of numbers only. */
#ifndef MP_POLICY_REMAP_H
#define MP_POLICY_REMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

typedef struct mp_remap_law {
    float alpha;    /* bins per e-fold of probability, > 0 */
    float beta;     /* the last bin, > 0; beta / alpha <= 3; past 63 it is 63 */
    uint32_t gate;  /* MOEPAGE_GATE_* */
    float resident; /* added to z' of experts with a `resident` mark; 0 = no such preference */
} mp_remap_law;

typedef struct mp_remap_batch {
    uint32_t n_tokens, top_k, experts;
    const float *logits;     /* [n_tokens][experts], finite */
    const int32_t *ids;      /* [n_tokens][top_k] below `experts`, or MOEPAGE_NO_EXPERT; best first
                                or not */
    const float *weights;    /* [n_tokens][top_k] */
    const uint8_t *resident; /* [experts] 1 = on the device, or NULL */
} mp_remap_batch;

typedef struct mp_remap_result {
    uint32_t experts_before, experts_after; /* distinct, of all tokens */
    uint32_t tokens_changed;                /* whose set is another */
    uint32_t rows_changed;                  /* choices replaced */
} mp_remap_result;

uint64_t mp_remap_scratch_bytes(uint32_t max_tokens, uint32_t max_top_k, uint32_t experts);

/* Writes the effective ids and weights, apart from the batch's. Where nothing changes for a token
 * its ids and weights are the caller's, bit for bit. */
void mp_remap(const mp_remap_law *law, const mp_remap_batch *batch, void *scratch, int32_t *ids,
              float *weights, mp_remap_result *result);

#endif
