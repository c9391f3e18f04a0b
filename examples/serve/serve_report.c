/* Computes the measures, and prints their table. */
#include "serve/serve_report.h"

#include <inttypes.h>
#include <math.h>

#include "common/units.h"

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

static double per_s(uint64_t count, uint64_t ns)
{
    return ns ? (double)count * 1e9 / (double)ns : 0;
}

uint32_t serve_measure_all(const server_result *r, serve_measure out[SERVE_MEASURES])
{
    const uint64_t swapped = r->kv.swapped_out_blocks + r->kv.swapped_in_blocks;
    const serve_measure all[] = {
        {"requests done", "done", r->done, 0},
        {"refused", "refused", r->refused, 0},
        {"TTFT p50, ms", "ttft_p50_ms", r->times.ttft.p50, 1},
        {"TTFT p99, ms", "ttft_p99_ms", r->times.ttft.p99, 1},
        {"TPOT p50, ms", "tpot_p50_ms", r->times.tpot.p50, 2},
        {"TPOT p99, ms", "tpot_p99_ms", r->times.tpot.p99, 2},
        {"gap p99, ms", "gap_p99_ms", r->times.gap.p99, 2},
        {"turn wall p50, ms", "turn_p50_ms", r->times.turn.p50, 1},
        {"turn wall p99, ms", "turn_p99_ms", r->times.turn.p99, 1},
        {"preemptions", "preemptions", (double)r->preemptions, 0},
        {"output tokens/s", "output_tokens_per_s", per_s(r->output_tokens, r->wall_ns), 1},
        {"run, s", "wall_s", (double)r->wall_ns / 1e9, 2},
        {"idle, s", "idle_s", (double)r->idle_ns / 1e9, 2},
        {"steps", "steps", (double)r->steps, 0},
        {"expert hits, %", "hit_percent", percent(r->session.hits, r->session.routed), 2},
        {"expert slots, first", "first_slots", (double)r->first_slots, 0},
        {"expert slots, last", "last_slots", (double)r->experts.slots, 0},
        {"KV blocks, first", "first_blocks", (double)r->first_blocks, 0},
        {"KV blocks, last", "last_blocks", (double)r->kv.blocks, 0},
        {"of them lent, last", "lent_blocks", (double)r->kv.lent_blocks, 0},
        {"moves of the split", "moves", (double)r->control.moves, 0},
        {"on demand, MiB", "demand_mib", mib(r->experts.demand_bytes), 1},
        {"ahead, MiB", "ahead_mib", mib(r->experts.prefetch_bytes), 1},
        {"cold reads, MiB", "cold_mib", mib(r->experts.cold_bytes), 1},
        {"KV swapped, MiB", "swapped_mib", mib(swapped * r->block_bytes), 1},
    };
    _Static_assert(sizeof all / sizeof *all == SERVE_MEASURES, "one row for each");
    for (uint32_t i = 0; i < SERVE_MEASURES; i++)
        out[i] = all[i];
    return SERVE_MEASURES;
}

static void print_heading(FILE *out, const serve_findings *f)
{
    const serve_options *o = f->setting->options;
    const arrivals *a = f->setting->arrivals;
    fprintf(out,
            "%" PRIu32 " requests, %" PRIu64 " prompt and %" PRIu64
            " answer tokens (lengths x %.3g), prompts: %s\n",
            a->n, a->prompts, a->outputs, a->length_scale, a->texts);
    fprintf(out,
            "%.1f MiB for experts and KV: all experts take %.1f MiB, the longest request's "
            "KV %.1f MiB\n",
            mib(f->setting->estate.bytes),
            mib(f->setting->estate.experts * f->setting->estate.slot_bytes),
            mib(f->setting->estate.floor_blocks * f->setting->estate.block_bytes));
    fprintf(out, "at most %" PRIu32 " at once, %" PRIu32 " tokens in a step; times are %s\n\n",
            o->concurrency, o->step_tokens,
            o->clock == SERVE_CLOCK_VIRTUAL ? "virtual: they count steps and tokens" : "real");
}

static void print_check(FILE *out, const serve_findings *f)
{
    if (!f->compared)
        return;
    fprintf(out, "%-20s", "same as alone");
    for (uint32_t i = 0; i < f->setting->options->arms.n; i++)
        if (f->results[i].ran)
            fprintf(out, " %9" PRIu32 " of %-9" PRIu32, f->compared[i], f->results[i].done);
    fputc('\n', out);
}

void serve_table(FILE *out, const serve_findings *f)
{
    serve_measure columns[ARMS_MOST][SERVE_MEASURES] = {0};
    const arm_list *arms = &f->setting->options->arms;
    print_heading(out, f);
    fprintf(out, "%-20s", "");
    for (uint32_t i = 0; i < arms->n; i++)
        if (f->results[i].ran) {
            fprintf(out, " %14s", arms->arms[i].name);
            serve_measure_all(&f->results[i], columns[i]);
        }
    fputc('\n', out);
    for (uint32_t m = 0; m < SERVE_MEASURES; m++) {
        bool named = false;
        for (uint32_t i = 0; i < arms->n; i++) {
            if (!f->results[i].ran)
                continue;
            if (!named)
                fprintf(out, "%-20s", columns[i][m].name);
            named = true;
            fprintf(out, " %14.*f", columns[i][m].digits, columns[i][m].value);
        }
        if (named)
            fputc('\n', out);
    }
    print_check(out, f);
    for (uint32_t i = 0; i < arms->n; i++)
        if (!f->results[i].ran)
            fprintf(out, "%s: not served\n", arms->arms[i].name);
        else if (f->results[i].interrupted)
            fprintf(out, "%s: interrupted with %" PRIu32 " of %" PRIu32 " requests done\n",
                    arms->arms[i].name, f->results[i].done, f->results[i].requests);
}
