/* Predicts from the experts that fired so far in this forward pass, and those that tend to fire
 * with them (WiSP appendix C; the table is coactivation.h's).
 *
 * For layer t let F(t - d) be the experts that fired d layers before; before the first layer come
 * those of the sequence's last pass. Then with w(d) = DECAY^(d-1)
 *
 *              sum over d = 1..span of w(d) * sum over a in F(t - d) of P(b at t | a at t - d)
 *   p(b at t) = -------------------------------------------------------------------------------
 *              sum over d = 1..span of w(d) * |F(t - d)|
 *
 * over those a that the table knows and those layers that have been seen: a mean of conditionals,
 * in which nearer layers weigh more. If no such a is within the span, there is no prediction. Up to
 * mp_progress_width experts are named, among those with a nonzero probability.
 *
 * A pass is learnt from when it ends. In a chunk of many tokens it is unknown which experts fired
 * together: a layer with more than WIDE * top_k of them counts as use and teaches no pairs; a
 * prediction from it uses the first WIDE * top_k. A pass without an end is discarded.
 *
 * Context: two passes, the open one and the one before, per layer a count and that many ids. */
#include <assert.h>
#include <string.h>

#include "policy/coactivation.h"
#include "policy/guesses.h"
#include "policy/predictors.h"

#define DECAY 0.5f /* docs/adding-a-predictor.md says why */
#define WIDE 4u

typedef struct coactivation_state {
    uint32_t layers, experts, top_k;
    uint32_t span;
    uint64_t table_at; /* bytes from here to the table; before it, sums [experts] */
} coactivation_state;

typedef struct coactivation_context {
    mp_progress progress;
    uint32_t open;     /* index of the open pass, 0 or 1 */
    uint32_t counts[]; /* [2][layers], then ids [2][layers][experts] */
} coactivation_context;

typedef struct fired_set {
    uint32_t n;
    const uint16_t *experts;
} fired_set;

/* ---- Layout ------------------------------------------------------------------------------ */

static uint64_t table_at(uint32_t experts)
{
    uint64_t sums = sizeof(coactivation_state) + experts * (uint64_t)sizeof(float);
    return (sums + 63) / 64 * 64;
}

static uint64_t state_bytes_of(const mp_predict_config *config)
{
    return table_at(config->experts) + mp_coactivation_bytes(config->layers, config->experts);
}

static uint64_t context_bytes_of(uint32_t layers, uint32_t experts)
{
    return sizeof(coactivation_context) + 2ull * layers * sizeof(uint32_t) +
           2ull * layers * experts * sizeof(uint16_t);
}

static uint64_t coactivation_context_bytes(const mp_predict_config *config)
{
    return context_bytes_of(config->layers, config->experts);
}

static mp_coactivation *table_of(const coactivation_state *state)
{
    return (mp_coactivation *)((uintptr_t)state + state->table_at);
}

static float *sums_of(coactivation_state *state)
{
    return (float *)(state + 1);
}

static uint16_t *ids_of(const coactivation_state *state, const coactivation_context *context,
                        uint32_t pass, uint32_t layer)
{
    assert(layer < state->layers);
    uint16_t *first = (uint16_t *)(uintptr_t)(context->counts + 2ull * state->layers);
    return first + ((uint64_t)pass * state->layers + layer) * state->experts;
}

static uint32_t *counts_of(const coactivation_state *state, coactivation_context *context,
                           uint32_t pass)
{
    return context->counts + (uint64_t)pass * state->layers;
}

static void coactivation_init(void *state, const mp_predict_config *config)
{
    coactivation_state *own = state;
    *own = (coactivation_state){
        .layers = config->layers,
        .experts = config->experts,
        .top_k = config->top_k,
        .span = mp_coactivation_span(config->layers, config->experts),
        .table_at = table_at(config->experts),
    };
    mp_coactivation_init(table_of(own), config->layers, config->experts);
}

/* ---- One sequence ------------------------------------------------------------------------ */

static void coactivation_request(const void *state, void *context)
{
    const coactivation_state *own = state;
    coactivation_context *passes = context;
    passes->progress = (mp_progress){0};
    memset(passes->counts, 0, 2ull * own->layers * sizeof *passes->counts);
}

static void coactivation_begin(void *state, void *context, const float *semantic)
{
    coactivation_state *own = state;
    coactivation_context *passes = context;
    (void)semantic;
    passes->progress = (mp_progress){0};
    memset(counts_of(own, passes, passes->open), 0, own->layers * sizeof(uint32_t));
}

