/* Traces in memory: growing, checking, and streams of tokens. */
#include "sim/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/fail.h"
#include "sim/random.h"

#define MOST_LAYERS 4096u
#define MOST_EXPERTS 65535u
#define MOST_TOP_K 256u

/* ---- Streams ------------------------------------------------------------------------------- */

typedef struct stream {
    uint64_t at; /* the request's row for the next decoded token */
    uint64_t random;
    uint32_t request;
    uint32_t reserved;
} stream;

static void open_stream(const sim_source *source, uint32_t request, void *state)
{
    (void)source;
    *(stream *)state = (stream){.random = request + UINT64_C(1), .request = request};
}

static void next_token(const sim_source *source, void *state, bool prefill, int32_t *ids)
{
    const sim_trace *trace = (const sim_trace *)source;
    stream *s = state;
    const sim_request *request = &trace->requests[s->request];
    bool recorded = !prefill && s->at < request->rows;
    uint64_t row = recorded ? s->at++ : sim_random(&s->random) % request->rows;
    const uint16_t *from = sim_trace_ids(trace, request->first_row + row, 0);
    for (uint32_t i = 0; i < source->layers * source->top_k; i++)
        ids[i] = from[i];
}

static void close_trace(sim_source *source)
{
    sim_trace *trace = (sim_trace *)source;
    free(trace->ids);
    free(trace->probabilities);
    free(trace->requests);
    free(trace->groups);
    free(trace);
}

/* ---- Making ---------------------------------------------------------------------------------- */

int sim_trace_new(const char *path, const sim_trace_shape *shape, sim_trace **out)
{
    if (shape->layers > MOST_LAYERS || shape->experts > MOST_EXPERTS || shape->top_k > MOST_TOP_K ||
        shape->top_k > shape->experts)
        return fail(RUN_REFUSED,
                    "%s: %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
                    " of them for each token: expected at most %u layers, %u experts and %u for "
                    "a token",
                    path, shape->layers, shape->experts, shape->top_k, MOST_LAYERS, MOST_EXPERTS,
                    MOST_TOP_K);
    sim_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return fail_memory();
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(trace->name, sizeof trace->name, "%.*s", (int)(end - start), path + start);
    trace->source = (sim_source){.name = trace->name,
                                 .layers = shape->layers,
                                 .experts = shape->experts,
                                 .top_k = shape->top_k,
                                 .stream_bytes = sizeof(stream),
                                 .open = open_stream,
                                 .next = next_token,
                                 .close = close_trace};
    *out = trace;
    return RUN_OK;
}

int sim_trace_reserve(sim_trace *trace, uint64_t rows, bool probabilities)
{
    uint64_t width = (uint64_t)trace->source.layers * trace->source.top_k;
    if (rows > SIZE_MAX / sizeof(float) / width)
        return fail_memory();
    trace->rows = rows;
    trace->ids = calloc(rows * width, sizeof *trace->ids);
    if (probabilities)
        trace->probabilities = calloc(rows * width, sizeof *trace->probabilities);
    return !trace->ids || (probabilities && !trace->probabilities) ? fail_memory() : RUN_OK;
}

/* Doubles an array whenever its length is a power of two. */
static int grow(void **array, uint32_t n, size_t size)
{
    if (n & (n - 1))
        return RUN_OK;
    void *more = reallocarray(*array, n ? (size_t)n * 2 : 1, size);
    if (!more)
        return fail_memory();
    *array = more;
    return RUN_OK;
}

static int find_group(sim_trace *trace, const char *name, uint32_t *out)
{
    char text[sizeof *trace->groups];
    snprintf(text, sizeof text, "%s", name);
    for (*out = 0; *out < trace->n_groups; ++*out)
        if (!strcmp(trace->groups[*out], text))
            return RUN_OK;
    void *groups = trace->groups;
    int code = grow(&groups, trace->n_groups, sizeof *trace->groups);
    trace->groups = groups;
    if (!code)
        memcpy(trace->groups[trace->n_groups++], text, sizeof text);
    return code;
}

