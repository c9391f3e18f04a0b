/* moepage-eval — measures how well a model predicts texts, in bits per byte, exactly and with each
 * approximation, and what the approximation saves. docs/quality.md describes it. */
#include <stdlib.h>

#include "common/fail.h"
#include "common/standard.h"
#include "common/tokenizer.h"
#include "eval/eval_options.h"
#include "eval/packing.h"
#include "eval/play.h"
#include "eval/ranks.h"
#include "eval/show.h"

/* One run's state; zeroed, every part is safe to close. */
typedef struct app {
    eval_options opts;
    const char *model; /* as given */
    settings settings;
    packing packing;
    host host; /* the model alone */
    model_config config;
    model_weights weights;
    corpus corpus;
    outcome *outcomes; /* [settings.n] */
    measure *measures;
} app;

/* Lists the settings. A sweep's length depends on the model, and the need for a pack on the
 * list. */
static int list_settings(app *a)
{
    const eval_options *o = &a->opts;
    moepage_model_info info = {.struct_size = sizeof info};
    host probe;
    int code = host_open_model(&o->base, &probe);
    if (!code)
        code = settings_list(&o->asked, o->sweep, &o->grid, !o->inexact, probe.info.top_k,
                             &a->settings);
    const uint32_t top_k = probe.info.top_k;
    host_close(&probe);
    if (!code && (o->asked.keep_ranks > top_k || o->asked.deny_rank > top_k))
        return fail(RUN_REFUSED, "--ranks and --deny-rank: the model has %u choices per token",
                    top_k);
    return code;
}

static int open_corpus(app *a)
{
    const eval_options *o = &a->opts;
    const bool bytes = tokenizer_is_bytes(a->model, &a->config) && !o->token_ids;
    if (!bytes && !o->token_ids)
        return fail(RUN_REFUSED,
                    "%s has a vocabulary of its own: give its texts as 32-bit token ids, with "
                    "--token-ids",
                    a->model);
    const corpus_config config = {.files = o->files,
                                  .n_files = o->n_files,
                                  .window = o->window,
                                  .windows = o->windows,
                                  .bytes = bytes,
                                  .vocabulary = a->config.vocabulary};
    return corpus_open(&config, &a->corpus);
}

static int check(const app *a)
{
    const eval_options *o = &a->opts;
    if (o->window > a->config.max_positions || o->window > a->config.rope.max_positions)
        return fail(RUN_REFUSED, "--window %u: the model has %u positions", o->window,
                    a->config.max_positions);
    for (uint32_t d = 0; d < a->corpus.n_domains; d++)
        if (a->corpus.domains[d].n_windows <= o->warm)
            return fail(RUN_REFUSED, "--warm %u: none of the %u windows of %s is left to score",
                        o->warm, a->corpus.domains[d].n_windows, a->corpus.domains[d].name);
    for (uint32_t i = 0; i < a->settings.n; i++)
        if ((a->settings.items[i].keep_ranks || a->settings.items[i].deny_rank) &&
            !config_weighs_by_softmax(&a->config))
            return fail(RUN_REFUSED, "--ranks and --deny-rank need a softmax router without groups "
                                     "or a scale");
    return RUN_OK;
}

static int set_up(app *a)
{
    int code;
    a->model = a->opts.base.model;
    if ((code = list_settings(a)) ||
        (code = packing_open(&a->opts, &a->settings, &a->packing, &a->host)) ||
        (code = config_read(a->host.model, &a->config)) || (code = open_corpus(a)) ||
        (code = check(a)) || (code = weights_open(a->host.model, &a->config, false, &a->weights)))
        return code;
    a->outcomes = calloc(a->settings.n, sizeof *a->outcomes);
    a->measures = calloc((size_t)a->settings.n * a->corpus.n_domains, sizeof *a->measures);
    return a->outcomes && a->measures ? RUN_OK : fail_memory();
}

static int run(app *a)
{
    const play_config config = {.opts = &a->opts,
                                .model = &a->host,
                                .config = &a->config,
                                .weights = &a->weights,
                                .corpus = &a->corpus};
    const findings found = {.opts = &a->opts,
                            .model = a->model,
                            .info = &a->host.info,
                            .corpus = &a->corpus,
                            .outcomes = a->outcomes,
                            .n = a->settings.n};
    int code = RUN_OK;
    for (uint32_t i = 0; i < a->settings.n && !code; i++) {
        a->outcomes[i].domains = a->measures + (size_t)i * a->corpus.n_domains;
        code = play_setting(&config, &a->settings.items[i], &a->outcomes[i]);
    }
    if (!code)
        code = a->opts.json ? show_json(stdout, &found) : show_table(stdout, &found);
    if (!code)
        code = show_page(&found);
    return standard_finish(code);
}

static int tear_down(app *a, int code)
{
    weights_close(&a->weights);
    config_free(&a->config);
    corpus_close(&a->corpus);
    host_close(&a->host);
    packing_close(&a->packing);
    for (uint32_t i = 0; a->outcomes && i < a->settings.n; i++)
        free(a->outcomes[i].course);
    settings_free(&a->settings);
    free(a->outcomes);
    free(a->measures);
    eval_options_free(&a->opts);
    return code;
}

int main(int argc, char **argv)
{
    app a = {0};
    standard_open();
    int code = eval_options_parse(argc, argv, &a.opts);
    if (!code && a.opts.help) {
        code = standard_print(eval_options_usage());
    } else if (!code) {
        code = set_up(&a);
        if (!code)
            code = run(&a);
    }
    return tear_down(&a, code);
}
