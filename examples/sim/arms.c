/* Splits as arms of a study. */
#include "sim/arms.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

#define WORKING_SET_LEFT 0.02 /* fraction of the warm misses that Flux-prop's working set leaves */

/* ---- One split --------------------------------------------------------------------------- */

/* One split, served in full. */
static int run_point(const sim_serve_config *config, const mp_split *split, sim_result *result)
{
    sim_serve_config own = *config;
    own.quiet = true;
    sim_use_split(&own, split);
    return sim_serve(&own, NULL, NULL, result);
}

static int run_static(const sim_serve_config *config, sim_arm_run *out)
{
    return out->feasible ? run_point(config, &out->split, &out->result) : RUN_OK;
}

int sim_static_run(const sim_serve_config *config, const mp_split *split, sim_arm_run *out)
{
    *out = (sim_arm_run){.feasible = true, .split = *split};
    return run_static(config, out);
}

static int run_fixed(const sim_serve_config *config, double fraction, sim_arm_run *out)
{
    mp_split_bounds bounds;
    int code = sim_split_bounds(config, &bounds);
    if (code)
        return code;
    out->feasible = mp_split_fixed(&bounds, fraction, &out->split);
    return run_static(config, out);
}

static int run_configured(const sim_serve_config *config, sim_arm_run *out)
{
    int code = sim_configure(config, &out->configured);
    out->feasible = !code && out->configured.feasible;
    out->split = out->configured.split;
    return code ? code : run_static(config, out);
}

int sim_flux_run(const sim_serve_config *config, const sim_configured *configured, sim_arm_run *out)
{
    const mp_split_bounds *bounds = &configured->bounds;
    const mp_curve *curve = &configured->experts;
    uint64_t set = 0;
    *out = (sim_arm_run){.feasible = configured->feasible};
    if (!out->feasible)
        return RUN_OK;
    while (set < bounds->max_experts &&
           mp_curve_misses(curve, (double)set) > WORKING_SET_LEFT * curve->warm)
        set++;
    mp_split_flux(bounds, set, &out->split);
    return run_static(config, out);
}

static int run_flux(const sim_serve_config *config, sim_arm_run *out)
{
    sim_configured configured;
    int code = sim_configure(config, &configured);
    if (code)
        return code;
    code = sim_flux_run(config, &configured, out);
    out->configured = configured;
    return code;
}

/* ---- Controllers ------------------------------------------------------------------------- */

static moepage_controller_config controller(const sim_serve_config *config, uint32_t mode)
{
    moepage_controller_config own = {.struct_size = sizeof own};
    if (config->stack.controller)
        own = *config->stack.controller;
    own.mode = mode;
    own.admission = config->admission;
    own.target_ttft_ns = config->target_ttft_ns;
    own.target_tpot_ns = config->target_tpot_ns;
    own.kv_miss = config->recompute ? MOEPAGE_KV_MISS_RECOMPUTE : MOEPAGE_KV_MISS_SWAP;
    if (!own.context_tokens)
        own.context_tokens = sim_jobs_longest(config->jobs) + 2ull * config->stack.block_tokens;
    if (!own.concurrency)
        own.concurrency = config->concurrency;
    return own;
}

int sim_online_run(const sim_serve_config *config, const mp_split *start, uint32_t mode,
                   sim_arm_run *out)
{
    moepage_controller_config control = controller(config, mode);
    sim_serve_config own = *config;
    mp_split_bounds bounds;
    *out = (sim_arm_run){.feasible = true, .split = *start};
    int code = sim_split_bounds(config, &bounds);
    if (code)
        return code;
    bounds.kv_floor =
        sim_kv_units(&config->stack,
                     control.context_tokens * (control.admission ? 1 : control.concurrency));
    if (mode == MOEPAGE_CONTROL_PLANNER && own.stack.exph_ratio <= 0)
        own.stack.exph_ratio = SIM_EXPH_RATIO;
    if (start->kv < bounds.kv_floor) /* a controller would leave such a split at once */
        mp_split_with_experts(&bounds, start->experts, &out->split);
    own.stack.controller = &control;
    return run_static(&own, out);
}

