/* Opening a stack over a simulated machine, and stepping it. */
#include "stack_rig.h"

#include <stdlib.h>

#include "arena/home.h"
#include "testing.h"

void stack_must(moepage_status status, const char *call)
{
    if (status)
        fail_msg("%s: %s: %s", call, moepage_status_text(status), moepage_last_error());
}

void stack_open_device(stack *s, const mp_sim_profile *profile, uint64_t arena_bytes,
                       uint64_t workspace_bytes)
{
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = arena_bytes + workspace_bytes,
                                    .workspace_bytes = workspace_bytes};
    MUST(mp_sim_open(profile, &config, &s->device));
    MUST(mp_home_open(s->device, &config, &s->home));
}

void stack_open_pool(stack *s, const moepage_expert_pool_config *config, uint32_t max_tokens)
{
    MUST(moepage_expert_pool_create(&s->home, 1, s->model, config, &s->pool));
    moepage_session_config session = {.struct_size = sizeof session,
                                      .max_tokens = max_tokens,
                                      .math = MOEPAGE_MATH_BF16,
                                      .prefetch = MOEPAGE_PREFETCH_HINT,
                                      .regime = MOEPAGE_REGIME_CACHE};
    MUST(moepage_session_create(s->pool, NULL, &session, &s->session));
    uint64_t rows = (uint64_t)max_tokens * s->shape.top_k;
    s->weights = calloc(rows, sizeof *s->weights);
    s->x = calloc((uint64_t)max_tokens * s->shape.hidden, sizeof *s->x);
    s->y = calloc((uint64_t)max_tokens * s->shape.hidden, sizeof *s->y);
    assert_true(s->weights && s->x && s->y);
}

void stack_set_model(stack *s, moepage_model *model)
{
    *s = (stack){.model = model, .shape = {.struct_size = sizeof s->shape}};
    MUST(moepage_model_get_info(model, &s->shape));
}

void stack_open_shape(stack *s, const mp_phantom_shape *shape)
{
    moepage_model *model;
    MUST(mp_model_open_phantom(shape, &model));
    stack_set_model(s, model);
}

void stack_close_device(stack *s)
{
    MUST(moepage_session_destroy(s->session));
    MUST(moepage_expert_pool_destroy(s->pool));
    MUST(moepage_device_close(s->home));
    free(s->weights);
    free(s->x);
    free(s->y);
}

void stack_close(stack *s)
{
    stack_close_device(s);
    MUST(moepage_model_close(s->model));
}

void stack_begin(stack *s, uint32_t n_tokens)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = n_tokens};
    MUST(moepage_session_begin(s->session, &step));
}

void stack_layer(stack *s, uint32_t layer, const int32_t *ids)
{
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = s->shape.top_k,
                               .ids = ids,
                               .weights = s->weights};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_BF16,
                       .x = s->x,
                       .y = s->y};
    MUST(moepage_session_route(s->session, layer, &routing, NULL));
    MUST(moepage_session_ffn(s->session, layer, &ffn));
    MUST(moepage_session_retire(s->session, layer));
}

moepage_session_stats stack_end(stack *s)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    MUST(moepage_session_end(s->session, &stats));
    return stats;
}

moepage_session_stats stack_step(stack *s, const int32_t *ids)
{
    stack_begin(s, 1);
    stack_layer(s, 0, ids);
    return stack_end(s);
}

uint64_t stack_now_ns(const stack *s)
{
    return s->device->ops->now_ns(s->device);
}
