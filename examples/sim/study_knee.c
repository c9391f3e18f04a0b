/* FluxMoE's figure 6: the duration of an iteration as fewer experts stay in device memory. */
#include <math.h>

#include "common/fail.h"
#include "sim/study_flux.h"

#define BATCH 256u
#define CONTEXT 512u
#define STEPS 32u
#define WINDOW 2u /* layers */

/* Every expert is used in every step, as the figure assumes. */
#define ROUTING SIM_FLUX_NEXT ":skew=0.3,topic=0.2,topics=8,reach=1"
#define LAYER_NS 1510000u /* as in flux-exp1 */

static const double alphas[] = {1.0,  0.98, 0.96, 0.94, 0.92, 0.90, 0.88,
                                0.86, 0.84, 0.80, 0.70, 0.50, 0.25, 0.0};
static const double few[] = {1.0, 0.96, 0.92, 0.88, 0.70, 0.50};

#define MOST_POINTS (sizeof alphas / sizeof *alphas)

typedef struct knee {
    const double *alpha;
    size_t n;
    double load_ns[MOST_POINTS]; /* tau_load: the bus's bytes at its bandwidth */
    double step_ns[MOST_POINTS]; /* tau_comp: duration of an iteration */
} knee;

/* Returns the experts of each layer that stay; the others pass through a window of two layers. */
static uint32_t kept(const sim_shape *shape, double alpha)
{
    return (uint32_t)lround(alpha * shape->experts);
}

static double load_ns(const sim_bench *bench, double alpha)
{
    const sim_shape *s = &bench->shape;
    const mp_sim_profile *m = &bench->machine.profile;
    double expert_ns =
        (double)m->bus_latency_ns + (double)s->expert_bytes * 1e9 / (double)m->bus_bytes_per_s;
    return (double)(s->experts - kept(s, alpha)) * s->moe_layers * expert_ns;
}

static int run_point(const sim_bench *bench, const sim_jobs *jobs, double alpha, double *out)
{
    const sim_shape *s = &bench->shape;
    const sim_flux_load load = {.batch = BATCH,
                                .context = CONTEXT,
                                .layer_ns = LAYER_NS,
                                .steps = STEPS};
    sim_serve_config config = sim_flux_config(bench, &load, jobs);
    sim_pace pace;
    uint32_t keep = kept(s, alpha);
    config.stack.regime = MOEPAGE_REGIME_STREAM;
    config.stack.expert_slots =
        (uint64_t)keep * (s->moe_layers - WINDOW) + (uint64_t)WINDOW * s->experts;
    config.warm_layers = s->moe_layers;
    int code = sim_bench_run(&config, &pace);
    *out = pace.step_ns;
    return code;
}

/* Finds where the line through the points that wait for loading, except the last half of the range,
 * meets the level of those that do not. */
static double find_knee(const knee *k)
{
    size_t a = 0;
    while (k->alpha[a] > 0.7 + 1e-9)
        a++;
    size_t b = k->n - 1;
    double slope = (k->step_ns[b] - k->step_ns[a]) / (k->alpha[b] - k->alpha[a]);
    return k->alpha[a] + (k->step_ns[0] - k->step_ns[a]) / slope;
}

static void judge(const sim_bench *bench, const knee *k, sim_findings *out)
{
    double theory = k->step_ns[0], all = load_ns(bench, 0);
    double predicted = 1 - theory / all, measured = find_knee(k);
    double flat = 0, above = 0;
    for (size_t i = 0; i < k->n; i++) {
        if (k->alpha[i] > predicted + 0.03)
            flat = fmax(flat, k->step_ns[i] / theory - 1);
        if (k->alpha[i] < predicted - 0.03)
            above = fmax(above, fabs(k->step_ns[i] / k->load_ns[i] - 1));
    }
    sim_find(out, measured, predicted, "alpha", "the knee, and where tau_load is tau_comp(theory)");
    sim_claim_that(out, fabs(measured - predicted) < 0.03,
                   "the knee is where loading takes as long as computing: %.3f, predicted %.3f",
                   measured, predicted);
    sim_claim_that(out, flat < 0.05, "above it an iteration takes what computing takes: +%.1f %%",
                   100 * flat);
    sim_claim_that(out, above < 0.1, "below it, what loading takes: within %.1f %%", 100 * above);
}

int sim_study_flux_figure6(bool brief, uint64_t seed, sim_findings *out)
{
    knee k = {.alpha = brief ? few : alphas, .n = brief ? sizeof few / sizeof *few : MOST_POINTS};
    sim_bench bench;
    sim_jobs jobs = {0};
    int code = sim_bench_open("l40-pcie4", SIM_FLUX_NEXT, 4, ROUTING, seed, &bench);
    if (!code)
        code = sim_bench_batch(BATCH, CONTEXT, 2, &jobs);
    for (size_t i = 0; i < k.n && !code; i++) {
        k.load_ns[i] = load_ns(&bench, k.alpha[i]);
        code = run_point(&bench, &jobs, k.alpha[i], &k.step_ns[i]);
        sim_find(out, k.load_ns[i] / 1e6, NAN, "ms tau_load", "alpha %.2f", k.alpha[i]);
        sim_find(out, k.step_ns[i] / 1e6, NAN, "ms tau_comp", "alpha %.2f", k.alpha[i]);
    }
    if (!code) {
        sim_set(out, "machine l40-pcie4, %s on 4 ranks, batch %u, every expert used in every step",
                bench.shape.name, BATCH);
        judge(&bench, &k, out);
    }
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}
