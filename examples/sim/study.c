/* The register of studies, and the printing of their findings. */
#include "sim/study.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"

static const sim_study studies[] = {
    {"wisp-table2", "WiSP table 2: paging against static offload at equal budgets, batch 1", false,
     sim_study_wisp_table2},
    {"wisp-prefetch", "WiSP section 4: prefetching and coherent sessions at batch 1, and the bus",
     false, sim_study_wisp_prefetch},
    {"wisp-table4", "WiSP table 4: arms on a server with long contexts, and ours online", false,
     sim_study_wisp_table4},
    {"wisp-table6", "WiSP table 6: live controllers against the offline split", false,
     sim_study_wisp_table6},
    {"prefetch", "a predictor's guesses, as long as they pay, against no prefetch", true,
     sim_study_prefetch},
    {"maps", "FineMoE: similarity and hit rate, ablation, sweeps, on a trace with probabilities",
     true, sim_study_maps},
    {"flux-figure6", "FluxMoE figure 6: loading and computing over the residency level", false,
     sim_study_flux_figure6},
    {"flux-exp1", "FluxMoE exp. 1: throughput over batch and context, weights fit", false,
     sim_study_flux_exp1},
    {"flux-exp2", "FluxMoE exp. 2: throughput when they do not fit, balanced and by layer", false,
     sim_study_flux_exp2},
    {"flux-exp3", "FluxMoE exp. 3: throughput while the planner adapts residency", false,
     sim_study_flux_exp3},
    {"routing", "predictors and eviction policies in one table, trained on the first requests",
     true, sim_study_routing},
    {"evictions", "eviction policies on recorded routing, LRU and Belady beside", true,
     sim_study_evictions},
    {"regimes", "the regime that a session chooses, against the better of the two forced ones",
     true, sim_study_regimes},
    {"admission", "controllers that decide how many run at once, against the configured split",
     true, sim_study_admission},
    {"turns", "split, regime and how many run, decided online, against an oracle's full grid", true,
     sim_study_turns},
    {"turns-seeds", "the same at a load of 0.9, with eight seeds and a smaller grid", true,
     sim_study_turns_seeds},
    {"targets", "times to the first token and between tokens, promised and kept", false,
     sim_study_targets},
    {"planner", "the residency planner, against the best other mode and regime, by batch", true,
     sim_study_planner},
    {"precision", "DynaExq section 5.3: hot experts high, against all low and a cache of high ones",
     false, sim_study_precision},
    {"rightsize", "WiSP section 5.4: a user's own table and working set against the population's",
     true, sim_study_rightsize},
    {"caps", "WiSP section 5.4: controllers with caps by right-sizing, and without", true,
     sim_study_caps},
    {"splits", "every way to divide memory, against the best of all splits, on real traces", true,
     sim_study_splits},
    {"splits-synthetic", "the same with synthetic routes of three other models", true,
     sim_study_splits_synthetic},
    {"shifts", "every way while the workload changes, against the best split in hindsight", true,
     sim_study_shifts},
    {"shifts-synthetic", "the same with synthetic routes of other models", true,
     sim_study_shifts_synthetic},
    {"rings", "the same where sessions return in a fixed order, as LRU likes least", true,
     sim_study_rings},
};

#define N_STUDIES (sizeof studies / sizeof *studies)

const sim_study *sim_study_find(const char *name)
{
    for (size_t i = 0; i < N_STUDIES; i++)
        if (!strcmp(studies[i].name, name))
            return &studies[i];
    return NULL;
}

void sim_study_list(FILE *out)
{
    for (size_t i = 0; i < N_STUDIES; i++)
        fprintf(out, "%-16s %s\n", studies[i].name, studies[i].line);
}

/* ---- Findings ---------------------------------------------------------------------------- */

#define FORMAT_TO(buffer, format)                          \
    do {                                                   \
        va_list args;                                      \
        va_start(args, format);                            \
        vsnprintf((buffer), sizeof(buffer), format, args); \
        va_end(args);                                      \
    } while (0)

void sim_set(sim_findings *out, const char *format, ...)
{
    assert(out->n_settings < SIM_MOST_CLAIMS);
    FORMAT_TO(out->settings[out->n_settings], format);
    out->n_settings++;
}

