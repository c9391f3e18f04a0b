/* The flags of serve_loop. */
#include "serve/serve_options.h"

#include <stddef.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "moepage.h"

#define DEFAULT_MODEL "examples/models/tiny-qwen3moe"
#define DEFAULT_BUDGET 100.0 /* percent of the routed experts */
#define DEFAULT_POISSON_REQUESTS 64u
#define MAX_STEP_TOKENS (1u << 16)
#define MAX_CONCURRENCY 1024u

const char *serve_options_usage(void)
{
    return "usage: serve_loop (--arrivals FILE | --poisson RATE) [flags]\n"
           "\n"
           "requests:\n"
           "  --arrivals FILE       Azure's CSV, or Mooncake's JSON lines\n"
           "  --poisson RATE        or random arrivals, RATE a second\n"
           "  --requests N          most requests to serve (default all of a file, else 64)\n"
           "  --skip N              requests of the file left out at its start\n"
           "  --time-scale X        factor on the file's times; 0 = all at once (default 1)\n"
           "  --length-scale X      factor on the file's lengths (default: the longest just fits)\n"
           "  --max-context N       most tokens of a request (default the model's positions)\n"
           "  --prompt-tokens N, --output-tokens N  of --poisson, on average (default 128, 48)\n"
           "  --text FILE           text to cut prompts from (default the model's "
           "eval/*.bin)\n"
           "  --seed S              of prompts, of random arrivals, of the sampler (default 0)\n"
           "  --temperature T, --top-p P  sampling; 0 = greedy (default 0, 1)\n"
           "\n"
           "serving:\n"
           "  --model PATH          checkpoint directory, or .moepack (default the example model)\n"
           "  --budget BYTES|P%     experts and KV together; P%: of the routed experts' size\n"
           "                        (default 100%)\n"
           "  --split NAME,...      one run for each: 50-50, fixed:P, flux, mv-wsa, "
           "mv-wsa-online,\n"
           "                        dual-resize, planner, layer-offload (default mv-wsa-online)\n"
           "  --concurrency N       most requests in work (default 8)\n"
           "  --step-tokens N       most tokens in one step, above --concurrency (default 128)\n"
           "  --burst N             steps between a controller's decisions (default 64)\n"
           "  --admission           controllers also decide how many run at once\n"
           "  --target-ttft MS, --target-tpot MS  with --admission: of the mean time to the first\n"
           "                        token, and of that between tokens (default none)\n"
           "  --kv-floor N          requests of average length that controllers leave KV for\n"
           "                        (default: as many as --concurrency)\n"
           "  --observe N           requests that mv-wsa is configured from (default 64)\n"
           "  --clock real|virtual  arrivals by the clock, or by work done: the same every time\n"
           "                        (default real)\n"
           "  --check               each request again, alone: the tokens must be the same\n"
           "\n"
           "output:\n"
           "  --dashboard auto|on|off  figures while it runs (default auto: on a terminal)\n"
           "  --json FILE           the measurements; - is standard output, without the table\n"
           "  --report FILE         the same as a page of plots\n"
           "  --metrics FILE        the library's metrics for Prometheus, every second\n"
           "\n"
           "as in moepage-generate:\n"
           "  --policy, --prefetch, --prefetch-depth, --predictor-load, --predictor-save, --math,\n"
           "  --threads, --device, --bus, --host-tier, --bus-form, --io-threads, --scope, "
           "--regime,\n"
           "  --scan-percent, --max-group-experts, --miss, --remap, --remap-resident\n";
}

/* ---- Values of one flag each ------------------------------------------------------------- */

static int read_budget(const flag *self, const char *text, void *out)
{
    serve_options *opts = out;
    const char *rest = text;
    double percent;
    if (!flag_take_real(&rest, &percent) || strcmp(rest, "%") || percent <= 100)
        return options_read_budget(self, text, &opts->base);
    /* KV has a share of the budget, so more than the size of all experts is useful. */
    if (percent > 1000)
        return flag_refuse(self, text, "a percentage up to 1000%");
    opts->base.budget_bytes = 0;
    opts->base.budget_percent = percent;
    return RUN_OK;
}

