/* Draws experts: an alias table for each topic and layer, with retries for experts already
 * drawn. */
#include "sim/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/order.h"
#include "sim/random.h"

#define MOST_EXPERTS 4096u
#define MOST_TABLE_BYTES (UINT64_C(1) << 30)
#define TRIES 32u     /* afterwards the rest is scanned */
#define ALWAYS 65536u /* of the probability that an expert is kept */
#define TUNING_TOKENS 4096u
#define TUNING_RUN 256u /* tokens of one topic */

/* A column of an alias table: below `least` of 65536 it yields the column, else the other. */
typedef struct column {
    uint16_t least;
    uint16_t other;
} column;

typedef struct generator {
    sim_source source; /* first */
    sim_synthetic config;
    column *columns; /* [topics][layers][experts] */
    float *weights;  /* [topics][layers][experts]; each layer's sum is 1 */
    uint32_t *keep;  /* [layers] odds of 65536 */
    uint32_t *move;  /* [layers] how far a shift moves the hot set */
} generator;

typedef struct stream {
    uint64_t random;
    uint64_t tokens; /* tokens so far */
    uint32_t topic;
    uint32_t phase;  /* the request's share of the hot set's moves */
    uint16_t held[]; /* [layers][top_k] of the last token */
} stream;

/* A distribution to draw from: one layer of a topic, its experts renamed by `turn`. */
typedef struct odds {
    const column *columns;
    const float *weights;
    uint32_t experts, top_k;
    uint32_t turn;
    uint32_t keep;
} odds;

static odds odds_of(const generator *g, uint32_t layer, uint32_t topic, uint64_t phase)
{
    const sim_synthetic *c = &g->config;
    size_t at = ((size_t)topic * c->layers + layer) * c->experts;
    return (odds){.columns = g->columns + at,
                  .weights = g->weights + at,
                  .experts = c->experts,
                  .top_k = c->top_k,
                  .turn = phase ? (uint32_t)(phase % c->experts * g->move[layer] % c->experts) : 0,
                  .keep = g->keep[layer]};
}

/* ---- One layer of one token ------------------------------------------------------------------ */

static inline bool is_marked(const uint64_t *marks, uint32_t id)
{
    return marks[id / 64] >> id % 64 & 1;
}

static inline uint32_t turned(const odds *o, uint32_t expert)
{
    uint32_t id = expert + o->turn;
    return id < o->experts ? id : id - o->experts;
}

/* Draws by scanning the unmarked experts: needed when a few experts have nearly all the weight. */
static uint32_t draw_rest(const odds *o, const uint64_t *marks, uint64_t *random)
{
    double rest = 0;
    uint32_t last = 0;
    for (uint32_t e = 0; e < o->experts; e++)
        if (!is_marked(marks, turned(o, e)))
            rest += (double)o->weights[e];
    double at = ldexp((double)(sim_random(random) >> 11), -53) * rest;
    for (uint32_t e = 0; e < o->experts && at >= 0; e++)
        if (o->weights[e] > 0 && !is_marked(marks, turned(o, e))) {
            last = turned(o, e);
            at -= (double)o->weights[e];
        }
    return last;
}

static inline uint32_t draw(const odds *o, const uint64_t *marks, uint64_t *random)
{
    for (uint32_t i = 0; i < TRIES; i++) {
        uint64_t number = sim_random(random);
        uint32_t e = sim_random_below(number, o->experts);
        uint32_t id = turned(o, (number & 0xffff) < o->columns[e].least ? e : o->columns[e].other);
        if (!is_marked(marks, id))
            return id;
    }
    return draw_rest(o, marks, random);
}

/* Replaces the layer's experts by the next token's. Kept ones stay at their place in the router's
 * order. `marks` [experts] are clear before and after. */
