/* Reads a trace twice: to measure each sequence, then to arrange its iterations in a row. */
#include "sim/iterations.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "sim/sequences.h"

typedef struct reading {
    const char *path;
    sim_sequences sequences;
    sim_iterations *out; /* the result, in the second pass */
} reading;

static int fail_changed(const reading *r)
{
    return fail(RUN_REFUSED, "%s: the file has changed while it was read", r->path);
}

static int take_token(reading *r, const moepage_trace_step *step, uint32_t s, uint32_t token,
                      uint64_t at)
{
    sim_iterations *out = r->out;
    for (uint32_t l = 0; l < out->layers; l++) {
        size_t row = (size_t)l * step->n_tokens + token;
        memcpy(out->maps + (at * out->layers + l) * out->experts,
               step->probabilities + row * out->experts, out->experts * sizeof(float));
        for (uint32_t k = 0; k < out->top_k; k++) {
            int32_t id = step->ids[row * step->top_k + k];
            if (id < 0)
                return fail(RUN_REFUSED,
                            "%s: step %" PRIu64 ", layer %u: a token has fewer than %u experts",
                            r->path, step->step, l, out->top_k);
            out->chosen[(at * out->layers + l) * out->top_k + k] = (uint32_t)id;
        }
    }
    if (out->semantic && step->semantic)
        memcpy(out->semantic + at * out->semantic_dim,
               step->semantic + (size_t)s * out->semantic_dim, out->semantic_dim * sizeof(float));
    return RUN_OK;
}

/* Counts an iteration in the first pass, fills its row in the second. */
static int take_decoded(reading *r, const moepage_trace_step *step, uint32_t s, uint32_t token,
                        sim_sequence *one)
{
    if (!r->out->top_k)
        r->out->top_k = step->top_k;
    if (step->top_k != r->out->top_k)
        return fail(RUN_REFUSED,
                    "%s: step %" PRIu64 " has %u experts for each token, those before it %u",
                    r->path, step->step, step->top_k, r->out->top_k);
    if (!r->out->maps) {
        one->rows++;
        return RUN_OK;
    }
    if (one->next_row == one->end_row)
        return fail_changed(r);
    return take_token(r, step, s, token, one->next_row++);
}

static int take_step(void *user, const moepage_trace_step *step)
{
    reading *r = user;
    uint32_t token = 0;
    for (uint32_t s = 0; s < step->n_sequences; s++) {
        const moepage_step_sequence *q = &step->sequences[s];
        bool decodes = q->phase == MOEPAGE_PHASE_DECODE && q->n_tokens == 1;
        sim_sequence *one = decodes ? sim_sequences_find(&r->sequences, q->seq) : NULL;
        if (decodes && !one)
            return fail_memory();
        int code = one ? take_decoded(r, step, s, token, one) : RUN_OK;
        if (code)
            return code;
        token += q->n_tokens;
    }
    return RUN_OK;
}

static int take_shape(void *user, const moepage_trace_info *info)
{
    const reading *r = user;
    sim_iterations *out = r->out;
    if (!info->has_probabilities)
        return fail(RUN_REFUSED, "%s: the trace has no probabilities", r->path);
    if (out->maps && (info->moe_layers != out->layers || info->experts != out->experts ||
                      info->semantic_dim != out->semantic_dim))
        return fail_changed(r);
    out->layers = info->moe_layers;
    out->experts = info->experts;
    out->semantic_dim = info->semantic_dim;
    return RUN_OK;
}

static int reserve(reading *r)
{
    sim_iterations *out = r->out;
    out->n_requests = r->sequences.n;
    out->first = calloc((size_t)r->sequences.n + 1, sizeof *out->first);
    if (!out->first)
        return fail_memory();
    for (uint32_t i = 0; i < r->sequences.n; i++) {
        sim_sequence *one = &r->sequences.list[i];
        one->next_row = out->n;
        out->n += one->rows;
        out->first[i + 1] = one->end_row = out->n;
    }
    if (out->n == 0)
        return fail(RUN_REFUSED, "%s: no decoded tokens", r->path);
    size_t rows = out->n * out->layers;
    out->maps = calloc(rows * out->experts, sizeof *out->maps);
    out->chosen = calloc(rows * out->top_k, sizeof *out->chosen);
    if (out->semantic_dim)
        out->semantic = calloc(out->n * out->semantic_dim, sizeof *out->semantic);
    bool ok = out->maps && out->chosen && (out->semantic || !out->semantic_dim);
    return ok ? RUN_OK : fail_memory();
}

int sim_iterations_open(const char *path, sim_iterations *out)
{
    *out = (sim_iterations){0};
    reading r = {.path = path, .out = out};
    int code = sim_steps_read(path, take_shape, take_step, &r);
    if (!code)
        code = reserve(&r);
    if (!code)
        code = sim_steps_read(path, take_shape, take_step, &r);
    sim_sequences_free(&r.sequences);
    if (code)
        sim_iterations_close(out);
    return code;
}

void sim_iterations_close(sim_iterations *iterations)
{
    free(iterations->maps);
    free(iterations->semantic);
    free(iterations->chosen);
    free(iterations->first);
    *iterations = (sim_iterations){0};
}