int sim_controlled_run(const sim_serve_config *config, uint32_t mode, sim_arm_run *out)
{
    *out = (sim_arm_run){0};
    mp_split_bounds bounds;
    mp_split start;
    int code = sim_split_bounds(config, &bounds);
    if (code)
        return code;
    const double share = config->admission ? 1 : 0.5;
    mp_split_bounds floored = bounds;
    floored.kv_floor *= config->admission ? 1 : config->concurrency;
    if (!mp_split_fixed(&floored, share, &start) && !mp_split_fixed(&bounds, share, &start))
        return RUN_OK;
    return sim_online_run(config, &start, mode, out);
}

/* ---- The oracle -------------------------------------------------------------------------- */

/* Serves one more split; *best is the index of the best point. */
static int try_point(const sim_serve_config *config, const mp_split *split, sim_arm_run *out,
                     sim_result *result, uint32_t *best)
{
    if (out->n_points == SIM_ORACLE_POINTS)
        return RUN_OK;
    for (uint32_t i = 0; i < out->n_points; i++)
        if (out->points[i].split.experts == split->experts)
            return RUN_OK;
    int code = run_point(config, split, result);
    if (code || !result->starts || result->refused)
        return code;
    uint32_t i = out->n_points++;
    out->points[i] = (sim_point){.split = *split,
                                 .latency_ns = sim_result_latency_ns(result),
                                 .failures = sim_result_failures(result)};
    if (i == 0 || sim_point_better(&out->points[i], &out->points[*best])) {
        *best = i;
        out->split = *split;
        out->result = *result;
    }
    return RUN_OK;
}

/* Repeatedly halves the grid's step around the best point. */
static int refine(const sim_serve_config *config, const mp_split_bounds *bounds, uint64_t step,
                  sim_arm_run *out, sim_result *result, uint32_t *best)
{
    int code = RUN_OK;
    for (uint64_t d = (step + 1) / 2; d && !code; d = d == 1 ? 0 : (d + 1) / 2) {
        uint64_t around = out->split.experts;
        mp_split split;
        for (int side = -1; side <= 1 && !code; side += 2)
            if (mp_split_with_experts(bounds, side < 0 && around < d ? 0 : around + side * d,
                                      &split))
                code = try_point(config, &split, out, result, best);
    }
    return code;
}

int sim_oracle_run(const sim_serve_config *config, sim_arm_run *out)
{
    mp_split_bounds bounds;
    mp_split low, high, split;
    uint32_t best = 0;
    *out = (sim_arm_run){0};
    int code = sim_split_bounds(config, &bounds);
    if (code || !mp_split_with_experts(&bounds, 0, &low))
        return code;
    mp_split_with_experts(&bounds, bounds.max_experts, &high);
    sim_result *result = malloc(sizeof *result);
    if (!result)
        return fail_memory();
    uint64_t range = high.experts - low.experts;
    for (uint32_t i = 0; i < SIM_ORACLE_GRID && !code; i++) {
        mp_split_with_experts(&bounds, low.experts + range * i / (SIM_ORACLE_GRID - 1), &split);
        code = try_point(config, &split, out, result, &best);
    }
    out->feasible = out->n_points > 0;
    if (!code && out->feasible)
        code = refine(config, &bounds, range / (SIM_ORACLE_GRID - 1), out, result, &best);
    free(result);
    return code;
}

/* ---- All of them ------------------------------------------------------------------------- */

int sim_split_run(const sim_serve_config *config, const sim_split_option *split, sim_arm_run *out)
{
    *out = (sim_arm_run){0};
    switch (split->kind) {
    case SIM_SPLIT_FIXED: return run_fixed(config, split->fraction, out);
    case SIM_SPLIT_HALF: return run_fixed(config, 0.5, out);
    case SIM_SPLIT_FLUX: return run_flux(config, out);
    case SIM_SPLIT_MV_WSA: return run_configured(config, out);
    case SIM_SPLIT_ORACLE: return sim_oracle_run(config, out);
    case SIM_SPLIT_DUAL_RESIZE: return sim_controlled_run(config, MOEPAGE_CONTROL_DUAL_RESIZE, out);
    case SIM_SPLIT_PLANNER: return sim_controlled_run(config, MOEPAGE_CONTROL_PLANNER, out);
    default: return sim_controlled_run(config, MOEPAGE_CONTROL_MV_WSA, out);
    }
}

void sim_arm_run_free(sim_arm_run *run)
{
    sim_configured_free(&run->configured);
}
