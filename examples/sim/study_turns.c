/* A controller that decides the split, the regime and how many run, against an oracle: every number that may run,
 * split and regime of a grid, each served in full; and beside the other ways to divide memory. Of one run the best point
 * is partly luck; over seeds there is one that is best in the mean. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_arms.h"
#include "sim/study_bench.h"

#define OUTPUT_TOKENS 64u
#define MOST_RUNNING 8u
#define WARM_JOBS 40u
#define JOBS 120u
#define CAPACITY_JOBS 32u
#define SEEDS 8u
#define HEAVY 0.9 /* load, where there is but one */
#define NEAR 1.03
#define MOST_NEAR 0.9

typedef struct model {
    const char *machine, *name;
} model;

/* gpt-oss-20b has experts in FP8, and the routes of its trace. */
static const model models[] = {{"rtx4090", "olmoe-1b-7b"},
                               {"rtx4090", "gpt-oss-20b"},
                               {"rtx4090", "deepseek-v2-lite"},
                               {"h100-pcie5", "qwen3-30b-a3b"}};
static const uint32_t prompts[] = {256, 2048};
static const double loads[] = {0.3, 0.6, HEAVY, 0.95}; /* of the best capacity */

static const double fractions[] = {0.5, 0.7, 0.9, 0.95, 0.98}; /* of the budget, for experts */
static const uint32_t regimes[] = {MOEPAGE_REGIME_CACHE, MOEPAGE_REGIME_STREAM,
                                   MOEPAGE_REGIME_AUTO};

/* A grid: fractions and regimes from the first that it has. */
typedef struct grid {
    bool every; /* number that may run, 1 to MOST_RUNNING; else powers of two */
    size_t fraction, regime;
    const char *text;
} grid;

static const grid whole = {true, 0, 0,
                           "1 to 8 running, 0.5 to 0.98 of the budget for experts, each "
                           "regime"};
static const grid coarse = {false, 0, 0,
                            "1, 2, 4 and 8 running, 0.5 to 0.98 of the budget for "
                            "experts, each regime"};
/* Near most of the whole grid's best points. */
static const grid likely = {false, 2, 1,
                            "1, 2, 4 and 8 running, 0.9 to 0.98 of the budget for "
                            "experts, streamed or as the session chooses"};

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define POINTS (MOST_RUNNING * COUNT(fractions) * COUNT(regimes))

/* ---- One run ----------------------------------------------------------------------------- */

static int run_static(const sim_serve_config *config, uint32_t most, double fraction,
                      uint32_t regime, sim_arm_run *out)
{
    const sim_split_option split = {.kind = SIM_SPLIT_FIXED, .fraction = fraction};
    sim_serve_config own = *config;
    own.concurrency = most;
    own.stack.regime = regime;
    return sim_split_run(&own, &split, out);
}

static double jobs_per_s(const sim_serve_config *config, const sim_arm_run *run)
{
    return sim_study_arm_serves(config, run)
               ? run->result.jobs / ((double)run->result.wall_ns / 1e9)
               : 0;
}

/* ---- The grid ---------------------------------------------------------------------------- */

typedef struct best {
    double value;
    uint32_t running, regime;
    double fraction;
} best;

/* Serves every point; `most`: the largest value wins, else the smallest. `sums`, unless NULL: each point's value is
 * added to its own. Fails if no point serves all jobs. */
static int search(const sim_serve_config *config, const grid *points,
                  double (*value)(const sim_serve_config *, const sim_arm_run *), bool most,
                  best *out, double *sums)
{
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? RUN_OK : fail_memory();
    size_t n = 0;
    *out = (best){.value = most ? 0 : INFINITY};
    for (uint32_t r = 1; r <= MOST_RUNNING; r = points->every ? r + 1 : 2 * r)
        for (size_t f = points->fraction; f < COUNT(fractions); f++)
            for (size_t g = points->regime; g < COUNT(regimes) && !code; g++) {
                *run = (sim_arm_run){0};
                code = run_static(config, r, fractions[f], regimes[g], run);
                double v = code ? NAN : value(config, run);
                if (sums)
                    sums[n++] += v;
                if (!code && (most ? v > out->value : v < out->value))
                    *out = (best){v, r, regimes[g], fractions[f]};
                sim_arm_run_free(run);
            }
    free(run);
    if (!code && !out->running)
        return fail(RUN_FAILED, "no point of the grid serves all jobs");
    return code;
}

