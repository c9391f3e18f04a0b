/* Every way to divide memory on real and synthetic routing and real requests, against the best of all
 * static splits. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/study_arms.h"
#include "sim/workloads.h"

typedef struct tallies {
    sim_study_tally arm[SIM_ARMS];
} tallies;

/* Flux-prop takes the working set that the configurator has measured. */
static int run_arm(const sim_serve_config *config, sim_study_arm arm,
                   const sim_configured *configured, sim_arm_run *run)
{
    if (arm == SIM_ARM_FLUX)
        return sim_flux_run(config, configured, run);
    return sim_study_arm_run(config, arm, NULL, run);
}

/* runs[0 .. SIM_ARMS) are the arms', the next one is the oracle's. */
static int compare(const sim_serve_config *config, const char *where, sim_arm_run *runs, tallies *t,
                   sim_findings *out)
{
    const sim_result *oracle = &runs[SIM_ARMS].result;
    int code = sim_oracle_run(config, &runs[SIM_ARMS]);
    if (!code)
        sim_find(out, sim_result_latency_ns(oracle) * 1e-9, NAN, "oracle, s a job", "%s", where);
    for (sim_study_arm arm = 0; arm < SIM_ARMS && !code; arm++) {
        code = run_arm(config, arm, &runs[SIM_ARM_MV_WSA].configured, &runs[arm]);
        if (code)
            break;
        double ratio = sim_study_arm_ratio(config, &runs[arm], oracle);
        bool needless = sim_result_failures(&runs[arm].result) && !sim_result_failures(oracle);
        sim_study_arm_find(config, arm, &runs[arm], ratio, " / oracle", where, out);
        sim_study_tally_add(&t->arm[arm], ratio, needless);
    }
    return code;
}

static int run_workload(const sim_workload *workload, const sim_recordings *recordings,
                        uint64_t seed, tallies *t, sim_findings *out)
{
    sim_scene scene;
    int code = sim_scene_open(workload, recordings, 0, seed, &scene);
    if (code)
        return code;
    sim_arm_run *runs = calloc(SIM_ARMS + 1, sizeof *runs);
    code = runs ? compare(&scene.config, workload->name, runs, t, out) : fail_memory();
    for (size_t i = 0; runs && i < SIM_ARMS; i++)
        sim_arm_run_free(&runs[i]);
    free(runs);
    sim_scene_close(&scene);
    return code;
}

static void judge_configured(const sim_study_tally *configured, sim_findings *out)
{
    double median = sim_study_tally_median(configured), worst = sim_study_tally_worst(configured);
    sim_claim_that(out, median <= 1.03,
                   "MV-WSA's median is %.4f of the oracle's latency, at most 1.03", median);
    sim_claim_that(out, worst <= 1.10, "its worst is %.4f, at most 1.10", worst);
    sim_claim_that(out, configured->needless == 0,
                   "%u workloads had admission failures that a split avoids", configured->needless);
}

/* An online arm is to be near the oracle, and no worse than what is simpler. */
static void judge_online(const tallies *t, sim_study_arm arm, sim_findings *out)
{
    static const sim_study_arm simpler[] = {SIM_ARM_HALF, SIM_ARM_DUAL_RESIZE, SIM_ARM_FLUX_ONLINE};
    double median = sim_study_tally_median(&t->arm[arm]), least = INFINITY;
    for (size_t i = 0; i < sizeof simpler / sizeof *simpler; i++)
        least = fmin(least, sim_study_tally_median(&t->arm[simpler[i]]));
    sim_claim_that(out, median <= 1.10, "%s has a median of %.3f, at most 1.10",
                   sim_study_arm_name(arm), median);
    sim_claim_that(out, median <= least, "no more than the best simpler online arm: %.3f, %.3f",
                   median, least);
}

static int study(const sim_workload *list, uint32_t n, uint64_t seed, tallies *t, sim_findings *out)
{
    sim_recordings recordings;
    int code = sim_recordings_open(out, &recordings);
    sim_set(out, "latency: how long the machine is busy with the same jobs, per job");
    sim_set(out, "oracle: the best of a grid of splits, refined to one slot, without admission "
                 "failures");
    sim_set(out, "online arms begin at an even split; their way from there counts");
    for (uint32_t i = 0; i < n && !code; i++)
        code = run_workload(&list[i], &recordings, seed, t, out);
    for (sim_study_arm arm = 0; arm < SIM_ARMS && !code; arm++)
        sim_study_tally_find(&t->arm[arm], arm, out);
    sim_recordings_close(&recordings);
    if (code)
        return code;
    judge_configured(&t->arm[SIM_ARM_MV_WSA], out);
    judge_online(t, SIM_ARM_ONLINE, out);
    judge_online(t, SIM_ARM_ADMISSION, out);
    double worst = sim_study_tally_worst(&t->arm[SIM_ARM_ADMISSION]);
    sim_claim_that(out, worst <= 1.15, "%s has a worst of %.3f, at most 1.15",
                   sim_study_arm_name(SIM_ARM_ADMISSION), worst);
    return RUN_OK;
}

int sim_study_splits(bool brief, uint64_t seed, sim_findings *out)
{
    tallies t = {0};
    const sim_workload *last = sim_workloads + sim_n_workloads - 1; /* it is short */
    sim_set(out, "routes of gpt-oss-20b, recorded: nothing here depends on the seed");
    return brief ? study(last, 1, seed, &t, out)
                 : study(sim_workloads, sim_n_workloads, seed, &t, out);
}

int sim_study_splits_synthetic(bool brief, uint64_t seed, sim_findings *out)
{
    tallies t = {0};
    sim_set(out, "synthetic routes of other models, seed %u", (unsigned)seed);
    return brief ? study(&sim_short_synthetic, 1, seed, &t, out)
                 : study(sim_synthetic_workloads, sim_n_synthetic_workloads, seed, &t, out);
}
