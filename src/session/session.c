/* A session's life: its scratch on the host and on the devices. */
#include "session/inside.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda_ext.h"
#include "device/fast_scratch.h"

#define DEFAULT_MAX_TOKENS 256

/* ---- sizes ---- */

moepage_status mp_session_fill_defaults(const struct moepage_model *model,
                                        const moepage_session_config *given,
                                        moepage_session_config *config)
{
    const moepage_model_info *info = &model->info;
    *config = *given;
    if (!config->max_tokens)
        config->max_tokens = DEFAULT_MAX_TOKENS;
    if (!config->max_sequences)
        config->max_sequences = config->max_tokens;
    if (!config->max_top_k)
        config->max_top_k = info->top_k;
    if (!config->prefetch_depth && config->prefetch != MOEPAGE_PREFETCH_PREDICTOR)
        config->prefetch_depth = 1;
    if (config->max_top_k > info->experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "max_top_k is %u, a layer has only %u experts",
                       config->max_top_k, info->experts);
    if (config->math > MOEPAGE_MATH_INT8 || config->prefetch > MOEPAGE_PREFETCH_PREDICTOR ||
        config->grouping > MOEPAGE_GROUP_TOKENS)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "math %u, prefetch %u or grouping %u is none of the "
                       "documented values",
                       config->math, config->prefetch, config->grouping);
    if (config->regime > MOEPAGE_REGIME_STREAM)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "regime is %u, it must be MOEPAGE_REGIME_AUTO, _CACHE or _STREAM",
                       config->regime);
    if (config->miss > MOEPAGE_MISS_HOST || config->reserved)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "miss is %u and reserved %u: they must be MOEPAGE_MISS_WAIT, _LOW or _HOST, and 0",
            config->miss, config->reserved);
    uint32_t deepest = info->moe_layers > 1 ? info->moe_layers - 1 : 1;
    if (config->prefetch_depth > deepest)
        config->prefetch_depth = deepest;
    if ((uint64_t)config->max_tokens * config->max_top_k > UINT32_MAX / 2)
        return mp_fail(MOEPAGE_E_ARGUMENT, "max_tokens %u times max_top_k %u is too many rows",
                       config->max_tokens, config->max_top_k);
    return MOEPAGE_OK;
}

/* Returns the scratch that BF16_FAST needs to be useful; 0 where it is no faster than BF16. */
static uint64_t count_fast(const struct moepage_model *model, const moepage_session_config *config)
{
    const moepage_model_info *info = &model->info;
    bool any = false;
    for (uint32_t l = 0; l < model->n_layouts; l++)
        any = any || mp_ffn_dtype(&model->layouts[l].ffn) == MOEPAGE_DTYPE_BF16;
    if (config->math != MOEPAGE_MATH_BF16_FAST || !any)
        return 0;
    return mp_session_align(
        mp_fast_scratch_bytes(info->hidden, info->expert_intermediate,
                              (uint64_t)config->max_tokens * config->max_top_k));
}

static uint64_t operand_bytes(const moepage_session_config *config)
{
    return config->math == MOEPAGE_MATH_FP32 || config->math == MOEPAGE_MATH_INT8 ? 4 : 2;
}

/* Returns the bytes of a step's x, as operands. */
static uint64_t count_x(const struct moepage_model *model, const moepage_session_config *config)
{
    return mp_session_align((uint64_t)config->max_tokens * model->info.hidden *
                            operand_bytes(config));
}

/* Returns the bytes of rows' results. */
static uint64_t count_partial(const struct moepage_model *model,
                              const moepage_session_config *config)
{
    return mp_session_align((uint64_t)config->max_tokens * config->max_top_k * model->info.hidden *
                            sizeof(float));
}

