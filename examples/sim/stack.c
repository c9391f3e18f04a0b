/* Opens and closes the objects in the order of moepage.h. */
#include "sim/stack.h"

#include <stdlib.h>

#include "common/fail.h"

#define STEP_TOKENS 512u
#define MAX_SEQUENCES (1u << 20) /* live in the KV pool: blocks are the limit, not ids */

static moepage_expert_pool_config pool_config(const sim_stack_config *config)
{
    return (moepage_expert_pool_config){.struct_size = sizeof(moepage_expert_pool_config),
                                        .scope = config->scope,
                                        .slots = config->expert_slots,
                                        .policy = config->policy,
                                        .scan_percent = config->scan_percent,
                                        .bus_form = config->bus_form,
                                        .compressed_experts = config->compressed_experts,
                                        .precision = config->precision};
}

uint32_t sim_stack_step_tokens(const sim_stack_config *config)
{
    return config->step_tokens ? config->step_tokens : STEP_TOKENS;
}

static moepage_session_config session_config(const sim_stack_config *config)
{
    return (moepage_session_config){.struct_size = sizeof(moepage_session_config),
                                    .max_tokens = sim_stack_step_tokens(config),
                                    .max_sequences = config->max_sequences,
                                    .math = MOEPAGE_MATH_BF16,
                                    .prefetch = config->prefetch,
                                    .regime = config->regime};
}

static moepage_status open_model(const sim_shape *shape, double exph_ratio, moepage_model **out)
{
    mp_phantom_shape phantom = sim_shape_phantom(shape, exph_ratio);
    return mp_model_open_phantom(&phantom, out);
}

/* Opens the device; the workspace holds the session's scratch and the pool's staging. */
static int open_device(const sim_stack_config *config, sim_stack *stack)
{
    moepage_expert_pool_config pool = pool_config(config);
    moepage_session_config session = session_config(config);
    uint64_t staging, scratch;
    if (open_model(config->shape, config->exph_ratio, &stack->model) ||
        moepage_expert_pool_sizes(stack->model, &pool, 1, &staging, NULL) ||
        moepage_session_workspace(stack->model, &session, &scratch))
        return fail_library(RUN_FAILED, config->shape->name);
    int code = sim_machine_open(config->machine, config->arena_bytes, staging + scratch + 4096,
                                &stack->device);
    if (!code)
        stack->clock = sim_machine_device(stack->device);
    return code;
}

static moepage_status open_kv(const sim_stack_config *config, sim_stack *stack)
{
    const sim_shape *shape = config->shape;
    uint32_t *bytes = calloc(shape->layers, sizeof *bytes);
    if (!bytes)
        return MOEPAGE_E_NO_MEMORY;
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        bytes[layer] = sim_shape_keeps_kv(shape, layer) ? shape->kv_token_bytes : 0;
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = config->block_tokens,
                                 .layers = shape->layers,
                                 .blocks_per_granule = config->blocks_per_granule,
                                 .bytes_per_token = bytes,
                                 .max_sequences = MAX_SEQUENCES};
    moepage_status status = moepage_kv_pool_create(stack->device, &kv, &stack->kv);
    free(bytes);
    return status;
}

/* Experts first: KV gets the rest. */
static moepage_status open_pools(const sim_stack_config *config, sim_stack *stack)
{
    moepage_expert_pool_config pool = pool_config(config);
    moepage_status status =
        moepage_expert_pool_create(&stack->device, 1, stack->model, &pool, &stack->experts);
    if (!status)
        status = open_kv(config, stack);
    if (status)
        return status;
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    status = moepage_expert_pool_get_info(stack->experts, &info);
    stack->slot_bytes = info.slot_bytes;
    return status;
}

static moepage_status open_session(const sim_stack_config *config, sim_stack *stack)
{
    moepage_session_config session = session_config(config);
    moepage_predictor_config predictor = {.struct_size = sizeof predictor,
                                          .name = config->predictor,
                                          .distance = config->predict_ahead};
    moepage_status status = MOEPAGE_OK;
    if (config->predictor)
        status = moepage_predictor_create(stack->model, &predictor, &stack->predictor);
    session.predictor = stack->predictor;
    if (!status)
        status = moepage_session_create(stack->experts, stack->kv, &session, &stack->session);
    if (!status && config->controller)
        status = moepage_controller_create(stack->experts, stack->kv, config->controller,
                                           &stack->controller);
    if (!status && stack->controller && config->coverage_permille)
        status = moepage_controller_rightsize(stack->controller, &stack->predictor, 1,
                                              config->coverage_permille);
    return status;
}

int sim_stack_open(const sim_stack_config *config, bool quiet, sim_stack *out)
{
    *out = (sim_stack){0};
    int code = open_device(config, out);
    if (code) {
        sim_stack_close(out);
        return code;
    }
    moepage_status status = open_pools(config, out);
    if (!status)
        status = open_session(config, out);
    if (!status)
        return RUN_OK;
    code = status == MOEPAGE_E_BUDGET ? RUN_REFUSED : RUN_FAILED;
    if (code == RUN_FAILED || !quiet)
        fail_library(code, "the split");
    sim_stack_close(out);
    return code;
}

void sim_stack_close(sim_stack *stack)
{
    moepage_controller_destroy(stack->controller);
    moepage_session_destroy(stack->session);
    moepage_predictor_destroy(stack->predictor);
    moepage_kv_pool_destroy(stack->kv);
    moepage_expert_pool_destroy(stack->experts);
    moepage_model_close(stack->model);
    moepage_device_close(stack->device);
    *stack = (sim_stack){0};
}

uint64_t sim_stack_now(const sim_stack *stack)
{
    return stack->clock->ops->now_ns(stack->clock);
}

int sim_slot_bytes(const sim_shape *shape, uint64_t *out)
{
    moepage_model *model;
    moepage_model_info info = {.struct_size = sizeof info};
    if (open_model(shape, 0, &model))
        return fail_library(RUN_FAILED, shape->name);
    moepage_status status = moepage_model_get_info(model, &info);
    moepage_model_close(model);
    *out = info.slot_bytes;
    return status ? fail_library(RUN_FAILED, shape->name) : RUN_OK;
}
