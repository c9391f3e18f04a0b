/* Tables and JSON of serving results. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json_out.h"
#include "sim/serve_rows.h"

static double per_s(uint64_t tokens, const sim_result *r)
{
    uint64_t busy = r->wall_ns - r->idle_ns;
    return busy ? (double)tokens * 1e9 / (double)busy : 0;
}

static double miss_ratio(const sim_result *r)
{
    return r->routed ? (double)(r->misses + r->late) / (double)r->routed : 0;
}

/* ---- Text -------------------------------------------------------------------------------- */

static void print_row(const sim_serve_row *row)
{
    const sim_result *r = &row->run.result;
    printf("%-18s %7.2f %4" PRIu32 " ", row->arm, (double)row->budget_bytes / 1e9,
           row->concurrency);
    if (!row->run.feasible || !r->starts) {
        printf("   does not start: the budget has no room for it\n");
        return;
    }
    double wall = r->wall_ns ? (double)r->wall_ns / 100 : 1;
    printf("%7" PRIu64
           " %7.2f  %8.2f %8.1f %8.1f %8.2f  %5.1f %5.1f %5.1f %5.1f %5.1f  %5.1f %6" PRIu64 "\n",
           r->last_slots, (double)(r->last_blocks * r->block_bytes) / 1e9,
           per_s(r->output_tokens, r), r->ttft_ns.p50 * 1e-6, r->token_ns.p50 * 1e-6,
           r->job_ns.p50 * 1e-9, (double)r->compute_ns / wall, (double)r->stall_ns / wall,
           (double)r->swap_ns / wall, (double)r->again_ns / wall, (double)r->idle_ns / wall,
           100 * miss_ratio(r), sim_result_failures(r));
}

void sim_serve_table(const sim_serve_rows *rows)
{
    printf("%s on %s, routing of %s\n\n", rows->shape->name, rows->machine->profile.name,
           rows->routing);
    printf("%-18s %7s %4s %7s %7s  %8s %8s %8s %8s  %5s %5s %5s %5s %5s  %5s %6s\n", "arm", "GB",
           "conc", "slots", "KV GB", "tokens/s", "TTFT ms", "ms/token", "job s", "comp%", "stall",
           "swap", "again", "idle", "miss%", "failed");
    for (uint32_t i = 0; i < rows->n; i++)
        print_row(&rows->rows[i]);
    printf(
        "\nTimes are medians. comp, stall, swap, again and idle: percent of the time in computing, "
        "waiting for\nexperts, swapping KV and moving the split, computing KV again, and having "
        "nothing to do. failed:\njobs refused, or kept waiting for KV, or preempted.\n");
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *spread_json(const sim_spread *s)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "mean", s->mean, "p50", s->p50, "p90", s->p90, "p99",
                     s->p99);
}

static int add_counts(json_t *o, const sim_result *r)
{
    const put_count_row counts[] = {
        {"jobs", r->jobs},
        {"refused", r->refused},
        {"blocked", r->blocked},
        {"preemptions", r->preemptions},
        {"admission_failures", sim_result_failures(r)},
        {"steps", r->steps},
        {"output_tokens", r->output_tokens},
        {"prompt_tokens_computed", r->prompt_tokens},
        {"prompt_tokens_reused", r->reused_tokens},
        {"tokens_again", r->again_tokens},
        {"routed", r->routed},
        {"hits", r->hits},
        {"misses", r->misses},
        {"late", r->late},
        {"expert_bytes", r->expert_bytes},
        {"prefetch_bytes", r->prefetch_bytes},
        {"bus_bytes", r->bus_bytes},
        {"swapped_bytes", r->swapped_bytes},
        {"prefix_hits", r->kv_hits},
        {"prefix_swapped", r->kv_swapped},
        {"prefix_gone", r->kv_gone},
        {"streamed_layers", r->streamed_layers},
        {"first_slots", r->first_slots},
        {"first_kv_bytes", r->first_blocks * r->block_bytes},
        {"slots", r->last_slots},
        {"kv_bytes", r->last_blocks * r->block_bytes},
        {"moves", r->moves},
        {"target_running", r->control.target_running},
        {"predicted_ttft_ns", (uint64_t)r->control.predicted_ttft_ns},
        {"predicted_tpot_ns", (uint64_t)r->control.predicted_tpot_ns},
        {"wall_ns", r->wall_ns},
        {"idle_ns", r->idle_ns},
        {"compute_ns", r->compute_ns},
        {"stall_ns", r->stall_ns},
        {"swap_ns", r->swap_ns},
        {"again_ns", r->again_ns},
    };
    return PUT_COUNTS(o, counts);
}

