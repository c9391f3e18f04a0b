/* One pass over the requests, with a record of each key so far. */
#include "sim/trace_stats.h"

#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "common/order.h"
#include "sim/trace.h"

#define SATURATED 0.9

typedef struct measuring {
    const sim_trace *trace;
    sim_trace_stats *out;
    uint32_t layers, experts, top_k, keys;
    uint64_t *uses;        /* [keys] of the whole trace */
    double *weights;       /* [keys] in the request so far */
    uint64_t *used_burst;  /* [keys] the last burst that used it, from 1 */
    uint64_t *new_keys;    /* [longest request] keys first used at each of the request's tokens */
    double *sorted;        /* [experts] */
    uint64_t pairs;        /* tokens with a preceding one */
    uint64_t burst;        /* number of the current burst, from 1 */
    uint64_t union_before; /* of the preceding burst, 0 = not adjacent */
    uint64_t union_now;
    uint64_t common_now;
    uint64_t overlaps; /* bursts with a preceding one */
    uint64_t all_keys;
} measuring;

/* ---- Entropy --------------------------------------------------------------------------------- */

static double entropy(const double *weights, uint32_t n)
{
    double sum = 0, logs = 0;
    for (uint32_t i = 0; i < n; i++)
        if (weights[i] > 0) {
            sum += weights[i];
            logs += weights[i] * log2(weights[i]);
        }
    return sum > 0 ? log2(sum) - logs / sum : 0;
}

static double weight_of(const measuring *m, uint64_t row, uint32_t layer, uint32_t k)
{
    if (!m->trace->probabilities)
        return 1;
    double weight = m->trace->probabilities[(row * m->layers + layer) * m->top_k + k];
    return weight > 0 ? weight : 0;
}

static double request_bits(const measuring *m)
{
    double bits = 0;
    for (uint32_t layer = 0; layer < m->layers; layer++)
        bits += entropy(m->weights + (size_t)layer * m->experts, m->experts);
    return bits / m->layers;
}

/* ---- Bursts ---------------------------------------------------------------------------------- */

/* Ends a burst. `follows`: the next one begins directly after it. */
static void end_burst(measuring *m, bool whole, bool follows)
{
    sim_trace_stats *out = m->out;
    double share = (double)m->union_now / m->keys;
    if (whole) {
        out->bursts++;
        out->burst_union += share;
        out->burst_union_max = fmax(out->burst_union_max, share);
    }
    if (whole && m->union_before) {
        m->overlaps++;
        out->burst_overlap += (double)m->common_now / (double)m->union_now;
        out->burst_jaccard +=
            (double)m->common_now / (double)(m->union_now + m->union_before - m->common_now);
    }
    m->union_before = follows ? m->union_now : 0;
    m->union_now = m->common_now = 0;
    m->burst++;
}

static void use_in_burst(measuring *m, uint32_t key)
{
    if (m->used_burst[key] == m->burst)
        return;
    m->union_now++;
    m->common_now += m->union_before && m->used_burst[key] + 1 == m->burst;
    m->used_burst[key] = m->burst;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* Returns how many of the row's experts in this layer the preceding row also has. */
static uint32_t carried(const measuring *m, uint64_t row, uint32_t layer)
{
    const uint16_t *now = sim_trace_ids(m->trace, row, layer);
    const uint16_t *before = sim_trace_ids(m->trace, row - 1, layer);
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->top_k; i++)
        for (uint32_t j = 0; j < m->top_k; j++)
            n += now[i] == before[j];
    return n;
}

