/* A device-driven path's life, and what it reports. */
#include "device_paths/path.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "model/dtype.h"

#define DEFAULT_TIMEOUT_MS 10000

/* ---- sizes ---- */

/* Returns the bytes at the front of the block that must be initialised when the path begins. */
static uint64_t first_bytes(uint64_t keys)
{
    return mp_session_align(sizeof(mp_path_state)) + 2 * mp_session_align(keys * sizeof(int32_t));
}

/* Cuts a path's block; with memory NULL it only measures. */
static uint64_t cut_block(void *block, const moepage_model_info *info, uint64_t max_rows,
                          mp_path_memory *out)
{
    uint64_t keys = (uint64_t)info->moe_layers * info->experts;
    uint64_t map_at = mp_session_align(sizeof(mp_path_state));
    uint64_t stamps_at = map_at + mp_session_align(keys * sizeof(int32_t));
    uint64_t table_at = first_bytes(keys);
    uint64_t rows_at = table_at + mp_session_align(info->experts * sizeof(mp_ffn_expert));
    unsigned char *memory = block;
    if (memory)
        *out = (mp_path_memory){
            .state = block,
            .map = (int32_t *)(void *)(memory + map_at),
            .stamps = (uint32_t *)(void *)(memory + stamps_at),
            .table = (mp_ffn_expert *)(void *)(memory + table_at),
            .rows = (uint32_t *)(void *)(memory + rows_at),
        };
    return rows_at + mp_session_align(max_rows * sizeof(uint32_t));
}

static moepage_status choose_max_tokens(const moepage_cuda_path_config *config,
                                        uint32_t session_tokens, uint32_t *out)
{
    *out = config->max_tokens ? config->max_tokens : session_tokens;
    if (*out > session_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT, "max_tokens is %u, at most the session's, %u", *out,
                       session_tokens);
    return MOEPAGE_OK;
}

moepage_status mp_path_workspace(const struct moepage_model *model,
                                 const moepage_session_config *given,
                                 const moepage_cuda_path_config *config, uint64_t *bytes)
{
    moepage_session_config session;
    uint32_t max_tokens = 0;
    moepage_status status = mp_session_fill_defaults(model, given, &session);
    if (!status)
        status = choose_max_tokens(config, session.max_tokens, &max_tokens);
    if (!status)
        *bytes = cut_block(NULL, &model->info, (uint64_t)max_tokens * session.max_top_k, NULL);
    return status;
}

/* ---- creation ---- */

static moepage_status check_experts(moepage_session *session)
{
    const mp_step_view *view = mp_session_view(session);
    moepage_status status = MOEPAGE_OK;
    for (uint32_t l = 0; l < view->shape.layers && !status; l++) {
        mp_ffn_layout image;
        const mp_kernel_experts_args kind = mp_session_experts(session, l, &image);
        status = view->device->ops->cuda->check_experts(view->device, &kind);
    }
    return status;
}

static moepage_status check_session(moepage_session *session)
{
    const mp_step_view *view = mp_session_view(session);
    const mp_pool_shape *shape = &view->shape;
    if (!view->device->ops->cuda)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the pool lives on device \"%s\": paths are CUDA devices' alone",
                       view->device->name);
    if (shape->n_devices != 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "the pool lives on %u devices, a path needs one",
                       shape->n_devices);
    if (!shape->model->info.ffn_supported)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the experts of this %s model cannot be run by the library",
                       shape->model->info.architecture);
    if (shape->bundle->n_slots > 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the experts of this %s model differ in size from layer to layer: a path "
                       "needs slots of one size",
                       shape->model->info.architecture);
    if (view->config.miss == MOEPAGE_MISS_HOST)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the session has the host compute absent experts, which a path does not "
                       "know: it needs a session that waits for experts (MOEPAGE_MISS_WAIT)");
    if (shape->precision && (shape->precision->serve == MOEPAGE_SERVE_VERSIONS ||
                             view->config.miss == MOEPAGE_MISS_LOW))
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "the session computes experts in two versions, and a path in one: it needs a "
            "session that waits for experts (MOEPAGE_MISS_WAIT), over a pool without "
            "precision or one with MOEPAGE_SERVE_CACHE");
    moepage_status status = check_experts(session);
    if (status)
        return status;
    if (shape->experts > MP_PATH_EXPERTS)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "a layer has %u experts, a path can tell %u apart",
                       shape->experts, MP_PATH_EXPERTS);
    if (mp_session_is_taken(session))
        return mp_fail(MOEPAGE_E_STATE, "the session has been taken over by another path");
    if (mp_session_is_rerouted(session))
        return mp_fail(MOEPAGE_E_STATE, "remapping is on in the session: turn it off, and remap a "
                                        "path's routing with moepage_cuda_remap_run");
    if (view->open)
        return mp_fail(MOEPAGE_E_STATE, "a step is open: end or cancel it first");
    return MOEPAGE_OK;
}

