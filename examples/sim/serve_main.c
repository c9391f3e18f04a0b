/* Serving from the command line: every combination of budget, concurrency, length and arm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "policy/predictor.h"
#include "sim/report.h"
#include "sim/serve_rows.h"
#include "sim/synthetic.h"
#include "sim/trace.h"

#define DEFAULT_JOBS 32u
#define DEFAULT_PROMPT 512u
#define DEFAULT_OUTPUT 128u
#define DEFAULT_BUDGET 50.0 /* percent of the experts */

/* Settings common to all rows. */
typedef struct setting {
    const sim_options *options;
    sim_machine machine;
    sim_shape shape;
    sim_source *source;
    sim_trace *trace; /* the trace behind the source, or NULL */
    json_t *configured;
    sim_serve_rows rows;
    uint32_t room;
} setting;

/* ---- Routing ---------------------------------------------------------------------------- */

/* Opens the routing; without --trace and --synthetic, the generator's preset for the model. */
static int open_routing(setting *s)
{
    const sim_options *o = s->options;
    if (o->trace) {
        const sim_trace_shape shape = {o->shape_layers, o->shape_experts, o->shape_top_k};
        s->trace = sim_trace_open_as(o->trace, &shape);
        if (!s->trace)
            return RUN_REFUSED;
        sim_trace_keep(s->trace, o->requests);
        s->source = &s->trace->source;
        return RUN_OK;
    }
    sim_synthetic config;
    int code = sim_synthetic_read(o->synthetic ? o->synthetic : s->shape.name, o->seed, &config);
    return code ? code : sim_synthetic_open(&config, &s->source);
}

static int open_setting(const sim_options *options, setting *s)
{
    *s = (setting){.options = options};
    int code = sim_machine_find(options->machine, &s->machine);
    if (!code)
        code = sim_shape_find(options->model, options->tp, options->f8, &s->shape);
    if (!code)
        code = open_routing(s);
    if (code)
        return code;
    s->rows = (sim_serve_rows){.options = options,
                               .shape = &s->shape,
                               .machine = &s->machine,
                               .routing = s->source->name};
    s->configured = json_array();
    return s->configured ? RUN_OK : fail_memory();
}

static void close_setting(setting *s)
{
    for (uint32_t i = 0; i < s->rows.n; i++)
        sim_arm_run_free(&s->rows.rows[i].run);
    free(s->rows.rows);
    json_decref(s->configured);
    if (s->source)
        s->source->close(s->source);
}

/* ---- Jobs -------------------------------------------------------------------------------- */

static int bind_jobs(const setting *s, sim_jobs *jobs)
{
    if (!s->trace)
        return sim_jobs_bind(jobs, s->source->n_requests, NULL, 0);
    uint32_t n = s->source->n_requests;
    uint32_t *group = malloc(n * sizeof *group);
    if (!group)
        return fail_memory();
    for (uint32_t i = 0; i < n; i++)
        group[i] = s->trace->requests[i].group;
    int code = sim_jobs_bind(jobs, n, s->trace->n_groups ? group : NULL, s->trace->n_groups);
    free(group);
    return code;
}

static int make_jobs(const setting *s, uint32_t prompt, uint32_t output, sim_jobs *out)
{
    const sim_options *o = s->options;
    int code;
    if (o->arrivals) {
        sim_jobs_config config = {.most = o->jobs, .time_scale = o->time_scale};
        code = sim_jobs_read(o->arrivals, &config, out);
    } else {
        code = sim_jobs_plain(o->jobs ? o->jobs : DEFAULT_JOBS, prompt, output, o->rate, out);
    }
    return code ? code : bind_jobs(s, out);
}

/* ---- Arms -------------------------------------------------------------------------------- */

static sim_serve_row *add_row(setting *s)
{
    if (s->rows.n == s->room) {
        uint32_t room = s->room ? 2 * s->room : 8;
        sim_serve_row *grown = realloc(s->rows.rows, room * sizeof *grown);
        if (!grown)
            return NULL;
        s->rows.rows = grown;
        s->room = room;
    }
    sim_serve_row *row = &s->rows.rows[s->rows.n++];
    memset(row, 0, sizeof *row);
    return row;
}

