/* A session's life: its scratch on the host and on the devices. */
#include "session/session.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda_ext.h"
#include "device/fast_scratch.h"
#include "features/precision.h"
#include "features/predicting.h"
#include "features/remapping.h"

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
    if (config->math > MOEPAGE_MATH_BF16_FAST || config->prefetch > MOEPAGE_PREFETCH_PREDICTOR ||
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

/* Scratch that BF16_FAST is of use with; 0 where it is no more than BF16. */
static uint64_t count_fast(const struct moepage_model *model, const moepage_session_config *config)
{
    const moepage_model_info *info = &model->info;
    if (config->math != MOEPAGE_MATH_BF16_FAST || model->ffn.dtype != MOEPAGE_DTYPE_BF16)
        return 0;
    return mp_session_align(
        mp_fast_scratch_bytes(info->hidden, info->expert_intermediate,
                              (uint64_t)config->max_tokens * config->max_top_k));
}

/* Cuts a bench's block; with memory NULL it only measures. */
static uint64_t cut_bench(mp_bench *bench, const struct moepage_model *model,
                          const moepage_session_config *config, uint64_t fast_bytes, bool first)
{
    uint64_t operand = config->math == MOEPAGE_MATH_FP32 ? 4 : 2;
    uint64_t rows = (uint64_t)config->max_tokens * config->max_top_k;
    uint64_t x_bytes =
        mp_session_align((uint64_t)config->max_tokens * model->info.hidden * operand);
    uint64_t inner_bytes = mp_session_align(rows * model->info.expert_intermediate * operand);
    uint64_t partial_bytes =
        first ? mp_session_align(rows * model->info.hidden * sizeof(float)) : 0;
    unsigned char *memory = bench->memory;
    if (memory) {
        bench->x = memory;
        bench->inner = memory + x_bytes;
        bench->partial = first ? (float *)(void *)(memory + x_bytes + inner_bytes) : NULL;
        bench->fast = fast_bytes ? memory + x_bytes + inner_bytes + partial_bytes : NULL;
    }
    return x_bytes + inner_bytes + partial_bytes + fast_bytes;
}

moepage_status mp_session_workspace(const struct moepage_model *model,
                                    const moepage_session_config *given, uint64_t *bytes)
{
    moepage_session_config config;
    moepage_status status = mp_session_fill_defaults(model, given, &config);
    if (status)
        return status;
    mp_bench none = {0};
    *bytes = model->info.ffn_supported
                 ? cut_bench(&none, model, &config, count_fast(model, &config), true)
                 : 0;
    return MOEPAGE_OK;
}

/* ---- creation ---- */

/* One kind of device: a layer's partial results meet on the first. */
static moepage_status check_caps(const struct moepage_expert_pool *pool, bool *async)
{
    *async = !(pool->shards[0].home->device->caps & MP_CAP_SYNC_CALLER);
    for (uint32_t d = 1; d < pool->n_shards; d++) {
        const mp_device *device = pool->shards[d].home->device;
        if (*async || !(device->caps & MP_CAP_SYNC_CALLER))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "sessions cannot step over %u devices one of which is %s: give each "
                           "device that is not the host a pool of its own",
                           pool->n_shards, device->name);
    }
    return MOEPAGE_OK;
}

/* Can every device have experts computed in host memory, which nobody keeps as it is once a plan is
 * released? */
static moepage_status check_miss(const struct moepage_expert_pool *pool,
                                 const moepage_session_config *config)
{
    for (uint32_t d = 0; d < pool->n_shards && config->miss == MOEPAGE_MISS_HOST; d++) {
        const mp_device *device = pool->shards[d].home->device;
        if (!(device->caps & MP_CAP_ON_HOST) || !(device->caps & MP_CAP_SYNC_CALLER))
            return mp_fail(
                MOEPAGE_E_UNSUPPORTED,
                "miss is MOEPAGE_MISS_HOST, but device %s has no experts computed in host "
                "memory: host devices have, and simulated machines whose file says how "
                "fast their host is",
                device->name);
    }
    return MOEPAGE_OK;
}