/* Divides the block of a scratch among its parts; with memory NULL it only measures. */
static uint64_t carve_scratch(mp_device_scratch *scratch, const struct moepage_model *model,
                              const moepage_session_config *config, uint64_t fast_bytes,
                              bool has_partial)
{
    uint64_t rows = (uint64_t)config->max_tokens * config->max_top_k;
    uint64_t x_bytes = count_x(model, config);
    uint64_t inner_bytes =
        mp_session_align(rows * model->info.expert_intermediate * operand_bytes(config));
    uint64_t partial_bytes = has_partial ? count_partial(model, config) : 0;
    unsigned char *memory = scratch->memory;
    if (memory) {
        scratch->x = memory;
        scratch->inner = memory + x_bytes;
        scratch->partial = has_partial ? (float *)(void *)(memory + x_bytes + inner_bytes) : NULL;
        scratch->fast = fast_bytes ? memory + x_bytes + inner_bytes + partial_bytes : NULL;
    }
    return x_bytes + inner_bytes + partial_bytes + fast_bytes;
}

uint64_t mp_session_workspace(const struct moepage_model *model,
                              const moepage_session_config *config)
{
    mp_device_scratch none = {0};
    if (!model->info.ffn_supported)
        return 0;
    return carve_scratch(&none, model, config, count_fast(model, config), true);
}

/* ---- creation ---- */

/* Checks that the devices are of one kind: a layer's partial results are summed on the first. */
static moepage_status check_devices(const struct moepage_expert_pool *pool, bool *async)
{
    const mp_device *first = mp_pool_home(pool, 0)->device;
    *async = !(first->caps & MP_CAP_SYNC_CALLER);
    for (uint32_t d = 1; d < mp_pool_get_shape(pool).n_devices; d++) {
        const mp_device *device = mp_pool_home(pool, d)->device;
        const bool both_hosts = !*async && (device->caps & MP_CAP_SYNC_CALLER);
        if (!both_hosts && !(device->ops == first->ops && first->ops->cuda))
            return mp_fail(
                MOEPAGE_E_UNSUPPORTED,
                "sessions cannot step over %s and %s together, but over several hosts or "
                "several CUDA devices: give devices of different kinds a pool each",
                first->name, device->name);
    }
    return MOEPAGE_OK;
}

/* Checks that experts can be computed in host memory, where they may change once a plan is released: by every
 * device, or for CUDA devices beside them. */
static moepage_status check_miss(const struct moepage_expert_pool *pool,
                                 const moepage_session_config *config)
{
    uint32_t n_devices = mp_pool_get_shape(pool).n_devices;
    for (uint32_t d = 0; d < n_devices && config->miss == MOEPAGE_MISS_HOST; d++) {
        const mp_device *device = mp_pool_home(pool, d)->device;
        const bool on_host = (device->caps & MP_CAP_ON_HOST) && (device->caps & MP_CAP_SYNC_CALLER);
        if (!on_host && !device->ops->cuda)
            return mp_fail(
                MOEPAGE_E_UNSUPPORTED,
                "miss is MOEPAGE_MISS_HOST, but device %s has no experts computed in host "
                "memory: host and CUDA devices have, and simulated machines whose file says how "
                "fast their host is",
                device->name);
    }
    return MOEPAGE_OK;
}

/* Chooses BF16_FAST or INT8 if the device has more to offer for it than BF16. */
static moepage_status choose_math(struct moepage_session *session)
{
    const struct moepage_model *model = session->step.shape.model;
    mp_device *device = session->scratch[0].device;
    uint64_t fast_bytes = count_fast(model, &session->step.config);
    bool is_there = true;
    session->math = session->step.config.math;
    if (session->math == MOEPAGE_MATH_INT8 && !(device->caps & MP_CAP_INT8))
        session->math = MOEPAGE_MATH_BF16;
    if (session->math != MOEPAGE_MATH_BF16_FAST)
        return MOEPAGE_OK;
    session->math = MOEPAGE_MATH_BF16;
    if (!fast_bytes || !model->info.ffn_supported || !device->ops->cuda)
        return MOEPAGE_OK;
    for (uint32_t d = 0; d < session->step.shape.n_devices && is_there; d++) {
        device = session->scratch[d].device;
        moepage_status status = device->ops->cuda->fast_open(device, &is_there);
        if (status)
            return status;
    }
    if (!is_there)
        return MOEPAGE_OK;
    session->math = MOEPAGE_MATH_BF16_FAST;
    session->fast_bytes = fast_bytes;
    return MOEPAGE_OK;
}