static int run_arm(setting *s, const sim_serve_config *config, const sim_split_option *split,
                   const char *baseline)
{
    sim_serve_row *row = add_row(s);
    if (!row)
        return fail_memory();
    row->baseline = baseline != NULL;
    row->budget_bytes = config->stack.arena_bytes;
    row->concurrency = config->concurrency;
    if (!s->options->arrivals) {
        row->prompt_tokens = config->jobs->jobs[0].prompt_tokens;
        row->output_tokens = config->jobs->jobs[0].output_tokens;
    }
    if (baseline)
        snprintf(row->arm, sizeof row->arm, "%s", baseline);
    else if (split->kind == SIM_SPLIT_FIXED)
        snprintf(row->arm, sizeof row->arm, "fixed:%g", split->fraction);
    else
        snprintf(row->arm, sizeof row->arm, "%s", sim_split_name(split->kind));
    return baseline ? sim_baseline_run(config, baseline, &row->run)
                    : sim_split_run(config, split, &row->run);
}

static int configure(setting *s, const sim_serve_config *config)
{
    sim_configured configured;
    int code = sim_configure(config, &configured);
    if (code)
        return code;
    if (!s->options->json)
        sim_configured_table(config, &configured);
    else if (json_array_append_new(s->configured, sim_configured_json(config, &configured)))
        code = fail_memory();
    sim_configured_free(&configured);
    return code;
}

static int run_arms(setting *s, const sim_serve_config *config)
{
    static const sim_split_option best = {.kind = SIM_SPLIT_MV_WSA};
    const sim_options *o = s->options;
    int code = RUN_OK;
    if (o->mode == SIM_CONFIGURE)
        return configure(s, config);
    for (uint32_t i = 0; i < o->splits.n && !code; i++)
        code = run_arm(s, config, &o->splits.list[i], NULL);
    for (uint32_t i = 0; i < o->baselines.n && !code; i++)
        code = run_arm(s, config, NULL, o->baselines.words[i]);
    if (!o->splits.n && !o->baselines.n)
        code = run_arm(s, config, &best, NULL);
    return code;
}

/* ---- All combinations -------------------------------------------------------------------- */

static uint32_t regime(const sim_options *o)
{
    if (!o->regime || !strcmp(o->regime, "auto"))
        return MOEPAGE_REGIME_AUTO;
    return strcmp(o->regime, "cache") ? MOEPAGE_REGIME_STREAM : MOEPAGE_REGIME_CACHE;
}

static uint64_t budget_bytes(const setting *s, uint32_t i)
{
    const sim_shape *shape = &s->shape;
    double experts = (double)shape->expert_bytes * shape->experts * shape->moe_layers;
    double percent = DEFAULT_BUDGET;
    if (s->options->budgets.n) {
        if (s->options->budgets.list[i].bytes)
            return s->options->budgets.list[i].bytes;
        percent = s->options->budgets.list[i].percent;
    }
    return (uint64_t)(experts * percent / 100);
}

static int check_memory(const setting *s, uint64_t budget)
{
    uint64_t dense = sim_shape_dense_bytes(&s->shape), there = s->machine.profile.memory_bytes;
    if (budget <= there && dense <= there - budget)
        return RUN_OK;
    return fail(RUN_REFUSED, "a budget of %.2f GB and dense weights of %.2f GB: %s has %.2f GB",
                (double)budget / 1e9, (double)dense / 1e9, s->machine.profile.name,
                (double)there / 1e9);
}

/* Returns the predictor, which works from routed ids alone; "previous" needs none. */
static const char *predictor_of(const sim_options *o)
{
    return o->prefetch && strcmp(o->prefetch, "previous") != 0 ? o->prefetch : NULL;
}

static uint32_t prefetch_mode(const sim_options *o)
{
    if (predictor_of(o))
        return MOEPAGE_PREFETCH_PREDICTOR;
    return o->prefetch ? MOEPAGE_PREFETCH_PREVIOUS : MOEPAGE_PREFETCH_OFF;
}

static int run_lengths(setting *s, uint64_t budget, uint32_t concurrency, uint32_t prompt,
                       uint32_t output)
{
    const sim_options *o = s->options;
    sim_jobs jobs = {0};
    int code = make_jobs(s, prompt, output, &jobs);
    sim_serve_config config = {.stack = {.machine = &s->machine,
                                         .shape = &s->shape,
                                         .arena_bytes = budget,
                                         .scope = o->scope == SIM_SCOPE_LAYER
                                                      ? MOEPAGE_SCOPE_LAYER
                                                      : MOEPAGE_SCOPE_GLOBAL,
                                         .policy = o->policies.n ? o->policies.words[0] : NULL,
                                         .regime = regime(o),
                                         .prefetch = prefetch_mode(o),
                                         .predictor = predictor_of(o),
                                         .block_tokens = o->block_tokens},
                               .jobs = &jobs,
                               .source = s->source,
                               .concurrency = concurrency,
                               .admission = o->admission,
                               .target_ttft_ns = o->target_ttft_ns,
                               .target_tpot_ns = o->target_tpot_ns,
                               .recompute = o->kv_miss && !strcmp(o->kv_miss, "recompute"),
                               .most_steps = o->steps,
                               .seed = o->seed,
                               .quiet = true};
    moepage_controller_config control = {.struct_size = sizeof control, .burst_steps = o->burst};
    config.stack.controller = o->burst ? &control : NULL;
    sim_fix_granule(&config.stack);
    if (!code)
        code = run_arms(s, &config);
    sim_jobs_free(&jobs);
    return code;
}

