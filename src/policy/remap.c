/* Remapping of a decode batch (LYNX section 3, appendix A): remap.h has the formulas.
 *
 * The paper leaves open when an expert is pruned. Here: when it is among the k best by z' of no
 * token, and no token's first choice. A token thus gives an expert up if k others of the batch rank
 * higher once popularity counts, and an expert is pruned when all its tokens give it up. Scores
 * grow as alpha and beta fall, and with them the weight of popularity: no further constant is
 * needed. Tokens are then remapped by z alone. With z', as "z' replaces z" suggests, tokens would
 * move to popular experts although their own choice stays: more loss for hardly an expert fewer.
 *
 * Every kept expert stays with the tokens that chose it, so `kept` is the set that the batch
 * activates. It has at least k experts: any token's top k by z'. */
#include "policy/remap.h"

#include <math.h>
#include <string.h>

#define LAST_BIN 63u
#define NEVER (-INFINITY) /* below every finite logit */

/* Bits of an expert's mark. */
enum { ROUTED = 1, KEPT = 2 };

typedef struct remap_scratch {
    float powers[LAST_BIN + 1]; /* n_batch to the power of -bin; the last one is beta's */
    float *bonus;               /* [experts] score and preference; NEVER for unrouted ones */
    float *row;                 /* [experts] one token's z or z', NEVER if not selectable */
    float *best;                /* [top_k] the best values so far, best first */
    int32_t *best_ids;          /* [top_k] */
    uint32_t *stamp;            /* [experts] the last token, from 1, that chose it */
    uint8_t *marks;             /* [experts] */
    uint8_t *apart;             /* [n_tokens] 1 = outside the batch */
    uint32_t n_batch;           /* tokens inside the batch */
    uint32_t last_bin;          /* index in powers */
} remap_scratch;

/* ---- scratch ---- */

static uint64_t align(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

uint64_t mp_remap_scratch_bytes(uint32_t max_tokens, uint32_t max_top_k, uint32_t experts)
{
    return align(sizeof(remap_scratch)) + 3 * align((uint64_t)experts * 4) +
           2 * align((uint64_t)max_top_k * 4) + align(experts) + align(max_tokens);
}

static void *cut(unsigned char **at, uint64_t bytes)
{
    void *part = *at;
    *at += align(bytes);
    return part;
}

static remap_scratch *lay_out(void *scratch, const mp_remap_batch *batch)
{
    unsigned char *at = scratch;
    remap_scratch *s = cut(&at, sizeof *s);
    s->bonus = cut(&at, (uint64_t)batch->experts * sizeof *s->bonus);
    s->row = cut(&at, (uint64_t)batch->experts * sizeof *s->row);
    s->stamp = cut(&at, (uint64_t)batch->experts * sizeof *s->stamp);
    s->best = cut(&at, (uint64_t)batch->top_k * sizeof *s->best);
    s->best_ids = cut(&at, (uint64_t)batch->top_k * sizeof *s->best_ids);
    s->marks = cut(&at, batch->experts);
    s->apart = cut(&at, batch->n_tokens);
    return s;
}

/* ---- the batch ---- */

static const float *logits_of(const mp_remap_batch *batch, uint32_t token)
{
    return batch->logits + (uint64_t)token * batch->experts;
}

static const int32_t *ids_of(const mp_remap_batch *batch, uint32_t token)
{
    return batch->ids + (uint64_t)token * batch->top_k;
}

/* Marks the routed experts, and excludes tokens without k distinct experts, whose experts stay. */
static void survey(const mp_remap_batch *batch, remap_scratch *s)
{
    memset(s->marks, 0, batch->experts);
    memset(s->stamp, 0, batch->experts * sizeof *s->stamp);
    s->n_batch = batch->n_tokens;
    for (uint32_t t = 0; t < batch->n_tokens; t++) {
        const int32_t *ids = ids_of(batch, t);
        bool apart = false;
        for (uint32_t k = 0; k < batch->top_k; k++) {
            apart = apart || ids[k] == MOEPAGE_NO_EXPERT || s->stamp[ids[k]] == t + 1;
            if (ids[k] != MOEPAGE_NO_EXPERT)
                s->stamp[ids[k]] = t + 1;
        }
        for (uint32_t k = 0; k < batch->top_k; k++)
            if (ids[k] != MOEPAGE_NO_EXPERT)
                s->marks[ids[k]] |= apart ? ROUTED | KEPT : ROUTED;
        s->apart[t] = apart;
        s->n_batch -= apart;
    }
}

static uint32_t count_marked(const mp_remap_batch *batch, const remap_scratch *s, uint8_t mark)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < batch->experts; e++)
        n += (s->marks[e] & mark) != 0;
    return n;
}

