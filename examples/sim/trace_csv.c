/* Traces as text: request,token,layer,experts, one line for each layer of each token, in that
 * order; request numbers increase, tokens and layers count from 0, experts are separated by
 * spaces. */
#include <inttypes.h>
#include <string.h>

#include "common/fail.h"
#include "common/flags.h"
#include "sim/csv.h"
#include "sim/trace.h"

#define MOST_TOP_K 256

enum { REQUEST, TOKEN, LAYER, EXPERTS, COLUMNS };
static const char *const columns[COLUMNS] = {"request", "token", "layer", "experts"};

/* One line. */
typedef struct place {
    uint64_t request, token, layer;
    uint32_t n;
    uint16_t ids[MOST_TOP_K];
} place;

typedef struct reading {
    sim_csv csv;
    uint32_t at[COLUMNS];
    place now, before;
    bool first;
    sim_trace_shape shape; /* layers and top_k 0: not known yet */
    uint64_t rows;
    uint64_t first_row; /* of the current request */
    sim_trace *trace;   /* NULL while shape and rows are being determined */
} reading;

static int read_ids(reading *r)
{
    const char *rest = r->csv.fields[r->at[EXPERTS]];
    uint64_t id;
    r->now.n = 0;
    for (;;) {
        while (*rest == ' ')
            rest++;
        if (!*rest)
            return r->now.n ? RUN_OK : sim_csv_refuse(&r->csv, "no expert");
        if (r->now.n == MOST_TOP_K || !flag_take_number(&rest, &id) || id >= UINT16_MAX ||
            (*rest && *rest != ' '))
            return sim_csv_refuse(&r->csv,
                                  "experts are \"%.40s\": up to %d numbers below %d with spaces "
                                  "between are expected",
                                  r->csv.fields[r->at[EXPERTS]], MOST_TOP_K, UINT16_MAX);
        r->now.ids[r->now.n++] = (uint16_t)id;
    }
}

/* Checks that this line is the next in order. */
static int check_order(reading *r)
{
    const place *now = &r->now, *before = &r->before;
    bool new_request = r->first || now->request > before->request;
    bool new_token = new_request || now->token == before->token + 1;
    if (now->request < before->request || (new_request && now->token != 0) ||
        (!new_token && now->token != before->token))
        return sim_csv_refuse(&r->csv, "request %" PRIu64 ", token %" PRIu64 " is out of order",
                              now->request, now->token);
    if (now->layer != (new_token ? 0 : before->layer + 1))
        return sim_csv_refuse(&r->csv, "layer %" PRIu64 ": %" PRIu64 " is expected", now->layer,
                              new_token ? 0 : before->layer + 1);
    if (new_token && !r->first && !r->shape.layers)
        r->shape.layers = (uint32_t)before->layer + 1;
    if ((new_token && !r->first && before->layer + 1 != r->shape.layers) ||
        (r->shape.layers && now->layer >= r->shape.layers))
        return sim_csv_refuse(&r->csv, "a token with other than %" PRIu32 " layers",
                              r->shape.layers);
    if (!r->shape.top_k)
        r->shape.top_k = now->n;
    if (now->n != r->shape.top_k)
        return sim_csv_refuse(&r->csv, "%" PRIu32 " experts, other layers have %" PRIu32, now->n,
                              r->shape.top_k);
    return RUN_OK;
}

static int end_request(reading *r)
{
    sim_request request = {.first_row = r->first_row, .rows = r->rows - r->first_row};
    r->first_row = r->rows;
    return r->trace ? sim_trace_add_request(r->trace, &request, NULL) : RUN_OK;
}

static int take_line(reading *r)
{
    int code = check_order(r);
    if (!code && !r->first && r->now.request != r->before.request)
        code = end_request(r);
    if (code)
        return code;
    r->rows += r->now.layer == 0;
    for (uint32_t k = 0; k < r->now.n; k++)
        if (r->now.ids[k] >= r->shape.experts)
            r->shape.experts = r->now.ids[k] + 1u;
    if (r->trace && r->rows > r->trace->rows)
        return sim_csv_refuse(&r->csv, "the file has grown while it was read");
    if (r->trace)
        memcpy(r->trace->ids + ((r->rows - 1) * r->shape.layers + r->now.layer) * r->shape.top_k,
               r->now.ids, r->now.n * sizeof *r->now.ids);
    r->before = r->now;
    r->first = false;
    return RUN_OK;
}

static int read_line(reading *r)
{
    int code = sim_csv_number(&r->csv, r->at[REQUEST], UINT32_MAX, &r->now.request);
    if (!code)
        code = sim_csv_number(&r->csv, r->at[TOKEN], UINT32_MAX, &r->now.token);
    if (!code)
        code = sim_csv_number(&r->csv, r->at[LAYER], UINT16_MAX, &r->now.layer);
    if (!code)
        code = read_ids(r);
    return code ? code : take_line(r);
}

static int read_file(const char *path, reading *r)
{
    bool more = true;
    r->first = true;
    int code = sim_csv_open(&r->csv, path, columns, COLUMNS, COLUMNS, r->at);
    while (!code && !(code = sim_csv_next(&r->csv, &more)) && more)
        code = read_line(r);
    if (!code && r->first)
        code = fail(RUN_REFUSED, "%s: no decoded token", path);
    if (!code && !r->shape.layers)
        r->shape.layers = (uint32_t)r->before.layer + 1;
    if (!code && r->before.layer + 1 != r->shape.layers)
        code = sim_csv_refuse(&r->csv, "the file ends inside a token");
    if (!code)
        code = end_request(r);
    sim_csv_close(&r->csv);
    return code;
}

int sim_trace_read_csv(const char *path, const sim_trace_shape *shape, sim_trace **out)
{
    reading found = {.shape = *shape};
    int code = read_file(path, &found);
    if (!code)
        code = sim_trace_new(path, &found.shape, out);
    if (!code)
        code = sim_trace_reserve(*out, found.rows, false);
    reading fill = {.shape = found.shape, .trace = code ? NULL : *out};
    return code ? code : read_file(path, &fill);
}
