/* loop.h — decode steps over the routed experts of a model: an engine or a path, and what
 * they need, at one budget. */
#ifndef EXAMPLE_LOOP_H
#define EXAMPLE_LOOP_H

#include "decode/decode_options.h"
#include "decode/machine.h"
#include "moepage.h"
#include "moepage_cuda.h"

/* Routing made once for all budgets, in place of a real model's router. */
typedef struct loop_routes {
    uint32_t steps, layers, batch, top_k;
    int32_t *ids;   /* pinned: [steps][layers][batch][top_k] */
    float *weights; /* pinned: [layers][batch][top_k], identical in every step */
} loop_routes;

/* Makes the choices: with probability 0.44, measured on a real model's decoding, one of the choices
 * of the sequence's previous token; otherwise any expert, popular ones more often. */
int loop_routes_make(machine *m, const moepage_model_info *model, uint32_t steps, uint32_t batch,
                     uint64_t seed, loop_routes *out);
void loop_routes_free(machine *m, loop_routes *routes);

typedef struct loop_config {
    const char *device;
    moepage_model *model;
    const loop_routes *routes;
    uint32_t percent; /* of the experts */
    uint32_t mode, math, prefetch;
} loop_config;

typedef struct loop loop;

typedef struct loop_result {
    double seconds; /* of the measured steps */
    uint64_t slots, routed, misses;
    uint64_t digest; /* over all results of all steps */
} loop_result;

/* Opens everything, runs `warm_up` steps, then measures as many as the routes have, and closes.
 * With `keep` every step's results are read back and added to the digest, which costs time. One
 * line and an exit code on failure. */
int loop_run(machine *m, const loop_config *config, uint32_t warm_up, bool keep, loop_result *out);

#endif
