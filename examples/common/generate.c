/* Runs decoder_step until all prompts are finished. */
#include "common/generate.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/fail.h"

/* A row of the step whose logits are needed. */
typedef struct wanted_row {
    uint32_t row;
    sequence *owner;
    bool sample; /* the row of the newest token, which the next token is sampled from */
} wanted_row;

/* A run's memory. */
typedef struct run {
    generation *g;
    decoder_input *inputs; /* [n_sequences] */
    uint32_t *owners;      /* [n_sequences] the inputs' indices in g->sequences */
    wanted_row *wanted;    /* [step_tokens] */
    uint32_t n_inputs;
} run;

static int open_run(generation *g, run *out)
{
    const model_config *config = g->decoder->config;
    *out = (run){.g = g};
    out->inputs = calloc(g->n_sequences, sizeof *out->inputs);
    out->owners = calloc(g->n_sequences, sizeof *out->owners);
    out->wanted = calloc(g->step_tokens, sizeof *out->wanted);
    if (!out->inputs || !out->owners || !out->wanted)
        return fail_memory();
    for (uint32_t i = 0; i < g->n_sequences; i++) {
        sequence *s = &g->sequences[i];
        if (moepage_kv_create(g->decoder->kv, &s->seq))
            return fail_library(RUN_FAILED, "KV cache");
        if (g->keep_logits) {
            s->logits =
                calloc((size_t)s->n_prompt + g->max_tokens, config->vocabulary * sizeof(float));
            if (!s->logits)
                return fail_memory();
        }
    }
    return RUN_OK;
}

static void close_run(run *r)
{
    free(r->inputs);
    free(r->owners);
    free(r->wanted);
}

static void add_input(run *r, uint32_t index, uint32_t n_tokens, uint32_t phase)
{
    const sequence *s = &r->g->sequences[index];
    r->owners[r->n_inputs] = index;
    r->inputs[r->n_inputs++] = (decoder_input){s->seq, s->tokens + s->fed, n_tokens, phase, s->fed};
}

/* Plans prompts in order, as much as fits into one step; returns false once all have been
 * processed. */
static bool plan_prefill(run *r)
{
    uint32_t room = r->g->step_tokens;
    r->n_inputs = 0;
    for (uint32_t i = 0; i < r->g->n_sequences && room; i++) {
        const sequence *s = &r->g->sequences[i];
        uint32_t left = s->fed < s->n_prompt ? s->n_prompt - s->fed : 0;
        uint32_t n = left < room ? left : room;
        if (n)
            add_input(r, i, n, MOEPAGE_PHASE_PREFILL);
        room -= n;
    }
    return r->n_inputs > 0;
}

static bool plan_decode(run *r)
{
    r->n_inputs = 0;
    for (uint32_t i = 0; i < r->g->n_sequences; i++)
        if (!r->g->sequences[i].done)
            add_input(r, i, 1, MOEPAGE_PHASE_DECODE);
    return r->n_inputs > 0;
}

static uint32_t list_wanted(run *r)
{
    uint32_t n = 0, row = 0;
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        sequence *s = &r->g->sequences[r->owners[i]];
        s->fed += r->inputs[i].n_tokens;
        for (uint32_t t = 0; t < r->inputs[i].n_tokens; t++, row++) {
            bool newest = t + 1 == r->inputs[i].n_tokens && s->fed == s->n_tokens;
            if (newest || r->g->keep_logits)
                r->wanted[n++] = (wanted_row){row, s, newest};
        }
    }
    return n;
}

static void add_token(generation *g, sequence *s, const float *logits)
{
    uint64_t start = clock_now_ns();
    uint32_t token = sampler_next(g->sampler, &s->random, logits);
    g->sampling_ns += clock_now_ns() - start;
    s->tokens[s->n_tokens++] = token;
    s->done =
        s->n_tokens - s->n_prompt == g->max_tokens || config_is_eos(g->decoder->config, token);
}

static void use_row(run *r, const wanted_row *wanted, const float *logits)
{
    const size_t width = r->g->decoder->config->vocabulary;
    sequence *s = wanted->owner;
    if (r->g->keep_logits)
        memcpy(s->logits + s->n_logits++ * width, logits, width * sizeof *logits);
    if (wanted->sample)
        add_token(r->g, s, logits);
}

/* Computes the logits of the wanted rows, in groups of adjacent rows. */
static int use_rows(run *r, uint32_t n_wanted)
{
    const size_t width = r->g->decoder->config->vocabulary;
    const wanted_row *wanted = r->wanted;
    for (uint32_t i = 0, n; i < n_wanted; i += n) {
        n = 1;
        while (n < DECODER_LOGIT_ROWS && i + n < n_wanted && wanted[i + n].row == wanted[i].row + n)
            n++;
        const float *logits = decoder_logits(r->g->decoder, wanted[i].row, n);
        if (!logits)
            return RUN_FAILED;
        for (uint32_t j = 0; j < n; j++)
            use_row(r, &wanted[i + j], logits + j * width);
    }
    return RUN_OK;
}

static int run_step(run *r, uint64_t *ns)
{
    uint64_t start = clock_now_ns();
    int code = decoder_step(r->g->decoder, r->inputs, r->n_inputs);
    if (!code)
        code = use_rows(r, list_wanted(r));
    *ns += clock_now_ns() - start;
    if (!code && r->g->progress)
        r->g->progress(r->g->progress_user, r->g);
    return code;
}

int generate_run(generation *g)
{
    run r;
    int code = open_run(g, &r);
    uint64_t start = clock_now_ns();
    while (!code && plan_prefill(&r))
        code = run_step(&r, &g->prefill_ns);
    while (!code && plan_decode(&r)) {
        g->decode_tokens += r.n_inputs;
        code = run_step(&r, &g->decode_ns);
    }
    g->wall_ns = clock_now_ns() - start;
    close_run(&r);
    return code;
}
