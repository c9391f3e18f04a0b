/* Every way to divide memory while the workload changes, against the best static split in hindsight. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/study_arms.h"
#include "sim/workloads.h"

static const sim_study_arm online[] = {SIM_ARM_ONLINE, SIM_ARM_ADMISSION, SIM_ARM_DUAL_RESIZE,
                                       SIM_ARM_FLUX_ONLINE};

#define N_ONLINE (sizeof online / sizeof *online)

/* What the controller gained over several shifts: the best split's time over its own. */
typedef struct gains {
    double least;
    uint32_t n, great; /* shifts; those with a gain of at least 1.2 */
    uint64_t failures; /* of admission, that a split avoids */
} gains;

/* The configurator's split for the first phase, the only one known when serving begins. */
static int configure_first(const sim_workload *workload, const sim_recordings *recordings,
                           uint64_t seed, mp_split *out)
{
    sim_scene first;
    sim_configured configured;
    int code = sim_scene_open(workload, recordings, 1, seed, &first);
    if (code)
        return code;
    code = sim_configure(&first.config, &configured);
    if (!code) {
        *out = configured.split;
        sim_configured_free(&configured);
    }
    sim_scene_close(&first);
    return code;
}

/* That split for the whole run. */
static int run_first(const sim_scene *scene, const mp_split *start, const sim_result *best,
                     const char *where, sim_findings *out)
{
    const sim_serve_config *config = &scene->config;
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_static_run(config, start, run);
    if (!code)
        sim_study_arm_find(config, SIM_ARM_MV_WSA, run, 1 / sim_study_arm_ratio(config, run, best),
                           " for the first phase, gain", where, out);
    free(run);
    return code;
}

static int run_online(const sim_scene *scene, sim_study_arm arm, const mp_split *start,
                      const sim_result *best, const char *where, gains *g, sim_findings *out)
{
    const sim_serve_config *config = &scene->config;
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_study_arm_run(config, arm, start, run);
    if (!code) {
        double gain = 1 / sim_study_arm_ratio(config, run, best);
        uint64_t failures = sim_result_failures(best) ? 0 : sim_result_failures(&run->result);
        sim_study_arm_find(config, arm, run, gain, ", gain", where, out);
        if (!isnan(gain))
            sim_study_arm_find(config, arm, run, (double)run->result.moves, ", moves", where, out);
        if (!isnan(gain) && failures)
            sim_study_arm_find(config, arm, run, (double)failures, ", needless failures", where,
                               out);
        g->least = isnan(gain) ? 0 : fmin(g->least, gain);
        g->great += gain >= 1.2;
        g->n++;
        /* With admission waiting is a decision, and not a failure. */
        g->failures += arm == SIM_ARM_ADMISSION ? run->result.refused : failures;
    }
    sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_arms(const sim_scene *scene, const mp_split *start, const char *where, gains *g,
                    sim_findings *out)
{
    sim_arm_run *best = calloc(1, sizeof *best);
    if (!best)
        return fail_memory();
    int code = sim_oracle_run(&scene->config, best);
    if (!code) {
        sim_find(out, sim_result_latency_ns(&best->result) * 1e-9, NAN, "best split, s a job", "%s",
                 where);
        code = run_first(scene, start, &best->result, where, out);
    }
    for (size_t i = 0; i < N_ONLINE && !code; i++)
        code = run_online(scene, online[i], start, &best->result, where, &g[online[i]], out);
    free(best);
    return code;
}

static int run_shift(const sim_workload *workload, const sim_recordings *recordings, uint64_t seed,
                     gains *g, sim_findings *out)
{
    sim_scene scene;
    mp_split start;
    int code = configure_first(workload, recordings, seed, &start);
    if (code)
        return code;
    code = sim_scene_open(workload, recordings, 0, seed, &scene);
    if (code)
        return code;
    code = run_arms(&scene, &start, workload->name, g, out);
    sim_scene_close(&scene);
    return code;
}

static int run_shifts(const sim_workload *list, uint32_t n, bool brief, uint64_t seed, gains *g,
                      sim_findings *out)
{
    sim_recordings recordings;
    int code = sim_recordings_open(out, &recordings);
    sim_set(out, "best split: the best of all static ones for the whole run, in hindsight");
    sim_set(out, "gain: its time over the arm's; online arms begin at the configurator's split for "
                 "the first phase");
    for (int arm = 0; arm < SIM_ARMS; arm++)
        g[arm] = (gains){.least = INFINITY};
    for (uint32_t i = 0; i < (brief ? 1 : n) && !code; i++)
        code = run_shift(brief ? &sim_short_shift : &list[i], &recordings, seed, g, out);
    sim_recordings_close(&recordings);
    return code;
}

static void judge_worst(const gains *g, sim_findings *out)
{
    for (sim_study_arm arm = SIM_ARM_ONLINE; arm < SIM_ARMS; arm++)
        sim_claim_that(out, g[arm].least >= 0.97 && g[arm].failures == 0,
                       "%s is %.3f on the worst, at least 0.97, with %llu admission failures that "
                       "a split avoids",
                       sim_study_arm_name(arm), g[arm].least, (unsigned long long)g[arm].failures);
}

int sim_study_shifts(bool brief, uint64_t seed, sim_findings *out)
{
    gains g[SIM_ARMS];
    const gains *ours = &g[SIM_ARM_ADMISSION];
    sim_set(out, "routes of gpt-oss-20b, recorded: nothing here depends on the seed");
    int code = run_shifts(sim_shifts, sim_n_shifts, brief, seed, g, out);
    if (code)
        return code;
    sim_claim_that(out, 2 * ours->great >= ours->n,
                   "%s is at least 1.2 of the best split on %u of %u shifts, at least half",
                   sim_study_arm_name(SIM_ARM_ADMISSION), ours->great, ours->n);
    judge_worst(g, out);
    return RUN_OK;
}

int sim_study_shifts_synthetic(bool brief, uint64_t seed, sim_findings *out)
{
    gains g[SIM_ARMS];
    sim_set(out, "synthetic routes of other models, seed %u", (unsigned)seed);
    int code = run_shifts(sim_synthetic_shifts, sim_n_synthetic_shifts, brief, seed, g, out);
    if (!code)
        judge_worst(g, out);
    return code;
}

int sim_study_rings(bool brief, uint64_t seed, sim_findings *out)
{
    gains g[SIM_ARMS];
    sim_set(out, "routes of gpt-oss-20b, recorded: nothing here depends on the seed");
    int code = run_shifts(sim_rings, sim_n_rings, brief, seed, g, out);
    if (!code)
        judge_worst(g, out);
    return code;
}
