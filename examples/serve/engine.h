/* engine.h — everything that computes: the library's objects of one run, a decoder over them, a
 * sampler. */
#ifndef SERVE_ENGINE_H
#define SERVE_ENGINE_H

#include "common/decoder.h"
#include "common/host.h"
#include "common/sampler.h"
#include "serve/offload.h"

typedef struct engine_config {
    const options *options;
    const model_config *model;
    budget plan;
    uint64_t arena_bytes; /* experts and KV together, of which `plan` is the first division */
    bool reserved;        /* as of decoder_config */
    bool offload;         /* whole layers: serve/offload.h */
    const moepage_controller_config *control; /* NULL = the division stays */
} engine_config;

typedef struct engine {
    host host;
    model_weights weights;
    decoder decoder;
    sampler sampler;
    moepage_controller *controller;
    offload offload;
} engine;

/* One line and a code on failure. *out is always safe to close. */
int engine_open(const engine_config *config, engine *out);
/* RUN_FAILED if something could not be finished. */
int engine_close(engine *e);

/* Bytes of one KV block over all layers. */
uint64_t engine_block_bytes(const model_config *model);

/* Blocks that so many tokens of one sequence take. */
static inline uint64_t engine_blocks_for(uint64_t tokens)
{
    return (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

#endif
