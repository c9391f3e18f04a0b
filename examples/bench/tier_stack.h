/* tier_stack.h — one engine for each tier that experts can be loaded from. */
#ifndef EXAMPLE_TIER_STACK_H
#define EXAMPLE_TIER_STACK_H

#include <stdbool.h>

#include "common/forms.h"
#include "moepage.h"

/* Host memory in front of the model's file. */
typedef enum tier_host {
    TIER_HOST_NONE, /* loads come from the file's mapping */
    TIER_HOST_ALL,  /* holds every expert used */
    TIER_HOST_LAYER /* holds one layer: loading layers in turn always misses */
} tier_host;

typedef struct tier_case {
    const char *name;
    uint32_t bus_form;
    tier_host host;
    bool compressed; /* all experts are kept compressed in device memory */
} tier_case;

extern const tier_case tier_cases[];
extern const uint32_t n_tier_cases;

typedef struct tier_model {
    moepage_model *model;
    moepage_model_info info;
    moepage_form_info forms[LAST_FORM + 1];
    uint64_t most_bytes; /* limit on dense experts kept in one place */
    uint32_t layers;     /* MoE layers within that limit */
} tier_model;

/* Opens a model and uses at most `most_bytes` of its experts, in whole layers, at least two. */
int tier_model_open(const char *path, uint64_t most_bytes, tier_model *out);
void tier_model_close(tier_model *m);

/* Returns the host memory for the experts of all layers in any form, or as much as `most_bytes`
 * allows. */
uint64_t tier_host_bytes(const tier_model *m);

/* Returns true if the model has the forms, and memory suffices. */
bool tier_can_run(const tier_model *m, const tier_case *which);

/* An engine with a layer's worth of slots, and arrays for a layer's routing. */
typedef struct tier_stack {
    moepage_engine *engine;
    moepage_expert_pool *pool; /* the engine's, as the session */
    moepage_session *session;
    uint32_t layers, experts, top_k;
    uint64_t expert_bytes;
    int32_t *ids;
    float *weights;
} tier_stack;

int tier_stack_open(const tier_model *m, const tier_case *which, uint32_t threads, tier_stack *out);
void tier_stack_close(tier_stack *s);

#endif
