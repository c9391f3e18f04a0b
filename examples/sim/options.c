/* The flags of moepage-sim, and which of them go together. */
#include "sim/options.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"

const char *sim_options_usage(void)
{
    return "usage: moepage-sim --trace PATH --policy LIST --capacity LIST [flags]\n"
           "       moepage-sim --trace PATH --curve [flags]\n"
           "       moepage-sim --trace PATH --stats [flags]\n"
           "       moepage-sim --machine NAME --model NAME [flags]\n"
           "       moepage-sim --study NAME [--trace DIR] [--seed S] [--json]\n"
           "\n"
           "What a cache of experts would miss, what a trace is like, and how a model would be "
           "served\n"
           "on a machine that need not be there, in virtual time, by the library itself. A LIST "
           "has\n"
           "commas between.\n"
           "\n"
           "where routing comes from:\n"
           "  --trace PATH          a trace file of the library; a directory with experts.u8 and\n"
           "                        requests.csv; a .csv file of request,token,layer,experts; or "
           "a\n"
           "                        bare .u8 file\n"
           "  --shape LxExK         of a .u8 file: layers, experts, experts for each token\n"
           "  --synthetic SPEC      a generator instead: MODEL, or MODEL:key=value,key=value with\n"
           "                        layers, experts, top-k, skew, topic, topics, reach, carry, "
           "segment,\n"
           "                        shift, shift-tokens, prompt, tokens, seed\n"
           "  --tables              of a generator: experts that batches use, beside DynaExq's "
           "tables\n"
           "  --requests N          only the first N (of a generator by default 64)\n"
           "\n"
           "replay:\n"
           "  --policy LIST         lru, lfu, lfu-aged, sieve, s3fifo, lirs, finemoe, cycle, and "
           "belady,\n"
           "                        the bound\n"
           "  --capacity LIST       experts that the cache holds, over all layers\n"
           "  --scope global|layer  layer: every layer has its part for itself (default global)\n"
           "  --access layer|sequential  layer: a layer's experts come at once, as in the "
           "library;\n"
           "                        sequential: one by one, in the file's order (default layer)\n"
           "  --curve               instead: LRU's misses at every capacity from one pass over "
           "reuse\n"
           "                        distances, and the sampled estimate beside\n"
           "  --sample-keys N       most keys that the estimate tracks (default 16384)\n"
           "\n"
           "--stats: working sets, carry-over, skew, entropy, and what the bus allows:\n"
           "  --burst N             tokens of a burst (default: a request)\n"
           "  --expert-bytes BYTES  size of one expert, or --model\n"
           "  --bus-bytes BYTES     the bus's bytes a second, or --machine\n"
           "\n"
           "serving:\n"
           "  --machine NAME        a profile, or a file: --list machines\n"
           "  --model NAME          a shape: --list models\n"
           "  --tp N                tensor-parallel ranks; one of them is simulated (default 1)\n"
           "  --fp8                 experts of one byte per weight\n"
           "  --budget LIST         for experts and KV: bytes (24G), or percent of the experts "
           "(50%)\n"
           "  --split LIST          fixed:F, 50-50, flux, dual-resize, mv-wsa, mv-wsa-online,\n"
           "                        planner, oracle (default mv-wsa)\n"
           "  --baseline LIST       the papers' systems on the same stack: --list baselines\n"
           "  --arrivals FILE       requests: Azure's CSV or Mooncake's JSON lines\n"
           "  --time-scale X        factor on their arrival times (default 1)\n"
           "  --rate X              without --arrivals: requests a second (default 0: all at "
           "once)\n"
           "  --prompt LIST         without --arrivals: tokens of the prompt (default 512)\n"
           "  --output LIST         without --arrivals: tokens of the answer (default 128)\n"
           "  --jobs N              requests to serve\n"
           "  --steps N             most steps to run\n"
           "  --concurrency LIST    sequences at once (default 1)\n"
           "  --block-tokens N      of a KV block (default 16)\n"
           "  --regime auto|cache|stream  (default auto)\n"
           "  --admission           controllers also decide how many run at once\n"
           "  --target-ttft MS, --target-tpot MS  with --admission: of the mean time to the first\n"
           "                        token, and of that between tokens (default none)\n"
           "  --kv-miss swap|recompute  what the host does for KV that is not there (default "
           "swap)\n"
           "  --prefetch NAME       a predictor (default none)\n"
           "  --configure           only print the split for the trace\n"
           "\n"
           "  --seed S              of everything random (default 0)\n"
           "  --json                print one JSON object instead of text\n"
           "  --report FILE         also write one HTML page with plots\n"
           "  --study NAME          a paper's experiment, and its figures beside: --list studies\n"
           "  --train-percent N     of a trace's requests, before those that a study tests "
           "(default 60)\n"
           "  --list WHAT           models, machines, policies, baselines or studies\n";
}

