/* Predicts from the number of uses of each expert (MoE-Infinity's request-level activation matrix,
 * which FineMoE calls the hit count).
 *
 * A line counts, for one layer, the iterations that used each expert; its first number counts the
 * iterations in which the layer was observed:
 *
 *   p(e at l) = uses(l, e) / iterations(l)
 *
 * over the request so far or, while that has none at the layer, over all requests. An iteration
 * counts when it ends. For a layer of the next iteration, the open one counts for the request
 * already. Up to mp_progress_width experts are named.
 *
 * State and context: a line per layer, [1 + experts]; the context also has the open iteration, per
 * layer a word that is nonzero once it was observed, and a bit per expert.
 *
 * Saved: the line of each layer, 32 bits per number. */
#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "policy/guesses.h"
#include "policy/predictors.h"

typedef struct hit_state {
    uint32_t layers, experts, top_k;
    uint32_t open_words; /* of one layer's open line */
    uint32_t lines[];
} hit_state;

typedef struct hit_context {
    mp_progress progress;
    uint32_t lines[];
} hit_context;

/* ---- Layout ------------------------------------------------------------------------------ */

static uint64_t lines_words(uint32_t layers, uint32_t experts)
{
    return (uint64_t)layers * (1 + (uint64_t)experts);
}

static uint32_t open_words(uint32_t experts)
{
    return 1 + (experts + 31) / 32;
}

static uint64_t hit_state_bytes(const mp_predict_config *config)
{
    return sizeof(hit_state) + lines_words(config->layers, config->experts) * sizeof(uint32_t);
}

static uint64_t context_bytes_of(uint32_t layers, uint32_t experts)
{
    uint64_t words = lines_words(layers, experts) + (uint64_t)layers * open_words(experts);
    return sizeof(hit_context) + words * sizeof(uint32_t);
}

static uint64_t hit_context_bytes(const mp_predict_config *config)
{
    return context_bytes_of(config->layers, config->experts);
}

static uint32_t *line_of(const hit_state *state, uint32_t *lines, uint32_t layer)
{
    assert(layer < state->layers);
    return lines + (uint64_t)layer * (1 + (uint64_t)state->experts);
}

static uint32_t *open_of(const hit_state *state, hit_context *context, uint32_t layer)
{
    assert(layer < state->layers);
    uint32_t *first = context->lines + lines_words(state->layers, state->experts);
    return first + (uint64_t)layer * state->open_words;
}

static uint32_t is_in(const uint32_t *open, uint32_t expert)
{
    return open[1 + expert / 32] >> expert % 32 & 1;
}

static void hit_init(void *state, const mp_predict_config *config)
{
    hit_state *own = state;
    memset(own, 0, hit_state_bytes(config));
    own->layers = config->layers;
    own->experts = config->experts;
    own->top_k = config->top_k;
    own->open_words = open_words(config->experts);
}

/* ---- One sequence ------------------------------------------------------------------------ */

static void hit_request(const void *state, void *context)
{
    const hit_state *own = state;
    memset(context, 0, context_bytes_of(own->layers, own->experts));
}

static void hit_begin(void *state, void *context, const float *semantic)
{
    hit_state *own = state;
    hit_context *open = context;
    (void)semantic;
    open->progress = (mp_progress){0};
    memset(open_of(own, open, 0), 0, (uint64_t)own->layers * own->open_words * sizeof(uint32_t));
}

static void hit_observe(void *state, void *context, const mp_seen *seen)
{
    hit_context *open = context;
    uint32_t *bits = open_of(state, open, seen->layer);
    bits[0] = 1;
    for (uint32_t i = 0; i < seen->n_experts; i++)
        bits[1 + seen->experts[i] / 32] |= 1u << seen->experts[i] % 32;
    mp_progress_note(&open->progress, seen);
}