/* ---- score ---- */

/* Fills B^-i for bin i. A fractional beta has a last bin of its own. */
static void fill_powers(const mp_remap_law *law, remap_scratch *s)
{
    float base = (float)s->n_batch, beta = fminf(law->beta, (float)LAST_BIN);
    s->last_bin = (uint32_t)ceilf(beta);
    s->powers[0] = 1;
    for (uint32_t i = 1; i <= s->last_bin; i++)
        s->powers[i] = s->powers[i - 1] / base;
    if (beta != (float)s->last_bin)
        s->powers[s->last_bin] = powf(base, -beta);
}

static float largest(const float *values, uint32_t n)
{
    float best = values[0];
    for (uint32_t i = 1; i < n; i++)
        best = values[i] > best ? values[i] : best;
    return best;
}

/* Adds a token's share to the scores, and keeps its first choice. */
static void score_token(const mp_remap_law *law, const mp_remap_batch *batch, uint32_t token,
                        remap_scratch *s)
{
    const float *z = logits_of(batch, token);
    const int32_t *ids = ids_of(batch, token);
    float top = largest(z, batch->experts);
    int32_t first = ids[0];
    for (uint32_t k = 0; k < batch->top_k; k++) {
        int32_t id = ids[k];
        float bin = -ceilf(law->alpha * (z[id] - top));
        s->bonus[id] += s->powers[bin < (float)s->last_bin ? (uint32_t)bin : s->last_bin];
        if (z[id] > z[first] || (z[id] == z[first] && id < first))
            first = id;
    }
    s->marks[first] |= KEPT;
}

static void score_batch(const mp_remap_law *law, const mp_remap_batch *batch, remap_scratch *s)
{
    memset(s->bonus, 0, batch->experts * sizeof *s->bonus);
    for (uint32_t t = 0; t < batch->n_tokens; t++)
        if (!s->apart[t])
            score_token(law, batch, t, s);
    for (uint32_t e = 0; e < batch->experts; e++) {
        if (batch->resident && batch->resident[e])
            s->bonus[e] += law->resident;
        if (!(s->marks[e] & ROUTED))
            s->bonus[e] = NEVER;
    }
}

/* ---- the best n of a row ---- */

/* Inserts a value better than the n-th; returns the new n-th. Rows are read in ascending order of
 * ids, so an earlier equal stays ahead. */
static float put(remap_scratch *s, uint32_t n, float value, uint32_t id)
{
    uint32_t i = n - 1;
    for (; i > 0 && s->best[i - 1] < value; i--) {
        s->best[i] = s->best[i - 1];
        s->best_ids[i] = s->best_ids[i - 1];
    }
    s->best[i] = value;
    s->best_ids[i] = (int32_t)id;
    return s->best[n - 1];
}

/* Collects the largest n of s->row in s->best_ids, largest first. Most values are below the n-th:
 * eight are skipped at a time. */
static void find_best(remap_scratch *s, uint32_t experts, uint32_t n)
{
    float last = NEVER;
    uint32_t e = 0;
    for (uint32_t i = 0; i < n; i++)
        s->best[i] = NEVER;
    for (; e + 8 <= experts; e += 8) {
        uint32_t above = 0;
        for (uint32_t i = 0; i < 8; i++)
            above |= (uint32_t)(s->row[e + i] > last) << i;
        for (; above; above &= above - 1) {
            uint32_t id = e + (uint32_t)__builtin_ctz(above);
            if (s->row[id] > last)
                last = put(s, n, s->row[id], id);
        }
    }
    for (; e < experts; e++)
        if (s->row[e] > last)
            last = put(s, n, s->row[e], e);
}