static moepage_status alloc_tables(moepage_cuda_path *path)
{
    const mp_pool_shape *shape = &path->shape;
    path->published = mp_alloc_array(shape->keys, sizeof *path->published);
    path->missing = mp_alloc_array(shape->experts, sizeof *path->missing);
    path->victims = mp_alloc_array(path->share.slots, sizeof *path->victims);
    if (!path->published || !path->missing || !path->victims)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path over %u experts", shape->keys);
    return MOEPAGE_OK;
}

/* Initialises the map, the stamps and the device's state. */
static moepage_status write_first(moepage_cuda_path *path)
{
    const mp_device_ops *ops = path->device->ops;
    uint64_t bytes = first_bytes(path->shape.keys);
    unsigned char *first = mp_alloc(bytes);
    if (!first)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a map of %u experts", path->shape.keys);
    memset(first + mp_session_align(sizeof(mp_path_state)), 0xff,
           path->shape.keys * sizeof(int32_t)); /* every word of the map is -1 */
    mp_copy copy = {.dst = path->block, .src = first, .bytes = bytes};
    mp_tick tick = 0;
    moepage_status status = ops->copy(path->answers, &copy, 1, &tick);
    if (!status)
        status = ops->sync(path->answers, tick);
    mp_free(first);
    return status;
}

/* Says so if waiting layers may hold up their own answers. */
static moepage_status shake_hands(moepage_cuda_path *path)
{
    const uint64_t marks_at = offsetof(mp_path_mail, experts);
    const mp_cuda_handshake handshake = {
        .marks = path->mail->experts,
        .marks_gpu = path->shared.device + marks_at,
        .word = (uint64_t)(uintptr_t)&path->memory.state->answer,
    };
    bool is_shared = false;
    moepage_status status =
        path->device->ops->cuda->shake_hands(path->answers, &handshake, &is_shared);
    if (!status && is_shared)
        mp_log_write(
            &path->device->log, MOEPAGE_LOG_WARNING,
            "%s: streams share the GPU's queues, so that a path's layer which waits for an "
            "expert may hold up its own answer until timeout_ms: set "
            "CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts, and leave "
            "CUDA_LAUNCH_BLOCKING out",
            path->device->name);
    return status;
}

static moepage_status open_device(moepage_cuda_path *path)
{
    const mp_pool_shape *shape = &path->shape;
    const mp_device_ops *ops = path->device->ops;
    uint64_t max_rows = (uint64_t)path->max_tokens * path->max_top_k;
    uint64_t bytes = cut_block(NULL, &shape->model->info, max_rows, NULL);
    moepage_status status = mp_home_workspace_alloc(path->home, bytes, &path->block);
    if (status)
        return status;
    path->block_bytes = bytes;
    cut_block(path->block, &shape->model->info, max_rows, &path->memory);
    bytes = sizeof(mp_path_mail) + (uint64_t)shape->keys * sizeof(uint32_t);
    status = ops->cuda->shared_alloc(path->device, bytes, &path->shared);
    if (status)
        return status;
    memset(path->shared.host, 0, bytes);
    path->mail = path->shared.host;
    path->mail_stamps = (const uint32_t *)(const void *)(path->mail + 1);
    status = ops->stream_create(path->device, MP_STREAM_DEMAND, &path->answers);
    if (!status)
        status = write_first(path);
    return status ? status : shake_hands(path);
}

static void free_parts(moepage_cuda_path *path)
{
    const mp_device_ops *ops = path->device->ops;
    if (path->poller)
        ops->cuda->poller_stop(path->poller);
    if (path->taken)
        mp_session_give_back(path->session);
    if (path->answers)
        ops->stream_destroy(path->answers);
    if (path->published)
        mp_pool_release(path->pool, path->published, path->shape.keys);
    if (path->share.slots)
        mp_pool_put_back(path->pool, &path->share);
    if (path->shared.host)
        ops->cuda->shared_free(path->device, &path->shared);
    if (path->block)
        mp_home_workspace_free(path->home, path->block, path->block_bytes);
    pthread_mutex_destroy(&path->failure.lock);
    mp_free(path->published);
    mp_free(path->missing);
    mp_free(path->victims);
}

