/* Expert maps (FineMoE section 4): finds the recorded iteration most similar to the open one, by
 * its embedding before any layer is observed (eq. 4) and by its routing so far afterwards (eq. 5),
 * and names that map's experts for an upcoming layer.
 *
 * The found map's most probable experts are named until their probabilities sum to delta = clip(1 -
 * score, 0, 1), and at least K of them (eq. 6 to 8). Probabilities are the map's stored ones,
 * scaled to a sum of 1.
 *
 * If only the chosen experts are known, each counts as 1/k. A layer of the next iteration,
 * requested before that begins, is read from the same map: a sequence's consecutive iterations
 * route alike. */
#include <stddef.h>
#include <string.h>

#include "policy/maps.h"
#include "policy/predictors.h"

typedef struct state {
    uint32_t top_k;
    uint32_t flags; /* MP_MAPS_* */
    uint32_t reserved[14];
    mp_maps maps; /* its arrays follow */
} state;

_Static_assert(offsetof(state, maps) % 64 == 0, "the store's arrays are aligned");

static mp_maps_shape shape_of(const mp_predict_config *config)
{
    return (mp_maps_shape){
        .layers = config->layers,
        .experts = config->experts,
        .capacity = config->capacity ? config->capacity : MP_MAPS_CAPACITY,
        .semantic_dim = config->semantic_dim,
        .distance = config->distance < config->layers ? config->distance : config->layers,
    };
}

static uint64_t state_bytes(const mp_predict_config *config)
{
    const mp_maps_shape shape = shape_of(config);
    return offsetof(state, maps) + mp_maps_bytes(&shape);
}

static uint64_t context_bytes(const mp_predict_config *config)
{
    const mp_maps_shape shape = shape_of(config);
    return mp_maps_query_bytes(&shape);
}

static void init(void *memory, const mp_predict_config *config)
{
    state *s = memory;
    const mp_maps_shape shape = shape_of(config);
    s->top_k = config->top_k < config->experts ? config->top_k : config->experts;
    s->flags = config->flags;
    mp_maps_init(&s->maps, &shape);
}

/* Does nothing: the last request's routing says nothing about the next one's. */
static void request(const void *memory, void *context)
{
    (void)memory;
    *(mp_maps_query *)context = (mp_maps_query){0};
}

static void begin(void *memory, void *context, const float *semantic)
{
    mp_maps_begin(&((state *)memory)->maps, context, semantic);
}

/* Gives the chosen experts equal probabilities, for want of the router's output. */
static void share_alike(const mp_seen *seen, uint32_t experts, float *row)
{
    memset(row, 0, experts * sizeof *row);
    for (uint32_t i = 0; i < seen->n_experts; i++)
        row[seen->experts[i]] = 1 / (float)seen->n_experts;
}

static void observe(void *memory, void *context, const mp_seen *seen)
{
    state *s = memory;
    mp_maps_query *query = context;
    if (!query->open)
        return;
    float *row = query->map + (uint64_t)seen->layer * s->maps.shape.experts;
    if (!seen->probabilities)
        share_alike(seen, s->maps.shape.experts, row);
    mp_maps_observe(&s->maps, query, seen->layer, seen->probabilities ? seen->probabilities : row);
}

/* Selects the smallest set whose sum reaches delta, and at least K experts. Codes order
 * probabilities, so counting sorts them; ties go to the lower expert. */
static uint32_t select_experts(const state *s, const uint8_t *codes, double delta, mp_guess *out)
{
    const uint32_t experts = s->maps.shape.experts;
    uint32_t starts[MP_MAPS_TOP_CODE + 2] = {0}; /* first index of each code, highest first */
    uint64_t whole = 0;
    for (uint32_t e = 0; e < experts; e++) {
        starts[MP_MAPS_TOP_CODE - codes[e] + 1]++;
        whole += (uint32_t)codes[e] * codes[e];
    }
    for (uint32_t i = 1; i <= MP_MAPS_TOP_CODE + 1; i++)
        starts[i] += starts[i - 1];
    const uint32_t possible = starts[MP_MAPS_TOP_CODE]; /* number of experts with a nonzero code */
    for (uint32_t e = 0; e < experts; e++)
        out[starts[MP_MAPS_TOP_CODE - codes[e]]++] =
            (mp_guess){e, (float)((double)((uint32_t)codes[e] * codes[e]) / (double)whole)};
    uint64_t sum = 0;
    uint32_t n = 0;
    while (n < s->top_k || (n < possible && (double)sum < delta * (double)whole)) {
        const uint32_t code = codes[out[n].expert];
        sum += code * code;
        n++;
    }
    return n;
}

static uint32_t predict(void *memory, void *context, uint32_t layer, mp_guess *out, float *score)
{
    state *s = memory;
    mp_maps_query *query = context;
    const bool ahead = query->observed && layer > query->last;
    float similarity = 0;
    if (score)
        *score = 0;
    if (!ahead && (s->flags & MP_MAPS_NO_SEMANTIC))
        return 0;
    const uint32_t slot = mp_maps_find(&s->maps, query, &similarity);
    if (slot == MP_MAPS_NONE || !s->maps.peaks[mp_maps_at(&s->maps, layer, slot)])
        return 0;
    if (score)
        *score = similarity;
    mp_maps_unpack(&s->maps, slot, layer, query->codes);
    const double delta = similarity < 0 ? 1 : 1 - (double)similarity;
    return select_experts(s, query->codes, s->flags & MP_MAPS_NO_DELTA ? 0 : delta, out);
}

static void end(void *memory, void *context)
{
    state *s = memory;
    mp_maps_query *query = context;
    if (query->open && query->observed)
        mp_maps_learn(&s->maps, query);
    query->open = false;
}

static uint64_t save_bytes(const void *memory)
{
    return mp_maps_save_bytes(&((const state *)memory)->maps);
}

static void save(const void *memory, unsigned char *out)
{
    mp_maps_save(&((const state *)memory)->maps, out);
}

static moepage_status load(void *memory, const unsigned char *in, uint64_t bytes)
{
    return mp_maps_load(&((state *)memory)->maps, in, bytes);
}

const mp_predictor mp_predictor_maps = {
    .name = "maps",
    .needs = MP_TAKES_PROBABILITIES,
    .state_bytes = state_bytes,
    .context_bytes = context_bytes,
    .init = init,
    .request = request,
    .begin = begin,
    .observe = observe,
    .predict = predict,
    .end = end,
    .save_bytes = save_bytes,
    .save = save,
    .load = load,
};