/* ---- The command line -------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(serve_options, member)
#define NOTE(member) .note = offsetof(serve_options, member)

static const flag flags[] = {
    {.part = options_flags, AT(base)},
    {.part = options_answer_flags, AT(base)},
    {"--arrivals", flag_text, AT(arrivals)},
    {"--poisson", flag_positive, AT(poisson)},
    {"--requests", flag_u32, AT(requests), .least = 1, .most = 1u << 24},
    {"--skip", flag_u32, AT(skip), .most = UINT32_MAX, NOTE(for_file)},
    {"--time-scale", flag_real, AT(time_scale), NOTE(for_file)},
    {"--length-scale", flag_positive, AT(length_scale), NOTE(for_file)},
    {"--max-context", flag_u32, AT(max_context), .least = 2, .most = 1u << 24},
    {"--prompt-tokens", flag_u32, AT(prompt_tokens), .least = 1, .most = 1u << 20,
     NOTE(for_poisson)},
    {"--output-tokens", flag_u32, AT(output_tokens), .least = 1, .most = 1u << 20,
     NOTE(for_poisson)},
    {"--text", flag_text, AT(text)},
    {"--budget", read_budget, AT(base.budget_bytes)},
    {"--split", arms_read, AT(arms)},
    {"--concurrency", flag_u32, AT(concurrency), .least = 1, .most = MAX_CONCURRENCY},
    {"--step-tokens", flag_u32, AT(step_tokens), .least = 2, .most = MAX_STEP_TOKENS},
    {"--burst", flag_u32, AT(burst), .least = 1, .most = UINT32_MAX},
    {"--admission", NULL, AT(admission)},
    {"--target-ttft", flag_ms, AT(target_ttft_ns), NOTE(for_admission)},
    {"--target-tpot", flag_ms, AT(target_tpot_ns), NOTE(for_admission)},
    {"--kv-floor", flag_u32, AT(kv_floor), .least = 1, .most = MAX_CONCURRENCY},
    {"--observe", flag_u32, AT(observe), .least = 1, .most = UINT32_MAX},
    {"--clock", flag_choice, AT(clock), .choice = {"real", "virtual"}},
    {"--check", NULL, AT(check)},
    {"--dashboard", flag_choice, AT(dashboard), .choice = {"auto", "on", "off"}},
    {"--json", flag_text, AT(json)},
    {"--report", flag_text, AT(report)},
    {"--help", NULL, AT(help)},
};

static int check_requests(const serve_options *o)
{
    if (!o->arrivals && o->poisson <= 0)
        return fail(RUN_REFUSED, "no requests: give --arrivals FILE or --poisson RATE");
    if (o->arrivals && o->poisson > 0)
        return fail(RUN_REFUSED, "--arrivals has times of its own: --poisson must not be given "
                                 "with it");
    if (o->for_file && !o->arrivals)
        return fail(RUN_REFUSED, "%s goes with --arrivals", o->for_file);
    if (o->for_poisson && o->arrivals)
        return fail(RUN_REFUSED, "%s goes with --poisson: a file has lengths of its own",
                    o->for_poisson);
    return RUN_OK;
}

static int check_serving(const serve_options *o)
{
    const options *b = &o->base;
    if (o->for_admission && !o->admission)
        return fail(RUN_REFUSED, "%s goes with --admission", o->for_admission);
    if (o->step_tokens <= o->concurrency)
        return fail(RUN_REFUSED,
                    "--step-tokens %u: more than --concurrency %u are needed, or prompts would "
                    "wait for ever",
                    o->step_tokens, o->concurrency);
    if (!strncmp(b->device, "sim:", 4))
        return fail(RUN_REFUSED, "--device %s computes nothing: moepage-sim serves on it",
                    b->device);
    int code = options_check_prefetch(b);
    if (code)
        return code;
    if (b->miss == MOEPAGE_MISS_LOW)
        return fail(RUN_REFUSED,
                    "--miss low: the splits compared here share one budget of slots, and low "
                    "versions would be beside it");
    if (o->json && !strcmp(o->json, "-") && o->dashboard == SERVE_DASHBOARD_ON)
        return fail(RUN_REFUSED, "--json - uses standard output: --dashboard on must not be "
                                 "given with it");
    if (o->check && b->remap.alpha > 0)
        return fail(
            RUN_REFUSED,
            "--check with --remap: an answer then depends on the other requests in its batch");
    return options_check_lossy(b);
}

int serve_options_parse(int argc, char **argv, serve_options *out)
{
    *out = (serve_options){.base = {.model = DEFAULT_MODEL,
                                    .device = "host",
                                    .policy = "lru",
                                    .budget_percent = DEFAULT_BUDGET,
                                    .top_p = 1,
                                    .io_threads = 4},
                           .time_scale = 1,
                           .prompt_tokens = 128,
                           .output_tokens = 48,
                           .arms = {{{.name = "mv-wsa-online", .kind = ARM_MV_WSA_ONLINE}}, 1},
                           .concurrency = 8,
                           .step_tokens = 128,
                           .observe = 64,
                           .argc = argc,
                           .argv = argv};
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, out);
    if (code || out->help)
        return code;
    code = check_requests(out);
    if (!code && !out->arrivals && !out->requests)
        out->requests = DEFAULT_POISSON_REQUESTS;
    if (!out->kv_floor)
        out->kv_floor = out->concurrency;
    return code ? code : check_serving(out);
}

void serve_options_free(serve_options *opts)
{
    options_free(&opts->base);
}
