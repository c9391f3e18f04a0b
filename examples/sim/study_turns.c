/* A controller that decides the split, the regime and how many run, against an oracle: every number that may run,
 * split and regime of a grid, each served in full. Of one run the best point is partly luck; over seeds there is one
 * that is best in the mean. */
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
static const double loads[] = {0.3, 0.6, 0.9}; /* of the best capacity */

static const uint32_t running[] = {1, 2, 4, MOST_RUNNING};
static const double fractions[] = {0.5, 0.7, 0.9, 0.95, 0.98}; /* of the budget, for experts */
static const uint32_t regimes[] = {MOEPAGE_REGIME_CACHE, MOEPAGE_REGIME_STREAM,
                                   MOEPAGE_REGIME_AUTO};

/* A grid: fractions and regimes from the first that it has. */
typedef struct grid {
    size_t fraction, regime;
} grid;

static const grid whole = {0, 0};
static const grid likely = {2, 1}; /* the whole grid's best points are in it */

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define POINTS (COUNT(running) * COUNT(fractions) * COUNT(regimes))

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

static int run_ours(const sim_serve_config *config, sim_arm_run *out)
{
    const sim_split_option split = {.kind = SIM_SPLIT_MV_WSA_ONLINE};
    sim_serve_config own = *config;
    own.concurrency = MOST_RUNNING;
    own.stack.regime = MOEPAGE_REGIME_AUTO;
    own.admission = true;
    return sim_split_run(&own, &split, out);
}

/* The mean time of the jobs that count, in seconds; infinite if some could not be served. */
static double turn_s(const sim_serve_config *config, const sim_arm_run *run)
{
    return sim_study_arm_serves(config, run) ? run->result.job_ns.mean / 1e9 : INFINITY;
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
    for (size_t r = 0; r < COUNT(running); r++)
        for (size_t f = points->fraction; f < COUNT(fractions); f++)
            for (size_t g = points->regime; g < COUNT(regimes) && !code; g++) {
                *run = (sim_arm_run){0};
                code = run_static(config, running[r], fractions[f], regimes[g], run);
                double v = code ? NAN : value(config, run);
                if (sums)
                    sums[n++] += v;
                if (!code && (most ? v > out->value : v < out->value))
                    *out = (best){v, running[r], regimes[g], fractions[f]};
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

/* Serves the same jobs with every point of the grid, and with the controller. `sums` as in search. */
static int serve_both(const sim_bench *bench, uint32_t prompt, double rate, const grid *points,
                      uint64_t seed, best *oracle, double *sums, double *ours)
{
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_bench_poisson(bench, JOBS, prompt, OUTPUT_TOKENS, rate, seed, &jobs)
                   : fail_memory();
    config.jobs = &jobs;
    config.first_jobs = WARM_JOBS;
    if (!code)
        code = search(&config, points, turn_s, false, oracle, sums);
    if (!code)
        code = run_ours(&config, run);
    *ours = code ? NAN : turn_s(&config, run);
    if (run)
        sim_arm_run_free(run);
    free(run);
    sim_jobs_free(&jobs);
    return code;
}

static int run_load(const sim_bench *bench, const char *name, uint32_t prompt, double load,
                    double capacity, uint64_t seed, sim_findings *out, sim_study_tally *sums)
{
    static const char *const names[] = {"auto", "cache", "stream"};
    best oracle = {0};
    double ours;
    int code = serve_both(bench, prompt, load * capacity, &whole, seed, &oracle, NULL, &ours);
    if (code)
        return code;
    sim_find(out, oracle.value, NAN, "oracle, mean s a job", "%s, %u, load %.2f: %u run, %.2f, %s",
             name, prompt, load, oracle.running, oracle.fraction, names[oracle.regime]);
    sim_find(out, ours, NAN, "ours, mean s a job", "%s, %u, load %.2f", name, prompt, load);
    sim_find(out, ours / oracle.value, NAN, "of the oracle's", "%s, %u, load %.2f", name, prompt,
             load);
    sim_study_tally_add(sums, ours / oracle.value, false);
    return RUN_OK;
}

static int run_context(const sim_bench *bench, const char *name, uint32_t prompt, bool brief,
                       uint64_t seed, sim_findings *out, sim_study_tally *sums)
{
    double capacity;
    int code = find_capacity(bench, prompt, &whole, CAPACITY_JOBS, seed, &capacity);
    sim_find(out, capacity, NAN, "capacity, jobs/s", "%s, %u", name, prompt);
    for (size_t i = brief ? COUNT(loads) - 1 : 0; i < COUNT(loads) && !code; i++)
        code = run_load(bench, name, prompt, loads[i], capacity, seed, out, sums);
    return code;
}

static int run_model(const model *m, bool brief, uint64_t seed, sim_findings *out,
                     sim_study_tally *sums)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(m->machine, m->name, seed, out, &bench);
    for (size_t p = 0; p < (brief ? 1 : COUNT(prompts)) && !code; p++)
        code = run_context(&bench, m->name, prompts[p], brief, seed, out, sums);
    sim_bench_close(&bench);
    return code;
}

int sim_study_turns(bool brief, uint64_t seed, sim_findings *out)
{
    sim_study_tally sums = {.n = 0};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    describe(out);
    sim_set(out,
            "oracle: 1 to %u running, 0.5 to 0.98 of the budget for experts, each regime; load: of "
            "its best throughput",
            MOST_RUNNING);
    for (size_t i = 0; i < (brief ? 1 : COUNT(models)) && !code; i++)
        code = run_model(&models[i], brief, seed, out, &sums);
    if (code || !sums.n)
        return code;
    double median = sim_study_tally_median(&sums), worst = sim_study_tally_worst(&sums);
    sim_claim_that(out, median <= 1.05,
                   "the mean turn is within 1.05 of the oracle's in the median: %.3f", median);
    sim_claim_that(out, worst <= 1.15, "and within 1.15 at worst: %.3f", worst);
    return code;
}

/* ---- Seeds ------------------------------------------------------------------------------- */

/* One model and prompt at the heaviest load. */
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
    best oracle = {0};
    double ours = NAN, capacity;
    int code = sim_bench_open_recorded(row->model->machine, row->model->name, seed, out, &bench);
    if (!code && !(row->rate > 0)) {
        code = find_capacity(&bench, row->prompt, &likely, JOBS, seed, &capacity);
        row->rate = capacity * loads[COUNT(loads) - 1];
    }
    if (!code)
        code =
            serve_both(&bench, row->prompt, row->rate, &likely, seed, &oracle, row->points, &ours);
    sim_bench_close(&bench);
    if (code)
        return code;
    sim_study_tally_add(&row->each, ours / oracle.value, false);
    row->ours += ours;
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
    sim_set(out,
            "grid: 1 to %u running, 0.9 to 0.98 of the budget for experts, streamed or as the "
            "session chooses",
            MOST_RUNNING);
    sim_set(out, "load: 0.9 of the grid's best throughput with the first seed's %u jobs", JOBS);
    for (size_t i = 0; i < (brief ? 1 : COUNT(models)); i++)
        for (size_t p = 0; p < (brief ? 1 : COUNT(prompts)) && !code; p++)
            code = run_row(&models[i], prompts[p], seed, n, out, &each, &means);
    if (!code && each.n)
        claim_seeds(&each, &means, out);
    return code;
}
