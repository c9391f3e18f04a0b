/* The flags of moepage-generate. */
#include "common/options.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "moepage.h"

#define MAX_GENERATED (1u << 24)
#define MAX_STEP_TOKENS (1u << 16)
#define MAX_THREADS 1024u
#define MAX_IO_THREADS 64u
#define DEFAULT_IO_THREADS 4u

const char *options_usage(void)
{
    return "usage: moepage-generate --model PATH (--prompt TEXT | --tokens 1,2,3)... [flags]\n"
           "\n"
           "  --model PATH          checkpoint directory, .moepack or .gguf file\n"
           "  --prompt TEXT         a prompt for a byte-level model, or for one with a tokenizer "
           "that is "
           "known here; repeatable\n"
           "  --tokens 1,2,3        a prompt as token ids; repeatable\n"
           "  --max-tokens N        tokens to generate for each prompt (default 64)\n"
           "  --budget BYTES|P%     BYTES: experts and KV together; P%: that share of the routed\n"
           "                        experts, the KV on top (default 100%). Suffixes K, M, G\n"
           "  --tiers X:Y:Z         instead of --budget: percent of each layer's experts in "
           "slots,\n"
           "                        compressed in device memory, and elsewhere\n"
           "  --host-tier BYTES     host memory that caches what is read from the model's file\n"
           "                        (default 0 = the page cache does)\n"
           "  --bus-form dense|exph how experts cross the bus (default exph if the model has it)\n"
           "  --io-threads N        threads that read the model's file (default 4)\n"
           "  --policy NAME         which expert to evict: lru, lfu, lfu-aged, sieve, s3fifo, "
           "lirs,\n"
           "                        finemoe or cycle (default lru)\n"
           "  --prefetch on|off|NAME  load likely experts ahead (default off); NAME is a "
           "predictor:\n"
           "                        previous, hit-count, gate, coactivation or maps\n"
           "  --predictor-load FILE, --predictor-save FILE  what the predictor has learnt\n"
           "  --math fp32|bf16|bf16-fast|int8  arithmetic (default fp32); int8: of matrices in "
           "blocks\n"
           "  --temperature T       0 = greedy (default 0)\n"
           "  --top-p P             nucleus of that probability, 0 < P <= 1 (default 1)\n"
           "  --seed S              seed of the sampler (default 0)\n"
           "  --threads T           0 = one per CPU (default 0)\n"
           "  --device NAME         where the model runs: host, or cuda:N (default host)\n"
           "  --cublas on|off       cuda: matrix products by cuBLAS if it is there (default on)\n"
           "  --bus BYTES/S         throttle copies to the device (default 0 = off)\n"
           "  --trace-out FILE      record the routing\n"
           "  --logits-out FILE     write float32 logits, prompt by prompt\n"
           "  --metrics FILE        write the library's counters (docs/metrics.md), - = standard "
           "output\n"
           "  --json                print one JSON object instead of text\n"
           "\n"
           "changing the output (docs/quality.md; off by default):\n"
           "  --precision HI/LO:P%  the hottest P% of each layer's experts in HI, the rest in LO:\n"
           "                        dense, int8, int4, int2; also HI/LO@BYTES, HI/LO@FORM-bytes\n"
           "  --remap A,B           decode batches do without experts that few tokens care about\n"
           "  --remap-resident X    with it: prefer experts on the device by X logits\n"
           "  --miss wait|low|host  an absent expert: wait for it, compute with its low version\n"
           "                        (--precision HI/LO), or where it lies (default wait)\n"
           "\n"
           "study switches:\n"
           "  --max-group-experts N experts held at once for one layer (default 0 = no limit)\n"
           "  --scope global|layer  whether layers compete for slots (default global)\n"
           "  --regime auto|cache|stream  how a layer's experts are served (default auto)\n"
           "  --scan-percent P      share of slots that prefill may take, 0 = off (default 0)\n"
           "  --prefetch-depth N    layers ahead (default 0 = the library's choice)\n"
           "  --batch-prefill N     most prompt tokens in one step (default 128)\n";
}

/* ---- Values of one flag each ------------------------------------------------------------- */

static int read_prefetch(const flag *self, const char *text, void *out)
{
    static const char *const names[] = {"previous", "hit-count", "gate", "coactivation", "maps"};
    options *opts = out;
    opts->prefetch = !strcmp(text, "on");
    opts->predictor = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i]))
            opts->predictor = names[i];
    if (!opts->prefetch && !opts->predictor && strcmp(text, "off"))
        return flag_refuse(self, text, "on, off, previous, hit-count, gate, coactivation or maps");
    return RUN_OK;
}

