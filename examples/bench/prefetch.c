/* moepage-bench prefetch: one generation without prefetch and with each kind of prefetch,
 * alternating in one run. */
#include <stddef.h>
#include <stdio.h>

#include "bench/bench.h"
#include "bench/child.h"
#include "common/fail.h"
#include "common/flags.h"

enum { ROUNDS = 9 };

/* Arguments of moepage-generate --prefetch; the first is the baseline. */
static const char *const ways[] = {"off", "on", "hit-count", "coactivation", "gate", "maps"};

#define N_WAYS (sizeof ways / sizeof *ways)

typedef struct prefetch_run {
    double tokens_per_s[ROUNDS];
    double accounted[ROUNDS];
    double stall_share[ROUNDS];
    double hit_rate;
    double demand_bytes, prefetch_bytes;
} prefetch_run;

static int parse(int argc, char **argv, child_options *out)
{
    static const flag flags[] = {CHILD_FLAGS};
    *out = (child_options){.budget = "25%", .bus = "1000000000", .max_tokens = "256"};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (!code && !out->model)
        code = fail(RUN_REFUSED, "prefetch needs --model PATH");
    return code ? code : child_check(out);
}

static int one_run(const child_options *o, const char *prefetch, prefetch_run *run, int round)
{
    const char *const more[] = {"--prompt", "The library ", "--prefetch", prefetch,
                                "--regime", "cache",        NULL};
    json_t *stats = NULL;
    int code = child_generate(o, more, &stats);
    if (code)
        return code;
    double wall_ns = child_number(stats, "wall_ns");
    run->tokens_per_s[round] = child_number(stats, "generated_tokens") / wall_ns * 1e9;
    run->accounted[round] = child_number(stats, "accounted");
    run->stall_share[round] = child_number(stats, "stall_ns") / wall_ns;
    run->hit_rate = child_number(stats, "hit_rate");
    run->demand_bytes = child_number(stats, "demand_bytes");
    run->prefetch_bytes = child_number(stats, "prefetch_bytes");
    json_decref(stats);
    return RUN_OK;
}

static void print_run(const char *name, prefetch_run *run, double off)
{
    spread speed = bench_spread(run->tokens_per_s, ROUNDS);
    printf("%-12s  %8.1f %8.1f %8.1f %7.3f   %8.1f%% %8.1f%%  %7.1f%% %9.1f %9.1f\n", name,
           speed.low, speed.median, speed.high, speed.median / off,
           100 * bench_spread(run->stall_share, ROUNDS).median,
           100 * bench_spread(run->accounted, ROUNDS).median, 100 * run->hit_rate,
           run->demand_bytes / 1e6, run->prefetch_bytes / 1e6);
}

int bench_prefetch(int argc, char **argv)
{
    child_options o;
    static prefetch_run runs[N_WAYS];
    int code = parse(argc, argv, &o);
    for (int round = 0; round < ROUNDS && !code; round++)
        for (size_t way = 0; way < N_WAYS && !code; way++)
            code = one_run(&o, ways[way], &runs[way], round);
    if (code)
        return code;
    printf("prefetch: %s, budget %s, bus %s bytes/s, %s tokens, %d rounds each, in turn\n\n",
           o.model, o.budget, o.bus, o.max_tokens, ROUNDS);
    printf("prefetch      tok/s p10      p50      p90 of off   stalled accounted hit rate demand MB"
           "  ahead MB\n");
    double off = bench_spread(runs[0].tokens_per_s, ROUNDS).median;
    for (size_t way = 0; way < N_WAYS; way++)
        print_run(ways[way], &runs[way], off);
    return RUN_OK;
}
