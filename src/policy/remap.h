/* remap.h — batch-level remapping (LYNX section 3, appendix A): a decode batch drops the experts
 * that matter to few of its tokens.
 *
 * Per layer, with router logits z (before the gate), and B tokens of top-k each:
 *   bin(t, e) = max(-beta, ceil(alpha * (z_te - max z_t)))          for e in t's own top-k
 *   score(e)  = sum over tokens t with e in their top-k of B^bin(t, e)
 *   z'(t, e)  = z(t, e) + score(e), and `resident` more for experts on the device
 *   kept      = the union over t of top-k(z'(t)) among the routed experts, and every token's first
 *               choice: its own choice with the largest z
 *   ids'(t)   = t's own choices that are kept, in their places; the other places take the best kept
 *               ones by z. The weights of a changed token are the gate's over z at ids', scaled to
 *               the sum of the caller's weights
 * moepage_cuda_remap_run follows the same rule, for any way of choosing the top-k;
 * docs/remapping.md gives its reasons. Each token gets exactly k distinct experts, all of them
 * routed by some token; a batch of one is left as it is. Deterministic: ties go to the lower id.
 * Tokens with a MOEPAGE_NO_EXPERT or a repeated id are outside the batch: they keep their experts,
 * which are never pruned. A function of numbers only. */
#ifndef MP_POLICY_REMAP_H
#define MP_POLICY_REMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

typedef struct mp_remap_law {
    float alpha;    /* bins per e-fold of probability, > 0 */
    float beta;     /* the last bin, > 0; beta / alpha <= 3; past 63 it is 63 */
    uint32_t gate;  /* MOEPAGE_GATE_* */
    float resident; /* added to z' of experts marked `resident`; 0 = no preference */
} mp_remap_law;

typedef struct mp_remap_batch {
    uint32_t n_tokens, top_k, experts;
    const float *logits;     /* [n_tokens][experts], finite */
    const int32_t *ids;      /* [n_tokens][top_k] < `experts` or MOEPAGE_NO_EXPERT, any order */
    const float *weights;    /* [n_tokens][top_k] */
    const uint8_t *resident; /* [experts] 1 = on the device, or NULL */
} mp_remap_batch;

typedef struct mp_remap_result {
    uint32_t experts_before, experts_after; /* distinct experts over all tokens */
    uint32_t tokens_changed;                /* tokens whose set changed */
    uint32_t rows_changed;                  /* choices replaced */
} mp_remap_result;

uint64_t mp_remap_scratch_bytes(uint32_t max_tokens, uint32_t max_top_k, uint32_t experts);

/* Writes the effective ids and weights, to memory outside the batch. An unchanged token keeps the
 * caller's ids and weights bit for bit. */
void mp_remap(const mp_remap_law *law, const mp_remap_batch *batch, void *scratch, int32_t *ids,
              float *weights, mp_remap_result *result);

#endif
