/* Reading a trace twice: to see how long each sequence is, and to put its iterations in a row. */
#include "sim/iterations.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "moepage.h"

typedef struct sequence {
    uint64_t id;
    uint64_t n, next; /* iterations; where the next one goes */
} sequence;

typedef struct reading {
    const char *path;
    sequence *sequences;
    uint32_t n, room;
    sim_iterations *out; /* its arrays: in the second pass */
} reading;

static sequence *find(reading *r, uint64_t id)
{
    for (uint32_t i = r->n; i-- > 0;)
        if (r->sequences[i].id == id)
            return &r->sequences[i];
    if (r->n == r->room) {
        uint32_t room = r->room ? 2 * r->room : 64;
        sequence *more = reallocarray(r->sequences, room, sizeof *more);
        if (!more)
            return NULL;
        r->sequences = more;
        r->room = room;
    }
    r->sequences[r->n] = (sequence){.id = id};
    return &r->sequences[r->n++];
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

static int take_step(reading *r, const moepage_trace_step *step)
{
    uint32_t token = 0;
    for (uint32_t s = 0; s < step->n_sequences; s++) {
        const moepage_step_sequence *q = &step->sequences[s];
        bool decodes = q->phase == MOEPAGE_PHASE_DECODE && q->n_tokens == 1;
        sequence *one = decodes ? find(r, q->seq) : NULL;
        if (decodes && !one)
            return fail_memory();
        int code = RUN_OK;
        if (one && r->out->maps)
            code = take_token(r, step, s, token, one->next++);
        else if (one) {
            one->n++;
            r->out->top_k = step->top_k;
        }
        if (code)
            return code;
        token += q->n_tokens;
    }
    return RUN_OK;
}

static int read_all(reading *r)
{
    moepage_trace *file = NULL;
    moepage_trace_info info = {.struct_size = sizeof info};
    moepage_trace_step step = {.struct_size = sizeof step};
    if (moepage_trace_open(r->path, &file) || moepage_trace_get_info(file, &info)) {
        int code = fail_file(RUN_REFUSED, r->path);
        moepage_trace_close(file);
        return code;
    }
    r->out->layers = info.moe_layers;
    r->out->experts = info.experts;
    r->out->semantic_dim = info.semantic_dim;
    int code = info.has_probabilities
                   ? RUN_OK
                   : fail(RUN_REFUSED, "%s: the trace has no probabilities", r->path);
    moepage_status status = MOEPAGE_OK;
    while (!code && !(status = moepage_trace_next(file, &step)))
        code = take_step(r, &step);
    if (!code && status != MOEPAGE_E_END)
        code = fail_file(RUN_REFUSED, r->path);
    moepage_trace_close(file);
    return code;
}

static int reserve(reading *r)
{
    sim_iterations *out = r->out;
    out->n_requests = r->n;
    out->first = calloc((size_t)r->n + 1, sizeof *out->first);
    if (!out->first)
        return fail_memory();
    for (uint32_t i = 0; i < r->n; i++) {
        r->sequences[i].next = out->n;
        out->n += r->sequences[i].n;
        out->first[i + 1] = out->n;
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
    int code = read_all(&r);
    if (!code)
        code = reserve(&r);
    if (!code)
        code = read_all(&r);
    free(r.sequences);
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