/* ---- Fields -------------------------------------------------------------------------------- */

/* Calls `take` with each part between commas; returns false if one is refused or there are too
 * many. */
static bool each_part(const char *text, void *out, bool (*take)(const char *part, void *out))
{
    for (;;) {
        char part[64];
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof part)
            return false;
        memcpy(part, text, length);
        part[length] = '\0';
        if (!take(part, out))
            return false;
        if (!text[length])
            return true;
        text += length + 1;
    }
}

static bool take_number(const char *part, void *out)
{
    sim_numbers *numbers = out;
    uint64_t value;
    if (numbers->n == SIM_LIST_MOST || !flag_take_number(&part, &value) || *part || value == 0 ||
        value > UINT32_MAX)
        return false;
    numbers->values[numbers->n++] = value;
    return true;
}

static int read_numbers(const flag *self, const char *text, void *out)
{
    sim_numbers *numbers = flag_field(self, out);
    numbers->n = 0;
    return each_part(text, numbers, take_number)
               ? RUN_OK
               : flag_refuse(self, text, "up to 32 numbers from 1 on, commas between");
}

static bool take_word(const char *part, void *out)
{
    sim_words *words = out;
    if (words->n == SIM_LIST_MOST)
        return false;
    snprintf(words->words[words->n++], sizeof words->words[0], "%s", part);
    return true;
}

static int read_words(const flag *self, const char *text, void *out)
{
    sim_words *words = flag_field(self, out);
    words->n = 0;
    return each_part(text, words, take_word)
               ? RUN_OK
               : flag_refuse(self, text, "up to 32 names, commas between");
}

static bool take_budget(const char *part, void *out)
{
    sim_options *o = out;
    sim_budget budget = {0};
    size_t length = strlen(part);
    if (o->budgets.n == SIM_LIST_MOST)
        return false;
    if (part[length - 1] == '%') {
        if (!flag_take_real(&part, &budget.percent) || strcmp(part, "%") != 0 ||
            budget.percent <= 0)
            return false;
    } else if (!flag_is_bytes(part, &budget.bytes) || budget.bytes == 0) {
        return false;
    }
    o->budgets.list[o->budgets.n++] = budget;
    return true;
}

static int read_budgets(const flag *self, const char *text, void *out)
{
    ((sim_options *)out)->budgets.n = 0;
    return each_part(text, out, take_budget)
               ? RUN_OK
               : flag_refuse(self, text,
                             "up to 32 of bytes (digits, perhaps K, M or G) or percentages (50%), "
                             "commas between");
}

static const char *const split_names[SIM_SPLIT_KINDS] = {
    [SIM_SPLIT_FIXED] = "fixed",   [SIM_SPLIT_HALF] = "50-50",
    [SIM_SPLIT_FLUX] = "flux",     [SIM_SPLIT_DUAL_RESIZE] = "dual-resize",
    [SIM_SPLIT_MV_WSA] = "mv-wsa", [SIM_SPLIT_MV_WSA_ONLINE] = "mv-wsa-online",
    [SIM_SPLIT_ORACLE] = "oracle", [SIM_SPLIT_PLANNER] = "planner",
};

const char *sim_split_name(sim_split_kind kind)
{
    return split_names[kind];
}

static bool take_split(const char *part, void *out)
{
    sim_options *o = out;
    sim_split_option split = {.kind = SIM_SPLIT_FIXED};
    if (o->splits.n == SIM_LIST_MOST)
        return false;
    if (!strncmp(part, "fixed:", 6)) {
        part += 6;
        if (!flag_take_real(&part, &split.fraction) || *part || split.fraction <= 0 ||
            split.fraction >= 1)
            return false;
    } else {
        do
            split.kind++;
        while (split.kind < SIM_SPLIT_KINDS && strcmp(part, split_names[split.kind]) != 0);
        if (split.kind == SIM_SPLIT_KINDS)
            return false;
    }
    o->splits.list[o->splits.n++] = split;
    return true;
}

static int read_splits(const flag *self, const char *text, void *out)
{
    ((sim_options *)out)->splits.n = 0;
    return each_part(text, out, take_split)
               ? RUN_OK
               : flag_refuse(self, text,
                             "up to 32 of fixed:F with F between 0 and 1, 50-50, flux, "
                             "dual-resize, mv-wsa, mv-wsa-online, planner, oracle");
}

