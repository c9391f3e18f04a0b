/* How well predictors name a layer's experts ahead of it, on recorded routing: trained on the first
 * requests, tested on the others, at each distance; in the same table, each eviction policy's
 * hits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "policy/predictors.h"
#include "sim/predict_state.h"
#include "sim/study_evictions.h"
#include "sim/trace.h"

#define MOST_DISTANCE 6u
#define MOST_TOP_K 64u

/* Predictors that need routed ids alone. */
static const char *const kinds[] = {"previous", "hit-count", "coactivation"};

#define N_KINDS (sizeof kinds / sizeof *kinds)

typedef struct predicting {
    const sim_trace *trace;
    const mp_predictor *kind;
    mp_predict_config config;
    void *state, *context;
    mp_guess *guesses;     /* [experts] */
    uint64_t asked, right; /* routed choices of the layers predicted, and those among the k best */
} predicting;

static int open_predicting(const sim_trace *trace, const char *name, uint32_t distance,
                           predicting *out)
{
    const sim_source *source = &trace->source;
    *out = (predicting){
        .trace = trace,
        .kind = mp_predictor_find(name),
        .config = {.layers = source->layers,
                   .experts = source->experts,
                   .top_k = source->top_k,
                   .distance = distance},
        .guesses = calloc(source->experts, sizeof *out->guesses),
    };
    out->state = sim_alloc_state(out->kind->state_bytes(&out->config));
    out->context = sim_alloc_state(out->kind->context_bytes(&out->config));
    if (!out->guesses || !out->state || !out->context)
        return fail_memory();
    out->kind->init(out->state, &out->config);
    return RUN_OK;
}

static void close_predicting(predicting *p)
{
    free(p->guesses);
    free(p->state);
    free(p->context);
}

/* Predicts one layer and counts how many of its routed experts are among the k best. */
static void ask(predicting *p, uint64_t row, uint32_t layer, bool count)
{
    const uint16_t *ids = sim_trace_ids(p->trace, row, layer);
    uint32_t n = p->kind->predict(p->state, p->context, layer, p->guesses, NULL);
    uint32_t k = p->config.top_k;
    p->asked += count ? k : 0;
    for (uint32_t i = 0; i < n && i < k && count; i++)
        for (uint32_t j = 0; j < k; j++)
            p->right += ids[j] == p->guesses[i].expert;
}

/* Runs one token: each layer is predicted when the one `distance` before it has been observed. */
static void run_token(predicting *p, uint64_t row, bool count)
{
    uint32_t experts[MOST_TOP_K], k = p->config.top_k, distance = p->config.distance;
    p->kind->begin(p->state, p->context, NULL);
    for (uint32_t layer = 0; layer < distance && layer < p->config.layers; layer++)
        ask(p, row, layer, count);
    for (uint32_t layer = 0; layer < p->config.layers; layer++) {
        const uint16_t *ids = sim_trace_ids(p->trace, row, layer);
        for (uint32_t j = 0; j < k; j++)
            experts[j] = ids[j];
        p->kind->observe(p->state, p->context,
                         &(mp_seen){.layer = layer, .n_experts = k, .experts = experts});
        if (layer + distance < p->config.layers)
            ask(p, row, layer + distance, count);
    }
    p->kind->end(p->state, p->context);
}

static double hit_rate(predicting *p, uint64_t first_tested)
{
    for (uint32_t r = 0; r < p->trace->source.n_requests; r++) {
        const sim_request *request = &p->trace->requests[r];
        p->kind->request(p->state, p->context);
        for (uint64_t i = 0; i < request->rows; i++)
            run_token(p, request->first_row + i, request->first_row + i >= first_tested);
    }
    return p->asked ? (double)p->right / (double)p->asked : NAN;
}

static int try_distance(const sim_trace *trace, const char *kind, uint32_t distance,
                        uint64_t first_tested, double *out)
{
    predicting p;
    int code = open_predicting(trace, kind, distance, &p);
    *out = code ? NAN : hit_rate(&p, first_tested);
    close_predicting(&p);
    return code;
}

static void tabulate(const double rates[N_KINDS][MOST_DISTANCE], uint32_t distances,
                     sim_findings *out)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        char row[SIM_FINDING_TEXT];
        int at = snprintf(row, sizeof row, "%-14s", kinds[k]);
        for (uint32_t d = 0; d < distances; d++) {
            at += snprintf(row + at, sizeof row - (size_t)at, " %6.2f", 100 * rates[k][d]);
            sim_find(out, 100 * rates[k][d], NAN, "% of routed experts named", "%s, distance %u",
                     kinds[k], d + 1);
        }
        sim_set(out, "%s", row);
    }
}

int sim_study_routing(bool brief, uint64_t seed, sim_findings *out)
{
    double rates[N_KINDS][MOST_DISTANCE];
    uint32_t distances = brief ? 2 : MOST_DISTANCE;
    sim_trace *trace = sim_study_open_trace(out);
    if (!trace)
        return RUN_REFUSED;
    uint64_t first = sim_first_tested(trace, sim_study_train_percent(out));
    double chance = (double)trace->source.top_k / trace->source.experts, previous, best = 0;
    int code = RUN_OK;
    if (trace->source.top_k > MOST_TOP_K)
        code = fail(RUN_REFUSED, "top-k %u is above %u", trace->source.top_k, MOST_TOP_K);
    sim_set(out,
            "%s: of each layer's routed experts, named among the k best, in %%, from 1 to %u "
            "layers before",
            trace->name, distances);
    for (size_t k = 0; k < N_KINDS && !code; k++)
        for (uint32_t d = 0; d < distances && !code; d++)
            code = try_distance(trace, kinds[k], d + 1, first, &rates[k][d]);
    trace->source.close(&trace->source);
    if (code)
        return code;
    tabulate(rates, distances, out);
    previous = rates[0][0];
    for (size_t k = 0; k < N_KINDS; k++)
        best = fmax(best, rates[k][0]);
    sim_claim_that(out, best > previous && previous > chance,
                   "at distance 1 the best predictor (%.1f %%) beats repetition (%.1f %%), and "
                   "that beats chance (%.1f %%)",
                   100 * best, 100 * previous, 100 * chance);
    return sim_study_evictions(true, seed, out);
}
