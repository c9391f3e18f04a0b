/* Tables. */
#include "eval/show.h"

#include <inttypes.h>
#include <math.h>

#include "common/units.h"

const outcome *findings_exact(const findings *f)
{
    return f->n && !setting_is_lossy(f->outcomes[0].setting) ? &f->outcomes[0] : NULL;
}

double findings_loss(const findings *f, const measure *m, const measure *exact)
{
    return findings_exact(f) && exact->scored ? measure_bits(m) - measure_bits(exact) : NAN;
}

static void print_shape(FILE *out, const findings *f)
{
    const eval_options *o = f->opts;
    uint64_t left_over = 0;
    for (uint32_t d = 0; d < f->corpus->n_domains; d++)
        left_over += f->corpus->domains[d].left_over;
    fprintf(out, "%s: %s, %" PRIu32 " MoE layers of %" PRIu32 " experts, %" PRIu32 " per token\n",
            f->model, f->info->architecture, f->info->moe_layers, f->info->experts, f->info->top_k);
    fprintf(out, "windows of %" PRIu32 " %s, each from an empty context, ", o->window,
            f->corpus->bytes ? "bytes" : "tokens");
    if (!o->batch)
        fprintf(out, "in one step");
    else if (o->prompt)
        fprintf(out, "%" PRIu32 " side by side: %" PRIu32 " prefilled, then a token per step",
                o->batch, o->prompt);
    else
        fprintf(out, "%" PRIu32 " side by side, a token per step", o->batch);
    fprintf(out, "\n");
    if (left_over)
        fprintf(out, "%" PRIu64 " tokens behind the last whole windows are left out\n", left_over);
}

static void print_loss(FILE *out, double loss, double exact)
{
    if (isfinite(loss))
        fprintf(out, " %+9.5f %+7.2f%%", loss, exact > 0 ? 100 * loss / exact : 0);
    else
        fprintf(out, " %9s %8s", "-", "-");
}

/* Prints the library's counters, if they belong to this row alone. */
static void print_counted(FILE *out, const findings *f, const measure *m)
{
    if (!m->counted.layers) {
        fprintf(out, " %8s %8s %7s %7s %9s\n", "-", "-", "-", "-", "-");
        return;
    }
    fprintf(out, " %8.2f %8.2f %6.1f%% %6.1f%% %9.1f\n", measure_experts(m),
            measure_experts_routed(m), measure_low_percent(m, f->info->top_k),
            measure_hit_percent(m), mib(measure_moved(m)));
}

static void print_columns(FILE *out, const findings *f, int width, const char *first)
{
    fprintf(out, "%-*s %9s %9s %8s %8s %8s %7s %7s %9s\n", width, first,
            f->corpus->bytes ? "bits/byte" : "bits/tok", "loss", "", "experts", "routed", "low",
            "hits", "MiB moved");
}

static void print_row(FILE *out, const findings *f, int width, const char *name, const measure *m,
                      const measure *exact)
{
    fprintf(out, "%-*s %9.5f", width, name, measure_bits(m));
    print_loss(out, findings_loss(f, m, exact), measure_bits(exact));
    print_counted(out, f, m);
}

static void print_setting(FILE *out, const findings *f, const outcome *o)
{
    const outcome *exact = findings_exact(f);
    const measure none = {0};
    fprintf(out, "\n%s: %.1f s, experts take %.2f MiB of device memory", o->setting->name,
            (double)o->wall_ns / 1e9, mib(o->expert_bytes));
    if (o->hi_experts)
        fprintf(out, ", %" PRIu32 " high versions per layer", o->hi_experts);
    if (o->all.counted.remap_layers)
        fprintf(out, ", remapping takes %.1f%% of steps", measure_remap_percent(&o->all));
    fprintf(out, "\n");
    print_columns(out, f, 10, "domain");
    for (uint32_t d = 0; d < f->corpus->n_domains; d++)
        print_row(out, f, 10, f->corpus->domains[d].name, &o->domains[d],
                  exact ? &exact->domains[d] : &none);
    print_row(out, f, 10, "all", &o->all, exact ? &exact->all : &none);
}

static void print_sweep(FILE *out, const findings *f)
{
    const outcome *exact = findings_exact(f);
    const measure none = {0};
    fprintf(out, "\n%10s ", "MiB");
    print_columns(out, f, 36, "setting");
    for (uint32_t i = 0; i < f->n; i++) {
        const outcome *o = &f->outcomes[i];
        fprintf(out, "%10.2f ", mib(o->expert_bytes));
        print_row(out, f, 36, o->setting->name, &o->all, exact ? &exact->all : &none);
    }
}

int show_table(FILE *out, const findings *f)
{
    print_shape(out, f);
    if (f->n > 2)
        print_sweep(out, f);
    for (uint32_t i = 0; i < f->n && f->n <= 2; i++)
        print_setting(out, f, &f->outcomes[i]);
    fprintf(out,
            "\nexperts: distinct per layer and step, computed and as routed; low: choices that\n"
            "went to a low version; hits: experts that were on the device when routed\n");
    return 0;
}
