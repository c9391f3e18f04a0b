/* Exact and sampled distances side by side, one pair of stacks for each scope. */
#include "sim/miss_curve.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "planning/curve.h"
#include "planning/reuse.h"
#include "planning/sampled.h"
#include "sim/replay.h"
#include "sim/report.h"

#define LEAST_SAMPLE 16
#define MOST_SET 256
#define TABLE_LINES 32

typedef struct measuring {
    uint32_t scopes, scope_keys;
    mp_reuse **exact;     /* [scopes] */
    mp_sampled **sampled; /* [scopes] */
    mp_curve curve;       /* of the sampled distances of all scopes */
    double *bins;
    uint64_t *counts; /* [scope_keys + 1] exact distances; the last: first accesses */
    /* the set that is being used */
    uint32_t keys[MOST_SET], distances[MOST_SET];
    mp_sampled_use uses[MOST_SET];
    mp_sample samples[MOST_SET];
} measuring;

static void measuring_free(measuring *m)
{
    for (uint32_t i = 0; i < m->scopes; i++) {
        if (m->exact)
            free(m->exact[i]);
        if (m->sampled)
            free(m->sampled[i]);
    }
    free(m->exact);
    free(m->sampled);
    free(m->bins);
    free(m->counts);
}

static int measuring_open(measuring *m, const sim_source *source, sim_scope scope,
                          uint32_t sample_keys, uint64_t seed)
{
    bool by_layer = scope == SIM_SCOPE_LAYER;
    *m = (measuring){.scopes = by_layer ? source->layers : 1,
                     .scope_keys = by_layer ? source->experts : source->layers * source->experts};
    m->exact = calloc(m->scopes, sizeof *m->exact);
    m->sampled = calloc(m->scopes, sizeof *m->sampled);
    m->bins = calloc(mp_curve_bins(m->scope_keys, m->scope_keys), sizeof *m->bins);
    m->counts = calloc((size_t)m->scope_keys + 1, sizeof *m->counts);
    bool whole = m->exact && m->sampled && m->bins && m->counts;
    for (uint32_t i = 0; i < m->scopes && whole; i++) {
        m->exact[i] = malloc(mp_reuse_bytes(m->scope_keys));
        m->sampled[i] = malloc(mp_sampled_bytes(sample_keys));
        whole = m->exact[i] && m->sampled[i];
        if (whole) {
            m->exact[i] = mp_reuse_init(m->exact[i], m->scope_keys);
            m->sampled[i] = mp_sampled_init(m->sampled[i], sample_keys, 1, seed + i);
        }
    }
    if (whole)
        mp_curve_init(&m->curve, m->bins, m->scope_keys, m->scope_keys);
    return whole ? RUN_OK : fail_memory();
}

/* Uses a set of one layer whose first key in its scope is `base`. */
static void use_set(measuring *m, uint32_t scope, uint32_t base, const uint16_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        m->keys[i] = base + ids[i];
        m->uses[i] = (mp_sampled_use){m->keys[i], 1};
    }
    mp_reuse_use(m->exact[scope], m->keys, n, m->distances);
    for (uint32_t i = 0; i < n; i++)
        m->counts[m->distances[i] == MP_REUSE_FIRST ? m->scope_keys : m->distances[i]]++;
    uint32_t n_samples = mp_sampled_use_set(m->sampled[scope], m->uses, n, m->samples);
    for (uint32_t i = 0; i < n_samples; i++) {
        if (m->samples[i].distance == UINT64_MAX)
            mp_curve_add_first(&m->curve, m->samples[i].weight);
        else
            mp_curve_add(&m->curve, m->samples[i].distance, m->samples[i].weight);
    }
}

static void use_trace(measuring *m, const sim_trace *trace, sim_access access)
{
    const sim_source *source = &trace->source;
    uint32_t n = access == SIM_ACCESS_LAYER ? source->top_k : 1;
    uint64_t sets = trace->rows * source->layers * source->top_k / n;
    for (uint64_t i = 0; i < sets; i++) {
        uint32_t layer = (uint32_t)(i * n / source->top_k % source->layers);
        uint32_t scope = m->scopes == 1 ? 0 : layer;
        uint32_t base = m->scopes == 1 ? layer * source->experts : 0;
        use_set(m, scope, base, trace->ids + i * n, n);
    }
}

static int take_curve(measuring *m, sim_miss_curve *out)
{
    out->misses = calloc((size_t)m->scope_keys + 1, sizeof *out->misses);
    out->sampled = calloc((size_t)m->scope_keys + 1, sizeof *out->sampled);
    if (!out->misses || !out->sampled)
        return fail_memory();
    out->n = m->scope_keys;
    out->step = m->scopes;
    out->first = m->counts[m->scope_keys];
    out->misses[out->n] = out->first;
    for (uint32_t c = out->n; c-- > 0;)
        out->misses[c] = out->misses[c + 1] + m->counts[c];
    out->accesses = out->misses[0];
    for (uint32_t c = 0; c <= out->n; c++)
        out->sampled[c] = m->curve.first + mp_curve_misses(&m->curve, c);
    for (uint32_t i = 0; i < m->scopes; i++)
        out->sample_rate += mp_sampled_rate(m->sampled[i]) / m->scopes;
    return RUN_OK;
}

