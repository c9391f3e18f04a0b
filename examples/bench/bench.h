/* bench.h — the subcommands of moepage-bench, and their common parts.
 *
 * Every figure is a median over repetitions in one run, with the 10th and 90th percentile: compared
 * variants are measured side by side, interleaved. */
#ifndef EXAMPLE_BENCH_H
#define EXAMPLE_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

int bench_route(int argc, char **argv);
int bench_ffn(int argc, char **argv);
int bench_prefetch(int argc, char **argv);
int bench_codec(int argc, char **argv);
int bench_tiers(int argc, char **argv);

/* Order statistics of a sample. */
typedef struct spread {
    double low; /* 10th percentile */
    double median;
    double high; /* 90th percentile */
} spread;

/* Sorts the values. */
spread bench_spread(double *values, size_t n);

/* A model of random experts that the benchmark holds in memory. */
typedef struct bench_model {
    moepage_model *model;
    void *weights;
    const void **data;
} bench_model;

typedef struct bench_shape {
    uint32_t layers, experts, top_k, hidden, intermediate;
    uint32_t dtype; /* of the weights */
} bench_shape;

/* Opens the model. Every `distinct` experts share one set of random bytes, so that big shapes
 * fit. */
int bench_model_open(const bench_shape *shape, uint32_t distinct, bench_model *out);
void bench_model_close(bench_model *m);

/* Opens an engine over the model, with options as moepage_engine_open takes them. */
int bench_engine_open(const bench_model *m, const char *options, moepage_engine **out);

/* Returns a random number (xorshift64*): reproducible, and random enough to choose experts. */
uint64_t bench_random(uint64_t *state);

/* Fills ids [n_tokens][top_k] with distinct random experts per token, and equal weights. */
void bench_random_routing(uint64_t *state, uint32_t n_tokens, uint32_t top_k, uint32_t experts,
                          int32_t *ids, float *weights);

#endif
