/* moepage-bench tiers: the cost of an expert from each tier, and the gain of exph on the bus.
 *
 * Every load is a miss, forced by visiting more experts than there are slots; the pool's counters
 * beside the times show which tier served. */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/child.h"
#include "bench/tier_stack.h"
#include "common/clock.h"
#include "common/fail.h"
#include "common/flags.h"

enum { SINGLE_LOADS = 200, SWEEPS = 12, ROUNDS = 5 };

#define TARGET 1.35 /* least ratio of exph's speed on the bus to that of dense */

typedef struct tiers_options {
    child_options child; /* first member, for CHILD_FLAGS */
    uint32_t threads;
    uint32_t mb;
    bool skip_generation;
} tiers_options;

/* ---- Loads ------------------------------------------------------------------------------- */

/* Routes n experts of a layer, from `first` on, and waits for all of them. */
static int load(tier_stack *s, uint32_t layer, uint32_t first, uint32_t n, double *ns)
{
    uint32_t k = n < s->top_k ? n : s->top_k, tokens = (n + k - 1) / k;
    for (uint32_t i = 0; i < tokens * k; i++) {
        s->ids[i] = i < n ? (int32_t)((first + i) % s->experts) : MOEPAGE_NO_EXPERT;
        s->weights[i] = 1;
    }
    moepage_step step = {.struct_size = sizeof step, .n_tokens = tokens};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = k,
                               .ids = s->ids,
                               .weights = s->weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    if (moepage_session_begin(s->session, &step))
        return fail_library(RUN_FAILED, "begin");
    uint64_t began = clock_now_ns();
    moepage_status status = moepage_session_route(s->session, layer, &routing, &plan);
    for (uint32_t group = 1; !status && group < plan.n_groups; group++)
        status = moepage_session_next_group(s->session, layer, &plan);
    *ns = (double)(clock_now_ns() - began);
    if (status || moepage_session_retire(s->session, layer) ||
        moepage_session_end(s->session, NULL))
        return fail_library(RUN_FAILED, "loading");
    return RUN_OK;
}

static int sweep(tier_stack *s, uint32_t i, double *ns)
{
    return load(s, i % s->layers, 0, s->experts, ns);
}

typedef struct tier_times {
    double single_ns[SINGLE_LOADS];
    double sweep_ns[SWEEPS];
    moepage_expert_pool_info before, after;
} tier_times;