/* ---- Workloads --------------------------------------------------------------------------- */

static void describe(sim_findings *out)
{
    sim_set(out,
            "half of the experts' bytes; answers of %u tokens in the mean, exponential; Poisson "
            "arrivals; %u jobs, of which the first %u do not count",
            OUTPUT_TOKENS, JOBS, WARM_JOBS);
}

/* Finds how many jobs a second can be served at most, all there at once. */
static int find_capacity(const sim_bench *bench, uint32_t prompt, const grid *points, uint32_t n,
                         uint64_t seed, double *out)
{
    best capacity = {0};
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    int code = sim_bench_poisson(bench, n, prompt, OUTPUT_TOKENS, 0, seed, &jobs);
    config.jobs = &jobs;
    if (!code)
        code = search(&config, points, jobs_per_s, true, &capacity, NULL);
    sim_jobs_free(&jobs);
    *out = capacity.value;
    return code;
}

/* The same jobs, served with every point of a grid, and by arms. */
typedef struct served {
    best oracle;
    double arms[SIM_ARMS]; /* mean times in s; INFINITY: not all jobs were served */
} served;

/* As many as come, up to the most, in the regime that the session chooses. */
static int serve_arm(const sim_serve_config *config, sim_study_arm arm, double *out)
{
    sim_serve_config own = *config;
    own.concurrency = MOST_RUNNING;
    own.stack.regime = MOEPAGE_REGIME_AUTO;
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_study_arm_run(&own, arm, NULL, run) : fail_memory();
    *out = code ? NAN : sim_study_arm_mean_s(&own, run);
    if (run)
        sim_arm_run_free(run);
    free(run);
    return code;
}

/* `first`: the first arm of those that serve. `sums` as in search. */
static int serve(const sim_bench *bench, uint32_t prompt, double rate, const grid *points,
                 sim_study_arm first, uint64_t seed, double *sums, served *out)
{
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    int code = sim_bench_poisson(bench, JOBS, prompt, OUTPUT_TOKENS, rate, seed, &jobs);
    config.jobs = &jobs;
    config.first_jobs = WARM_JOBS;
    if (!code)
        code = search(&config, points, sim_study_arm_mean_s, false, &out->oracle, sums);
    for (sim_study_arm arm = first; arm < SIM_ARMS && !code; arm++)
        code = serve_arm(&config, arm, &out->arms[arm]);
    sim_jobs_free(&jobs);
    return code;
}

/* ---- One seed ---------------------------------------------------------------------------- */

typedef struct tallies {
    sim_study_tally arms[SIM_ARMS]; /* over the oracle's */
    sim_study_tally best; /* ours over the best that is static: the oracle's, or an arm's */
} tallies;

static void find_row(const served *row, const char *where, sim_findings *out, tallies *t)
{
    const double ours = row->arms[SIM_ARM_ADMISSION];
    char what[64];
    double least = row->oracle.value;
    sim_find(out, row->oracle.value, NAN, "oracle, mean s a job", "%s: %u run, %.2f, %s", where,
             row->oracle.running, row->oracle.fraction, sim_bench_regime(row->oracle.regime));
    sim_find(out, isfinite(ours) ? ours : NAN, NAN, "ours, mean s a job", "%s", where);
    for (sim_study_arm arm = 0; arm < SIM_ARMS; arm++) {
        const double ratio = row->arms[arm] / row->oracle.value;
        snprintf(what, sizeof what, "%s%s", sim_study_arm_name(arm),
                 isfinite(ratio) ? " / oracle" : " does not serve all jobs");
        sim_find(out, isfinite(ratio) ? ratio : NAN, NAN, what, "%s", where);
        sim_study_tally_add(&t->arms[arm], ratio, false);
        if (arm < SIM_ARM_DUAL_RESIZE)
            least = fmin(least, row->arms[arm]);
    }
    sim_study_tally_add(&t->best, ours / least, false);
}

