/* Prints replays and curves. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "policy/policy.h"
#include "sim/belady.h"
#include "sim/replay.h"
#include "sim/report.h"

const char *sim_scope_name(sim_scope scope)
{
    return scope == SIM_SCOPE_LAYER ? "layer" : "global";
}

const char *sim_access_name(sim_access access)
{
    return access == SIM_ACCESS_SEQUENTIAL ? "sequential" : "layer";
}

static json_t *row_json(const sim_replay_row *row)
{
    const sim_replay_result *r = &row->result;
    return json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:f}", "policy", row->config.policy,
                     "capacity", (json_int_t)row->config.capacity, "scope",
                     sim_scope_name(row->config.scope), "access",
                     sim_access_name(row->config.access), "accesses", (json_int_t)r->accesses,
                     "hits", (json_int_t)(r->accesses - r->misses), "misses", (json_int_t)r->misses,
                     "first", (json_int_t)r->first, "miss_ratio",
                     (double)r->misses / (double)r->accesses);
}

static int print_json(const sim_replay_row *rows, uint32_t n)
{
    json_t *results = json_array();
    int failed = !results;
    for (uint32_t i = 0; i < n; i++)
        failed |= json_array_append_new(results, row_json(&rows[i]));
    return put_print(stdout, failed, json_pack("{s:o}", "results", results));
}

static void print_table(const sim_trace *trace, const sim_replay_row *rows, uint32_t n)
{
    const sim_source *s = &trace->source;
    printf("%s: %" PRIu32 " requests, %" PRIu64 " tokens, %" PRIu32 " layers of %" PRIu32
           " experts, %" PRIu32 " for each token\n",
           s->name, s->n_requests, trace->rows, s->layers, s->experts, s->top_k);
    printf("scope %s, access %s, %" PRIu64 " accesses, %" PRIu64 " of them first ones\n\n",
           sim_scope_name(rows->config.scope), sim_access_name(rows->config.access),
           rows->result.accesses, rows->result.first);
    printf("%-10s %10s %14s %9s\n", "policy", "capacity", "misses", "miss %");
    for (uint32_t i = 0; i < n; i++)
        printf("%-10s %10" PRIu64 " %14" PRIu64 " %9.3f\n", rows[i].config.policy,
               rows[i].config.capacity, rows[i].result.misses,
               100.0 * (double)rows[i].result.misses / (double)rows[i].result.accesses);
}

/* Checks the policies' names, before hours of replaying. */
static int check_policies(const sim_options *options)
{
    for (uint32_t i = 0; i < options->policies.n; i++) {
        const char *name = options->policies.words[i];
        if (strcmp(name, sim_belady.name) != 0 && !mp_policy_find(name))
            return fail(RUN_REFUSED, "--policy %s: unknown policy, see --list policies", name);
    }
    return RUN_OK;
}

static int report_rows(const sim_trace *trace, const sim_options *options,
                       const sim_replay_row *rows)
{
    sim_report report;
    int code = sim_report_open_trace(options, trace, &report);
    if (!code)
        sim_report_replay(&report, rows, options->policies.n, options->capacities.n);
    return page_close(&report, code);
}

int sim_replay_main(const sim_trace *trace, const sim_options *options)
{
    uint32_t n = options->policies.n * options->capacities.n;
    sim_replay_row *rows = calloc(n, sizeof *rows);
    int code = rows ? check_policies(options) : fail_memory();
    if (!code)
        code = sim_replay_all(trace, options, rows);
    if (!code)
        code = report_rows(trace, options, rows);
    if (!code && options->json)
        code = print_json(rows, n);
    else if (!code)
        print_table(trace, rows, n);
    free(rows);
    return code;
}