static moepage_status open_parts(moepage_cuda_path *path, const moepage_cuda_path_config *config)
{
    const mp_device_ops *ops = path->device->ops;
    uint64_t rows = (uint64_t)path->max_tokens * path->max_top_k;
    uint32_t worst = rows < path->shape.experts ? (uint32_t)rows : path->shape.experts;
    moepage_status status =
        mp_pool_set_aside(path->pool, path->client, config->slots, worst, &path->share);
    if (!status)
        status = alloc_tables(path);
    if (!status)
        status = open_device(path);
    if (!status)
        status = mp_session_take(path->session, path, &path->scratch);
    path->taken = !status;
    if (!status)
        status = ops->cuda->poller_start(path->device, mp_path_poll, path, &path->poller);
    return status;
}

moepage_status mp_path_create(moepage_session *session, const moepage_cuda_path_config *config,
                              moepage_cuda_path **out)
{
    const mp_step_view *view = mp_session_view(session);
    uint32_t max_tokens = 0;
    moepage_status status = check_session(session);
    if (!status)
        status = choose_max_tokens(config, view->config.max_tokens, &max_tokens);
    if (status)
        return status;
    moepage_cuda_path *path = mp_alloc(sizeof *path);
    if (!path)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    path->session = session;
    path->pool = view->pool;
    path->shape = view->shape;
    path->client = view->client;
    path->max_top_k = view->config.max_top_k;
    path->home = mp_pool_home(view->pool, 0);
    path->device = view->device;
    path->max_tokens = max_tokens;
    path->timeout_ms = config->timeout_ms ? config->timeout_ms : DEFAULT_TIMEOUT_MS;
    pthread_mutex_init(&path->failure.lock, NULL);
    status = open_parts(path, config);
    if (status) {
        free_parts(path);
        mp_free(path);
        return status;
    }
    mp_handle_open(&path->handle, MP_KIND_PATH);
    *out = path;
    return MOEPAGE_OK;
}

void mp_path_destroy(moepage_cuda_path *path)
{
    mp_graveyard *graveyard = &path->home->graveyard;
    free_parts(path);
    mp_graveyard_bury(graveyard, path);
}

/* ---- what it reports ---- */

static moepage_status check_health(moepage_cuda_path *path)
{
    moepage_cuda_info info = {.struct_size = sizeof info};
    moepage_status status = path->device->ops->cuda->get_info(path->device, &info);
    if (!status && info.poisoned)
        status = mp_fail(MOEPAGE_E_DEVICE, "device %s has failed: no layer will run on it again",
                         path->device->name);
    return status;
}

/* Writes the sentence that explains why the layer reported in the mail was given up. */
static moepage_status explain(moepage_cuda_path *path)
{
    const mp_path_mail *mail = path->mail;
    moepage_status status = MOEPAGE_OK;
    switch (mail->reason) {
    case MP_PATH_REFUSED:
        pthread_mutex_lock(&path->failure.lock);
        status = mp_fail(path->failure.status, "layer %u was given up: %s", mail->in_layer,
                         path->failure.text);
        pthread_mutex_unlock(&path->failure.lock);
        return status;
    case MP_PATH_BAD_ID:
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "layer %u was given up: an id is %d, it must be below %u (or "
                       "MOEPAGE_NO_EXPERT)",
                       mail->in_layer, (int)mail->detail, path->shape.experts);
    case MP_PATH_LATE:
        return mp_fail(MOEPAGE_E_BUSY,
                       "layer %u was given up: its experts had not arrived after %u ms, the path's "
                       "timeout_ms",
                       mail->in_layer, path->timeout_ms);
    default:
        return mp_fail(MOEPAGE_E_DEVICE,
                       "layer %u was given up: the device's map lacks an expert that was put on it",
                       mail->in_layer);
    }
}

moepage_status mp_path_check(moepage_cuda_path *path, moepage_cuda_path_stats *stats)
{
    mp_path_mail *mail = path->mail;
    uint32_t gave_up = __atomic_load_n(&mail->gave_up, __ATOMIC_ACQUIRE);
    moepage_status failure = check_health(path);
    if (!failure && gave_up != path->reported)
        failure = explain(path);
    moepage_cuda_path_stats own = {
        .status = failure,
        .layers = __atomic_load_n(&mail->layers, __ATOMIC_RELAXED),
        .all_hit = __atomic_load_n(&mail->all_hit, __ATOMIC_RELAXED),
        .routed = __atomic_load_n(&mail->routed, __ATOMIC_RELAXED),
        .misses = __atomic_load_n(&mail->misses, __ATOMIC_RELAXED),
        .evictions = atomic_load(&path->evictions),
    };
    if (stats) {
        moepage_status status = MP_CONFIG_WRITE(stats, own);
        if (status)
            return status; /* the report was not delivered, so it stands */
    }
    path->reported = gave_up;
    __atomic_store_n(&mail->acknowledged, gave_up, __ATOMIC_RELEASE);
    return failure;
}