static void coactivation_observe(void *state, void *context, const mp_seen *seen)
{
    coactivation_state *own = state;
    coactivation_context *passes = context;
    uint16_t *ids = ids_of(own, passes, passes->open, seen->layer);
    for (uint32_t i = 0; i < seen->n_experts; i++)
        ids[i] = (uint16_t)seen->experts[i];
    counts_of(own, passes, passes->open)[seen->layer] = seen->n_experts;
    mp_progress_note(&passes->progress, seen);
}

static uint32_t layer_before(const coactivation_state *state, uint32_t layer, uint32_t distance)
{
    return distance <= layer ? layer - distance : state->layers + layer - distance;
}

/* Returns the experts that fired `distance` layers before `layer` of a pass: the open one or, with
 * `past`, the next. Empty if that layer has not been observed. */
static fired_set fired_before(const coactivation_state *state, coactivation_context *context,
                              uint32_t layer, bool past, uint32_t distance)
{
    bool same_pass = distance <= layer;
    if (past && same_pass)
        return (fired_set){0};
    uint32_t pass = past || same_pass ? context->open : !context->open;
    uint32_t from = layer_before(state, layer, distance);
    return (fired_set){counts_of(state, context, pass)[from], ids_of(state, context, pass, from)};
}

static uint32_t coactivation_predict(void *state, void *context, uint32_t layer, mp_guess *out,
                                     float *score)
{
    coactivation_state *own = state;
    coactivation_context *passes = context;
    bool past = mp_progress_is_past(&passes->progress, layer);
    float *sums = sums_of(own), weight = 1, mass = 0;
    memset(sums, 0, own->experts * sizeof *sums);
    for (uint32_t d = 1; d <= own->span; d++, weight *= DECAY) {
        fired_set from = fired_before(own, passes, layer, past, d);
        uint32_t n = from.n < WIDE * own->top_k ? from.n : WIDE * own->top_k;
        mass += weight * (float)mp_coactivation_add(table_of(own), layer_before(own, layer, d), d,
                                                    from.experts, n, weight, sums);
    }
    if (score)
        *score = 1;
    if (!(mass > 0))
        return 0;
    for (uint32_t e = 0; e < own->experts; e++) {
        float p = sums[e] / mass;
        out[e] = (mp_guess){e, p < 1 ? p : 1}; /* p can exceed 1 by rounding */
    }
    return mp_guesses_best(out, own->experts,
                           mp_progress_width(&passes->progress, layer, own->top_k));
}

/* ---- Learning ---------------------------------------------------------------------------- */

static void learn_pairs(coactivation_state *state, coactivation_context *context, uint32_t layer,
                        fired_set to)
{
    for (uint32_t d = 1; d <= state->span; d++) {
        fired_set from = fired_before(state, context, layer, false, d);
        if (from.n <= WIDE * state->top_k)
            mp_coactivation_pair(table_of(state), layer_before(state, layer, d), d, from.experts,
                                 from.n, to.experts, to.n);
    }
}

static void coactivation_end(void *state, void *context)
{
    coactivation_state *own = state;
    coactivation_context *passes = context;
    const uint32_t *counts = counts_of(own, passes, passes->open);
    /* All uses before any pair: a pair's count never exceeds its expert's. */
    for (uint32_t l = 0; l < own->layers; l++)
        mp_coactivation_use(table_of(own), l, ids_of(own, passes, passes->open, l), counts[l],
                            counts[l] <= WIDE * own->top_k);
    for (uint32_t l = 0; l < own->layers; l++)
        if (counts[l] <= WIDE * own->top_k)
            learn_pairs(own, passes, l,
                        (fired_set){counts[l], ids_of(own, passes, passes->open, l)});
    passes->open = !passes->open;
    coactivation_begin(state, context, NULL);
}

const uint32_t *mp_predictor_coactivation_uses(const void *state)
{
    return mp_coactivation_uses(table_of(state));
}

/* ---- Saving and loading ----------------------------------------------------------------- */

static uint64_t coactivation_save_bytes(const void *state)
{
    return mp_coactivation_save_bytes(table_of(state));
}

static void coactivation_save(const void *state, unsigned char *out)
{
    mp_coactivation_save(table_of(state), out);
}

static moepage_status coactivation_load(void *state, const unsigned char *in, uint64_t bytes)
{
    return mp_coactivation_load(table_of(state), in, bytes);
}

const mp_predictor mp_predictor_coactivation = {
    .name = "coactivation",
    .state_bytes = state_bytes_of,
    .context_bytes = coactivation_context_bytes,
    .init = coactivation_init,
    .request = coactivation_request,
    .begin = coactivation_begin,
    .observe = coactivation_observe,
    .predict = coactivation_predict,
    .end = coactivation_end,
    .save_bytes = coactivation_save_bytes,
    .save = coactivation_save,
    .load = coactivation_load,
};