/* Returns the i-th of a flag's numbers; `otherwise` if the flag was not given. */
static uint32_t nth(const sim_numbers *numbers, uint32_t i, uint32_t otherwise)
{
    return numbers->n ? (uint32_t)numbers->values[i] : otherwise;
}

static uint32_t count(uint32_t n)
{
    return n ? n : 1;
}

static int run_all(setting *s)
{
    const sim_options *o = s->options;
    int code = RUN_OK;
    for (uint32_t b = 0; b < count(o->budgets.n) && !code; b++)
        code = check_memory(s, budget_bytes(s, b));
    for (uint32_t b = 0; b < count(o->budgets.n) && !code; b++) {
        uint64_t budget = budget_bytes(s, b);
        for (uint32_t c = 0; c < count(o->concurrency.n) && !code; c++)
            for (uint32_t p = 0; p < count(o->prompt_tokens.n) && !code; p++)
                for (uint32_t d = 0; d < count(o->output_tokens.n) && !code; d++)
                    code = run_lengths(s, budget, nth(&o->concurrency, c, 1),
                                       nth(&o->prompt_tokens, p, DEFAULT_PROMPT),
                                       nth(&o->output_tokens, d, DEFAULT_OUTPUT));
    }
    return code;
}

static int check(const sim_options *o)
{
    for (uint32_t i = 0; i < o->baselines.n; i++)
        if (!sim_baseline_exists(o->baselines.words[i]))
            return fail(RUN_REFUSED,
                        "--baseline %s: unknown baseline, see --list "
                        "baselines",
                        o->baselines.words[i]);
    if (o->policies.n > 1)
        return fail(RUN_REFUSED, "--policy names %u policies, serving takes one", o->policies.n);
    if (predictor_of(o) && !mp_predictor_find(o->prefetch))
        return fail(RUN_REFUSED,
                    "--prefetch %s: expected previous, hit-count, coactivation or maps",
                    o->prefetch);
    if (o->arrivals && (o->prompt_tokens.n || o->output_tokens.n || o->rate > 0))
        return fail(RUN_REFUSED, "--arrivals has lengths and times of its own: --prompt, --output "
                                 "and --rate have no effect");
    return RUN_OK;
}

static int write_report(const setting *s)
{
    sim_report report;
    char about[160];
    sim_report_arm *arms = calloc(count(s->rows.n), sizeof *arms);
    snprintf(about, sizeof about, "%s on %s, routing of %s", s->shape.name, s->machine.profile.name,
             s->source->name);
    int code = arms ? sim_report_open(s->options, s->shape.name, about, &report) : fail_memory();
    for (uint32_t i = 0; !code && i < s->rows.n; i++) {
        const sim_serve_row *row = &s->rows.rows[i];
        arms[i] = (sim_report_arm){.name = row->arm,
                                   .budget_bytes = row->budget_bytes,
                                   .concurrency = row->concurrency,
                                   .prompt_tokens = row->prompt_tokens,
                                   .output_tokens = row->output_tokens,
                                   .run = &row->run};
    }
    if (!code) {
        sim_report_arms(&report, arms, s->rows.n);
        code = page_close(&report, RUN_OK);
    }
    free(arms);
    return code;
}

int sim_serve_main(const sim_options *options)
{
    setting s;
    int code = check(options);
    if (code)
        return code;
    code = open_setting(options, &s);
    if (!code)
        code = run_all(&s);
    if (!code && options->json && options->mode == SIM_CONFIGURE)
        code = put_print(stdout, 0, json_pack("{s:O}", "configure", s.configured));
    else if (!code && options->json)
        code = put_print(stdout, 0, sim_serve_json(&s.rows));
    else if (!code && options->mode != SIM_CONFIGURE)
        sim_serve_table(&s.rows);
    if (!code && options->report && options->mode == SIM_SERVE)
        code = write_report(&s);
    close_setting(&s);
    return code;
}