static json_t *samples_json(const sim_result *r)
{
    json_t *samples = json_array();
    int failed = !samples;
    for (uint32_t i = 0; i < r->n_samples && !failed; i++) {
        const sim_serve_sample *s = &r->samples[i];
        failed = json_array_append_new(
            samples, json_pack("{s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "s", (double)s->ns * 1e-9,
                               "slots", (json_int_t)s->expert_slots, "kv_bytes",
                               (json_int_t)(s->kv_blocks * r->block_bytes), "kv_used_bytes",
                               (json_int_t)(s->used_blocks * r->block_bytes), "output_tokens",
                               (json_int_t)s->output_tokens, "running", (json_int_t)s->running,
                               "compressed", (json_int_t)s->compressed));
    }
    return put_or_null(failed, samples);
}

static json_t *points_json(const sim_arm_run *run)
{
    json_t *points = json_array();
    int failed = !points;
    for (uint32_t i = 0; i < run->n_points && !failed; i++)
        failed = json_array_append_new(points, json_pack("{s:I, s:f, s:I}", "slots",
                                                         (json_int_t)run->points[i].split.experts,
                                                         "latency_ns", run->points[i].latency_ns,
                                                         "admission_failures",
                                                         (json_int_t)run->points[i].failures));
    return put_or_null(failed, points);
}

static json_t *row_json(const sim_serve_row *row)
{
    const sim_result *r = &row->run.result;
    json_t *o =
        json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:b}", "arm", row->arm, "baseline", row->baseline,
                  "budget_bytes", (json_int_t)row->budget_bytes, "concurrency",
                  (json_int_t)row->concurrency, "prompt", (json_int_t)row->prompt_tokens, "output",
                  (json_int_t)row->output_tokens, "starts", row->run.feasible && r->starts);
    if (!o || !row->run.feasible || !r->starts)
        return o;
    const put_real_row reals[] = {{"tokens_per_s", per_s(r->output_tokens, r)},
                                  {"latency_ns", sim_result_latency_ns(r)},
                                  {"miss_ratio", miss_ratio(r)}};
    int failed = add_counts(o, r);
    failed |= PUT_REALS(o, reals);
    failed |= json_object_set_new(o, "ttft_ns", spread_json(&r->ttft_ns));
    failed |= json_object_set_new(o, "token_ns", spread_json(&r->token_ns));
    failed |= json_object_set_new(o, "job_ns", spread_json(&r->job_ns));
    failed |= json_object_set_new(o, "samples", samples_json(r));
    if (row->run.n_points)
        failed |= json_object_set_new(o, "points", points_json(&row->run));
    return put_or_null(failed, o);
}

json_t *sim_serve_json(const sim_serve_rows *rows)
{
    json_t *results = json_array();
    int failed = !results;
    for (uint32_t i = 0; i < rows->n && !failed; i++)
        failed = json_array_append_new(results, row_json(&rows->rows[i]));
    if (!failed)
        return json_pack("{s:s, s:s, s:s, s:o}", "machine", rows->machine->profile.name, "model",
                         rows->shape->name, "routing", rows->routing, "results", results);
    json_decref(results);
    return NULL;
}