static int read_shape(const flag *self, const char *text, void *out)
{
    sim_options *o = out;
    uint32_t *const fields[3] = {&o->shape_layers, &o->shape_experts, &o->shape_top_k};
    const char *rest = text;
    for (int i = 0; i < 3; i++) {
        uint64_t value;
        if (!flag_take_number(&rest, &value) || value == 0 || value > UINT16_MAX ||
            *rest != "xx"[i])
            return flag_refuse(self, text, "LAYERSxEXPERTSxTOPK, as 24x32x4");
        *fields[i] = (uint32_t)value;
        rest += *rest == 'x';
    }
    return RUN_OK;
}

/* Text that is one of the flag's choices. */
static int read_choice(const flag *self, const char *text, void *out)
{
    uint32_t index;
    flag number = *self;
    number.offset = 0;
    int code = flag_choice(&number, text, &index);
    if (!code)
        *(const char **)flag_field(self, out) = self->choice[index];
    return code;
}

/* ---- The table ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(sim_options, member)
#define NOTE(member) .note = offsetof(sim_options, member)

static const flag flags[] = {
    {"--trace", flag_text, AT(trace)},
    {"--shape", read_shape, NOTE(for_trace)},
    {"--synthetic", flag_text, AT(synthetic)},
    {"--requests", flag_u32, AT(requests), .least = 1, .most = UINT32_MAX},
    {"--seed", flag_u64, AT(seed), .most = UINT64_MAX},
    {"--policy", read_words, AT(policies)},
    {"--capacity", read_numbers, AT(capacities), NOTE(for_replay)},
    {"--scope", flag_choice, AT(scope), .choice = {"global", "layer"}},
    {"--access", flag_choice, AT(access), .choice = {"layer", "sequential"}, NOTE(for_misses)},
    {"--curve", NULL, AT(curve)},
    {"--sample-keys", flag_u32, AT(sample_keys), .least = 16, .most = 1u << 20, NOTE(for_curve)},
    {"--stats", NULL, AT(stats)},
    {"--tables", NULL, AT(tables)},
    {"--burst", flag_u32, AT(burst), .least = 1, .most = UINT32_MAX},
    {"--expert-bytes", flag_bytes, AT(expert_bytes), NOTE(for_stats)},
    {"--bus-bytes", flag_bytes, AT(bus_bytes), NOTE(for_stats)},
    {"--machine", flag_text, AT(machine), NOTE(for_machine)},
    {"--model", flag_text, AT(model), NOTE(for_machine)},
    {"--tp", flag_u32, AT(tp), .least = 1, .most = 1024, NOTE(for_machine)},
    {"--fp8", NULL, AT(f8), NOTE(for_machine)},
    {"--budget", read_budgets, NOTE(for_serve)},
    {"--split", read_splits, NOTE(for_serve)},
    {"--baseline", read_words, AT(baselines), NOTE(for_serve)},
    {"--arrivals", flag_text, AT(arrivals), NOTE(for_serve)},
    {"--time-scale", flag_real, AT(time_scale), NOTE(for_serve)},
    {"--rate", flag_real, AT(rate), NOTE(for_serve)},
    {"--prompt", read_numbers, AT(prompt_tokens), NOTE(for_serve)},
    {"--output", read_numbers, AT(output_tokens), NOTE(for_serve)},
    {"--jobs", flag_u32, AT(jobs), .least = 1, .most = UINT32_MAX, NOTE(for_serve)},
    {"--steps", flag_u64, AT(steps), .least = 1, .most = UINT64_MAX, NOTE(for_serve)},
    {"--concurrency", read_numbers, AT(concurrency), NOTE(for_serve)},
    {"--block-tokens", flag_u32, AT(block_tokens), .least = 1, .most = 4096, NOTE(for_serve)},
    {"--regime", read_choice, AT(regime), .choice = {"auto", "cache", "stream"}, NOTE(for_serve)},
    {"--admission", NULL, AT(admission), NOTE(for_serve)},
    {"--target-ttft", flag_ms, AT(target_ttft_ns), NOTE(for_admission)},
    {"--target-tpot", flag_ms, AT(target_tpot_ns), NOTE(for_admission)},
    {"--kv-miss", read_choice, AT(kv_miss), .choice = {"swap", "recompute"}, NOTE(for_serve)},
    {"--prefetch", flag_text, AT(prefetch), NOTE(for_serve)},
    {"--configure", NULL, AT(configure), NOTE(for_serve)},
    {"--json", NULL, AT(json)},
    {"--report", flag_text, AT(report)},
    {"--study", flag_text, AT(study)},
    {"--train-percent", flag_u32, AT(train_percent), .least = 1, .most = 99, NOTE(for_study)},
    {"--list", read_choice, AT(list),
     .choice = {"models", "machines", "policies", "baselines", "studies"}},
    {"--help", NULL, AT(help)},
};

_Static_assert(SIM_SCOPE_GLOBAL == 0 && SIM_ACCESS_LAYER == 0, "choices read a position");

/* ---- What goes together ---------------------------------------------------------------------- */