int sim_trace_add_request(sim_trace *trace, const sim_request *request, const char *group)
{
    void *requests = trace->requests;
    uint32_t index = 0;
    int code = find_group(trace, group ? group : "", &index);
    if (!code)
        code = grow(&requests, trace->source.n_requests, sizeof *trace->requests);
    if (code)
        return code;
    trace->requests = requests;
    trace->requests[trace->source.n_requests] = *request;
    trace->requests[trace->source.n_requests++].group = index;
    return RUN_OK;
}

static int check_layer(const char *path, const sim_trace *trace, uint64_t row, uint32_t layer)
{
    const uint16_t *ids = sim_trace_ids(trace, row, layer);
    for (uint32_t k = 0; k < trace->source.top_k; k++) {
        if (ids[k] >= trace->source.experts)
            return fail(RUN_REFUSED,
                        "%s: token %" PRIu64 ", layer %" PRIu32 ": expert %u, there are %" PRIu32,
                        path, row, layer, ids[k], trace->source.experts);
        for (uint32_t j = 0; j < k; j++)
            if (ids[j] == ids[k])
                return fail(RUN_REFUSED,
                            "%s: token %" PRIu64 ", layer %" PRIu32 ": expert %u twice", path, row,
                            layer, ids[k]);
    }
    return RUN_OK;
}

int sim_trace_check(const char *path, const sim_trace *trace)
{
    uint64_t row = 0;
    for (uint32_t r = 0; r < trace->source.n_requests; r++) {
        const sim_request *request = &trace->requests[r];
        if (request->first_row != row || request->rows == 0)
            return fail(RUN_REFUSED,
                        "%s: request %" PRIu32 " has %" PRIu64 " tokens from %" PRIu64
                        " on, at least one from %" PRIu64 " on is expected",
                        path, r, request->rows, request->first_row, row);
        row += request->rows;
    }
    if (row != trace->rows)
        return fail(RUN_REFUSED, "%s: the requests have %" PRIu64 " tokens, there are %" PRIu64,
                    path, row, trace->rows);
    if (row == 0)
        return fail(RUN_REFUSED, "%s: no decoded token", path);
    for (row = 0; row < trace->rows; row++)
        for (uint32_t layer = 0; layer < trace->source.layers; layer++) {
            int code = check_layer(path, trace, row, layer);
            if (code)
                return code;
        }
    return RUN_OK;
}

void sim_trace_keep(sim_trace *trace, uint32_t most)
{
    if (most == 0 || most >= trace->source.n_requests)
        return;
    trace->source.n_requests = most;
    trace->rows = trace->requests[most - 1].first_row + trace->requests[most - 1].rows;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    size_t length = strlen(path), n = strlen(end);
    return length >= n && !strcmp(path + length - n, end);
}

static int read_any(const char *path, const sim_trace_shape *shape, sim_trace **out)
{
    struct stat file;
    char magic[8] = {0};
    if (stat(path, &file))
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    if (S_ISDIR(file.st_mode))
        return sim_trace_read_raw(path, shape, true, out);
    FILE *opened = fopen(path, "rbe");
    if (!opened)
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    size_t got = fread(magic, 1, sizeof magic, opened);
    fclose(opened);
    if (ends_in(path, ".trace") || ends_in(path, ".moetrace") ||
        (got == sizeof magic && !memcmp(magic, "MOETRACE", sizeof magic)))
        return sim_trace_read_library(path, out);
    if (ends_in(path, ".u8"))
        return sim_trace_read_raw(path, shape, false, out);
    if (ends_in(path, ".csv"))
        return sim_trace_read_csv(path, shape, out);
    return fail(RUN_REFUSED,
                "%s: expected a trace file of the library, a directory with experts.u8 and "
                "requests.csv, or a file that ends in .csv or .u8",
                path);
}

sim_trace *sim_trace_open_as(const char *path, const sim_trace_shape *shape)
{
    sim_trace *trace = NULL;
    int code = read_any(path, shape, &trace);
    if (!code)
        code = sim_trace_check(path, trace);
    if (code && trace) {
        trace->source.close(&trace->source);
        trace = NULL;
    }
    return trace;
}

sim_trace *sim_trace_open(const char *path)
{
    return sim_trace_open_as(path, &(sim_trace_shape){0});
}
