/* Requests from a file or a random process, fitted to the model. */
#include "serve/arrivals.h"

#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "common/request_file.h"
#include "common/sampler.h"
#include "serve/prompts.h"

/* Random stream for arrivals and lengths; prompts have streams 0, 1, ... */
#define ARRIVAL_STREAM UINT32_MAX
#define MOST_NS 0x1p62

void arrivals_fit(uint32_t *prompt_tokens, uint32_t *output_tokens, double scale, uint32_t most)
{
    double asked = fmin(fmax(1, round(*prompt_tokens * scale)), most - 1);
    double answer = fmin(fmax(1, round(*output_tokens * scale)), most - asked);
    *prompt_tokens = (uint32_t)asked;
    *output_tokens = (uint32_t)answer;
}

uint64_t arrivals_gap_ns(uint64_t random, double rate)
{
    double u = ((double)(random >> 11) + 0.5) / (double)(1ull << 53);
    return (uint64_t)fmin(-log(u) / rate * 1e9, MOST_NS);
}

static uint32_t positions(const serve_options *opts, const model_config *model)
{
    uint64_t most = model->max_positions < model->rope.max_positions ? model->max_positions
                                                                     : model->rope.max_positions;
    return opts->max_context && opts->max_context < most ? opts->max_context : (uint32_t)most;
}

/* ---- From a file ------------------------------------------------------------------------- */

static double length_scale(const serve_options *opts, const request_list *list, uint32_t most)
{
    uint64_t longest = 0;
    if (opts->length_scale > 0)
        return opts->length_scale;
    for (uint32_t i = 0; i < list->n; i++) {
        uint64_t tokens =
            (uint64_t)list->requests[i].prompt_tokens + list->requests[i].output_tokens;
        longest = tokens > longest ? tokens : longest;
    }
    return longest > most ? (double)most / (double)longest : 1;
}

static int read_file(const serve_options *opts, uint32_t most, arrivals *out)
{
    const request_file_config config = {.skip = opts->skip,
                                        .most = opts->requests,
                                        .time_scale = opts->time_scale};
    request_list list = {0};
    int code = request_file_read(opts->arrivals, &config, &list);
    if (code)
        return code;
    out->length_scale = length_scale(opts, &list, most);
    out->requests = calloc(list.n, sizeof *out->requests);
    out->n = out->requests ? list.n : 0;
    for (uint32_t i = 0; i < out->n; i++) {
        schedule_request *r = &out->requests[i];
        r->arrival_ns = list.requests[i].arrival_ns;
        r->prompt_tokens = list.requests[i].prompt_tokens;
        r->output_tokens = list.requests[i].output_tokens;
        arrivals_fit(&r->prompt_tokens, &r->output_tokens, out->length_scale, most);
    }
    request_list_free(&list);
    return out->requests ? RUN_OK : fail_memory();
}

/* ---- At random -------------------------------------------------------------------------- */

/* Draws uniformly between half of the mean and one and a half of it. */
static uint32_t draw_length(sampler_state *random, uint32_t mean)
{
    uint32_t least = (mean + 1) / 2;
    return least + (uint32_t)(sampler_random(random) % (2 * (uint64_t)(mean - least) + 1));
}

static int draw(const serve_options *opts, uint32_t most, arrivals *out)
{
    sampler_state random = sampler_seed(opts->base.seed, ARRIVAL_STREAM);
    uint64_t now = 0;
    out->length_scale = 1;
    out->requests = calloc(opts->requests, sizeof *out->requests);
    if (!out->requests)
        return fail_memory();
    out->n = opts->requests;
    for (uint32_t i = 0; i < out->n; i++) {
        schedule_request *r = &out->requests[i];
        now += arrivals_gap_ns(sampler_random(&random), opts->poisson);
        if ((double)now >= MOST_NS)
            return fail(RUN_REFUSED, "--poisson %g: the last of %u requests would be 146 years off",
                        opts->poisson, out->n);
        r->arrival_ns = now;
        r->prompt_tokens = draw_length(&random, opts->prompt_tokens);
        r->output_tokens = draw_length(&random, opts->output_tokens);
        arrivals_fit(&r->prompt_tokens, &r->output_tokens, 1, most);
    }
    return RUN_OK;
}

int arrivals_open(const serve_options *opts, const model_config *model, arrivals *out)
{
    const uint32_t most = positions(opts, model);
    *out = (arrivals){0};
    int code = opts->arrivals ? read_file(opts, most, out) : draw(opts, most, out);
    for (uint32_t i = 0; i < out->n; i++) {
        const schedule_request *r = &out->requests[i];
        uint32_t tokens = r->prompt_tokens + r->output_tokens;
        out->longest = tokens > out->longest ? tokens : out->longest;
        out->prompts += r->prompt_tokens;
        out->outputs += r->output_tokens;
    }
    return code ? code : prompts_fill(opts, model, out);
}

void arrivals_close(arrivals *a)
{
    for (uint32_t i = 0; a->tokens && i < a->n; i++)
        free(a->tokens[i]);
    free(a->tokens);
    free(a->requests);
    *a = (arrivals){0};
}