int sim_miss_curve_measure(const sim_trace *trace, sim_scope scope, sim_access access,
                           uint32_t sample_keys, uint64_t seed, sim_miss_curve *out)
{
    const sim_source *source = &trace->source;
    uint32_t scopes = scope == SIM_SCOPE_LAYER ? source->layers : 1;
    uint32_t wanted = sample_keys ? sample_keys : SIM_SAMPLE_KEYS;
    *out = (sim_miss_curve){0};
    out->sample_keys = wanted / scopes > LEAST_SAMPLE ? wanted / scopes : LEAST_SAMPLE;
    measuring m;
    int code = measuring_open(&m, source, scope, out->sample_keys, seed);
    if (!code) {
        use_trace(&m, trace, access);
        code = take_curve(&m, out);
    }
    measuring_free(&m);
    if (code)
        sim_miss_curve_free(out);
    return code;
}

void sim_miss_curve_free(sim_miss_curve *curve)
{
    free(curve->misses);
    free(curve->sampled);
    *curve = (sim_miss_curve){0};
}

double sim_miss_curve_error(const sim_miss_curve *curve)
{
    double worst = 0;
    for (uint32_t c = 0; c <= curve->n; c++)
        worst = fmax(worst, fabs(curve->sampled[c] - (double)curve->misses[c]));
    return worst / (double)curve->accesses;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static int print_json(const sim_miss_curve *curve, const sim_options *options)
{
    json_t *capacities = json_array(), *misses = json_array(), *sampled = json_array();
    int failed = 0;
    for (uint32_t c = 0; c <= curve->n; c++) {
        failed |= json_array_append_new(capacities, json_integer((json_int_t)c * curve->step));
        failed |= json_array_append_new(misses, json_integer((json_int_t)curve->misses[c]));
        failed |= json_array_append_new(sampled, json_real(curve->sampled[c]));
    }
    json_t *root =
        json_pack("{s:{s:s, s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:o, s:o, s:o}}", "curve", "policy",
                  "lru", "scope", sim_scope_name(options->scope), "access",
                  sim_access_name(options->access), "accesses", (json_int_t)curve->accesses,
                  "first", (json_int_t)curve->first, "sample_keys", (int)curve->sample_keys,
                  "sample_rate", curve->sample_rate, "largest_error", sim_miss_curve_error(curve),
                  "capacities", capacities, "misses", misses, "sampled", sampled);
    return put_print(stdout, failed, root);
}

static void print_table(const sim_miss_curve *curve, const sim_trace *trace,
                        const sim_options *options)
{
    double percent = 100.0 / (double)curve->accesses;
    printf("%s: lru, scope %s, access %s, %" PRIu64 " accesses, %" PRIu64 " of them first ones\n",
           trace->source.name, sim_scope_name(options->scope), sim_access_name(options->access),
           curve->accesses, curve->first);
    printf("sampled: at most %" PRIu32 " keys in each scope, rate %.3f at the end, at most %.2f "
           "points off\n\n",
           curve->sample_keys, curve->sample_rate, 100 * sim_miss_curve_error(curve));
    printf("%10s %14s %9s %12s\n", "capacity", "misses", "miss %", "sampled %");
    uint32_t lines = curve->n < TABLE_LINES ? curve->n : TABLE_LINES;
    for (uint32_t i = 0; i <= lines; i++) {
        uint32_t c = lines ? (uint32_t)((uint64_t)curve->n * i / lines) : 0;
        printf("%10" PRIu64 " %14" PRIu64 " %9.3f %12.3f\n", (uint64_t)c * curve->step,
               curve->misses[c], (double)curve->misses[c] * percent, curve->sampled[c] * percent);
    }
}

static int report_curve(const sim_trace *trace, const sim_options *options,
                        const sim_miss_curve *curve)
{
    sim_report report;
    int code = sim_report_open_trace(options, trace, &report);
    if (!code)
        sim_report_curve(&report, curve);
    return page_close(&report, code);
}

int sim_miss_curve_main(const sim_trace *trace, const sim_options *options)
{
    sim_miss_curve curve;
    int code = sim_miss_curve_measure(trace, options->scope, options->access, options->sample_keys,
                                      options->seed, &curve);
    if (!code)
        code = report_curve(trace, options, &curve);
    if (!code && options->json)
        code = print_json(&curve, options);
    else if (!code)
        print_table(&curve, trace, options);
    sim_miss_curve_free(&curve);
    return code;
}
