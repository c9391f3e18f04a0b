/* Computes spreads. */
#include "serve/times.h"

#include <math.h>
#include <stdlib.h>

#include "common/order.h"

static double ranked(const double *values, size_t n, double part)
{
    size_t rank = (size_t)ceil(part * (double)n);
    return values[rank ? rank - 1 : 0];
}

spread spread_of(double *values, size_t n)
{
    spread s = {.n = n};
    if (!n)
        return s;
    qsort(values, n, sizeof *values, order_doubles);
    for (size_t i = 0; i < n; i++)
        s.mean += values[i] / (double)n;
    s.p50 = ranked(values, n, 0.5);
    s.p90 = ranked(values, n, 0.9);
    s.p99 = ranked(values, n, 0.99);
    return s;
}

bool gaps_add(gap_list *gaps, uint64_t ns)
{
    if (gaps->n == gaps->room) {
        size_t room = gaps->room ? 2 * gaps->room : 1024;
        double *grown = realloc(gaps->ms, room * sizeof *grown);
        if (!grown)
            return false;
        gaps->ms = grown;
        gaps->room = room;
    }
    gaps->ms[gaps->n++] = (double)ns / 1e6;
    return true;
}

bool times_sum(const request_times *requests, uint32_t n, gap_list *gaps, times *out)
{
    double *first = malloc(3 * ((size_t)n + 1) * sizeof *first);
    if (!first)
        return false;
    double *token = first + n, *turn = token + n;
    size_t n_done = 0, n_tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        const request_times *r = &requests[i];
        if (!r->done)
            continue;
        first[n_done] = (double)(r->first_ns - r->arrival_ns) / 1e6;
        turn[n_done++] = (double)(r->last_ns - r->arrival_ns) / 1e6;
        if (r->tokens > 1)
            token[n_tokens++] = (double)(r->last_ns - r->first_ns) / 1e6 / (r->tokens - 1);
    }
    *out = (times){.ttft = spread_of(first, n_done),
                   .tpot = spread_of(token, n_tokens),
                   .turn = spread_of(turn, n_done),
                   .gap = spread_of(gaps->ms, gaps->n)};
    free(first);
    return true;
}