static moepage_status open_scratch(struct moepage_session *session, uint32_t d)
{
    const struct moepage_model *model = session->step.shape.model;
    mp_device_scratch *scratch = &session->scratch[d];
    struct moepage_device *home = scratch->home;
    const bool has_partial = d == 0 && session->step.shape.indirect == 0;
    moepage_status status = MOEPAGE_OK;
    if (model->info.ffn_supported) {
        scratch->experts = mp_alloc_array(session->max_entries, sizeof *scratch->experts);
        if (!scratch->experts)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u expert launches",
                           session->max_entries);
        uint64_t bytes =
            carve_scratch(scratch, model, &session->step.config, session->fast_bytes, has_partial);
        status = mp_home_workspace_alloc(home, bytes, &scratch->memory);
        if (status)
            return status;
        scratch->memory_bytes = bytes;
        carve_scratch(scratch, model, &session->step.config, session->fast_bytes, has_partial);
    }
    status = home->device->ops->stream_create(home->device, MP_STREAM_COMPUTE, &scratch->compute);
    if (!status)
        mp_pool_set_reader(session->step.pool, session->step.client, d, scratch->compute);
    return status;
}

static void close_scratch(struct moepage_session *session, uint32_t d)
{
    mp_device_scratch *scratch = &session->scratch[d];
    struct moepage_device *home = scratch->home;
    if (scratch->compute) {
        /* On a poisoned device nothing runs any more. */
        (void)home->device->ops->sync(scratch->compute, scratch->last);
        mp_pool_set_reader(session->step.pool, session->step.client, d, NULL);
        home->device->ops->stream_destroy(scratch->compute);
    }
    if (scratch->memory)
        mp_home_workspace_free(home, scratch->memory, scratch->memory_bytes);
    mp_free(scratch->experts);
}

static bool alloc_flight(struct moepage_session *session, mp_flight *flight)
{
    uint32_t entries = session->max_entries, experts = session->step.shape.experts;
    uint32_t n_tensors = session->step.shape.model->info.expert_tensors;
    flight->holds = mp_alloc_array(entries, sizeof *flight->holds);
    flight->first_row = mp_alloc_array((size_t)entries + 1, sizeof *flight->first_row);
    flight->rows = mp_alloc_array(session->step.max_rows, sizeof *flight->rows);
    flight->groups = mp_alloc_array((size_t)entries + 1, sizeof *flight->groups);
    flight->tokens = mp_alloc_array(session->step.config.max_tokens, sizeof *flight->tokens);
    flight->ids = mp_alloc_array(session->step.max_rows, sizeof *flight->ids);
    flight->weights = mp_alloc_array(session->step.max_rows, sizeof *flight->weights);
    flight->plan_experts = mp_alloc_array(entries, sizeof *flight->plan_experts);
    flight->plan_tensors =
        mp_alloc_array((size_t)entries * n_tensors, sizeof *flight->plan_tensors);
    flight->expert_map = mp_alloc_array(experts, sizeof *flight->expert_map);
    if (!flight->holds || !flight->first_row || !flight->rows || !flight->groups ||
        !flight->tokens || !flight->ids || !flight->weights || !flight->plan_experts ||
        !flight->plan_tensors || !flight->expert_map)
        return false;
    for (uint32_t e = 0; e < experts; e++)
        flight->expert_map[e] = -1;
    return true;
}

static void free_flight(mp_flight *flight)
{
    mp_free(flight->holds);
    mp_free(flight->first_row);
    mp_free(flight->rows);
    mp_free(flight->groups);
    mp_free(flight->tokens);
    mp_free(flight->ids);
    mp_free(flight->weights);
    mp_free(flight->plan_experts);
    mp_free(flight->plan_tensors);
    mp_free(flight->expert_map);
}