static void step_layer(const odds *o, bool first, uint16_t *held, uint64_t *marks, uint64_t *random)
{
    uint64_t fresh[256 / 64] = {0};
    uint64_t number = 0;
    for (uint32_t k = 0; k < o->top_k; k++, number >>= 16) {
        if (k % 4 == 0)
            number = sim_random(random);
        if (first || (number & 0xffff) >= o->keep)
            fresh[k / 64] |= UINT64_C(1) << k % 64;
        else
            marks[held[k] / 64] |= UINT64_C(1) << held[k] % 64;
    }
    for (uint32_t k = 0; k < o->top_k; k++)
        if (is_marked(fresh, k)) {
            held[k] = (uint16_t)draw(o, marks, random);
            marks[held[k] / 64] |= UINT64_C(1) << held[k] % 64;
        }
    for (uint32_t k = 0; k < o->top_k; k++)
        marks[held[k] / 64] = 0;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void open_stream(const sim_source *source, uint32_t request, void *state)
{
    const generator *g = (const generator *)source;
    stream *s = state;
    *s = (stream){.random = sim_random_fork(g->config.seed, UINT64_C(1) << 32 | request),
                  .phase = g->config.shift ? request / g->config.shift : 0};
}

static void next_token(const sim_source *source, void *state, bool prefill, int32_t *ids)
{
    (void)prefill;
    const generator *g = (const generator *)source;
    const sim_synthetic *c = &g->config;
    stream *s = state;
    uint64_t marks[MOST_EXPERTS / 64] = {0};
    bool first = s->tokens == 0;
    if (first || (c->segment && s->tokens % c->segment == 0))
        s->topic = sim_random_below(sim_random(&s->random), c->topics);
    uint64_t phase = s->phase + (c->shift_tokens ? s->tokens / c->shift_tokens : 0);
    for (uint32_t layer = 0; layer < c->layers; layer++, ids += c->top_k) {
        odds o = odds_of(g, layer, s->topic, phase);
        uint16_t *held = s->held + (size_t)layer * c->top_k;
        step_layer(&o, first, held, marks, &s->random);
        for (uint32_t k = 0; k < c->top_k; k++)
            ids[k] = held[k];
    }
    s->tokens++;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Returns a normal number (Box and Muller). */
static double normal(uint64_t *random)
{
    double u = ldexp((double)(sim_random(random) >> 11) + 1, -53);
    double v = ldexp((double)(sim_random(random) >> 11), -53);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Builds an alias table (Vose): columns below their share are filled up from one above it. `scaled`
 * and `waiting` [experts] are scratch. */
static void fill_columns(const float *weights, uint32_t n, column *columns, double *scaled,
                         uint16_t *waiting)
{
    uint32_t n_low = 0, n_high = 0;
    for (uint32_t e = 0; e < n; e++) {
        scaled[e] = (double)weights[e] * n;
        columns[e] = (column){UINT16_MAX, (uint16_t)e};
        if (scaled[e] < 1)
            waiting[n_low++] = (uint16_t)e;
        else
            waiting[n - ++n_high] = (uint16_t)e;
    }
    while (n_low && n_high) {
        uint16_t low = waiting[--n_low], high = waiting[n - n_high];
        columns[low] = (column){(uint16_t)(scaled[low] * 65535), high};
        scaled[high] -= 1 - scaled[low];
        if (scaled[high] < 1) {
            n_high--;
            waiting[n_low++] = high;
        }
    }
}

/* Leaves the least likely out, and makes the rest add up to 1. `sorted` [experts] is scratch. */
static void cut_weights(const sim_synthetic *c, const double *raw, double *sorted, float *weights)
{
    uint32_t most = (uint32_t)ceil(c->reach * c->experts);
    uint32_t used = most > c->top_k ? most : c->top_k;
    double sum = 0;
    memcpy(sorted, raw, c->experts * sizeof *sorted);
    qsort(sorted, c->experts, sizeof *sorted, order_doubles);
    double least = sorted[c->experts - used];
    for (uint32_t e = c->experts - used; e < c->experts; e++)
        sum += sorted[e];
    for (uint32_t e = 0; e < c->experts; e++)
        weights[e] = raw[e] < least ? 0 : (float)(raw[e] / sum);
}

static int fill_tables(generator *g)
{
    const sim_synthetic *c = &g->config;
    uint64_t shared = sim_random_fork(c->seed, 1);
    double *popular = malloc((size_t)c->layers * c->experts * sizeof *popular);
    double *raw = malloc(2 * (size_t)c->experts * sizeof *raw), *scaled = raw + c->experts;
    uint16_t *waiting = malloc(c->experts * sizeof *waiting);
    bool ok = popular && raw && waiting;
    for (size_t i = 0; ok && i < (size_t)c->layers * c->experts; i++)
        popular[i] = c->skew * normal(&shared);
    for (size_t i = 0; ok && i < (size_t)c->topics * c->layers; i++) {
        uint64_t own = sim_random_fork(c->seed, UINT64_C(2) << 32 | i);
        float *weights = g->weights + i * c->experts;
        const double *base = popular + i % c->layers * c->experts;
        for (uint32_t e = 0; e < c->experts; e++)
            raw[e] = exp(base[e] + c->topic * normal(&own));
        cut_weights(c, raw, scaled, weights);
        fill_columns(weights, c->experts, g->columns + i * c->experts, scaled, waiting);
    }
    free(popular);
    free(raw);
    free(waiting);
    return ok ? RUN_OK : fail_memory();
}

/* ---- Carry-over ------------------------------------------------------------------------------ */

static uint32_t common(const uint16_t *a, const uint16_t *b, uint32_t n)
{
    uint32_t same = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            same += a[i] == b[j];
    return same;
}

/* Experts drawn again by chance are carried over too, and how often depends on those kept. So the
 * probability is found by running the layer and correcting it after every token by decreasing
 * amounts (Robbins and Monro); the result is the mean over the second half. */
static void tune_layer(generator *g, uint32_t layer)
{
    const sim_synthetic *c = &g->config;
    uint64_t random = sim_random_fork(c->seed, UINT64_C(3) << 32 | layer);
    uint64_t marks[MOST_EXPERTS / 64] = {0};
    uint16_t held[256] = {0}, before[256];
    double keep = c->carry, mean = 0;
    uint32_t topic = 0;
    for (uint32_t i = 0; i < TUNING_TOKENS; i++) {
        bool first = i % TUNING_RUN == 0;
        if (first)
            topic = sim_random_below(sim_random(&random), c->topics);
        g->keep[layer] = (uint32_t)(keep * ALWAYS);
        odds o = odds_of(g, layer, topic, 0);
        memcpy(before, held, sizeof before);
        step_layer(&o, first, held, marks, &random);
        if (!first)
            keep +=
                (c->carry - (double)common(before, held, c->top_k) / c->top_k) / pow(i + 8, 0.7);
        keep = fmin(fmax(keep, 0), 1);
        if (i >= TUNING_TOKENS / 2)
            mean += keep / (TUNING_TOKENS / 2);
    }
    g->keep[layer] = (uint32_t)(mean * ALWAYS);
}

/* ---- Life cycle ------------------------------------------------------------------------------ */

static void close_source(sim_source *source)
{
    generator *g = (generator *)source;
    free(g->columns);
    free(g->weights);
    free(g->keep);
    free(g->move);
    free(g);
}

static void prepare(generator *g)
{
    const sim_synthetic *c = &g->config;
    uint64_t random = sim_random_fork(c->seed, 4);
    g->source = (sim_source){.name = g->config.name,
                             .layers = c->layers,
                             .experts = c->experts,
                             .top_k = c->top_k,
                             .n_requests = UINT32_MAX,
                             .stream_bytes = (sizeof(stream) +
                                              (size_t)c->layers * c->top_k * sizeof(uint16_t) + 7) /
                                             8 * 8,
                             .open = open_stream,
                             .next = next_token,
                             .close = close_source};
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        uint64_t number = sim_random(&random);
        g->move[layer] = c->experts > 1 ? 1 + sim_random_below(number, c->experts - 1) : 0;
        tune_layer(g, layer);
    }
}

int sim_synthetic_open(const sim_synthetic *config, sim_source **out)
{
    size_t cells = (size_t)config->topics * config->layers * config->experts;
    if (config->experts > MOST_EXPERTS || cells > MOST_TABLE_BYTES / 8)
        return fail(RUN_REFUSED,
                    "--synthetic: %u topics, %u layers of %u experts: expected at most %u experts, "
                    "and tables of at most 1 GiB, 8 bytes each",
                    config->topics, config->layers, config->experts, MOST_EXPERTS);
    generator *g = calloc(1, sizeof *g);
    if (!g)
        return fail_memory();
    g->config = *config;
    g->columns = malloc(cells * sizeof *g->columns);
    g->weights = malloc(cells * sizeof *g->weights);
    g->keep = calloc(config->layers, sizeof *g->keep);
    g->move = calloc(config->layers, sizeof *g->move);
    int code = g->columns && g->weights && g->keep && g->move ? fill_tables(g) : fail_memory();
    if (code) {
        close_source(&g->source);
        return code;
    }
    prepare(g);
    *out = &g->source;
    return RUN_OK;
}
