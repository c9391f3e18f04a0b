/* Top-k routing by softmax or sigmoids, among all experts or the best groups, and the sparsemixer of
 * Phi-3.5-MoE. */
#include "common/router.h"

#include <math.h>
#include <stdbool.h>

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

static void choose_sparsemixer(const model_config *config, const float *logits, int32_t *ids,
                               float *top)
{
    for (uint32_t k = 0; k < config->top_k; k++) {
        ids[k] = best_left(logits, config->experts, ids, k);
        top[k] = sparsemixer_weight(logits, config->experts, ids[k], k ? ids[0] : -1,
                                    config->router_jitter);
    }
}

/* An expert's score in the choice: its probability and, for sigmoids, its bias. */
static float choice_of(const float *scores, const float *bias, uint32_t expert)
{
    return bias ? scores[expert] + bias[expert] : scores[expert];
}

/* Returns a group's score: its best expert's, or for sigmoids the sum of its two best (DeepSeek-V3). */
static float score_group(const model_config *config, const float *scores, const float *bias,
                         uint32_t group)
{
    const uint32_t each = config->experts / config->groups;
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t e = group * each; e < (group + 1) * each; e++) {
        const float score = choice_of(scores, bias, e);
        if (score > best) {
            second = best;
            best = score;
        } else if (score > second) {
            second = score;
        }
    }
    return config->router == ROUTER_SIGMOID ? best + second : best;
}

/* Returns true if fewer than top_groups groups are better, ties to the lower. */
static bool is_allowed(const model_config *config, const float *scores, const float *bias,
                       uint32_t group)
{
    const float own = score_group(config, scores, bias, group);
    uint32_t better = 0;
    for (uint32_t g = 0; g < config->groups; g++) {
        const float other = g == group ? own : score_group(config, scores, bias, g);
        better += other > own || (other == own && g < group);
    }
    return better < config->top_groups;
}

/* Takes the best experts of the best groups. */
static void choose_best(const model_config *config, const float *scores, const float *bias,
                        int32_t *ids)
{
    const uint32_t each = config->experts / config->groups;
    uint32_t n = 0;
    for (uint32_t g = 0; g < config->groups; g++) {
        if (config->top_groups < config->groups && !is_allowed(config, scores, bias, g))
            continue;
        for (uint32_t e = g * each; e < (g + 1) * each; e++) {
            const float score = choice_of(scores, bias, e);
            uint32_t at = n;
            while (at > 0 && score > choice_of(scores, bias, (uint32_t)ids[at - 1]))
                at--;
            if (at == config->top_k)
                continue;
            n += n < config->top_k;
            for (uint32_t k = n - 1; k > at; k--)
                ids[k] = ids[k - 1];
            ids[at] = (int32_t)e;
        }
    }
}

static void take_sigmoids(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = 1.0f / (1.0f + expf(-x[i]));
}

static void divide_by_sum(float *x, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    for (uint32_t i = 0; i < n && sum > 0; i++)
        x[i] /= sum;
}

void router_choose(const void *user, const model_config *config, const float *bias, float *logits,
                   int32_t *ids, float *top)
{
    const bool sigmoid = config->router == ROUTER_SIGMOID;
    (void)user;
    if (config->router == ROUTER_SPARSEMIXER)
        choose_sparsemixer(config, logits, ids, top);
    if (sigmoid)
        take_sigmoids(logits, config->experts);
    else
        compute_softmax(logits, config->experts);
    if (config->router == ROUTER_SPARSEMIXER)
        return;
    choose_best(config, logits, bias, ids);
    for (uint32_t k = 0; k < config->top_k; k++)
        top[k] = logits[ids[k]];
    if (config->normalize_top_k)
        divide_by_sum(top, config->top_k);
    for (uint32_t k = 0; k < config->top_k && config->router_scale != 1; k++)
        top[k] *= config->router_scale;
    if (sigmoid)
        divide_by_sum(logits, config->experts);
}