static moepage_status alloc_tables(struct moepage_session *session)
{
    uint32_t experts = session->step.shape.experts, tokens = session->step.config.max_tokens;
    session->local = mp_alloc_array(experts, sizeof *session->local);
    session->local_stamp = mp_alloc_array(experts, sizeof *session->local_stamp);
    session->ones = mp_alloc_array(session->step.max_rows, sizeof *session->ones);
    session->distinct = mp_alloc_array(experts, sizeof *session->distinct);
    session->order = mp_alloc_array(experts, sizeof *session->order);
    session->order_counts = mp_alloc_array(experts, sizeof *session->order_counts);
    session->counts = mp_alloc_array(session->max_entries, sizeof *session->counts);
    session->launched = mp_alloc_array(session->max_entries, sizeof *session->launched);
    session->token_placed = mp_alloc_array(tokens, sizeof *session->token_placed);
    session->scan_token = mp_alloc_array(tokens, sizeof *session->scan_token);
    session->step.layouts =
        mp_alloc_array(session->step.shape.layers, sizeof *session->step.layouts);
    bool ok = session->step.layouts && session->local && session->local_stamp && session->ones &&
              session->distinct && session->order && session->order_counts && session->counts &&
              session->launched && session->token_placed && session->scan_token;
    for (uint32_t r = 0; r < session->step.max_rows && ok; r++)
        session->ones[r] = 1;
    for (uint32_t l = 0; l < session->step.shape.layers && ok; l++)
        session->step.layouts[l] = mp_model_layout(session->step.shape.model, l);
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS && ok; i++)
        ok = alloc_flight(session, &session->flights[i]);
    return ok ? MOEPAGE_OK
              : mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session of %u tokens", tokens);
}

static void free_parts(struct moepage_session *session)
{
    mp_kv_reader_close(session->kv);
    for (uint32_t d = 0; d < session->step.shape.n_devices; d++)
        close_scratch(session, d);
    mp_exchange_close(session);
    mp_aside_close(session);
    mp_client_close(session->step.pool, session->step.client);
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        free_flight(&session->flights[i]);
    mp_operands_close(&session->operands);
    mp_free((void *)session->step.layouts);
    mp_free(session->local);
    mp_free(session->local_stamp);
    mp_free(session->ones);
    mp_free(session->distinct);
    mp_free(session->order);
    mp_free(session->order_counts);
    mp_free(session->counts);
    mp_free(session->launched);
    mp_free(session->token_placed);
    mp_free(session->scan_token);
}

static moepage_status open_exchange(struct moepage_session *session)
{
    const struct moepage_model *model = session->step.shape.model;
    const moepage_session_config *config = &session->step.config;
    const bool computes = model->info.ffn_supported;
    const uint64_t x_bytes = count_x(model, config), partial_bytes = count_partial(model, config);
    moepage_status status = mp_exchange_open(session, computes ? x_bytes : 0, partial_bytes);
    if (!status && computes && session->step.async && config->miss == MOEPAGE_MISS_HOST)
        status = mp_aside_open(session, x_bytes, partial_bytes);
    return status;
}

/* What outlasts a step reads KV on the stream of KV's device, if the session has one there. */
static moepage_status open_reader(struct moepage_session *session, struct moepage_kv_pool *kv)
{
    const mp_step_view *step = &session->step;
    struct moepage_device *home = mp_kv_pool_home(kv);
    uint32_t d = step->shape.n_devices - 1;
    while (d && session->scratch[d].home != home)
        d--;
    const bool ordered = step->async && session->scratch[d].home == home;
    session->kv_device = d;
    return mp_kv_reader_open(kv, step->config.max_sequences,
                             ordered ? session->scratch[d].compute : NULL, &session->kv);
}

/* Returns the slots without which a session cannot go on: an expert at a time, or a token's together. */
static uint32_t count_needed(const moepage_session_config *config)
{
    return config->grouping == MOEPAGE_GROUP_TOKENS ? config->max_top_k : 1;
}