static sim_mode choose_mode(const sim_options *o)
{
    if (o->list)
        return SIM_LIST;
    if (o->study)
        return SIM_STUDY;
    if (o->configure)
        return SIM_CONFIGURE;
    if (o->tables)
        return SIM_TABLES;
    if (o->stats)
        return SIM_STATS;
    if (o->curve)
        return SIM_CURVE;
    return o->for_serve || o->for_machine ? SIM_SERVE : SIM_REPLAY;
}

/* Refuses flags without an effect instead of ignoring them. */
static int check_use(const sim_options *o)
{
    static const char *const doing[] = {
        [SIM_REPLAY] = "a replay", [SIM_CURVE] = "--curve",         [SIM_STATS] = "--stats",
        [SIM_SERVE] = "serving",   [SIM_CONFIGURE] = "--configure", [SIM_LIST] = "--list",
        [SIM_TABLES] = "--tables", [SIM_STUDY] = "--study",
    };
    bool replays = o->mode == SIM_REPLAY, misses = replays || o->mode == SIM_CURVE;
    bool serves = o->mode == SIM_SERVE || o->mode == SIM_CONFIGURE;
    const struct {
        bool used;
        const char *flag;
    } rules[] = {
        {replays, o->for_replay},
        {misses, o->for_misses},
        {o->mode == SIM_CURVE, o->for_curve},
        {o->mode == SIM_STATS, o->for_stats},
        {o->mode == SIM_STUDY, o->for_study},
        {serves || o->mode == SIM_STATS, o->for_machine},
        {serves, o->for_serve},
        {serves, o->for_admission},
        {replays || serves, o->policies.n ? "--policy" : NULL},
        {misses || serves, o->scope ? "--scope" : NULL},
        {serves || o->mode == SIM_STATS, o->burst ? "--burst" : NULL},
        {o->mode != SIM_LIST && o->mode != SIM_CONFIGURE, o->report ? "--report" : NULL},
        {o->trace != NULL, o->for_trace},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].used && rules[i].flag)
            return fail(RUN_REFUSED, "%s has no effect in %s: see --help", rules[i].flag,
                        i == sizeof rules / sizeof *rules - 1 ? "anything but --trace"
                                                              : doing[o->mode]);
    return RUN_OK;
}

static int check_complete(const sim_options *o)
{
    for (uint32_t i = 0; i < o->splits.n && o->for_admission; i++)
        if (o->splits.list[i].kind == SIM_SPLIT_PLANNER)
            return fail(RUN_REFUSED, "--split planner: it has no targets, %s does not go with it",
                        o->for_admission);
    if (o->for_admission && !o->admission)
        return fail(RUN_REFUSED, "%s goes with --admission", o->for_admission);
    if (o->trace && o->synthetic)
        return fail(RUN_REFUSED, "--trace and --synthetic: routing comes from one of them");
    bool routing = o->trace || o->synthetic;
    if (o->mode == SIM_STUDY && o->synthetic)
        return fail(RUN_REFUSED, "--study brings its own routing: --synthetic has no effect");
    if (o->mode == SIM_LIST || o->mode == SIM_STUDY)
        return RUN_OK;
    if (o->mode == SIM_TABLES && !o->synthetic)
        return fail(RUN_REFUSED, "--tables are of a generator: --synthetic is missing");
    if (!routing && o->mode < SIM_SERVE)
        return fail(RUN_REFUSED, "--trace is missing: see --help");
    if (o->mode == SIM_REPLAY && (!o->policies.n || !o->capacities.n))
        return fail(RUN_REFUSED, "%s is missing: see --help",
                    o->policies.n ? "--capacity" : "--policy");
    if (o->mode >= SIM_SERVE && !o->model)
        return fail(RUN_REFUSED, "--model is missing: see --help");
    if (o->mode >= SIM_SERVE && !o->machine)
        return fail(RUN_REFUSED, "--machine is missing: see --help");
    return RUN_OK;
}

int sim_options_read(int argc, char **argv, sim_options *out)
{
    *out = (sim_options){.argc = argc, .argv = argv, .tp = 1, .block_tokens = 16, .time_scale = 1};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (code || out->help)
        return code;
    out->mode = choose_mode(out);
    code = check_use(out);
    return code ? code : check_complete(out);
}
