/* The flags of moepage-eval. */
#include "eval/eval_options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "moepage.h"

#define MAX_WINDOW (1u << 16)
#define MAX_BATCH 4096u
#define DEFAULT_INTERVAL_US 100000u /* shorter than a server's: windows pass faster */

const char *eval_options_usage(void)
{
    return "usage: moepage-eval --model PATH --data FILE... [flags]\n"
           "\n"
           "  --model PATH          checkpoint directory, or .moepack file\n"
           "  --data FILE...        texts, one domain each; of models that are not byte-level,\n"
           "                        with --token-ids, little-endian 32-bit token ids\n"
           "  --window N            tokens, each window from an empty context (default 256)\n"
           "  --windows N           of each file, from its start (default 0 = all)\n"
           "  --batch N             N windows side by side, one token of each per step, as in\n"
           "                        serving; without it each window is one prefill step\n"
           "  --prompt N            with --batch: a window's first N tokens are prefilled, and\n"
           "                        what follows them is scored (default 0 = all is decoded)\n"
           "  --mix                 windows of all files side by side; without it, file by file\n"
           "  --warm N              the first N windows of each file are not scored (default 0)\n"
           "  --exact on|off        beside a lossy setting, run the exact one (default on)\n"
           "  --course N            in the JSON, what every N steps brought, in their order\n"
           "  --json                print one JSON object instead of text\n"
           "  --report FILE         write plots and tables as one HTML page\n"
           "\n"
           "changing the output (docs/quality.md):\n"
           "  --precision SPEC      int8, int4, int2: every expert; HI/LO:P%, HI/LO@BYTES,\n"
           "                        HI/LO@FORM-bytes: the hottest in HI, the rest in LO\n"
           "  --interval-us N       between decisions about versions (default 100000)\n"
           "  --window-steps N      steps between changes of versions (default 0 = 1)\n"
           "  --hotness choices|weights  what makes an expert hot (default choices)\n"
           "  --hotness-alpha A     of its moving average, per interval (default 0.5)\n"
           "  --high-set adapt|hottest|random  high experts: as served; the hottest of "
           "--warm's\n"
           "                        windows, or any (--seed N), for good (default adapt)\n"
           "  --remap A,B           decode batches do without experts that few tokens care about\n"
           "  --remap-resident X    with it: prefer experts on the device by X logits\n"
           "  --remap-phase decode|prefill|both  where it acts (default decode)\n"
           "  --miss wait|low|host  an absent expert: wait, its low version, or where it lies\n"
           "  --ranks K             only each token's first K choices\n"
           "  --deny-rank R         a token's R-th choice goes to the next best expert\n"
           "  --sweep remap|precision|demotion|ranks|phases  compare several settings\n"
           "  --grid A,...:B,...    of --sweep remap (default 0.5,1,2,4:0.5,1,2,4)\n"
           "  --group-size N, --scale-search on|off  of integer forms, if the model lacks them\n"
           "\n"
           "as in moepage-generate:\n"
           "  --budget, --policy, --scope, --regime, --prefetch, --prefetch-depth,\n"
           "  --predictor-load, --predictor-save, --math, --threads, --host-tier, --bus,\n"
           "  --trace-out\n";
}

/* ---- Values of one flag each ------------------------------------------------------------- */

static int add_file(const char *text, void *out)
{
    eval_options *opts = out;
    const char **grown = realloc(opts->files, (opts->n_files + 1u) * sizeof *grown);
    if (!grown)
        return fail_memory();
    grown[opts->n_files++] = text;
    opts->files = grown;
    return RUN_OK;
}

static int read_data(const flag *self, const char *text, void *out)
{
    return *text ? add_file(text, out) : flag_refuse(self, text, "a file");
}

static int read_budget(const flag *self, const char *text, void *out)
{
    return options_read_budget(self, text, &((eval_options *)out)->base);
}

/* Reads numbers above 0 separated by commas, up to `end`. */
static bool take_list(const char **text, char end, double *out, uint32_t *n)
{
    for (*n = 0; *n < SETTINGS_GRID;) {
        if (!flag_take_real(text, &out[*n]) || out[(*n)++] <= 0)
            return false;
        if (**text == end)
            return true;
        if (*(*text)++ != ',')
            return false;
    }
    return false;
}

static int read_grid(const flag *self, const char *text, void *out)
{
    grid *g = flag_field(self, out);
    const char *rest = text;
    bool read = take_list(&rest, ':', g->alphas, &g->n_alphas);
    rest += read;
    if (!read || !take_list(&rest, '\0', g->betas, &g->n_betas))
        return flag_refuse(self, text, "alphas and betas, up to 8 of each, such as 1,2:1,2,4");
    return RUN_OK;
}