static moepage_status open_parts(struct moepage_session *session, struct moepage_kv_pool *kv)
{
    mp_step_view *step = &session->step;
    moepage_status status = alloc_tables(session);
    if (!status)
        status = mp_operands_open(&step->shape, step->config.miss == MOEPAGE_MISS_HOST,
                                  &session->operands);
    if (!status)
        status = mp_client_open(step->pool, count_needed(&step->config), &step->client);
    if (!status)
        status = choose_math(session);
    for (uint32_t d = 0; d < step->shape.n_devices && !status; d++)
        status = open_scratch(session, d);
    if (!status)
        status = open_exchange(session);
    return !status && kv ? open_reader(session, kv) : status;
}

moepage_status mp_session_create(struct moepage_expert_pool *pool, struct moepage_kv_pool *kv,
                                 const moepage_session_config *config, struct moepage_session **out)
{
    bool async = false;
    moepage_status status = check_devices(pool, &async);
    if (!status)
        status = check_miss(pool, config);
    if (status)
        return status;
    struct moepage_session *session = mp_alloc(sizeof *session);
    if (!session)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session");
    session->step = (mp_step_view){.pool = pool,
                                   .shape = mp_pool_get_shape(pool),
                                   .config = *config,
                                   .device = mp_pool_home(pool, 0)->device,
                                   .max_rows = config->max_tokens * config->max_top_k,
                                   .async = async};
    const mp_pool_shape *shape = &session->step.shape;
    for (uint32_t d = 0; d < shape->n_devices; d++) {
        session->scratch[d].home = mp_pool_home(pool, d);
        session->scratch[d].device = session->scratch[d].home->device;
    }
    session->max_entries = session->step.max_rows;
    if (config->grouping == MOEPAGE_GROUP_EXPERTS && session->max_entries > shape->experts)
        session->max_entries = shape->experts;
    session->stats.struct_size = sizeof session->stats;
    status = open_parts(session, kv);
    if (status) {
        free_parts(session);
        mp_free(session);
        return status;
    }
    mp_handle_open(&session->handle, MP_KIND_SESSION);
    *out = session;
    return MOEPAGE_OK;
}

moepage_status mp_session_destroy(struct moepage_session *session)
{
    mp_graveyard *graveyard = &session->scratch[0].home->graveyard;
    moepage_status status = mp_session_cancel(session);
    if (status)
        return status;
    while (session->features.n > 0)
        mp_session_detach(session, session->features.at[session->features.n - 1].hooks);
    free_parts(session);
    mp_graveyard_bury(graveyard, session);
    return MOEPAGE_OK;
}

const moepage_session_stats *mp_session_stats(const struct moepage_session *session)
{
    return &session->stats;
}

/* ---- another engine runs the layers ---- */

static void tell_taken(struct moepage_session *session, bool taken)
{
    const mp_feature_list *on = &session->on[MP_ON_TAKEN];
    for (uint32_t i = 0; i < on->n; i++)
        on->at[i].hooks->taken(on->at[i].state, taken);
}

moepage_status mp_session_take(struct moepage_session *session, const void *by,
                               mp_session_scratch *out)
{
    const mp_device_scratch *scratch = &session->scratch[0];
    moepage_status status = scratch->device->ops->sync(scratch->compute, scratch->last);
    if (status)
        return status;
    *out = (mp_session_scratch){.x = scratch->x,
                                .inner = scratch->inner,
                                .partial = scratch->partial,
                                .math = session->math};
    session->taken_by = by;
    mp_client_begin_step(session->step.client, 0);
    tell_taken(session, true);
    return MOEPAGE_OK;
}

void mp_session_give_back(struct moepage_session *session)
{
    session->taken_by = NULL;
    tell_taken(session, false);
}

bool mp_session_is_taken(const struct moepage_session *session)
{
    return session->taken_by != NULL;
}

bool mp_session_is_rerouted(const struct moepage_session *session)
{
    return session->on[MP_ON_BEFORE_ROUTE].n > 0;
}
