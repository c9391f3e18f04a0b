/* stack_rig.h — a device, a pool and a session over a simulated machine, and steps of them. */
#ifndef STACK_RIG_H
#define STACK_RIG_H

#include "machine_rig.h"
#include "simulated/phantom.h"

/* A status that must be MOEPAGE_OK; shows the sentence if it is not. */
#define MUST(call) stack_must((call), #call)
void stack_must(moepage_status status, const char *call);

typedef struct stack {
    moepage_model *model;
    moepage_model_info shape;
    moepage_device *home;
    mp_device *device;
    moepage_expert_pool *pool;
    moepage_session *session;
    float *weights;
    uint16_t *x, *y;
} stack;

/* A model first; then a device of machine_profile(), or such; then a pool and a session with hints, of
 * math BF16, that always caches. Whatever fails fails the test. */
void stack_open_shape(stack *s, const mp_phantom_shape *shape);
void stack_set_model(stack *s, moepage_model *model);
void stack_open_device(stack *s, const mp_sim_profile *profile, uint64_t arena_bytes,
                       uint64_t workspace_bytes);
void stack_open_pool(stack *s, const moepage_expert_pool_config *config, uint32_t max_tokens);
/* All but the model; and the model too. */
void stack_close_device(stack *s);
void stack_close(stack *s);

/* Steps. */
void stack_begin(stack *s, uint32_t n_tokens);
void stack_layer(stack *s, uint32_t layer, const int32_t *ids);
moepage_session_stats stack_end(stack *s);
/* One of one layer and one token. */
moepage_session_stats stack_step(stack *s, const int32_t *ids);
uint64_t stack_now_ns(const stack *s);

#endif