int options_read_budget(const flag *self, const char *text, void *out)
{
    options *opts = out;
    const char *rest = text;
    double percent;
    if (flag_take_real(&rest, &percent) && !strcmp(rest, "%")) {
        if (percent <= 0 || percent > 100)
            return flag_refuse(self, text, "a percentage above 0% and up to 100%");
        opts->budget_bytes = 0;
        opts->budget_percent = percent;
        return RUN_OK;
    }
    if (!flag_is_bytes(text, &opts->budget_bytes) || opts->budget_bytes == 0)
        return flag_refuse(self, text,
                           "bytes (digits, perhaps K, M or G) or a percentage up to 100%");
    opts->budget_percent = 0;
    return RUN_OK;
}

static int read_tiers(const flag *self, const char *text, void *out)
{
    options *opts = out;
    double share[3], sum = 0;
    const char *rest = text;
    for (int i = 0; i < 3; i++) {
        char end = i < 2 ? ':' : '\0';
        if (!flag_take_real(&rest, &share[i]) || *rest != end)
            return flag_refuse(self, text, "three percentages, such as 25:25:50");
        rest += end != '\0';
        sum += share[i];
    }
    if (fabs(sum - 100) > 1e-6)
        return flag_refuse(self, text, "three percentages that add up to 100");
    if (share[0] <= 0)
        return flag_refuse(self, text, "more than 0% of the experts in slots");
    opts->tiers = text;
    opts->slots_percent = share[0];
    opts->compressed_percent = share[1];
    return RUN_OK;
}

/* Reads the form in which experts cross the bus. */
static int read_bus_form(const flag *self, const char *text, void *out)
{
    options *opts = out;
    if (strcmp(text, "dense") && strcmp(text, "exph"))
        return flag_refuse(self, text, "dense or exph");
    opts->bus_form = strcmp(text, "dense") ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE;
    return RUN_OK;
}

/* ---- Prompts ----------------------------------------------------------------------------- */

static int add_prompt(options *out, prompt added)
{
    prompt *grown = realloc(out->prompts, (out->n_prompts + 1u) * sizeof *grown);
    if (!grown) {
        free(added.tokens);
        return fail_memory();
    }
    grown[out->n_prompts++] = added;
    out->prompts = grown;
    return RUN_OK;
}

static int read_prompt(const flag *self, const char *text, void *out)
{
    if (!*text)
        return flag_refuse(self, text, "at least one byte");
    return add_prompt(out, (prompt){.text = text});
}

static int read_tokens(const flag *self, const char *text, void *out)
{
    size_t most = 1;
    for (const char *c = text; *c; c++)
        most += *c == ',';
    prompt added = {.tokens = malloc(most * sizeof(uint32_t))};
    if (!added.tokens)
        return fail_memory();
    const char *rest = text;
    uint64_t value;
    while (flag_take_number(&rest, &value) && value <= INT32_MAX) {
        added.tokens[added.n_tokens++] = (uint32_t)value;
        if (*rest == '\0')
            return add_prompt(out, added);
        if (*rest++ != ',')
            break;
    }
    free(added.tokens);
    return flag_refuse(self, text, "token ids separated by commas, such as 1,2,3");
}

