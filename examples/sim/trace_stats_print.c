/* The output of --stats. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "sim/machine.h"
#include "sim/report.h"
#include "sim/shape.h"
#include "sim/trace_stats.h"

static json_t *layer_json(const sim_layer_stats *l)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "carry_over", l->carry_over, "touched",
                     l->touched, "gini", l->gini, "top_tenth", l->top_tenth, "token_bits",
                     l->token_bits, "request_bits", l->request_bits);
}

static json_t *layers_json(const sim_trace_stats *s)
{
    json_t *layers = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < s->n_layers; i++)
        failed |= json_array_append_new(layers, layer_json(&s->layers[i]));
    return put_or_null(failed, layers);
}

static json_t *points_json(const sim_trace_stats *s)
{
    json_t *points = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < s->n_points; i++) {
        const sim_stats_point *p = &s->points[i];
        failed |= json_array_append_new(points, json_pack("{s:I, s:i, s:f, s:f}", "tokens",
                                                          (json_int_t)p->tokens, "requests",
                                                          (int)p->requests, "footprint",
                                                          p->footprint, "bits", p->bits));
    }
    return put_or_null(failed, points);
}

static int print_json(const sim_trace *trace, const sim_trace_stats *s)
{
    const sim_source *t = &trace->source;
    json_t *burst =
        json_pack("{s:i, s:I, s:f, s:f, s:f, s:f}", "tokens", (int)s->burst, "bursts",
                  (json_int_t)s->bursts, "union", s->burst_union, "union_max", s->burst_union_max,
                  "overlap", s->burst_overlap, "jaccard", s->burst_jaccard);
    json_t *bus = json_pack("{s:f, s:f, s:f}", "mandatory_experts", s->mandatory_experts,
                            "mandatory_bytes", s->mandatory_bytes, "tokens_per_s", s->tokens_per_s);
    json_t *root =
        json_pack("{s:{s:s, s:I, s:I, s:i, s:i, s:i, s:b, s:o, s:o, s:o, s:o, s:f, s:f, s:o}}",
                  "stats", "trace", t->name, "requests", (json_int_t)t->n_requests, "tokens",
                  (json_int_t)trace->rows, "layers", (int)t->layers, "experts", (int)t->experts,
                  "top_k", (int)t->top_k, "weighed", s->weighed, "mean", layer_json(&s->mean),
                  "by_layer", layers_json(s), "burst", burst, "growth", points_json(s),
                  "saturation_tokens", s->saturation_tokens, "footprint", s->all_footprint, "bus",
                  bus);
    return put_print(stdout, 0, root);
}

static void print_layers(const sim_trace_stats *s)
{
    printf("\n%5s %8s %8s %6s %8s %10s %12s\n", "layer", "carried", "touched", "gini", "top 10%",
           "token bits", "request bits");
    for (uint32_t i = 0; i <= s->n_layers; i++) {
        const sim_layer_stats *l = i < s->n_layers ? &s->layers[i] : &s->mean;
        char name[16] = "mean";
        if (i < s->n_layers)
            snprintf(name, sizeof name, "%" PRIu32, i);
        printf("%5s %7.1f%% %8.2f %6.3f %7.1f%% %10.3f %12.3f\n", name, 100 * l->carry_over,
               l->touched, l->gini, 100 * l->top_tenth, l->token_bits, l->request_bits);
    }
}

static void print_bursts(const sim_trace_stats *s)
{
    printf("\nbursts of ");
    if (s->burst)
        printf("%" PRIu32 " tokens", s->burst);
    else
        printf("one request");
    printf(", %" PRIu64 ": union %.1f %% of all experts (at most %.1f %%), %.1f %% of it in the "
           "burst before too (Jaccard %.3f)\n",
           s->bursts, 100 * s->burst_union, 100 * s->burst_union_max, 100 * s->burst_overlap,
           s->burst_jaccard);
    printf("a request has used 90 %% of its experts after %.0f tokens; the trace uses %.1f %% of "
           "all\n",
           s->saturation_tokens, 100 * s->all_footprint);
    printf("\n%8s %9s %12s %12s\n", "tokens", "requests", "footprint", "bits");
    for (uint32_t i = 0; i < s->n_points; i++)
        printf("%8" PRIu64 " %9" PRIu32 " %11.1f%% %12.3f\n", s->points[i].tokens,
               s->points[i].requests, 100 * s->points[i].footprint, s->points[i].bits);
}

static void print_text(const sim_trace *trace, const sim_trace_stats *s)
{
    const sim_source *t = &trace->source;
    printf("%s: %" PRIu32 " requests, %" PRIu64 " tokens, %" PRIu32 " layers of %" PRIu32
           " experts, %" PRIu32 " for each token\n",
           t->name, t->n_requests, trace->rows, t->layers, t->experts, t->top_k);
    print_layers(s);
    printf("entropy in bits, of %s\n",
           s->weighed ? "the weights of the chosen experts" : "the chosen experts, all alike");
    print_bursts(s);
    printf("\nkeeping just the last token's experts, a step brings %.2f", s->mandatory_experts);
    if (s->mandatory_bytes > 0)
        printf(", %.1f MB", s->mandatory_bytes / 1e6);
    if (s->tokens_per_s > 0)
        printf(": the bus allows %.2f tokens/s", s->tokens_per_s);
    printf("\n");
}

/* Finds the bytes of an expert and of the bus: as given, or the model's and the machine's. */
static int find_bytes(const sim_options *options, uint64_t *expert_bytes, uint64_t *bus_bytes)
{
    int code = RUN_OK;
    *expert_bytes = options->expert_bytes;
    *bus_bytes = options->bus_bytes;
    if (options->model && !*expert_bytes) {
        sim_shape shape;
        code = sim_shape_find(options->model, options->tp, options->f8, &shape);
        *expert_bytes = code ? 0 : shape.expert_bytes;
    }
    if (options->machine && !*bus_bytes && !code) {
        sim_machine machine;
        code = sim_machine_find(options->machine, &machine);
        *bus_bytes = code ? 0 : machine.profile.bus_bytes_per_s;
    }
    return code;
}

static int report_stats(const sim_trace *trace, const sim_options *options,
                        const sim_trace_stats *stats)
{
    sim_report report;
    int code = sim_report_open_trace(options, trace, &report);
    if (!code)
        sim_report_stats(&report, stats);
    return page_close(&report, code);
}

int sim_trace_stats_main(const sim_trace *trace, const sim_options *options)
{
    sim_trace_stats stats = {0};
    uint64_t expert_bytes, bus_bytes;
    int code = find_bytes(options, &expert_bytes, &bus_bytes);
    if (!code)
        code = sim_trace_stats_measure(trace, options->burst, expert_bytes, bus_bytes, &stats);
    if (!code)
        code = report_stats(trace, options, &stats);
    if (!code && options->json)
        code = print_json(trace, &stats);
    else if (!code)
        print_text(trace, &stats);
    sim_trace_stats_free(&stats);
    return code;
}
