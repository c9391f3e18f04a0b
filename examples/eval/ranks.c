/* The ablation of ranks. */
#include "eval/ranks.h"

#include "moepage.h"

/* Returns the most probable expert not chosen; MOEPAGE_NO_EXPERT if all were. */
static int32_t next_best(const model_config *config, const float *probabilities, const int32_t *ids)
{
    int32_t best = MOEPAGE_NO_EXPERT;
    for (int32_t e = 0; e < (int32_t)config->experts; e++) {
        bool taken = false;
        for (uint32_t k = 0; k < config->top_k; k++)
            taken |= ids[k] == e;
        if (!taken && (best == MOEPAGE_NO_EXPERT || probabilities[e] > probabilities[best]))
            best = e;
    }
    return best;
}

/* Scales weights to the sum that the replaced choice had. */
static void share(float *top, uint32_t n, float whole)
{
    float sum = 0;
    for (uint32_t k = 0; k < n; k++)
        sum += top[k];
    for (uint32_t k = 0; k < n && sum > 0; k++)
        top[k] *= whole / sum;
}

static void deny(const ranks *r, const model_config *config, const float *probabilities,
                 int32_t *ids, float *top)
{
    const uint32_t k = config->top_k;
    const int32_t other = next_best(config, probabilities, ids);
    for (uint32_t i = r->deny - 1; i + 1 < k; i++)
        ids[i] = ids[i + 1];
    ids[k - 1] = other;
    for (uint32_t i = 0; i < k; i++)
        top[i] = ids[i] == MOEPAGE_NO_EXPERT ? 0 : probabilities[ids[i]];
    if (config->normalize_top_k)
        share(top, k, 1);
}

static void keep(const ranks *r, const model_config *config, int32_t *ids, float *top)
{
    float whole = 0;
    for (uint32_t k = 0; k < config->top_k; k++)
        whole += top[k];
    for (uint32_t k = r->keep; k < config->top_k; k++) {
        ids[k] = MOEPAGE_NO_EXPERT;
        top[k] = 0;
    }
    share(top, r->keep, whole);
}

void ranks_choose(const void *user, const model_config *config, const float *bias, float *logits,
                  int32_t *ids, float *top)
{
    const ranks *r = user;
    router_choose(NULL, config, bias, logits, ids, top);
    if (r->deny)
        deny(r, config, logits, ids, top);
    if (r->keep)
        keep(r, config, ids, top);
}
