/* engine.h — all computing objects: the library's objects of one run, a decoder over them, a
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
    uint64_t arena_bytes; /* experts and KV together; `plan` is the initial division */
    bool reserved;        /* as of decoder_config */
    bool offload;         /* whole layers: serve/offload.h */
    const moepage_controller_config *control; /* NULL = the division is fixed */
} engine_config;

typedef struct engine {
    host host;
    model_weights weights;
    decoder decoder;
    sampler sampler;
    moepage_controller *controller;
    offload offload;
} engine;

/* Opens an engine. One line and a code on failure. *out is always safe to close. */
int engine_open(const engine_config *config, engine *out);
/* Closes the engine; RUN_FAILED if a file could not be completed. */
int engine_close(engine *e);

/* Returns the bytes of one KV block over all layers. */
uint64_t engine_block_bytes(const model_config *model);

/* Returns the blocks for this many tokens of one sequence. */
static inline uint64_t engine_blocks_for(uint64_t tokens)
{
    return (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

#endif
