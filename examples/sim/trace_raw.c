/* Raw arrays: experts.u8 [rows][layers][top_k] with requests.csv, and probs.bf16 if present; or one
 * .u8 file of given shape, whose rows are one request. */
#include "sim/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fail.h"
#include "sim/csv.h"

/* BF16 keeps 8 bits: a few rounded probabilities add up to 1 within this. */
#define SUM_ERROR 0.02f

typedef struct bytes {
    unsigned char *data;
    size_t size;
} bytes;

static int read_all(const char *path, bytes *out)
{
    *out = (bytes){0};
    FILE *file = fopen(path, "rbe");
    if (!file)
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    off_t size = -1;
    if (!fseeko(file, 0, SEEK_END))
        size = ftello(file);
    int code = RUN_OK;
    if (size < 0 || fseeko(file, 0, SEEK_SET))
        code = fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    else if (!(out->data = malloc(size ? (size_t)size : 1)))
        code = fail_memory();
    else if (fread(out->data, 1, (size_t)size, file) != (size_t)size)
        code = fail(RUN_REFUSED, "%s: cannot be read whole", path);
    out->size = (size_t)size;
    fclose(file);
    if (!code && out->size == 0)
        code = fail(RUN_REFUSED, "%s: the file is empty", path);
    return code;
}

