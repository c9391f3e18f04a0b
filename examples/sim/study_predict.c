/* How well predictors name a layer's experts ahead of it, on recorded routing: trained on the first
 * requests, tested on the others, from each distance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "policy/predictors.h"
#include "sim/study.h"
#include "sim/trace.h"
int sim_study_predictors(const sim_trace *trace, uint32_t first_tested, sim_findings *out);

#define MOST_DISTANCE 6u

/* What routed ids alone can feed. */
static const char *const kinds[] = {"previous", "hit-count", "coactivation"};

#define N_KINDS (sizeof kinds / sizeof *kinds)

typedef struct predicting {
    const sim_trace *trace;
    const mp_predictor *kind;
    mp_predict_config config;
    void *state, *context;
    mp_guess *guesses; /* [experts] */
    uint64_t asked, right; /* routed choices of layers asked about, and those among the k best */
} predicting;

static void *alloc_zeroed(uint64_t bytes)
{
    uint64_t padded = (bytes + 63) & ~63ull;
    void *memory = aligned_alloc(64, padded ? padded : 64);
    return memory ? memset(memory, 0, padded ? padded : 64) : NULL;
}

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
    out->state = alloc_zeroed(out->kind->state_bytes(&out->config));
    out->context = alloc_zeroed(out->kind->context_bytes(&out->config));
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

/* Asks about one layer and counts how many of what it then routed to are among the k best. */
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

/* One token: each layer is asked about when the one `distance` before it has been seen. */
static void run_token(predicting *p, uint64_t row, bool count)
{
    uint32_t experts[64], k = p->config.top_k, distance = p->config.distance;
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

static double hit_rate(predicting *p, uint32_t first_tested)
{
    for (uint32_t r = 0; r < p->trace->source.n_requests; r++) {
        const sim_request *request = &p->trace->requests[r];
        p->kind->request(p->state, p->context);
        for (uint64_t row = 0; row < request->rows; row++)
            run_token(p, request->first_row + row, r >= first_tested);
    }
    return p->asked ? (double)p->right / (double)p->asked : 0;
}

int sim_study_predictors(const sim_trace *trace, uint32_t first_tested, sim_findings *out)
{
    double chance = (double)trace->source.top_k / trace->source.experts;
    double previous = 0, best = 0;
    int code = trace->source.top_k <= 64 ? RUN_OK
                                         : fail(RUN_REFUSED, "top-k %u is above 64",
                                                trace->source.top_k);
    for (size_t kind = 0; kind < N_KINDS && !code; kind++)
        for (uint32_t distance = 1; distance <= MOST_DISTANCE && !code; distance++) {
            predicting p;
            code = open_predicting(trace, kinds[kind], distance, &p);
            double rate = code ? 0 : hit_rate(&p, first_tested);
            close_predicting(&p);
            if (code)
                break;
            sim_find(out, 100 * rate, NAN, "% of routed experts named", "%s, distance %u",
                     kinds[kind], distance);
            previous = kind == 0 && distance == 1 ? rate : previous;
            best = distance == 1 && rate > best ? rate : best;
        }
    if (!code)
        sim_claim_that(out, best > previous && previous > chance,
                       "at distance 1 the best predictor (%.1f %%) beats repetition (%.1f %%), and "
                       "that beats chance (%.1f %%)",
                       100 * best, 100 * previous, 100 * chance);
    return code;
}
