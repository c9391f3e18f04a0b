/* moepage-generate — a complete host application: reads prompts, generates with a
 * Mixture-of-Experts model whose experts and KV cache share one byte budget, and reports the cost.
 * docs/generate.md describes it; examples/common/ has the parts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/dense.h"
#include "common/fail.h"
#include "common/generate.h"
#include "common/host.h"
#include "common/options.h"
#include "common/report.h"
#include "common/standard.h"
#include "common/tokenizer.h"

/* One run's state; zeroed, every part is safe to close. */
typedef struct app {
    options opts;
    host host;
    model_config config;
    model_weights weights;
    budget plan;
    const dense_plugin *cuda; /* NULL: the device is the host */
    uint32_t ordinal;
    decoder decoder;
    sampler sampler;
    sequence *sequences;
    FILE *logits;
    FILE *metrics;
    tokenizer tokens;
} app;

/* Turns a prompt's text into tokens, with room behind them for those to come. */
static int read_text(const app *a, const char *text, uint32_t **out, size_t *n)
{
    if (!tokenizer_has_text(&a->tokens))
        return fail(RUN_REFUSED,
                    "--prompt needs a tokenizer that is known here; of %s, %s: use --tokens",
                    a->opts.model, a->tokens.why.text);
    uint32_t *ids;
    int code = tokenizer_encode(&a->tokens, text, &ids, n);
    if (code)
        return code;
    *out = realloc(ids, (*n + a->opts.max_tokens) * sizeof **out);
    if (*out)
        return RUN_OK;
    free(ids);
    return fail_memory();
}

/* Copies a prompt's tokens, with room behind them for those to come. */
static int read_tokens(const app *a, const prompt *given, uint32_t **out, size_t *n)
{
    *n = given->n_tokens;
    *out = calloc(*n + a->opts.max_tokens, sizeof **out);
    if (!*out)
        return fail_memory();
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = given->tokens[i];
    return RUN_OK;
}

static int read_prompt(app *a, uint32_t index)
{
    const prompt *given = &a->opts.prompts[index];
    sequence *s = &a->sequences[index];
    size_t n;
    int code = given->text ? read_text(a, given->text, &s->tokens, &n)
                           : read_tokens(a, given, &s->tokens, &n);
    if (code)
        return code;
    uint64_t longest = a->config.max_positions < a->config.rope.max_positions
                           ? a->config.max_positions
                           : a->config.rope.max_positions;
    if (n + a->opts.max_tokens - 1 > longest)
        return fail(RUN_REFUSED,
                    "prompt %u has %zu tokens: with --max-tokens %u it needs %zu "
                    "positions, the model has %llu",
                    index + 1, n, a->opts.max_tokens, n + a->opts.max_tokens - 1,
                    (unsigned long long)longest);
    for (size_t i = 0; i < n; i++)
        if (s->tokens[i] >= a->config.vocabulary)
            return fail(RUN_REFUSED, "prompt %u: token %u is outside the vocabulary of %u",
                        index + 1, s->tokens[i], a->config.vocabulary);
    s->n_prompt = s->n_tokens = (uint32_t)n;
    s->random = sampler_seed(a->opts.seed, index);
    return RUN_OK;
}

static int read_prompts(app *a)
{
    a->sequences = calloc(a->opts.n_prompts, sizeof *a->sequences);
    if (!a->sequences)
        return fail_memory();
    int code = tokenizer_open(a->opts.model, a->host.model, &a->config, &a->tokens);
    for (uint32_t i = 0; i < a->opts.n_prompts && !code; i++)
        code = read_prompt(a, i);
    return code;
}

static int plan(app *a)
{
    uint32_t *lengths = calloc(a->opts.n_prompts, sizeof *lengths);
    if (!lengths)
        return fail_memory();
    for (uint32_t i = 0; i < a->opts.n_prompts; i++)
        lengths[i] = a->sequences[i].n_prompt;
    int code = budget_plan(&a->opts, &a->host, &a->config, lengths, a->opts.n_prompts, &a->plan);
    free(lengths);
    return code;
}

static int open_files(app *a)
{
    const char *metrics = a->opts.metrics;
    if (metrics && strcmp(metrics, "-") && !(a->metrics = fopen(metrics, "w")))
        return fail(RUN_REFUSED, "%s: %s", metrics, strerror(errno));
    if (a->opts.logits_out && !(a->logits = fopen(a->opts.logits_out, "wb")))
        return fail(RUN_REFUSED, "%s: %s", a->opts.logits_out, strerror(errno));
    return RUN_OK;
}