void sim_find(sim_findings *out, double ours, double paper, const char *what, const char *format,
              ...)
{
    assert(out->n < SIM_MOST_FINDINGS);
    sim_finding *f = &out->findings[out->n++];
    FORMAT_TO(f->where, format);
    snprintf(f->what, sizeof f->what, "%s", what);
    f->ours = ours;
    f->paper = paper;
}

void sim_claim_that(sim_findings *out, bool holds, const char *format, ...)
{
    assert(out->n_claims < SIM_MOST_CLAIMS);
    sim_claim *c = &out->claims[out->n_claims++];
    FORMAT_TO(c->text, format);
    c->holds = holds;
}

/* ---- Printing ---------------------------------------------------------------------------- */

static void print_number(double value)
{
    if (isnan(value))
        printf(" %10s", "-");
    else
        printf(" %10.*f", fabs(value) >= 1000 ? 0 : fabs(value) >= 100 ? 1 : 2, value);
}

static void print_text(const sim_study *study, const sim_findings *found)
{
    printf("%s\n", study->line);
    for (uint32_t i = 0; i < found->n_settings; i++)
        printf("  %s\n", found->settings[i]);
    printf("%-40s %-34s %10s %10s %10s\n", "case", "figure", "ours", "paper", "ours/paper");
    for (uint32_t i = 0; i < found->n; i++) {
        const sim_finding *f = &found->findings[i];
        printf("%-40s %-34s", f->where, f->what);
        print_number(f->ours);
        print_number(f->paper);
        print_number(f->ours / f->paper);
        printf("\n");
    }
    for (uint32_t i = 0; i < found->n_claims; i++)
        printf("%s: %s\n", found->claims[i].holds ? "holds" : "DOES NOT HOLD",
               found->claims[i].text);
}

static json_t *pack_finding(const sim_finding *f)
{
    json_t *ours = isfinite(f->ours) ? json_real(f->ours) : json_null();
    json_t *json = json_pack("{s:s, s:s, s:o}", "case", f->where, "figure", f->what, "ours", ours);
    if (!json || isnan(f->paper))
        return json;
    int failed = json_object_set_new(json, "paper", json_real(f->paper)) ||
                 json_object_set_new(json, "ratio", json_real(f->ours / f->paper));
    return put_or_null(failed, json);
}

static int print_json(const sim_study *study, const sim_findings *found)
{
    json_t *settings = json_array(), *results = json_array(), *claims = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < found->n_settings; i++)
        failed |= json_array_append_new(settings, json_string(found->settings[i]));
    for (uint32_t i = 0; i < found->n; i++)
        failed |= json_array_append_new(results, pack_finding(&found->findings[i]));
    for (uint32_t i = 0; i < found->n_claims; i++)
        failed |=
            json_array_append_new(claims, json_pack("{s:s, s:b}", "claim", found->claims[i].text,
                                                    "holds", found->claims[i].holds));
    return put_print(stdout, failed,
                     json_pack("{s:s, s:o, s:o, s:o}", "study", study->name, "settings", settings,
                               "results", results, "claims", claims));
}

int sim_study_main(const sim_options *options)
{
    const sim_study *study = sim_study_find(options->study);
    if (!study)
        return fail(RUN_REFUSED, "no study %s: moepage-sim --list studies names them",
                    options->study);
    if (options->trace && !study->of_traces)
        return fail(RUN_REFUSED, "--study %s brings its own routing: --trace has no effect",
                    study->name);
    sim_findings *found = calloc(1, sizeof *found);
    if (!found)
        return fail_memory();
    found->traces = options->trace;
    found->train_percent = options->train_percent;
    int code = study->run(false, options->seed, found);
    if (!code && options->json)
        code = print_json(study, found);
    else if (!code)
        print_text(study, found);
    bool all = true;
    for (uint32_t i = 0; i < found->n_claims; i++)
        all = all && found->claims[i].holds;
    free(found);
    if (!code && !all)
        code = fail(RUN_FAILED, "%s: not all claims hold", study->name);
    return code;
}