static int run_context(const sim_bench *bench, const char *name, uint32_t prompt, bool brief,
                       uint64_t seed, sim_findings *out, tallies *t)
{
    const grid *points = brief ? &coarse : &whole;
    char where[48];
    double capacity;
    int code = find_capacity(bench, prompt, points, CAPACITY_JOBS, seed, &capacity);
    sim_find(out, capacity, NAN, "capacity, jobs/s", "%s, %u", name, prompt);
    for (size_t i = 0; i < COUNT(loads) && !code; i++) {
        served row = {.oracle = {0}};
        if (brief && loads[i] != HEAVY)
            continue;
        code = serve(bench, prompt, loads[i] * capacity, points, 0, seed, NULL, &row);
        snprintf(where, sizeof where, "%s, %u, load %.2f", name, prompt, loads[i]);
        if (!code)
            find_row(&row, where, out, t);
    }
    return code;
}

static int run_model(const model *m, bool brief, uint64_t seed, sim_findings *out, tallies *t)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(m->machine, m->name, seed, out, &bench);
    for (size_t p = 0; p < (brief ? 1 : COUNT(prompts)) && !code; p++)
        code = run_context(&bench, m->name, prompts[p], brief, seed, out, t);
    sim_bench_close(&bench);
    return code;
}

static void claim_turns(const tallies *t, sim_findings *out)
{
    const sim_study_tally *ours = &t->arms[SIM_ARM_ADMISSION];
    const double median = sim_study_tally_median(ours), worst = sim_study_tally_worst(ours);
    const double above = sim_study_tally_worst(&t->best);
    sim_claim_that(out, median <= 1.05,
                   "the mean turn is within 1.05 of the oracle's in the median: %.3f", median);
    sim_claim_that(out, worst <= 1.15, "and within 1.15 at worst: %.3f", worst);
    sim_claim_that(out, above <= NEAR, "no row is above %.2f of the best that is static: %.3f",
                   NEAR, above);
}

int sim_study_turns(bool brief, uint64_t seed, sim_findings *out)
{
    tallies t = {.best = {.n = 0}};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    describe(out);
    sim_set(out, "oracle: %s; load: of its best throughput", (brief ? coarse : whole).text);
    sim_set(out, "arms: %u may run, and the session chooses the regime; over the oracle's time",
            MOST_RUNNING);
    for (size_t i = 0; i < (brief ? 1 : COUNT(models)) && !code; i++)
        code = run_model(&models[i], brief, seed, out, &t);
    if (code || !t.best.n)
        return code;
    for (sim_study_arm arm = 0; arm < SIM_ARMS; arm++)
        sim_study_tally_find(&t.arms[arm], arm, out);
    claim_turns(&t, out);
    return code;
}

/* ---- Seeds ------------------------------------------------------------------------------- */

/* One model and prompt at a heavy load. */
typedef struct seeds_row {
    const model *model;
    uint32_t prompt;
    double rate;           /* jobs a second */
    double ours;           /* jobs' mean times, summed over seeds, */
    double points[POINTS]; /* and so those of each point of the grid */
    sim_study_tally each;  /* ours over the seed's best point's */
} seeds_row;

_Static_assert(COUNT(models) * COUNT(prompts) * SEEDS <=
                   sizeof((sim_study_tally *)0)->ratios / sizeof(double),
               "a tally has room for all");