static int read_alpha(const flag *self, const char *text, void *out)
{
    double *alpha = flag_field(self, out);
    const char *rest = text;
    if (!flag_take_real(&rest, alpha) || *rest || *alpha <= 0 || *alpha >= 1)
        return flag_refuse(self, text, "a number between 0 and 1");
    return RUN_OK;
}

/* ---- The command line -------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(eval_options, member)
#define NOTE(member) .note = offsetof(eval_options, member)

static const flag flags[] = {
    {.part = options_flags, AT(base)},
    {"--data", read_data, AT(files)},
    {"--window", flag_u32, AT(window), .least = 2, .most = MAX_WINDOW},
    {"--windows", flag_u32, AT(windows), .most = UINT32_MAX},
    {"--batch", flag_u32, AT(batch), .least = 1, .most = MAX_BATCH},
    {"--prompt", flag_u32, AT(prompt), .least = 1, .most = MAX_WINDOW},
    {"--mix", NULL, AT(mix)},
    {"--warm", flag_u32, AT(warm), .most = UINT32_MAX},
    {"--token-ids", NULL, AT(token_ids)},
    {"--exact", flag_choice, AT(inexact), .choice = {"on", "off"}},
    {"--json", NULL, AT(json)},
    {"--report", flag_text, AT(report)},
    {"--precision", flag_precision, AT(asked.precision)},
    {"--interval-us", flag_u32, AT(base.interval_us), .least = 1, .most = UINT32_MAX},
    {"--window-steps", flag_u32, AT(base.window_steps), .most = UINT32_MAX},
    {"--hotness", flag_choice, AT(base.hotness), .choice = {"choices", "weights"}},
    {"--hotness-alpha", read_alpha, AT(base.hotness_alpha)},
    {"--high-set", flag_choice, AT(asked.high_set), .choice = {"adapt", "hottest", "random"}},
    {"--course", flag_u32, AT(course), .least = 1, .most = UINT32_MAX},
    {"--remap", flag_remap, AT(asked.remap)},
    {"--remap-resident", flag_resident, AT(asked.remap.resident)},
    {"--remap-phase", flag_choice, AT(asked.remap_phase), .choice = {"decode", "prefill", "both"}},
    {"--miss", flag_choice, AT(asked.miss), .choice = {"wait", "low", "host"}},
    {"--ranks", flag_u32, AT(asked.keep_ranks), .least = 1, .most = UINT32_MAX},
    {"--deny-rank", flag_u32, AT(asked.deny_rank), .least = 1, .most = UINT32_MAX},
    {"--sweep", flag_choice, AT(sweep),
     .choice = {"none", "remap", "precision", "ranks", "phases", "demotion"}},
    {"--grid", read_grid, AT(grid)},
    {"--group-size", flag_u32, AT(group_size), .least = 32, .most = 128},
    {"--scale-search", flag_choice, AT(scale_search), .choice = {"off", "on"}},
    {"--budget", read_budget, AT(base)},
    {"--trace-out", flag_text, AT(base.trace_out)},
    {"--help", NULL, AT(help)},
};

_Static_assert(HIGH_ADAPT == 0 && HIGH_HOTTEST == 1 && HIGH_RANDOM == 2,
               "--high-set reads a position");
_Static_assert(REMAP_DECODE == 0 && REMAP_PREFILL == 1 && REMAP_BOTH == 2,
               "--remap-phase reads a position");
_Static_assert(SWEEP_REMAP == 1 && SWEEP_PRECISION == 2 && SWEEP_RANKS == 3 && SWEEP_PHASES == 4 &&
                   SWEEP_DEMOTION == 5,
               "--sweep reads a position");

static int check_shape(const eval_options *o)
{
    if (o->prompt && !o->batch)
        return fail(RUN_REFUSED, "--prompt goes with --batch: without it a window is all prompt");
    if (o->prompt >= o->window)
        return fail(RUN_REFUSED, "--prompt %u: a window of %u tokens has nothing left to score",
                    o->prompt, o->window);
    if (o->windows && o->warm >= o->windows)
        return fail(RUN_REFUSED, "--warm %u: none of the %u windows of each file is left to score",
                    o->warm, o->windows);
    return RUN_OK;
}

/* Refuses settings without any effect, so that their figures are not misread. */
static int check_settings(const eval_options *o)
{
    const setting *s = &o->asked;
    bool remaps = s->remap.alpha > 0 || o->sweep == SWEEP_REMAP;
    if (o->sweep == SWEEP_PHASES && (s->remap.alpha <= 0 || !o->prompt))
        return fail(RUN_REFUSED, "--sweep phases goes with --remap A,B and with --batch N --prompt "
                                 "N, which have both phases");
    if ((o->sweep == SWEEP_PRECISION || o->sweep == SWEEP_DEMOTION) && s->precision.text)
        return fail(RUN_REFUSED, "--sweep precision and --sweep demotion have their own: "
                                 "--precision must not be given");
    if (remaps && o->sweep != SWEEP_PHASES && s->remap_phase != REMAP_PREFILL && !o->batch)
        return fail(RUN_REFUSED, "--remap acts on decode steps: give --batch N, or --remap-phase "
                                 "prefill");
    if (remaps && s->remap_phase == REMAP_PREFILL && o->batch && !o->prompt)
        return fail(RUN_REFUSED, "--remap-phase prefill: with --batch and no --prompt nothing is "
                                 "prefilled");
    if (s->remap_phase != REMAP_DECODE && !remaps)
        return fail(RUN_REFUSED, "--remap-phase goes with --remap");
    if (s->remap.resident > 0 && !remaps)
        return fail(RUN_REFUSED, "--remap-resident goes with --remap");
    if (o->base.trace_out && (o->sweep || (setting_is_lossy(s) && !o->inexact)))
        return fail(RUN_REFUSED, "--trace-out records one setting: omit the exact one with --exact "
                                 "off, and give no --sweep");
    return RUN_OK;
}