static void take_layer(measuring *m, uint64_t row, uint32_t layer, uint64_t token)
{
    sim_layer_stats *stats = &m->out->layers[layer];
    const uint16_t *ids = sim_trace_ids(m->trace, row, layer);
    double chosen[256];
    if (token > 0)
        stats->carry_over += carried(m, row, layer);
    for (uint32_t k = 0; k < m->top_k; k++) {
        uint32_t key = layer * m->experts + ids[k];
        chosen[k] = weight_of(m, row, layer, k);
        m->all_keys += m->uses[key]++ == 0;
        if (m->weights[key] < 0) {
            m->weights[key] = 0;
            m->new_keys[token]++;
            stats->touched++;
        }
        m->weights[key] += chosen[k];
        use_in_burst(m, key);
    }
    stats->token_bits += entropy(chosen, m->top_k);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static void take_point(measuring *m, uint64_t tokens, uint64_t footprint)
{
    uint32_t index = 0;
    while (UINT64_C(1) << index < tokens)
        index++;
    if (UINT64_C(1) << index != tokens || index >= SIM_STATS_POINTS)
        return;
    sim_stats_point *point = &m->out->points[index];
    point->tokens = tokens;
    point->requests++;
    point->footprint += (double)footprint / m->keys;
    point->bits += request_bits(m);
    if (index >= m->out->n_points)
        m->out->n_points = index + 1;
}

static uint64_t saturation(const measuring *m, uint64_t tokens, uint64_t footprint)
{
    uint64_t seen = 0, at = 0;
    while (at < tokens && (double)seen < SATURATED * (double)footprint)
        seen += m->new_keys[at++];
    return at;
}

static void take_request(measuring *m, const sim_request *request)
{
    uint64_t footprint = 0;
    for (uint32_t key = 0; key < m->keys; key++)
        m->weights[key] = -1; /* not used yet */
    for (uint64_t token = 0; token < request->rows; token++) {
        m->new_keys[token] = 0;
        for (uint32_t layer = 0; layer < m->layers; layer++)
            take_layer(m, request->first_row + token, layer, token);
        footprint += m->new_keys[token];
        take_point(m, token + 1, footprint);
        if (m->out->burst && (token + 1) % m->out->burst == 0)
            end_burst(m, true, true);
    }
    bool whole = !m->out->burst;
    if (whole || request->rows % m->out->burst)
        end_burst(m, whole, whole);
    else
        m->union_before = 0;
    m->pairs += request->rows - 1;
    m->out->saturation_tokens += (double)saturation(m, request->rows, footprint);
    for (uint32_t layer = 0; layer < m->layers; layer++)
        m->out->layers[layer].request_bits +=
            entropy(m->weights + (size_t)layer * m->experts, m->experts);
}

/* ---- Means ----------------------------------------------------------------------------------- */

/* Gini coefficient of the layer's uses, and the share of its most used tenth. */
static void measure_skew(measuring *m, uint32_t layer)
{
    sim_layer_stats *stats = &m->out->layers[layer];
    uint32_t n = m->experts, tenth = (n + 9) / 10;
    double sum = 0, ranked = 0, top = 0;
    for (uint32_t e = 0; e < n; e++)
        m->sorted[e] = (double)m->uses[(size_t)layer * n + e];
    qsort(m->sorted, n, sizeof *m->sorted, order_doubles);
    for (uint32_t i = 0; i < n; i++) {
        sum += m->sorted[i];
        ranked += m->sorted[i] * (2.0 * (i + 1) - n - 1);
        top += i >= n - tenth ? m->sorted[i] : 0;
    }
    stats->gini = ranked / (n * sum);
    stats->top_tenth = top / sum;
}

static void divide(double *value, double by)
{
    *value = by > 0 ? *value / by : 0;
}

static void take_means(measuring *m)
{
    sim_trace_stats *out = m->out;
    double requests = m->trace->source.n_requests;
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        sim_layer_stats *stats = &out->layers[layer];
        measure_skew(m, layer);
        divide(&stats->carry_over, (double)m->pairs * m->top_k);
        divide(&stats->touched, requests);
        divide(&stats->token_bits, (double)m->trace->rows);
        divide(&stats->request_bits, requests);
        out->mean.carry_over += stats->carry_over / m->layers;
        out->mean.touched += stats->touched / m->layers;
        out->mean.gini += stats->gini / m->layers;
        out->mean.top_tenth += stats->top_tenth / m->layers;
        out->mean.token_bits += stats->token_bits / m->layers;
        out->mean.request_bits += stats->request_bits / m->layers;
    }
    for (uint32_t i = 0; i < out->n_points; i++) {
        divide(&out->points[i].footprint, out->points[i].requests);
        divide(&out->points[i].bits, out->points[i].requests);
    }
    divide(&out->burst_union, (double)out->bursts);
    divide(&out->burst_overlap, (double)m->overlaps);
    divide(&out->burst_jaccard, (double)m->overlaps);
    divide(&out->saturation_tokens, requests);
    out->all_footprint = (double)m->all_keys / m->keys;
}

/* ---- All ------------------------------------------------------------------------------------- */

static int measuring_open(measuring *m, const sim_trace *trace, sim_trace_stats *out)
{
    const sim_source *source = &trace->source;
    uint64_t longest = 0;
    for (uint32_t r = 0; r < source->n_requests; r++)
        if (trace->requests[r].rows > longest)
            longest = trace->requests[r].rows;
    *m = (measuring){.trace = trace,
                     .out = out,
                     .layers = source->layers,
                     .experts = source->experts,
                     .top_k = source->top_k,
                     .keys = source->layers * source->experts,
                     .burst = 1};
    m->uses = calloc(m->keys, sizeof *m->uses);
    m->weights = calloc(m->keys, sizeof *m->weights);
    m->used_burst = calloc(m->keys, sizeof *m->used_burst);
    m->new_keys = calloc(longest, sizeof *m->new_keys);
    m->sorted = calloc(m->experts, sizeof *m->sorted);
    out->layers = calloc(m->layers, sizeof *out->layers);
    out->n_layers = m->layers;
    bool whole = m->uses && m->weights && m->used_burst && m->new_keys && m->sorted && out->layers;
    return whole ? RUN_OK : fail_memory();
}

static void measuring_close(measuring *m)
{
    free(m->uses);
    free(m->weights);
    free(m->used_burst);
    free(m->new_keys);
    free(m->sorted);
}

int sim_trace_stats_measure(const sim_trace *trace, uint32_t burst, uint64_t expert_bytes,
                            uint64_t bus_bytes_per_s, sim_trace_stats *out)
{
    measuring m;
    *out = (sim_trace_stats){.burst = burst, .weighed = trace->probabilities != NULL};
    int code = measuring_open(&m, trace, out);
    for (uint32_t r = 0; r < trace->source.n_requests && !code; r++)
        take_request(&m, &trace->requests[r]);
    if (!code) {
        take_means(&m);
        out->mandatory_experts = (1 - out->mean.carry_over) * m.layers * m.top_k;
        out->mandatory_bytes = out->mandatory_experts * (double)expert_bytes;
        if (out->mandatory_bytes > 0)
            out->tokens_per_s = (double)bus_bytes_per_s / out->mandatory_bytes;
    }
    measuring_close(&m);
    if (code)
        sim_trace_stats_free(out);
    return code;
}

void sim_trace_stats_free(sim_trace_stats *stats)
{
    free(stats->layers);
    *stats = (sim_trace_stats){0};
}
