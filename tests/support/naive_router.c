/* Routing and remapping by the words of moepage_cuda.h: see naive_router.h. */
#include "naive_router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define CLOSE 1e-5 /* of numbers about 1 that differ: FP32 might not see it */

static double logit(const moepage_cuda_topk *router, uint32_t token, uint32_t expert)
{
    return num_get(router->dtype, router->logits, (uint64_t)token * router->experts + expert);
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

static double choice_value(const moepage_cuda_topk *router, uint32_t token, uint32_t expert)
{
    const double z = logit(router, token, expert);
    if (router->gate != MOEPAGE_CUDA_GATE_SIGMOID_NORM || !router->bias)
        return z;
    return sigmoid(z) + router->bias[expert];
}

/* Does a come before b, not regarding ids? */
static bool is_before(double a, double b)
{
    return isnan(b) ? !isnan(a) : a > b;
}

/* The k best of `values` among the allowed, best first; whether any decision was close. */
static bool choose(const double *values, uint32_t n, const bool *allowed, uint32_t k, int32_t *ids)
{
    bool taken[NAIVE_MAX_EXPERTS] = {0}, is_close = false;
    for (uint32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (!allowed || allowed[e]) &&
                (best < 0 || is_before(values[e], values[best])))
                best = (int32_t)e;
        ids[i] = best;
        if (best < 0)
            continue;
        taken[best] = true;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (!allowed || allowed[e]) && values[e] != values[best] &&
                fabs(values[e] - values[best]) < CLOSE)
                is_close = true;
    }
    return is_close;
}

static void weigh(const moepage_cuda_topk *router, uint32_t token, const bool *allowed,
                  naive_choice *c)
{
    const double scale = router->scale != 0 ? router->scale : 1;
    const double first = logit(router, token, (uint32_t)c->ids[0]);
    double sum = 0;
    for (uint32_t k = 0; k < router->top_k; k++) {
        const double z = logit(router, token, (uint32_t)c->ids[k]);
        const bool sigmoids = router->gate == MOEPAGE_CUDA_GATE_SIGMOID_NORM;
        c->weights[k] = sigmoids ? sigmoid(z) : exp(z - first);
        sum += c->weights[k];
    }
    if (router->gate == MOEPAGE_CUDA_GATE_SIGMOID_NORM)
        sum += 1e-20;
    if (router->gate == MOEPAGE_CUDA_GATE_SOFTMAX_ALL) {
        sum = 0;
        for (uint32_t e = 0; e < router->experts; e++)
            if (!allowed || allowed[e])
                sum += exp(logit(router, token, e) - first);
    }
    for (uint32_t k = 0; k < router->top_k; k++)
        c->weights[k] *= scale / sum;
}

void naive_route(const moepage_cuda_topk *router, uint32_t token, const bool *allowed,
                 naive_choice *out)
{
    double values[NAIVE_MAX_EXPERTS];
    for (uint32_t e = 0; e < router->experts; e++)
        values[e] = choice_value(router, token, e);
    const bool is_close = choose(values, router->experts, allowed, router->top_k, out->ids);
    out->doubtful = is_close && router->bias;
    weigh(router, token, allowed, out);
}

/* ---- Remapping ---- */

static moepage_cuda_topk router_of(const moepage_cuda_remap *args)
{
    return (moepage_cuda_topk){.gate = args->gate,
                               .dtype = args->dtype,
                               .n_tokens = args->n_tokens,
                               .experts = args->experts,
                               .top_k = args->top_k,
                               .logits = args->logits,
                               .bias = args->bias,
                               .scale = args->scale};
}

/* base^bin, by FP32 divisions. */
static float power_of(const moepage_cuda_remap *args, double bin)
{
    const float base = args->base != 0 ? args->base : (float)args->n_tokens;
    float power = 1;
    for (double i = bin; i < 0; i++)
        power /= base;
    return power;
}

static double bin_of(const moepage_cuda_remap *args, double z, double largest)
{
    const double bin = z == largest ? 0 : ceil((double)args->alpha * (z - largest));
    return bin > -(double)args->beta ? bin : -(double)args->beta;
}

/* Scores, and which experts are some token's first choice. */
static bool score(const moepage_cuda_remap *args, float *scores, bool *first)
{
    const moepage_cuda_topk router = router_of(args);
    bool sure = true;
    memset(scores, 0, args->experts * sizeof *scores);
    memset(first, 0, args->experts);
    for (uint32_t t = 0; t < args->n_tokens; t++) {
        naive_choice own;
        naive_route(&router, t, NULL, &own);
        sure = sure && !own.doubtful;
        double largest = NAN;
        for (uint32_t e = 0; e < args->experts; e++)
            if (is_before(logit(&router, t, e), largest))
                largest = logit(&router, t, e);
        first[own.ids[0]] = true;
        for (uint32_t k = 0; k < args->top_k; k++)
            scores[own.ids[k]] +=
                power_of(args, bin_of(args, logit(&router, t, (uint32_t)own.ids[k]), largest));
    }
    for (uint32_t e = 0; e < args->experts; e++)
        if (args->preferred && args->preferred[e])
            scores[e] += args->bonus;
    return sure;
}

static bool is_better(const moepage_cuda_remap *args, const float *scores, uint32_t a, uint32_t b)
{
    const bool likes_a = args->preferred && args->preferred[a];
    const bool likes_b = args->preferred && args->preferred[b];
    if (scores[a] != scores[b])
        return scores[a] > scores[b];
    return likes_a != likes_b ? likes_a : a < b;
}

/* Takes the worst away until there are `keep`. */
static void limit(const moepage_cuda_remap *args, const float *scores, const bool *first,
                  bool *kept)
{
    for (;;) {
        uint32_t n = 0;
        int32_t worst = -1;
        for (uint32_t e = 0; e < args->experts; e++) {
            n += kept[e];
            if (kept[e] && !first[e] && (worst < 0 || is_better(args, scores, (uint32_t)worst, e)))
                worst = (int32_t)e;
        }
        if (n <= args->keep || worst < 0)
            return;
        kept[worst] = false;
    }
}

bool naive_keep(const moepage_cuda_remap *args, bool *kept)
{
    const moepage_cuda_topk router = router_of(args);
    float scores[NAIVE_MAX_EXPERTS];
    bool first[NAIVE_MAX_EXPERTS];
    bool sure = score(args, scores, first);
    memcpy(kept, first, args->experts);
    for (uint32_t t = 0; t < args->n_tokens; t++) {
        double values[NAIVE_MAX_EXPERTS];
        int32_t ids[NAIVE_MAX_K];
        for (uint32_t e = 0; e < args->experts; e++)
            values[e] = (float)(choice_value(&router, t, e) + scores[e]);
        if (choose(values, args->experts, NULL, args->top_k, ids) && args->bias)
            sure = false;
        for (uint32_t k = 0; k < args->top_k; k++)
            kept[ids[k]] = true;
    }
    if (args->keep)
        limit(args, scores, first, kept);
    return sure;
}