static float bf16(const unsigned char *at)
{
    uint32_t bits = ((uint32_t)at[1] << 8 | at[0]) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- The shape --------------------------------------------------------------------------- */

static bool sums_to_one(const unsigned char *probs, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += bf16(probs + 2 * (size_t)i);
    return fabsf(sum - 1) <= SUM_ERROR;
}

/* Returns how many probabilities sum to 1 in every layer of every row: the number of experts
 * chosen. */
static uint32_t find_top_k(const bytes *probs, uint64_t rows, uint32_t width)
{
    for (uint32_t k = 1; k <= width; k++) {
        uint64_t group = 0, groups = width % k ? 0 : rows * (width / k);
        while (group < groups && sums_to_one(probs->data + group * k * 2, k))
            group++;
        if (groups && group == groups)
            return k;
    }
    return 0;
}

static int choose_shape(const char *path, const sim_trace_shape *given, uint64_t rows,
                        const bytes *experts, const bytes *probs, sim_trace_shape *out)
{
    *out = *given;
    if (rows == 0 || experts->size % rows || experts->size / rows > 1u << 20)
        return fail(RUN_REFUSED, "%s: %zu bytes cannot be %" PRIu64 " tokens", path, experts->size,
                    rows);
    uint32_t width = (uint32_t)(experts->size / rows);
    if (probs->data && probs->size != 2 * experts->size)
        return fail(RUN_REFUSED,
                    "%s: its probs.bf16 has %zu bytes, %zu are expected: two for each expert", path,
                    probs->size, 2 * experts->size);
    if (!given->layers) {
        out->top_k = probs->data ? find_top_k(probs, rows, width) : 0;
        if (!out->top_k)
            return fail(RUN_REFUSED,
                        "%s: how many of a token's %" PRIu32 " experts belong to one layer cannot "
                        "be seen%s: give --shape LAYERSxEXPERTSxTOPK",
                        path, width, probs->data ? "" : " without probs.bf16");
        out->layers = width / out->top_k;
        for (size_t i = 0; i < experts->size; i++)
            if (experts->data[i] >= out->experts)
                out->experts = experts->data[i] + 1u;
    }
    if ((uint64_t)out->layers * out->top_k != width)
        return fail(RUN_REFUSED,
                    "%s: %" PRIu32 " experts for each token, --shape says %" PRIu32
                    " layers of %" PRIu32,
                    path, width, out->layers, out->top_k);
    return RUN_OK;
}

static int fill(sim_trace *trace, uint64_t rows, const bytes *experts, const bytes *probs)
{
    int code = sim_trace_reserve(trace, rows, probs->data != NULL);
    for (size_t i = 0; i < experts->size && !code; i++) {
        trace->ids[i] = experts->data[i];
        if (probs->data)
            trace->probabilities[i] = bf16(probs->data + 2 * i);
    }
    return code;
}

/* ---- requests.csv ------------------------------------------------------------------------ */

enum { FIRST_ROW, DECODE_TOKENS, PROMPT_TOKENS, CATEGORY, DATASET, COLUMNS };
static const char *const columns[COLUMNS] = {"first_row", "decode_tokens", "prompt_tokens",
                                             "category", "dataset"};

static int read_request(const sim_csv *csv, const uint32_t *at, sim_request *out)
{
    uint64_t prompt = 0;
    *out = (sim_request){0};
    int code = sim_csv_number(csv, at[FIRST_ROW], INT64_MAX, &out->first_row);
    if (!code)
        code = sim_csv_number(csv, at[DECODE_TOKENS], INT64_MAX, &out->rows);
    if (!code && at[PROMPT_TOKENS] != UINT32_MAX)
        code = sim_csv_number(csv, at[PROMPT_TOKENS], UINT32_MAX, &prompt);
    out->prompt_tokens = (uint32_t)prompt;
    return code;
}

/* Adds the file's requests to the trace, or counts their rows if `trace` is NULL. */
static int read_requests(const char *path, sim_trace *trace, uint64_t *rows)
{
    sim_csv csv;
    uint32_t at[COLUMNS];
    bool more = true;
    *rows = 0;
    int code = sim_csv_open(&csv, path, columns, COLUMNS, 2, at);
    while (!code && !(code = sim_csv_next(&csv, &more)) && more) {
        sim_request request;
        code = read_request(&csv, at, &request);
        if (!code && request.first_row != *rows)
            code =
                sim_csv_refuse(&csv,
                               "first_row is %" PRIu64 ", the requests before it end at %" PRIu64,
                               request.first_row, *rows);
        if (code)
            break;
        *rows += request.rows;
        uint32_t group = at[CATEGORY] != UINT32_MAX ? at[CATEGORY] : at[DATASET];
        if (trace)
            code = sim_trace_add_request(trace, &request,
                                         group != UINT32_MAX ? csv.fields[group] : NULL);
    }
    sim_csv_close(&csv);
    return code;
}

/* ---- Both kinds --------------------------------------------------------------------------- */

static char *join(const char *path, const char *name)
{
    char *joined;
    return asprintf(&joined, "%s/%s", path, name) < 0 ? NULL : joined;
}

static int read_directory(const char *path, const sim_trace_shape *given, sim_trace **out)
{
    char *ids = join(path, "experts.u8"), *probs = join(path, "probs.bf16");
    char *requests = join(path, "requests.csv");
    bytes expert_bytes = {0}, prob_bytes = {0};
    sim_trace_shape shape;
    uint64_t rows = 0;
    int code = ids && probs && requests ? RUN_OK : fail_memory();
    if (!code)
        code = read_requests(requests, NULL, &rows);
    if (!code)
        code = read_all(ids, &expert_bytes);
    if (!code && access(probs, F_OK) == 0)
        code = read_all(probs, &prob_bytes);
    if (!code)
        code = choose_shape(path, given, rows, &expert_bytes, &prob_bytes, &shape);
    if (!code)
        code = sim_trace_new(path, &shape, out);
    if (!code)
        code = fill(*out, rows, &expert_bytes, &prob_bytes);
    if (!code)
        code = read_requests(requests, *out, &rows);
    free(expert_bytes.data);
    free(prob_bytes.data);
    free(ids);
    free(probs);
    free(requests);
    return code;
}

static int read_file(const char *path, const sim_trace_shape *shape, sim_trace **out)
{
    bytes experts = {0};
    uint64_t width = (uint64_t)shape->layers * shape->top_k;
    if (!width)
        return fail(RUN_REFUSED, "%s: a bare file needs --shape LAYERSxEXPERTSxTOPK", path);
    int code = read_all(path, &experts);
    if (!code && experts.size % width)
        code = fail(RUN_REFUSED,
                    "%s: %zu bytes are not a whole number of tokens of %" PRIu32 " x %" PRIu32
                    " experts",
                    path, experts.size, shape->layers, shape->top_k);
    if (!code)
        code = sim_trace_new(path, shape, out);
    if (!code)
        code = fill(*out, experts.size / width, &experts, &(bytes){0});
    if (!code)
        code = sim_trace_add_request(*out, &(sim_request){.rows = experts.size / width}, NULL);
    free(experts.data);
    return code;
}

int sim_trace_read_raw(const char *path, const sim_trace_shape *shape, bool directory,
                       sim_trace **out)
{
    return directory ? read_directory(path, shape, out) : read_file(path, shape, out);
}
