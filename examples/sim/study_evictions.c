/* Compares eviction policies on recorded routing: one cache of all layers' experts, warmed by the
 * first requests and measured on the others, and the fraction of the gap from LRU to Belady that
 * each closes. */
#include "sim/study_evictions.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/fail.h"
#include "policy/policy.h"
#include "sim/belady.h"
#include "sim/replay.h"
#include "sim/trace.h"

#define EXCERPT "tests/data/gpt-oss-20b-20requests.u8"
#define MOST_POLICIES 12u
#define OURS "cycle"

static const uint32_t eighths[] = {1, 2, 4, 6}; /* of all experts that fit */

#define CAPACITIES (sizeof eighths / sizeof *eighths)

uint64_t sim_first_tested(const sim_trace *trace, uint32_t percent)
{
    uint32_t n = trace->source.n_requests;
    if (n < 2)
        return trace->rows * percent / 100;
    return trace->requests[(uint64_t)n * percent / 100].first_row;
}

/* Returns the rows from `first` on as a trace: a view, not to be closed. */
static sim_trace rest_of(const sim_trace *trace, uint64_t first)
{
    sim_trace rest = *trace;
    rest.ids += first * trace->source.layers * trace->source.top_k;
    rest.rows -= first;
    return rest;
}

int sim_eviction_misses(const sim_trace *trace, const char *policy, uint64_t capacity,
                        uint64_t first, bool cold, uint64_t *out)
{
    sim_trace rest = rest_of(trace, first);
    sim_replay_config config = {.policy = policy,
                                .capacity = capacity,
                                .first_counted = cold ? 0 : first};
    sim_replay_result result;
    int code = sim_replay(cold ? &rest : trace, &config, &result);
    *out = result.misses;
    return code;
}

/* ---- The table ----------------------------------------------------------------------------- */

typedef struct table {
    const sim_trace *trace;
    uint64_t first;    /* first row tested */
    uint64_t accesses; /* number tested */
    bool cold;
    uint32_t n; /* number of policies; LRU is the first, Belady the last */
    const char *names[MOST_POLICIES];
    uint64_t misses[MOST_POLICIES][CAPACITIES];
} table;

static uint64_t capacity_of(const table *t, size_t i)
{
    return (uint64_t)t->trace->source.layers * t->trace->source.experts * eighths[i] / 8;
}

static const uint64_t *misses_of(const table *t, const char *policy)
{
    uint32_t p = 0;
    while (strcmp(t->names[p], policy) != 0)
        p++;
    return t->misses[p];
}

static int fill(table *t)
{
    int code = RUN_OK;
    for (const char *name; (name = mp_policy_name(t->n)) && t->n + 1 < MOST_POLICIES;)
        t->names[t->n++] = name;
    t->names[t->n++] = sim_belady.name;
    for (uint32_t p = 0; p < t->n; p++)
        for (size_t i = 0; i < CAPACITIES && !code; i++)
            code = sim_eviction_misses(t->trace, t->names[p], capacity_of(t, i), t->first, t->cold,
                                       &t->misses[p][i]);
    return code;
}

static double percent_of(uint64_t part, uint64_t whole)
{
    return 100.0 * (double)part / (double)whole;
}

/* Returns the fraction of the misses LRU has beyond Belady's that the policy avoids. */
static double gap_closed(const table *t, uint32_t p, size_t i)
{
    double lru = (double)t->misses[0][i], least = (double)t->misses[t->n - 1][i];
    return lru > least ? 100 * (lru - (double)t->misses[p][i]) / (lru - least) : NAN;
}

static void show(const table *t, sim_findings *out)
{
    const char *kind = t->cold ? "cold" : "warm";
    for (uint32_t p = 0; p < t->n; p++)
        for (size_t i = 0; i < CAPACITIES; i++) {
            double missed = percent_of(t->misses[p][i], t->accesses);
            sim_find(out, 100 - missed, NAN, "hits, %", "%s, %s, %.1f %% resident", kind,
                     t->names[p], 12.5 * eighths[i]);
        }
    for (uint32_t p = 1; p + 1 < t->n; p++)
        for (size_t i = 0; i < CAPACITIES; i++)
            sim_find(out, gap_closed(t, p, i), NAN, "LRU-Belady gap closed, %",
                     "%s, %s, %.1f %% resident", kind, t->names[p], 12.5 * eighths[i]);
}

/* Tabulates hits and closed gaps. */
static void tabulate(const table *t, sim_findings *out)
{
    sim_set(out, "%s: hits in %%, and the share of the gap from LRU to Belady that is closed, at",
            t->cold ? "cold" : "warm");
    sim_set(out, "%-10s %14s %14s %14s %14s", "", "12.5 %", "25 %", "50 %", "75 %");
    for (uint32_t p = 0; p < t->n; p++) {
        char row[SIM_FINDING_TEXT];
        int at = snprintf(row, sizeof row, "%-10s", t->names[p]);
        for (size_t i = 0; i < CAPACITIES; i++)
            at += snprintf(row + at, sizeof row - (size_t)at, " %6.2f (%4.0f%%)",
                           100 - percent_of(t->misses[p][i], t->accesses), gap_closed(t, p, i));
        sim_set(out, "%s", row);
    }
}

static void judge(const table *t, sim_findings *out)
{
    const uint64_t *ours = misses_of(t, OURS), *lirs = misses_of(t, "lirs"),
                   *s3fifo = misses_of(t, "s3fifo");
    for (size_t i = 0; i < CAPACITIES; i++) {
        uint64_t better = lirs[i] < s3fifo[i] ? lirs[i] : s3fifo[i];
        sim_claim_that(out, ours[i] <= better,
                       "%s, %.1f %% resident: " OURS " misses %" PRIu64
                       ", LIRS or S3-FIFO at least %" PRIu64,
                       t->cold ? "cold" : "warm", 12.5 * eighths[i], ours[i], better);
    }
}

static int study(const sim_trace *trace, uint32_t percent, bool cold, sim_findings *out)
{
    table t = {.trace = trace, .first = sim_first_tested(trace, percent), .cold = cold};
    t.accesses = (trace->rows - t.first) * trace->source.layers * trace->source.top_k;
    if (t.accesses == 0)
        return fail(RUN_REFUSED, "%s: nothing is left to be tested", trace->name);
    int code = fill(&t);
    if (!code) {
        tabulate(&t, out);
        show(&t, out);
        judge(&t, out);
    }
    return code;
}

uint32_t sim_study_train_percent(const sim_findings *out)
{
    return out->train_percent ? out->train_percent : 60;
}

sim_trace *sim_study_open_trace(const sim_findings *out)
{
    char path[4096];
    if (!out->traces)
        return sim_trace_open_as(EXCERPT, &(sim_trace_shape){24, 32, 4});
    snprintf(path, sizeof path, "%.4000s/gpt-oss-20b", out->traces);
    return sim_trace_open(path);
}

int sim_study_evictions(bool brief, uint64_t seed, sim_findings *out)
{
    uint32_t percent = sim_study_train_percent(out);
    sim_trace *trace = sim_study_open_trace(out);
    (void)seed;
    if (!trace)
        return RUN_REFUSED;
    uint64_t first = sim_first_tested(trace, percent);
    sim_set(out, "%s, %u requests; rows %" PRIu64 " to %" PRIu64 " are tested", trace->name,
            trace->source.n_requests, first, trace->rows);
    int code = study(trace, percent, false, out);
    if (!code && !brief)
        code = study(trace, percent, true, out);
    trace->source.close(&trace->source);
    return code;
}