/* Loads whole layers first, which also fills a tier that caches what it has read. */
static int measure(tier_stack *s, tier_times *out)
{
    double unused;
    int code = RUN_OK;
    assert(s->layers && s->experts);
    for (uint32_t i = 0; i < s->layers && !code; i++)
        code = sweep(s, i, &unused);
    out->before.struct_size = out->after.struct_size = sizeof out->after;
    if (!code && moepage_expert_pool_get_info(s->pool, &out->before))
        code = fail_library(RUN_FAILED, "pool");
    for (uint32_t i = 0; i < SWEEPS && !code; i++)
        code = sweep(s, i, &out->sweep_ns[i]);
    /* The last sweep's layer is resident, so this begins with the next one. */
    for (uint32_t i = 0; i < SINGLE_LOADS && !code; i++)
        code =
            load(s, (SWEEPS + i / s->experts) % s->layers, i % s->experts, 1, &out->single_ns[i]);
    if (!code && moepage_expert_pool_get_info(s->pool, &out->after))
        code = fail_library(RUN_FAILED, "pool");
    return code;
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void print_rate(uint64_t bytes_per_s)
{
    if (bytes_per_s)
        printf(" %6.2f", (double)bytes_per_s / 1e9);
    else
        printf(" %6s", "-");
}

static void print_tier(const tier_case *which, const tier_stack *s, tier_times *t)
{
    spread one = bench_spread(t->single_ns, SINGLE_LOADS);
    spread all = bench_spread(t->sweep_ns, SWEEPS);
    const moepage_expert_pool_info *a = &t->after, *b = &t->before;
    double layer_bytes = (double)s->experts * (double)s->expert_bytes;
    printf("%-18s %8.1f %8.1f %8.1f  %6.2f %6.2f %6.2f ", which->name, one.low / 1e3,
           one.median / 1e3, one.high / 1e3, layer_bytes / all.high, layer_bytes / all.median,
           layer_bytes / all.low);
    print_rate(a->bus_bytes_per_s);
    print_rate(a->decode_bytes_per_s);
    print_rate(a->cold_bytes_per_s);
    printf("  %6" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64 "\n",
           a->misses - b->misses, a->host_hits - b->host_hits, a->cold_reads - b->cold_reads,
           a->decodes - b->decodes, a->compressed_loads - b->compressed_loads);
}

static int run_tier(const tier_model *m, const tier_case *which, const tiers_options *o)
{
    static tier_times times;
    tier_stack stack = {0};
    if (!tier_can_run(m, which)) {
        printf("%-18s  not with this model, or past --mb %" PRIu32 "\n", which->name, o->mb);
        return RUN_OK;
    }
    int code = tier_stack_open(m, which, o->threads, &stack);
    if (!code)
        code = measure(&stack, &times);
    if (!code)
        print_tier(which, &stack, &times);
    tier_stack_close(&stack);
    return code;
}

static int run_tiers(const tier_model *m, const tiers_options *o)
{
    printf("tiers: %s, %" PRIu32 " experts of %.2f MB in each of %" PRIu32 " layers used, %" PRIu32
           " slots\n\n",
           o->child.model, m->info.experts, (double)m->info.expert_bytes / 1e6, m->layers,
           m->info.experts);
    printf("                     one expert, us              a layer, dense GB/s   measured at "
           "start, GB/s  loads   host   cold   deco-   from\n"
           "tier                    p10      p50      p90     p10    p50    p90     bus decode   "
           "cold           hits  reads    ded device\n");
    int code = RUN_OK;
    for (uint32_t i = 0; i < n_tier_cases && !code; i++)
        code = run_tier(m, &tier_cases[i], o);
    return code;
}

/* ---- A generation ------------------------------------------------------------------------ */

typedef struct bus_run {
    double tokens_per_s[ROUNDS];
    double stall_share[ROUNDS];
    double hit_rate, demand_bytes, decodes;
} bus_run;

static int generate(const tiers_options *o, const char *host_tier, const char *form, bus_run *run,
                    int round)
{
    const char *const more[] = {"--host-tier", host_tier,  "--bus-form",      form, "--regime",
                                "cache",       "--tokens", "1,2,3,4,5,6,7,8", NULL};
    json_t *stats = NULL;
    int code = child_generate(&o->child, more, &stats);
    if (code)
        return code;
    run->tokens_per_s[round] = child_number(stats, "decode_tok_s");
    run->stall_share[round] = child_number(stats, "stall_ns") / child_number(stats, "wall_ns");
    run->hit_rate = child_number(stats, "hit_rate");
    run->demand_bytes = child_number(stats, "demand_bytes");
    run->decodes = child_number(stats, "decodes");
    json_decref(stats);
    return RUN_OK;
}

static double print_run(const char *form, bus_run *run)
{
    spread speed = bench_spread(run->tokens_per_s, ROUNDS);
    printf("%-8s  %8.2f %8.2f %8.2f   %6.1f%%  %6.1f%%  %9.1f  %7.0f\n", form, speed.low,
           speed.median, speed.high, 100 * bench_spread(run->stall_share, ROUNDS).median,
           100 * run->hit_rate, run->demand_bytes / 1e6, run->decodes);
    return speed.median;
}

/* Returns true if the model's file maps both forms; otherwise dense experts are decoded into the
 * host tier, which both runs then use. */
static bool both_mapped(const tier_model *m)
{
    return m->forms[MOEPAGE_FORM_DENSE].present && m->forms[MOEPAGE_FORM_EXPH].present;
}

static int generate_both(const tier_model *m, const tiers_options *o, bus_run *dense, bus_run *exph,
                         int round)
{
    char host_tier[32];
    snprintf(host_tier, sizeof host_tier, "%" PRIu64, both_mapped(m) ? 0 : tier_host_bytes(m));
    int code = generate(o, host_tier, "dense", dense, round);
    return code ? code : generate(o, host_tier, "exph", exph, round);
}

/* Runs once before measuring: an impossible setting is refused now, and the file's pages are in
 * memory afterwards. */
static int try_generation(const tier_model *m, const tiers_options *o)
{
    static bus_run unused;
    if (!m->forms[MOEPAGE_FORM_EXPH].present)
        return fail(RUN_REFUSED,
                    "%s has no exph images to generate with: moepage-pack makes them, "
                    "--skip-generation does without",
                    o->child.model);
    return generate_both(m, o, &unused, &unused, 0);
}

static int run_generation(const tier_model *m, const tiers_options *o)
{
    static bus_run dense, exph;
    int code = RUN_OK;
    for (int round = 0; round < ROUNDS && !code; round++)
        code = generate_both(m, o, &dense, &exph, round);
    if (code)
        return code;
    printf("\ngeneration: budget %s, bus %s bytes/s, %s tokens, %s; %d rounds of each, in turn\n\n"
           "bus form  tok/s p10      p50      p90   stalled hit rate  bus MB     decodes\n",
           o->child.budget, o->child.bus, o->child.max_tokens,
           both_mapped(m) ? "from the mapped pack" : "through a host tier, cold at the start",
           ROUNDS);
    double slow = print_run("dense", &dense), fast = print_run("exph", &exph);
    printf("\nexph / dense (decoding, medians): %.3f, wanted: %.2f or more\n", fast / slow, TARGET);
    return RUN_OK;
}

/* ---- The command ------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(tiers_options, member)

static int parse(int argc, char **argv, tiers_options *out)
{
    static const flag flags[] = {
        CHILD_FLAGS,
        {"--threads", flag_u32, AT(threads), .most = 1024},
        {"--mb", flag_u32, AT(mb), .least = 1, .most = 1u << 24},
        {"--skip-generation", NULL, AT(skip_generation)},
    };
    *out = (tiers_options){.child = {.budget = "25%", .bus = "1000000000", .max_tokens = "48"},
                           .mb = 4096};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (!code && !out->child.model)
        code = fail(RUN_REFUSED, "tiers needs --model X.moepack");
    if (!code && out->skip_generation && out->child.for_generation)
        code = fail(RUN_REFUSED, "%s is about the generation that --skip-generation skips",
                    out->child.for_generation);
    return code ? code : child_check(&out->child);
}

int bench_tiers(int argc, char **argv)
{
    tiers_options o;
    tier_model m = {0};
    int code = parse(argc, argv, &o);
    if (code)
        return code;
    code = tier_model_open(o.child.model, (uint64_t)o.mb << 20, &m);
    if (!code && !o.skip_generation)
        code = try_generation(&m, &o);
    if (!code)
        code = run_tiers(&m, &o);
    if (!code && !o.skip_generation)
        code = run_generation(&m, &o);
    tier_model_close(&m);
    return code;
}