/* Adds one iteration to a line; if its count would overflow, halves the whole line first. */
static void count(const hit_state *state, uint32_t *line, const uint32_t *open)
{
    if (line[0] == UINT32_MAX)
        for (uint32_t i = 0; i <= state->experts; i++)
            line[i] >>= 1;
    line[0]++;
    for (uint32_t e = 0; e < state->experts; e++)
        line[1 + e] += is_in(open, e);
}

static void hit_end(void *state, void *context)
{
    hit_state *own = state;
    hit_context *open = context;
    for (uint32_t l = 0; l < own->layers; l++) {
        const uint32_t *bits = open_of(own, open, l);
        if (!bits[0])
            continue;
        count(own, line_of(own, open->lines, l), bits);
        count(own, line_of(own, own->lines, l), bits);
    }
    hit_begin(state, context, NULL);
}

static uint32_t hit_predict(void *state, void *context, uint32_t layer, mp_guess *out, float *score)
{
    hit_state *own = state;
    hit_context *open = context;
    const uint32_t *bits = open_of(own, open, layer);
    const uint32_t *line = line_of(own, open->lines, layer);
    uint64_t iterations = (uint64_t)line[0] + bits[0];
    bool of_request = iterations > 0;
    if (score)
        *score = 1;
    if (!of_request) {
        line = line_of(own, own->lines, layer);
        iterations = line[0];
    }
    if (!iterations)
        return 0;
    for (uint32_t e = 0; e < own->experts; e++) {
        uint64_t uses = (uint64_t)line[1 + e] + (of_request ? is_in(bits, e) : 0);
        out[e] = (mp_guess){e, (float)((double)uses / (double)iterations)};
    }
    return mp_guesses_best(out, own->experts,
                           mp_progress_width(&open->progress, layer, own->top_k));
}

/* ---- Saving and loading ----------------------------------------------------------------- */

static uint64_t hit_save_bytes(const void *state)
{
    const hit_state *own = state;
    return lines_words(own->layers, own->experts) * 4;
}

static void hit_save(const void *state, unsigned char *out)
{
    const hit_state *own = state;
    uint64_t n = lines_words(own->layers, own->experts);
    for (uint64_t i = 0; i < n; i++)
        mp_put32(out + 4 * i, own->lines[i]);
}

static moepage_status check_line(const hit_state *state, const unsigned char *in, uint32_t layer)
{
    const unsigned char *line = in + (uint64_t)layer * (1 + (uint64_t)state->experts) * 4;
    uint32_t iterations = mp_get32(line);
    for (uint32_t e = 0; e < state->experts; e++) {
        uint32_t uses = mp_get32(line + 4 * (1 + (uint64_t)e));
        if (uses > iterations)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "layer %u used expert %u in %u iterations of %u, it cannot be more than "
                           "all",
                           layer, e, uses, iterations);
    }
    return MOEPAGE_OK;
}

static moepage_status hit_load(void *state, const unsigned char *in, uint64_t bytes)
{
    hit_state *own = state;
    if (bytes != hit_save_bytes(state))
        return mp_fail(MOEPAGE_E_FORMAT, "the hit counts are %llu bytes, %u layers of %u need %llu",
                       (unsigned long long)bytes, own->layers, own->experts,
                       (unsigned long long)hit_save_bytes(state));
    for (uint32_t l = 0; l < own->layers; l++) {
        moepage_status status = check_line(own, in, l);
        if (status)
            return status;
    }
    for (uint64_t i = 0; i < bytes / 4; i++)
        own->lines[i] = mp_get32(in + 4 * i);
    return MOEPAGE_OK;
}

const mp_predictor mp_predictor_hit_count = {
    .name = "hit-count",
    .state_bytes = hit_state_bytes,
    .context_bytes = hit_context_bytes,
    .init = hit_init,
    .request = hit_request,
    .begin = hit_begin,
    .observe = hit_observe,
    .predict = hit_predict,
    .end = hit_end,
    .save_bytes = hit_save_bytes,
    .save = hit_save,
    .load = hit_load,
};
