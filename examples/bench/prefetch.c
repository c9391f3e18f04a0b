/* moepage-bench prefetch: the same generation with prefetch off and on, turn by turn in one run. */
#include <stddef.h>
#include <stdio.h>

#include "bench/bench.h"
#include "bench/child.h"
#include "common/fail.h"
#include "common/flags.h"

enum { ROUNDS = 9 };

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
    *out = (child_options){.budget = "25%", .bus = "1000000000", .max_tokens = "64"};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (!code && !out->model)
        code = fail(RUN_REFUSED, "prefetch needs --model PATH");
    return code ? code : child_check(out);
}

static int one_run(const child_options *o, const char *prefetch, prefetch_run *run, int round)
{
    const char *const more[] = {"--prompt", "The library ", "--prefetch", prefetch, NULL};
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

static void print_run(const char *name, prefetch_run *run)
{
    spread speed = bench_spread(run->tokens_per_s, ROUNDS);
    printf("%-8s  %8.1f %8.1f %8.1f   %8.1f%% %8.1f%%  %7.1f%% %9.1f %9.1f\n", name, speed.low,
           speed.median, speed.high, 100 * bench_spread(run->stall_share, ROUNDS).median,
           100 * bench_spread(run->accounted, ROUNDS).median, 100 * run->hit_rate,
           run->demand_bytes / 1e6, run->prefetch_bytes / 1e6);
}

int bench_prefetch(int argc, char **argv)
{
    child_options o;
    static prefetch_run off, on;
    int code = parse(argc, argv, &o);
    for (int round = 0; round < ROUNDS && !code; round++) {
        code = one_run(&o, "off", &off, round);
        if (!code)
            code = one_run(&o, "on", &on, round);
    }
    if (code)
        return code;
    printf("prefetch: %s, budget %s, bus %s bytes/s, %s tokens, %d rounds each, in turn\n\n",
           o.model, o.budget, o.bus, o.max_tokens, ROUNDS);
    printf("prefetch  tok/s p10      p50      p90      stalled accounted hit rate demand MB  "
           "ahead MB\n");
    print_run("off", &off);
    print_run("on", &on);
    printf("\non / off (medians): %.3f\n", bench_spread(on.tokens_per_s, ROUNDS).median /
                                               bench_spread(off.tokens_per_s, ROUNDS).median);
    return RUN_OK;
}