/* BF16_FAST where there is more to it than BF16. */
static moepage_status choose_math(struct moepage_session *session)
{
    const struct moepage_expert_pool *pool = session->pool;
    mp_device *device = pool->shards[0].home->device;
    uint64_t fast_bytes = count_fast(pool->model, &session->config);
    bool is_there = false;
    session->math = session->config.math;
    if (session->math != MOEPAGE_MATH_BF16_FAST)
        return MOEPAGE_OK;
    session->math = MOEPAGE_MATH_BF16;
    if (!fast_bytes || !pool->model->info.ffn_supported || !device->ops->cuda)
        return MOEPAGE_OK;
    moepage_status status = device->ops->cuda->fast_open(device, &is_there);
    if (status || !is_there)
        return status;
    session->math = MOEPAGE_MATH_BF16_FAST;
    session->fast_bytes = fast_bytes;
    return MOEPAGE_OK;
}

static moepage_status open_bench(struct moepage_session *session, uint32_t d)
{
    const struct moepage_model *model = session->pool->model;
    struct moepage_device *home = session->pool->shards[d].home;
    mp_bench *bench = &session->benches[d];
    moepage_status status = MOEPAGE_OK;
    if (model->info.ffn_supported) {
        bench->experts = mp_alloc_array(session->max_entries, sizeof *bench->experts);
        if (!bench->experts)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u expert launches",
                           session->max_entries);
        uint64_t bytes = cut_bench(bench, model, &session->config, session->fast_bytes, d == 0);
        status = mp_home_workspace_alloc(home, bytes, &bench->memory);
        if (status)
            return status;
        bench->memory_bytes = bytes;
        cut_bench(bench, model, &session->config, session->fast_bytes, d == 0);
    }
    status = home->device->ops->stream_create(home->device, MP_STREAM_COMPUTE, &bench->compute);
    if (!status)
        mp_pool_set_reader(session->pool, &session->client, d, bench->compute);
    return status;
}

static void close_bench(struct moepage_session *session, uint32_t d)
{
    struct moepage_device *home = session->pool->shards[d].home;
    mp_bench *bench = &session->benches[d];
    if (bench->compute) {
        (void)home->device->ops->sync(bench->compute, bench->last); /* poisoned: nothing runs */
        mp_pool_set_reader(session->pool, &session->client, d, NULL);
        home->device->ops->stream_destroy(bench->compute);
    }
    if (bench->memory)
        mp_home_workspace_free(home, bench->memory, bench->memory_bytes);
    mp_free(bench->experts);
}

static bool alloc_flight(struct moepage_session *session, mp_flight *flight)
{
    uint32_t entries = session->max_entries, experts = session->pool->experts;
    uint32_t n_tensors = session->pool->model->info.expert_tensors;
    flight->holds = mp_alloc_array(entries, sizeof *flight->holds);
    flight->first_row = mp_alloc_array((size_t)entries + 1, sizeof *flight->first_row);
    flight->rows = mp_alloc_array(session->max_rows, sizeof *flight->rows);
    flight->groups = mp_alloc_array((size_t)entries + 1, sizeof *flight->groups);
    flight->tokens = mp_alloc_array(session->config.max_tokens, sizeof *flight->tokens);
    flight->ids = mp_alloc_array(session->max_rows, sizeof *flight->ids);
    flight->weights = mp_alloc_array(session->max_rows, sizeof *flight->weights);
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
    uint32_t experts = session->pool->experts, tokens = session->config.max_tokens;
    session->local = mp_alloc_array(experts, sizeof *session->local);
    session->local_stamp = mp_alloc_array(experts, sizeof *session->local_stamp);
    session->distinct = mp_alloc_array(experts, sizeof *session->distinct);
    session->order = mp_alloc_array(experts, sizeof *session->order);
    session->order_counts = mp_alloc_array(experts, sizeof *session->order_counts);
    session->counts = mp_alloc_array(session->max_entries, sizeof *session->counts);
    session->launched = mp_alloc_array(session->max_entries, sizeof *session->launched);
    session->token_placed = mp_alloc_array(tokens, sizeof *session->token_placed);
    session->scan_token = mp_alloc_array(tokens, sizeof *session->scan_token);
    session->kv_uses = mp_alloc_array(session->config.max_sequences, sizeof *session->kv_uses);
    bool ok = session->local && session->local_stamp && session->distinct && session->order &&
              session->order_counts && session->counts && session->launched &&
              session->token_placed && session->scan_token && session->kv_uses;
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS && ok; i++)
        ok = alloc_flight(session, &session->flights[i]);
    if (ok && (session->config.prefetch == MOEPAGE_PREFETCH_PREVIOUS ||
               session->config.regime != MOEPAGE_REGIME_CACHE)) {
        session->previous = mp_alloc(mp_previous_bytes(session->pool->layers, experts));
        ok = session->previous != NULL;
    }
    return ok ? MOEPAGE_OK
              : mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session of %u tokens", tokens);
}