static int check_versions(const eval_options *o)
{
    const setting *s = &o->asked;
    const bool two = s->precision.hi_form && s->miss != MOEPAGE_MISS_LOW;
    const bool sweeps = o->sweep == SWEEP_PRECISION || o->sweep == SWEEP_DEMOTION;
    if ((o->base.hotness || o->base.hotness_alpha > 0) && !two && !sweeps)
        return fail(RUN_REFUSED, "--hotness and --hotness-alpha go with --precision HI/LO");
    if (s->high_set && !two)
        return fail(RUN_REFUSED, "--high-set goes with --precision HI/LO");
    if (s->high_set && o->base.hotness_alpha > 0)
        return fail(RUN_REFUSED, "--high-set hottest and random have an alpha of their own");
    if ((s->high_set == HIGH_HOTTEST || o->sweep == SWEEP_DEMOTION) && (!o->warm || !o->batch))
        return fail(RUN_REFUSED, "the hottest experts are those of --warm's windows, read in steps "
                                 "of --batch: give both");
    if (o->course && (!o->batch || !o->json))
        return fail(RUN_REFUSED, "--course counts steps of --batch, for --json: give both");
    return RUN_OK;
}

static int check_budget(const eval_options *o)
{
    bool given = o->base.budget_bytes || o->base.budget_percent > 0;
    bool versions = (o->asked.precision.hi_form && o->asked.miss != MOEPAGE_MISS_LOW) ||
                    o->sweep == SWEEP_PRECISION || o->sweep == SWEEP_DEMOTION;
    if (given && versions)
        return fail(RUN_REFUSED,
                    "--precision HI/LO determines device memory: --budget must not be given "
                    "with it, but with --miss low");
    return RUN_OK;
}

int eval_options_parse(int argc, char **argv, eval_options *out)
{
    *out = (eval_options){.base = {.device = "host",
                                   .policy = "lru",
                                   .io_threads = 4,
                                   .interval_us = DEFAULT_INTERVAL_US},
                          .window = 256,
                          .grid = {{0.5, 1, 2, 4}, {0.5, 1, 2, 4}, 4, 4},
                          .argc = argc,
                          .argv = argv};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, add_file, out);
    if (code || out->help)
        return code;
    if (!out->base.model)
        return fail(RUN_REFUSED, "--model PATH is missing: see --help");
    if (!out->n_files)
        return fail(RUN_REFUSED, "no text: give --data FILE...");
    if ((code = options_check_prefetch(&out->base)))
        return code;
    if (out->asked.miss == MOEPAGE_MISS_LOW && !out->asked.precision.hi_form)
        return fail(RUN_REFUSED, "--miss low goes with --precision HI/LO: LO is what a missing "
                                 "expert is computed with");
    if ((code = check_shape(out)) || (code = check_settings(out)) || (code = check_versions(out)))
        return code;
    return check_budget(out);
}

void eval_options_free(eval_options *opts)
{
    free(opts->files);
    options_free(&opts->base);
}