/* ---- prune ---- */

static void prune(const mp_remap_batch *batch, remap_scratch *s)
{
    for (uint32_t t = 0; t < batch->n_tokens; t++) {
        const float *z = logits_of(batch, t);
        if (s->apart[t])
            continue;
        for (uint32_t e = 0; e < batch->experts; e++)
            s->row[e] = z[e] + s->bonus[e];
        find_best(s, batch->experts, batch->top_k);
        for (uint32_t k = 0; k < batch->top_k; k++)
            s->marks[s->best_ids[k]] |= KEPT;
    }
}

/* ---- remap ---- */

/* Computes the gate's weights at `ids` over z, scaled to the sum of `given`. The softmax's
 * other terms cancel. Sigmoids that might underflow are replaced by exponentials, to which they
 * are equal there. */
static void weigh(uint32_t gate, const float *z, const int32_t *ids, const float *given,
                  uint32_t top_k, float *weights)
{
    double given_sum = 0, sum = 0;
    float top = z[ids[0]];
    for (uint32_t k = 0; k < top_k; k++) {
        given_sum += (double)given[k];
        top = z[ids[k]] > top ? z[ids[k]] : top;
    }
    bool sigmoid = gate == MOEPAGE_GATE_SIGMOID && top > -40.0f;
    for (uint32_t k = 0; k < top_k; k++) {
        weights[k] = sigmoid ? 1 / (1 + expf(-z[ids[k]])) : expf(z[ids[k]] - top);
        sum += (double)weights[k];
    }
    for (uint32_t k = 0; k < top_k; k++)
        weights[k] = (float)((double)weights[k] * (given_sum / sum));
}

/* Replaces the token's choices that are not kept; returns their number. */
static uint32_t replace(const mp_remap_batch *batch, uint32_t token, remap_scratch *s, int32_t *ids)
{
    const float *z = logits_of(batch, token);
    uint32_t n = 0, taken = 0;
    for (uint32_t k = 0; k < batch->top_k; k++)
        n += !(s->marks[ids[k]] & KEPT);
    if (n == 0)
        return 0;
    for (uint32_t e = 0; e < batch->experts; e++)
        s->row[e] = s->marks[e] & KEPT ? z[e] : NEVER;
    for (uint32_t k = 0; k < batch->top_k; k++)
        s->row[ids[k]] = NEVER;
    find_best(s, batch->experts, n);
    for (uint32_t k = 0; k < batch->top_k; k++)
        if (!(s->marks[ids[k]] & KEPT))
            ids[k] = s->best_ids[taken++];
    return n;
}

static void remap_tokens(const mp_remap_law *law, const mp_remap_batch *batch, remap_scratch *s,
                         int32_t *ids, float *weights, mp_remap_result *result)
{
    for (uint32_t t = 0; t < batch->n_tokens; t++) {
        uint64_t at = (uint64_t)t * batch->top_k;
        uint32_t n = s->apart[t] ? 0 : replace(batch, t, s, ids + at);
        if (n == 0)
            continue;
        weigh(law->gate, logits_of(batch, t), ids + at, batch->weights + at, batch->top_k,
              weights + at);
        result->tokens_changed++;
        result->rows_changed += n;
    }
}

void mp_remap(const mp_remap_law *law, const mp_remap_batch *batch, void *scratch, int32_t *ids,
              float *weights, mp_remap_result *result)
{
    uint64_t rows = (uint64_t)batch->n_tokens * batch->top_k;
    remap_scratch *s = lay_out(scratch, batch);
    memcpy(ids, batch->ids, rows * sizeof *ids);
    memcpy(weights, batch->weights, rows * sizeof *weights);
    survey(batch, s);
    uint32_t before = count_marked(batch, s, ROUTED);
    *result = (mp_remap_result){.experts_before = before, .experts_after = before};
    if (s->n_batch < 2)
        return;
    fill_powers(law, s);
    score_batch(law, batch, s);
    prune(batch, s);
    result->experts_after = count_marked(batch, s, KEPT);
    remap_tokens(law, batch, s, ids, weights, result);
}
