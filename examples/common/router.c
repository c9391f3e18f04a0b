/* Softmax top-k routing, and the sparsemixer of Phi-3.5-MoE. */
#include "common/router.h"

#include <math.h>

#include "common/compute.h"

static bool is_taken(const int32_t *ids, uint32_t n, int32_t expert)
{
    for (uint32_t k = 0; k < n; k++)
        if (ids[k] == expert)
            return true;
    return false;
}

/* Returns the index of the largest score outside the `n` ids. */
static int32_t best_left(const float *scores, uint32_t experts, const int32_t *ids, uint32_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < (int32_t)experts; e++)
        if (!is_taken(ids, n, e) && (best < 0 || scores[e] > scores[best]))
            best = e;
    return best;
}

/* Returns the weight of a choice by SparseMixer at inference (arXiv:2409.12136): its softmax among
 * the logits whose relative distance to it is at most twice the jitter; the second round excludes
 * the first choice. */
static float sparsemixer_weight(const float *logits, uint32_t experts, int32_t chosen,
                                int32_t excluded, float jitter)
{
    float best = logits[chosen], sum = 0;
    for (int32_t e = 0; e < (int32_t)experts; e++) {
        float size = fabsf(logits[e]) > best ? fabsf(logits[e]) : best;
        bool masked = (best - logits[e]) / size > 2 * jitter;
        if (e != excluded && !masked)
            sum += expf(logits[e] - best);
    }
    return 1.0f / sum;
}

void router_choose(const void *user, const model_config *config, float *logits, int32_t *ids,
                   float *top)
{
    (void)user;
    if (config->router == ROUTER_SPARSEMIXER)
        for (uint32_t k = 0; k < config->top_k; k++) {
            ids[k] = best_left(logits, config->experts, ids, k);
            top[k] = sparsemixer_weight(logits, config->experts, ids[k], k ? ids[0] : -1,
                                        config->router_jitter);
        }
    compute_softmax(logits, config->experts);
    if (config->router == ROUTER_SPARSEMIXER)
        return;
    float sum = 0;
    for (uint32_t k = 0; k < config->top_k; k++) {
        ids[k] = best_left(logits, config->experts, ids, k);
        top[k] = logits[ids[k]];
        sum += top[k];
    }
    if (config->normalize_top_k)
        for (uint32_t k = 0; k < config->top_k; k++)
            top[k] /= sum;
}