static void free_parts(struct moepage_session *session)
{
    mp_predicting_close(session);
    if (session->kv)
        mp_kv_pool_leave(session->kv, &session->kv_reader);
    for (uint32_t d = 0; d < session->pool->n_shards; d++)
        close_bench(session, d);
    mp_pool_leave(session->pool, &session->client);
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        free_flight(&session->flights[i]);
    mp_free(session->local);
    mp_free(session->local_stamp);
    mp_free(session->distinct);
    mp_free(session->order);
    mp_free(session->order_counts);
    mp_free(session->counts);
    mp_free(session->launched);
    mp_free(session->token_placed);
    mp_free(session->scan_token);
    mp_free(session->kv_uses);
    mp_free(session->previous);
    mp_remapping_close(session);
    mp_streaming_close(session);
    if (session->kv)
        atomic_fetch_sub(&session->kv->users, 1);
}

moepage_status mp_session_create(struct moepage_expert_pool *pool, struct moepage_kv_pool *kv,
                                 const moepage_session_config *given, struct moepage_session **out)
{
    moepage_session_config config;
    bool async = false;
    moepage_status status = mp_session_fill_defaults(pool->model, given, &config);
    if (!status)
        status = mp_precision_check(pool, &config);
    if (!status)
        status = check_caps(pool, &async);
    if (!status)
        status = check_miss(pool, &config);
    if (status)
        return status;
    struct moepage_session *session = mp_alloc(sizeof *session);
    if (!session)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session");
    session->pool = pool;
    session->kv = kv;
    if (kv)
        atomic_fetch_add(&kv->users, 1);
    session->config = config;
    session->async = async;
    mp_operands_find(pool, config.miss == MOEPAGE_MISS_HOST, &session->operands);
    session->max_rows = config.max_tokens * config.max_top_k;
    session->max_entries = session->max_rows;
    if (config.grouping == MOEPAGE_GROUP_EXPERTS && session->max_entries > pool->experts)
        session->max_entries = pool->experts;
    session->stats.struct_size = sizeof session->stats;

    status = alloc_tables(session);
    if (status)
        goto fail;
    /* Room for two whole steps of hits before anyone must replay them. */
    uint64_t two_steps = 2ull * pool->layers * (MP_TOUCH_HEADER + pool->experts);
    status = mp_pool_join(pool, &session->client, two_steps);
    if (!status)
        status = mp_streaming_open(session);
    if (!status)
        status = mp_predicting_open(session);
    if (!status)
        status = choose_math(session);
    if (status)
        goto fail;
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        status = open_bench(session, d);
        if (status)
            goto fail;
    }
    if (kv)
        mp_kv_pool_join(kv, &session->kv_reader,
                        kv->home == pool->shards[0].home ? mp_session_reader(session, 0) : NULL);
    mp_handle_open(&session->handle, MP_KIND_SESSION);
    *out = session;
    return MOEPAGE_OK;

fail:
    free_parts(session);
    mp_free(session);
    return status;
}

moepage_status mp_session_destroy(struct moepage_session *session)
{
    mp_graveyard *graveyard = &session->pool->shards[0].home->graveyard;
    moepage_status status = mp_session_cancel(session);
    if (status)
        return status;
    if (session->trace)
        atomic_fetch_sub(&session->trace->users, 1);
    free_parts(session);
    mp_graveyard_bury(graveyard, session);
    return MOEPAGE_OK;
}
