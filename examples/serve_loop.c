/* serve_loop — a server without a network: requests arrive, are batched continuously over one model
 * whose experts and KV cache share one byte budget, and their latencies are measured.
 *
 * It can compare several ways of dividing the budget on identical requests. docs/serving.md
 * describes it; examples/serve/ has the parts. */
#include <string.h>

#include "common/fail.h"
#include "common/standard.h"
#include "serve/alone.h"
#include "serve/interrupt.h"
#include "serve/scrape.h"
#include "serve/serve_report.h"

/* One run's state; zeroed, every part is safe to close. */
typedef struct app {
    serve_options opts;
    host host; /* the model alone, for inspection */
    model_config config;
    arrivals arrivals;
    arm_setting setting;
    server_result results[ARMS_MOST];
    alone alone;
    uint32_t compared[ARMS_MOST];
} app;

static int set_up(app *a)
{
    int code;
    if ((code = scrape_check(&a->opts)) || (code = host_open_model(&a->opts.base, &a->host)) ||
        (code = config_read(a->host.model, &a->config)) ||
        (code = arrivals_open(&a->opts, &a->config, &a->arrivals)))
        return code;
    a->setting = (arm_setting){.options = &a->opts, .model = &a->config, .arrivals = &a->arrivals};
    code = estate_open(&a->opts, &a->host.info, &a->config, &a->arrivals, &a->setting.estate);
    for (uint32_t i = 0; i < a->opts.arms.n && !code; i++)
        code = arm_check(&a->setting, &a->opts.arms.arms[i]);
    return code;
}

static int serve(app *a)
{
    int code = RUN_OK;
    interrupt_open();
    for (uint32_t i = 0; i < a->opts.arms.n && !code && !interrupt_seen(); i++)
        code = arm_run(&a->setting, &a->opts.arms.arms[i], &a->results[i]);
    return code;
}

static int check(app *a)
{
    if (!a->opts.check || interrupt_seen())
        return RUN_OK;
    int code = alone_run(&a->setting, a->results, a->opts.arms.n, &a->alone);
    for (uint32_t i = 0; i < a->opts.arms.n && !code; i++)
        code = alone_check(&a->alone, &a->arrivals, a->opts.arms.arms[i].name, &a->results[i],
                           &a->compared[i]);
    return code;
}

static bool has_results(const app *a)
{
    for (uint32_t i = 0; i < a->opts.arms.n; i++)
        if (a->results[i].ran)
            return true;
    return false;
}

/* Writes files before standard output, whose reader may be gone. */
static int report(app *a)
{
    const serve_findings f = {.setting = &a->setting,
                              .results = a->results,
                              .compared = a->alone.outputs ? a->compared : NULL};
    int page = serve_page(&f);
    int json = a->opts.json ? serve_json(&f) : RUN_OK;
    if (!a->opts.json || strcmp(a->opts.json, "-"))
        serve_table(stdout, &f);
    return standard_finish(page ? page : json);
}

/* Runs the arms; after a failure still reports the requests served. */
static int run(app *a)
{
    int code = set_up(a);
    if (code)
        return code;
    code = serve(a);
    if (!code)
        code = check(a);
    if (code && !has_results(a))
        return code;
    int reported = report(a);
    return code ? code : reported;
}

static int tear_down(app *a, int code)
{
    for (uint32_t i = 0; i < ARMS_MOST; i++)
        server_result_free(&a->results[i]);
    alone_close(&a->alone);
    arrivals_close(&a->arrivals);
    config_free(&a->config);
    host_close(&a->host);
    serve_options_free(&a->opts);
    return code;
}

/* An interrupted run that could report still counts as interrupted: 128 plus the signal, as in
 * shells. */
int main(int argc, char **argv)
{
    app a = {0};
    standard_open();
    int code = serve_options_parse(argc, argv, &a.opts);
    if (!code && a.opts.help) {
        code = standard_print(serve_options_usage());
    } else if (!code) {
        code = run(&a);
        if (!code && interrupt_seen())
            code = 128 + interrupt_seen();
    }
    return tear_down(&a, code);
}