/* Serves with one seed, at a rate by what the first seed's jobs allow. */
static int run_seed(seeds_row *row, uint64_t seed, sim_findings *out)
{
    sim_bench bench;
    served all = {.oracle = {0}};
    double capacity;
    int code = sim_bench_open_recorded(row->model->machine, row->model->name, seed, out, &bench);
    if (!code && !(row->rate > 0)) {
        code = find_capacity(&bench, row->prompt, &likely, JOBS, seed, &capacity);
        row->rate = capacity * HEAVY;
    }
    if (!code)
        code = serve(&bench, row->prompt, row->rate, &likely, SIM_ARM_ADMISSION, seed, row->points,
                     &all);
    sim_bench_close(&bench);
    if (code)
        return code;
    sim_study_tally_add(&row->each, all.arms[SIM_ARM_ADMISSION] / all.oracle.value, false);
    row->ours += all.arms[SIM_ARM_ADMISSION];
    return RUN_OK;
}

/* Returns ours over the time of the point that is best in the mean. */
static double mean_ratio(const seeds_row *row)
{
    double least = INFINITY;
    for (size_t i = 0; i < POINTS; i++)
        least = row->points[i] > 0 ? fmin(least, row->points[i]) : least;
    return row->ours / least;
}

static int run_row(const model *m, uint32_t prompt, uint64_t seed, uint32_t n, sim_findings *out,
                   sim_study_tally *each, sim_study_tally *means)
{
    seeds_row row = {.model = m, .prompt = prompt};
    int code = RUN_OK;
    for (uint32_t i = 0; i < n && !code; i++)
        code = run_seed(&row, seed + i, out);
    if (code)
        return code;
    sim_find(out, row.rate, NAN, "jobs/s", "%s, %u", m->name, prompt);
    sim_find(out, mean_ratio(&row), NAN, "of the best point's, all seeds", "%s, %u", m->name,
             prompt);
    sim_find(out, sim_study_tally_median(&row.each), NAN, "of each seed's best, median", "%s, %u",
             m->name, prompt);
    sim_find(out, sim_study_tally_worst(&row.each), NAN, "of each seed's best, worst", "%s, %u",
             m->name, prompt);
    for (uint32_t i = 0; i < n; i++)
        sim_study_tally_add(each, row.each.ratios[i], false);
    sim_study_tally_add(means, mean_ratio(&row), false);
    return RUN_OK;
}

static void claim_seeds(const sim_study_tally *each, const sim_study_tally *means,
                        sim_findings *out)
{
    const double worst = sim_study_tally_worst(means);
    uint32_t near = 0;
    for (uint32_t i = 0; i < each->n; i++)
        near += each->ratios[i] <= NEAR;
    sim_find(out, sim_study_tally_median(each), NAN, "of each seed's best, median", "all");
    sim_claim_that(out, worst <= NEAR,
                   "over all seeds no mean turn is above %.2f of the best point's: %.3f at worst",
                   NEAR, worst);
    sim_claim_that(out, near >= MOST_NEAR * each->n,
                   "%.0f %% of single runs are not above %.2f of their own best point's: %u of %u",
                   100 * MOST_NEAR, NEAR, near, each->n);
}

int sim_study_turns_seeds(bool brief, uint64_t seed, sim_findings *out)
{
    sim_study_tally each = {.n = 0}, means = {.n = 0};
    const uint32_t n = brief ? 2 : SEEDS;
    int code = RUN_OK;
    sim_set(out, "seeds %u to %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed, (unsigned)seed + n - 1);
    describe(out);
    sim_set(out, "grid: %s", likely.text);
    sim_set(out, "load: %.1f of the grid's best throughput with the first seed's %u jobs", HEAVY,
            JOBS);
    for (size_t i = 0; i < (brief ? 1 : COUNT(models)); i++)
        for (size_t p = 0; p < (brief ? 1 : COUNT(prompts)) && !code; p++)
            code = run_row(&models[i], prompts[p], seed, n, out, &each, &means);
    if (!code && each.n)
        claim_seeds(&each, &means, out);
    return code;
}
