/* Draws without replacement, with retries: top_k is small beside experts, or all are drawn. */
#include "sim/uniform.h"

#include <stdlib.h>

typedef struct uniform {
    sim_source source; /* first */
    uint64_t seed;
} uniform;

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((*state >> 32) * below) >> 32);
}

static void uniform_open(const sim_source *source, uint32_t request, void *stream)
{
    *(uint64_t *)stream =
        (((const uniform *)source)->seed ^ (request + 1ull)) * 0x9e3779b97f4a7c15u;
}

static void uniform_next(const sim_source *source, void *stream, bool prefill, int32_t *ids)
{
    (void)prefill;
    for (uint32_t layer = 0; layer < source->layers; layer++, ids += source->top_k)
        for (uint32_t k = 0; k < source->top_k;) {
            ids[k] = (int32_t)draw(stream, source->experts);
            uint32_t same = 0;
            while (ids[same] != ids[k])
                same++;
            k += same == k;
        }
}

static void uniform_close(sim_source *source)
{
    free(source);
}

sim_source *sim_uniform_open(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t seed)
{
    uniform *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->seed = seed;
    u->source = (sim_source){.name = "uniform",
                             .layers = layers,
                             .experts = experts,
                             .top_k = top_k,
                             .n_requests = UINT32_MAX,
                             .stream_bytes = sizeof(uint64_t),
                             .open = uniform_open,
                             .next = uniform_next,
                             .close = uniform_close};
    return &u->source;
}
