/* Records a generator's requests as a trace in memory, for code that needs whole traces. */
#include <stdlib.h>

#include "common/fail.h"
#include "sim/synthetic.h"

typedef struct recording {
    const sim_source *source;
    void *stream;
    int32_t *ids;
    sim_trace *trace;
} recording;

static int record_request(recording *r, uint32_t request, uint32_t tokens)
{
    const sim_source *source = r->source;
    size_t width = (size_t)source->layers * source->top_k;
    sim_request added = {.first_row = (uint64_t)request * tokens, .rows = tokens};
    uint16_t *to = r->trace->ids + added.first_row * width;
    source->open(source, request, r->stream);
    for (uint32_t token = 0; token < tokens; token++, to += width) {
        source->next(source, r->stream, false, r->ids);
        for (size_t i = 0; i < width; i++)
            to[i] = (uint16_t)r->ids[i];
    }
    return sim_trace_add_request(r->trace, &added, NULL);
}

static int record_all(recording *r, const sim_synthetic *config, uint32_t requests)
{
    const sim_trace_shape shape = {config->layers, config->experts, config->top_k};
    int code = sim_trace_new(config->name, &shape, &r->trace);
    if (!code)
        code = sim_trace_reserve(r->trace, (uint64_t)requests * config->tokens, false);
    r->stream = malloc(r->source->stream_bytes);
    r->ids = malloc((size_t)config->layers * config->top_k * sizeof *r->ids);
    if (!code && (!r->stream || !r->ids))
        code = fail_memory();
    for (uint32_t request = 0; request < requests && !code; request++)
        code = record_request(r, request, config->tokens);
    free(r->stream);
    free(r->ids);
    return code;
}

int sim_synthetic_record(const sim_synthetic *config, uint32_t requests, sim_trace **out)
{
    sim_source *source;
    int code = sim_synthetic_open(config, &source);
    if (code)
        return code;
    recording r = {.source = source};
    code = record_all(&r, config, requests);
    source->close(source);
    if (code && r.trace)
        r.trace->source.close(&r.trace->source);
    else
        *out = r.trace;
    return code;
}
