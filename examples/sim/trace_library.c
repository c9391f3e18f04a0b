/* The library's trace files: each sequence's decoded tokens, gathered from all steps. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/sequences.h"
#include "sim/trace.h"

typedef struct reading {
    const char *path;
    moepage_trace_info info;
    sim_sequences sequences;
    uint32_t top_k;
    uint64_t rows;
    sim_trace *trace; /* NULL while rows are counted */
} reading;

/* Fills a token's row from moepage.h's layout, which is layer by layer, token after token. */
static int take_token(reading *r, const moepage_trace_step *step, uint32_t token, sim_sequence *g)
{
    if (g->next_row == g->end_row)
        return fail(RUN_REFUSED, "%s: the file has changed while it was read", r->path);
    uint64_t row = g->next_row++;
    uint16_t *ids = r->trace->ids + row * r->info.moe_layers * r->top_k;
    float *weights = r->trace->probabilities + row * r->info.moe_layers * r->top_k;
    for (uint32_t layer = 0; layer < r->info.moe_layers; layer++)
        for (uint32_t k = 0; k < r->top_k; k++) {
            size_t at = ((size_t)layer * step->n_tokens + token) * step->top_k + k;
            if (step->ids[at] == MOEPAGE_NO_EXPERT)
                return fail(RUN_REFUSED,
                            "%s: step %" PRIu64 ", layer %" PRIu32
                            ": a token has fewer than %" PRIu32 " experts",
                            r->path, step->step, layer, r->top_k);
            *ids++ = (uint16_t)step->ids[at];
            *weights++ = step->weights[at];
        }
    return RUN_OK;
}

/* Hosts leave out of a prompt what no logits need: a step without some layer is not replayed. */
static bool is_whole(const reading *r, const moepage_trace_step *step)
{
    for (uint32_t layer = 0; layer < r->info.moe_layers; layer++)
        if (!step->layer_present[layer])
            return false;
    return true;
}

static int take_step(void *user, const moepage_trace_step *step)
{
    reading *r = user;
    const bool whole = is_whole(r, step);
    uint32_t token = 0;
    for (uint32_t s = 0; s < step->n_sequences; s++) {
        const moepage_step_sequence *q = &step->sequences[s];
        sim_sequence *g = sim_sequences_find(&r->sequences, q->seq);
        if (!g)
            return fail_memory();
        if (!whole || q->phase == MOEPAGE_PHASE_PREFILL) {
            if (step->layer_present[0]) /* else they were in the step before */
                g->prompt_tokens += q->n_tokens;
            token += q->n_tokens;
            continue;
        }
        if (!r->top_k)
            r->top_k = step->top_k;
        if (step->top_k != r->top_k)
            return fail(RUN_REFUSED,
                        "%s: step %" PRIu64 " has %" PRIu32
                        " experts for each token, those before it %" PRIu32,
                        r->path, step->step, step->top_k, r->top_k);
        for (uint32_t t = 0; t < q->n_tokens; t++, token++) {
            int code = r->trace ? take_token(r, step, token, g) : RUN_OK;
            if (code)
                return code;
            g->rows += !r->trace;
            r->rows += !r->trace;
        }
    }
    return RUN_OK;
}

static int take_info(void *user, const moepage_trace_info *info)
{
    reading *r = user;
    r->info = *info;
    if (r->trace && info->moe_layers != r->trace->source.layers)
        return fail(RUN_REFUSED, "%s: the file has changed while it was read", r->path);
    return RUN_OK;
}

/* Makes requests of the sequences that decoded, each with contiguous rows. */
static int add_requests(reading *r, sim_trace *trace)
{
    uint64_t row = 0;
    int code = RUN_OK;
    for (uint32_t i = 0; i < r->sequences.n && !code; i++) {
        sim_sequence *g = &r->sequences.list[i];
        uint32_t prompt = g->prompt_tokens < UINT32_MAX ? (uint32_t)g->prompt_tokens : UINT32_MAX;
        g->next_row = row;
        if (g->rows)
            code = sim_trace_add_request(
                trace, &(sim_request){.first_row = row, .rows = g->rows, .prompt_tokens = prompt},
                NULL);
        g->end_row = row += g->rows;
    }
    return code;
}

int sim_trace_read_library(const char *path, sim_trace **out)
{
    reading r = {.path = path};
    int code = sim_steps_read(path, take_info, take_step, &r);
    if (!code && !r.rows)
        code = fail(RUN_REFUSED, "%s: no decoded token", path);
    sim_trace_shape shape = {r.info.moe_layers, r.info.experts, r.top_k};
    if (!code)
        code = sim_trace_new(path, &shape, out);
    if (!code)
        code = sim_trace_reserve(*out, r.rows, true);
    if (!code)
        code = add_requests(&r, *out);
    if (!code) {
        r.trace = *out;
        code = sim_steps_read(path, take_info, take_step, &r);
    }
    sim_sequences_free(&r.sequences);
    return code;
}
