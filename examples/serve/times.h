/* times.h — the requests' waiting times: to the first token, between tokens, and to the last. */
#ifndef SERVE_TIMES_H
#define SERVE_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct request_times {
    uint64_t arrival_ns;
    uint64_t first_ns, last_ns; /* of the first and the last token so far */
    uint32_t tokens;
    bool done;
} request_times;

/* By nearest rank: p99 is the least value that 99 % do not exceed. All 0 for an empty sample. */
typedef struct spread {
    double mean, p50, p90, p99;
    size_t n;
} spread;
spread spread_of(double *values, size_t n); /* sorts them */

/* In ms, over finished requests. */
typedef struct times {
    spread ttft; /* from arrival to the first token */
    spread tpot; /* per further token: the mean of each request that has more than one token */
    spread turn; /* from arrival to the last token */
    spread gap;  /* between consecutive tokens, over all tokens: shows pauses */
} times;

/* Gaps are collected while serving. */
typedef struct gap_list {
    double *ms;
    size_t n, room;
} gap_list;
bool gaps_add(gap_list *gaps, uint64_t ns);

/* Computes all spreads; returns false when out of memory. */
bool times_sum(const request_times *requests, uint32_t n, gap_list *gaps, times *out);

#endif