/* Runs before any large file is opened. */
static int find_plugin(app *a)
{
    if (dense_is_cuda(a->opts.device, &a->ordinal))
        return dense_cuda_find(a->opts.device, &a->cuda);
    if (a->opts.for_cuda)
        return fail(RUN_REFUSED, "%s goes with --device cuda:N", a->opts.for_cuda);
    return RUN_OK;
}

static int open_decoder(app *a)
{
    const decoder_config config = {.device = a->host.device,
                                   .model = &a->config,
                                   .weights = &a->weights,
                                   .session = a->host.session,
                                   .kv = a->host.kv,
                                   .math = a->opts.math,
                                   .hints = a->opts.prefetch,
                                   .tell_logits = a->opts.remap.alpha > 0,
                                   .tell_hidden = a->host.predictor != NULL,
                                   .tell_semantic = a->host.predictor || a->host.trace,
                                   .threads = a->host.threads,
                                   .max_tokens = a->plan.step_tokens,
                                   .max_positions = a->plan.max_positions,
                                   .cuda = a->cuda,
                                   .ordinal = a->ordinal,
                                   .cublas = !a->opts.plain_products};
    return decoder_open(&config, &a->decoder);
}

/* Opens the output file last: a refused run leaves an existing file unchanged. */
static int set_up(app *a)
{
    int code;
    if ((code = find_plugin(a)) || (code = host_open_model(&a->opts, &a->host)) ||
        (code = config_read(a->host.model, &a->config)) || (code = read_prompts(a)) ||
        (code = plan(a)) ||
        (code = weights_open(a->host.model, &a->config, a->cuda != NULL, &a->weights)) ||
        (code = host_open(&a->opts, &a->config, &a->plan, &a->host)) ||
        (code =
             sampler_open(a->opts.temperature, a->opts.top_p, a->config.vocabulary, &a->sampler)) ||
        (code = open_decoder(a)))
        return code;
    return open_files(a);
}

static int run(app *a)
{
    streamer stream = {.out = stdout, .tokens = &a->tokens};
    generation g = {.decoder = &a->decoder,
                    .sampler = &a->sampler,
                    .sequences = a->sequences,
                    .n_sequences = a->opts.n_prompts,
                    .max_tokens = a->opts.max_tokens,
                    .step_tokens = a->plan.step_tokens,
                    .keep_logits = a->logits != NULL,
                    .progress = a->opts.json ? NULL : report_stream,
                    .progress_user = &stream};
    int code = generate_run(&g);
    if (!code && a->logits)
        code = report_logits(a->logits, &g);
    if (!code)
        code = host_save_predictor(&a->opts, &a->host);
    if (!code)
        code = a->opts.json ? report_json(stdout, &a->opts, &a->host, &g, &a->tokens)
                            : report_table(stdout, &a->host, &g);
    if (!code && a->opts.metrics)
        code = report_metrics(a->metrics ? a->metrics : stdout, &a->host, NULL, NULL);
    return standard_finish(code);
}

/* Closes everything; a failure to complete a file makes the run fail. */
static int tear_down(app *a, int code)
{
    decoder_close(&a->decoder);
    sampler_close(&a->sampler);
    weights_close(&a->weights);
    tokenizer_close(&a->tokens);
    int closed = host_close(&a->host);
    if (a->logits && fclose(a->logits) && !closed)
        closed = fail(RUN_FAILED, "%s: %s", a->opts.logits_out, strerror(errno));
    if (a->metrics && fclose(a->metrics) && !closed)
        closed = fail(RUN_FAILED, "%s: %s", a->opts.metrics, strerror(errno));
    code = code ? code : closed;
    for (uint32_t i = 0; a->sequences && i < a->opts.n_prompts; i++) {
        free(a->sequences[i].tokens);
        free(a->sequences[i].logits);
    }
    free(a->sequences);
    config_free(&a->config);
    options_free(&a->opts);
    return code;
}

int main(int argc, char **argv)
{
    app a = {0};
    standard_open();
    int code = options_parse(argc, argv, &a.opts);
    if (!code && a.opts.help) {
        code = standard_print(options_usage());
    } else if (!code) {
        code = set_up(&a);
        if (!code)
            code = run(&a);
    }
    return tear_down(&a, code);
}
