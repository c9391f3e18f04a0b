/* served.h — a model behind a pool and a session, or a path, on the benchmark's device: steps of
 * one token each, layer by layer, with the routing that a function gives. */
#ifndef MP_TESTS_SERVED_H
#define MP_TESTS_SERVED_H

#include "tall_model.h"

/* Writes top_k ids of a layer of a step. */
typedef void (*served_route)(void *user, uint64_t step, uint32_t layer, int32_t *ids);

typedef struct served_config {
    uint64_t slots;
    uint32_t bus_form, prefetch, math;
    bool path;  /* the device runs the layers, */
    bool graph; /* out of one captured graph */
    served_route route;
    void *route_user;
    uint32_t n_steps; /* routes are made beforehand, and come again */
} served_config;

typedef struct served {
    gpu_bench *b;
    const tall_model *m;
    served_config config;
    moepage_expert_pool *pool;
    moepage_session *session;
    moepage_cuda_path *path;
    cuda_graph graph;
    cuda_graph_exec exec;
    uint16_t *x, *y;       /* device memory */
    int32_t *ids;          /* pinned: [n_steps][layers][top_k] */
    float *weights;        /* plain */
    int32_t *device_ids;   /* [layers][top_k] */
    float *device_weights; /* the same */
    uint64_t step;
} served;

void served_open(gpu_bench *b, const tall_model *m, const served_config *config, served *out);
void served_close(served *s);

/* One token through all layers; of type gpu_work. Does not wait for the device. */
void served_step(gpu_bench *b, void *served);

/* Hits and misses so far. */
void served_counts(served *s, uint64_t *routed, uint64_t *misses);

#endif
