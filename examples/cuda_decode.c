/* cuda_decode — decodes with the routed experts of a model that does not fit the device: tokens per
 * second, by budget, with and without the CPU in the loop.
 *
 * It uses the public headers alone, and the driver for the caller's part: memory, a stream, graphs.
 * decode/loop.c is the loop of an inference engine. */
#include <inttypes.h>
#include <stdio.h>

#include "common/fail.h"
#include "common/standard.h"
#include "decode/bank.h"
#include "decode/decode_options.h"
#include "decode/loop.h"

typedef struct study {
    const decode_options *opts;
    machine *m;
    bank bank;
    moepage_model *model; /* the bank's, or that of a pack */
    moepage_model_info info;
    loop_routes routes;
    uint64_t right; /* digest expected by --check */
} study;

static int open_model(study *s)
{
    const decode_options *o = s->opts;
    int code = RUN_OK;
    if (o->model) {
        if (moepage_model_open(o->model, NULL, &s->model))
            return fail_library(RUN_REFUSED, o->model);
    } else {
        code = bank_open(s->m, o->shape, o->layers, o->distinct, o->seed, &s->bank);
        s->model = s->bank.model;
    }
    s->info.struct_size = sizeof s->info;
    if (!code && moepage_model_get_info(s->model, &s->info))
        code = fail_library(RUN_FAILED, "model");
    if (!code && !s->info.ffn_supported)
        code = fail(RUN_REFUSED, "the library cannot run the experts of %s", s->info.architecture);
    return code;
}

static void close_model(study *s)
{
    if (s->opts->model)
        moepage_model_close(s->model);
    bank_close(s->m, &s->bank);
}

static int run_budget(study *s, uint32_t percent, uint32_t mode, loop_result *out)
{
    const decode_options *o = s->opts;
    const loop_config config = {.device = o->device,
                                .model = s->model,
                                .routes = &s->routes,
                                .percent = percent,
                                .mode = mode,
                                .math = o->math,
                                .prefetch = mode == DECODE_SESSION ? o->prefetch : 0};
    return loop_run(s->m, &config, (o->steps + 1) / 2, o->check, out);
}

static int print_budget(study *s, uint32_t percent)
{
    loop_result r;
    int code = run_budget(s, percent, s->opts->mode, &r);
    if (code)
        return code;
    const double tokens = (double)s->opts->steps * s->opts->batch;
    printf("%5" PRIu32 " %%  %7" PRIu64 "  %9.2f  %9.3f  %7.2f %%  %10.2f%s\n", percent, r.slots,
           tokens / r.seconds, 1e3 * r.seconds / s->opts->steps,
           r.routed ? 100 * (1 - (double)r.misses / (double)r.routed) : 0,
           (double)r.misses * (double)s->info.expert_bytes / tokens / 1e6,
           s->opts->check ? r.digest == s->right ? "  same bits" : "  WRONG" : "");
    fflush(stdout);
    if (s->opts->check && r.digest != s->right)
        return fail(RUN_FAILED, "at %" PRIu32 " %% the results are not those of full residency",
                    percent);
    return RUN_OK;
}

static int run_study(study *s)
{
    static const char *const modes[] = {"session", "path", "graph"};
    const decode_options *o = s->opts;
    loop_result r;
    int code = open_model(s);
    if (!code)
        code = loop_routes_make(s->m, &s->info, o->steps, o->batch, o->seed, &s->routes);
    if (code)
        return code;
    printf("%s on %s: %" PRIu32 " layers of %" PRIu32 " experts of %.2f MB, top %" PRIu32
           "; batch %" PRIu32 ", %s, %" PRIu32 " steps\n\n",
           o->shape ? o->shape->name : s->info.architecture, o->device, s->info.moe_layers,
           s->info.experts, (double)s->info.expert_bytes / 1e6, s->info.top_k, o->batch,
           modes[o->mode], o->steps);
    printf("budget    slots   tokens/s    ms/step       hits  MB missed per token\n");
    if (o->check)
        code = run_budget(s, 100, DECODE_SESSION, &r);
    s->right = o->check && !code ? r.digest : 0;
    for (uint32_t i = 0; i < o->n_budgets && !code; i++)
        code = print_budget(s, o->budgets[i]);
    return code;
}

int main(int argc, char **argv)
{
    decode_options opts;
    study s = {.opts = &opts};
    standard_open();
    int code = decode_options_read(argc, argv, &opts);
    if (!code && opts.help)
        return standard_print(decode_usage());
    if (!code)
        code = machine_open(opts.device, &s.m);
    if (!code) {
        code = run_study(&s);
        loop_routes_free(s.m, &s.routes);
        close_model(&s);
        machine_close(s.m);
    }
    return standard_finish(code);
}
