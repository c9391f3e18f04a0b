/* Runs a model over texts and records what its routed experts are given. */
#include "pack/calibration.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/budget.h"
#include "common/config.h"
#include "common/corpus.h"
#include "common/decoder.h"
#include "common/fail.h"
#include "common/host.h"
#include "common/tokenizer.h"
#include "common/weights.h"

/* ---- The record ---- */

/* A file that goes away with its descriptor. */
static int open_unnamed(int *fd)
{
    const char *base = getenv("TMPDIR");
    char path[4096];
    int length =
        snprintf(path, sizeof path, "%s/moepage-pack-XXXXXX", base && *base ? base : "/tmp");
    *fd = length < 0 || (size_t)length >= sizeof path ? -1 : mkstemp(path);
    if (*fd < 0)
        return fail(RUN_FAILED, "TMPDIR: no file for calibration: %s", strerror(errno));
    unlink(path);
    return RUN_OK;
}

static uint64_t place_of(const calibration *c, uint32_t layer, uint64_t token)
{
    return ((uint64_t)layer * c->n_tokens + token) * c->hidden * sizeof(float);
}

static bool write_at(int fd, const void *from, uint64_t bytes, uint64_t at)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (uint64_t)n;
    }
    return true;
}

bool calibration_read(const calibration *c, uint32_t layer, uint64_t token, float *out)
{
    const uint64_t bytes = c->hidden * sizeof *out, at = place_of(c, layer, token);
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pread(c->fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (uint64_t)n;
    }
    return true;
}

/* ---- The run ---- */

typedef struct run {
    const calibration_config *config;
    calibration *out;
    host host;
    model_config model;
    model_weights weights;
    corpus corpus;
    decoder decoder;
    uint32_t n; /* tokens of the step */
} run;

/* Records an MoE layer of the step: the decoder keeps the last one's input and routes. */
static int record(run *r, uint32_t moe_layer)
{
    calibration *c = r->out;
    const decoder_rows *rows = &r->decoder.rows;
    choice *to = c->choices + ((uint64_t)moe_layer * c->n_tokens + c->recorded) * c->top_k;
    for (uint32_t i = 0; i < r->n * c->top_k; i++)
        to[i] = (choice){rows->ids[i], rows->weights[i]};
    if (!write_at(c->fd, rows->hidden, (uint64_t)r->n * c->hidden * sizeof(float),
                  place_of(c, moe_layer, c->recorded)))
        return fail(RUN_FAILED, "TMPDIR: calibration cannot be recorded: %s", strerror(errno));
    return RUN_OK;
}

/* Records the layer before this one, if it has experts. */
static int before_layer(void *user, uint32_t layer)
{
    run *r = user;
    const int32_t before = layer ? r->model.moe_layer[layer - 1] : -1;
    return before < 0 ? RUN_OK : record(r, (uint32_t)before);
}

static int read_window(run *r, const uint32_t *tokens)
{
    moepage_seq seq;
    if (moepage_kv_create(r->host.kv, &seq))
        return fail_library(RUN_FAILED, "KV cache");
    const decoder_input input = {seq, tokens, r->n, MOEPAGE_PHASE_PREFILL, 0};
    int code = decoder_step(&r->decoder, &input, 1);
    if (!code)
        code = before_layer(r, r->model.layers);
    if (!code && moepage_kv_free(r->host.kv, seq))
        code = fail_library(RUN_FAILED, "KV cache");
    r->out->recorded += r->n;
    if (!code &&
        r->config->progress(r->config->progress_user, place_of(r->out, 0, r->out->recorded),
                            place_of(r->out, 0, r->out->n_tokens)))
        return RUN_FAILED;
    return code;
}

/* Reads a window of every file in turn. */
static int read_windows(run *r)
{
    const corpus *texts = &r->corpus;
    uint64_t left = r->out->n_tokens / r->n;
    int code = RUN_OK;
    for (uint32_t w = 0; left && !code; w++)
        for (uint32_t d = 0; d < texts->n_domains && left && !code; d++)
            if (w < texts->domains[d].n_windows) {
                code = read_window(r, corpus_window(texts, d, w));
                left--;
            }
    return code;
}

/* ---- Opening ---- */

static int open_texts(run *r)
{
    const calibration_config *from = r->config;
    const bool bytes = tokenizer_is_bytes(from->run.model, &r->model) && !from->token_ids;
    if (!bytes && !from->token_ids)
        return fail(RUN_REFUSED,
                    "%s has a vocabulary of its own: give its texts as 32-bit token ids, with "
                    "--token-ids",
                    from->run.model);
    if (from->window > r->model.max_positions || from->window > r->model.rope.max_positions)
        return fail(RUN_REFUSED, "--calibrate-window %u: the model has %u positions", from->window,
                    r->model.max_positions);
    const corpus_config config = {.files = from->files,
                                  .n_files = from->n_files,
                                  .window = from->window,
                                  .bytes = bytes,
                                  .vocabulary = r->model.vocabulary};
    return corpus_open(&config, &r->corpus);
}

static int open_record(run *r)
{
    calibration *c = r->out;
    uint64_t windows = 0, most = r->config->tokens / r->config->window;
    for (uint32_t d = 0; d < r->corpus.n_domains; d++)
        windows += r->corpus.domains[d].n_windows;
    if (r->config->tokens && !most)
        return fail(RUN_REFUSED, "--calibrate-tokens %llu is less than one window of %u",
                    (unsigned long long)r->config->tokens, r->config->window);
    if (most && most < windows)
        windows = most;
    c->moe_layers = r->host.info.moe_layers;
    c->experts = r->host.info.experts;
    c->hidden = r->host.info.hidden;
    c->top_k = r->model.top_k;
    c->n_tokens = windows * r->config->window;
    c->choices = calloc((size_t)c->moe_layers * c->n_tokens * c->top_k, sizeof *c->choices);
    return c->choices ? open_unnamed(&c->fd) : fail_memory();
}

static int open_decoder(run *r)
{
    budget sizes;
    int code = budget_plan(&r->config->run, &r->host, &r->model, &r->n, 1, &sizes);
    if (!code)
        code = host_open(&r->config->run, &r->model, &sizes, &r->host);
    if (code)
        return code;
    const decoder_config config = {.device = r->host.device,
                                   .model = &r->model,
                                   .weights = &r->weights,
                                   .session = r->host.session,
                                   .kv = r->host.kv,
                                   .tell_hidden = true,
                                   .before_layer = before_layer,
                                   .before_user = r,
                                   .threads = r->host.threads,
                                   .max_tokens = sizes.step_tokens,
                                   .max_positions = sizes.max_positions};
    return decoder_open(&config, &r->decoder);
}

static int open_run(run *r)
{
    int code;
    if ((code = host_open_model(&r->config->run, &r->host)) ||
        (code = config_read(r->host.model, &r->model)) || (code = open_texts(r)) ||
        (code = open_record(r)) ||
        (code = weights_open(r->host.model, &r->model, false, &r->weights)))
        return code;
    return open_decoder(r);
}

static int close_run(run *r, int code)
{
    if (r->decoder.config)
        decoder_close(&r->decoder);
    weights_close(&r->weights);
    config_free(&r->model);
    corpus_close(&r->corpus);
    int closed = host_close(&r->host);
    return code ? code : closed;
}

int calibration_open(const calibration_config *config, calibration *out)
{
    run r = {.config = config, .out = out, .n = config->window};
    *out = (calibration){.fd = -1};
    int code = open_run(&r);
    if (!code)
        code = read_windows(&r);
    return close_run(&r, code);
}

void calibration_close(calibration *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->choices);
}