/* ---- The command line -------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(options, member)
#define NOTE(member) .note = offsetof(options, member)

const flag options_flags[] = {
    {"--model", flag_text, AT(model)},
    {"--policy", flag_text, AT(policy)},
    {"--host-tier", flag_bytes, AT(host_tier_bytes)},
    {"--math", flag_choice, AT(math), .choice = {"fp32", "bf16", "bf16-fast", "int8"}},
    {"--seed", flag_u64, AT(seed), .most = UINT64_MAX},
    {"--threads", flag_u32, AT(threads), .most = MAX_THREADS},
    {"--prefetch", read_prefetch, AT(prefetch)},
    {"--prefetch-depth", flag_u32, AT(prefetch_depth), .most = UINT32_MAX, NOTE(for_prefetch)},
    {"--predictor-load", flag_text, AT(predictor_load), NOTE(for_predictor)},
    {"--predictor-save", flag_text, AT(predictor_save), NOTE(for_predictor)},
    {"--bus", flag_bytes, AT(bus_bytes_per_s)},
    {"--scope", flag_choice, AT(scope), .choice = {"global", "layer"}},
    {"--regime", flag_choice, AT(regime), .choice = {"auto", "cache", "stream"}},
    {0},
};

const flag options_answer_flags[] = {
    {"--device", flag_text, AT(device)},
    {"--bus-form", read_bus_form, AT(bus_form)},
    {"--io-threads", flag_u32, AT(io_threads), .least = 1, .most = MAX_IO_THREADS,
     NOTE(for_reading)},
    {"--temperature", flag_real, AT(temperature)},
    {"--top-p", flag_share, AT(top_p)},
    {"--remap", flag_remap, AT(remap)},
    {"--remap-resident", flag_resident, AT(remap.resident)},
    {"--miss", flag_choice, AT(miss), .choice = {"wait", "low", "host"}},
    {"--max-group-experts", flag_u32, AT(max_group_experts), .most = UINT32_MAX},
    {"--scan-percent", flag_u32, AT(scan_percent), .most = 99},
    {"--metrics", flag_text, AT(metrics)},
    {0},
};

static const flag flags[] = {
    {.part = options_flags},
    {.part = options_answer_flags},
    {"--trace-out", flag_text, AT(trace_out)},
    {"--logits-out", flag_text, AT(logits_out)},
    {"--prompt", read_prompt, AT(prompts)},
    {"--tokens", read_tokens, AT(prompts)},
    {"--budget", options_read_budget, AT(budget_bytes)},
    {"--tiers", read_tiers, AT(slots_percent)},
    {"--max-tokens", flag_u32, AT(max_tokens), .least = 1, .most = MAX_GENERATED},
    {"--precision", flag_precision, AT(precision)},
    {"--cublas", flag_choice, AT(plain_products), .choice = {"on", "off"}, NOTE(for_cuda)},
    {"--batch-prefill", flag_u32, AT(prefill_tokens), .least = 1, .most = MAX_STEP_TOKENS},
    {"--json", NULL, AT(json)},
    {"--help", NULL, AT(help)},
};

_Static_assert(MOEPAGE_MATH_FP32 == 0 && MOEPAGE_MATH_BF16 == 1 && MOEPAGE_MATH_BF16_FAST == 2 &&
                   MOEPAGE_MATH_INT8 == 3,
               "--math reads a position");
_Static_assert(MOEPAGE_SCOPE_GLOBAL == 0 && MOEPAGE_SCOPE_LAYER == 1, "--scope reads a position");
_Static_assert(MOEPAGE_REGIME_AUTO == 0 && MOEPAGE_REGIME_CACHE == 1 && MOEPAGE_REGIME_STREAM == 2,
               "--regime reads a position");

_Static_assert(MOEPAGE_MISS_WAIT == 0 && MOEPAGE_MISS_LOW == 1 && MOEPAGE_MISS_HOST == 2,
               "--miss reads a position");

int options_check_prefetch(const options *opts)
{
    if (opts->for_prefetch && !opts->prefetch && !opts->predictor)
        return fail(RUN_REFUSED, "%s goes with --prefetch on or NAME", opts->for_prefetch);
    if (opts->for_predictor && !opts->predictor)
        return fail(RUN_REFUSED, "%s goes with a predictor: --prefetch NAME", opts->for_predictor);
    return RUN_OK;
}

int options_check_lossy(const options *opts)
{
    if (opts->remap.resident > 0 && opts->remap.alpha <= 0)
        return fail(RUN_REFUSED, "--remap-resident goes with --remap");
    if (opts->miss == MOEPAGE_MISS_LOW && !opts->precision.hi_form)
        return fail(RUN_REFUSED, "--miss low goes with --precision HI/LO: LO is what a missing "
                                 "expert is computed with");
    return RUN_OK;
}

/* Checks that either --tiers or --budget determines the number of slots. */
static int settle_budget(options *out)
{
    bool given = out->budget_bytes || out->budget_percent > 0;
    if (out->precision.hi_form && out->miss != MOEPAGE_MISS_LOW && (given || out->tiers))
        return fail(RUN_REFUSED, "--precision HI/LO determines device memory: --budget and --tiers "
                                 "must not be given with it");
    if (precision_is_uniform(&out->precision) && out->compressed_percent > 0)
        return fail(RUN_REFUSED, "--tiers: experts in %s are not compressed besides",
                    out->precision.text);
    if (given && out->tiers)
        return fail(RUN_REFUSED, "--tiers says how many experts get a slot: --budget must not be "
                                 "given with it");
    if (!given)
        out->budget_percent = out->tiers ? out->slots_percent : 100;
    return RUN_OK;
}

int options_parse(int argc, char **argv, options *out)
{
    *out = (options){.device = "host",
                     .policy = "lru",
                     .max_tokens = 64,
                     .top_p = 1,
                     .prefill_tokens = 128,
                     .io_threads = DEFAULT_IO_THREADS};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (code || out->help)
        return code;
    if (!out->model)
        return fail(RUN_REFUSED, "--model PATH is missing: see --help");
    if (!out->n_prompts)
        return fail(RUN_REFUSED, "no prompt: give --prompt TEXT or --tokens 1,2,3");
    if ((code = options_check_prefetch(out)))
        return code;
    if (out->json && out->metrics && !strcmp(out->metrics, "-"))
        return fail(RUN_REFUSED, "--json uses standard output: --metrics needs a file");
    code = options_check_lossy(out);
    return code ? code : settle_budget(out);
}

void options_free(options *opts)
{
    for (uint32_t i = 0; i < opts->n_prompts; i++)
        free(opts->prompts[i].tokens);
    free(opts->prompts);
}
