/* What headers after the oldest added, each part in programs of a header that has it. */
#include <stdbool.h>
#include <string.h>

#include "old.h"

#if MOEPAGE_VERSION >= 200
static void check_pack(const char *path)
{
    moepage_model *model = NULL;
    OK(moepage_model_open(path, NULL, &model));
    NEW(moepage_form_info, form);
    OK(moepage_model_get_form(model, MOEPAGE_FORM_INT8, form));
    CHECK(form->present == 1 && form->group_size == 32 && form->struct_size == sizeof *form);
    NEW(moepage_model_info, info);
    OK(moepage_model_get_info(model, info));
    void *expert = guarded(info->slot_bytes);
    OK(moepage_model_read_expert(model, 1, 2, expert, info->slot_bytes));
    char *name = guarded(64);
    CHECK(moepage_model_get_tensor_name(model, 0, name, 64) == MOEPAGE_E_NOT_FOUND);
    NEW(moepage_expert_pool_config, config);
    config->host_tier_bytes = 1 << 20;
    config->slots = 4;
    uint64_t *sizes = guarded(2 * sizeof *sizes);
    OK(moepage_expert_pool_sizes(model, config, 1, &sizes[0], &sizes[1]));
    CHECK(sizes[1] >= 4 * info->slot_bytes);
    moepage_device *device = open_host();
    moepage_expert_pool *pool = NULL;
    OK(moepage_expert_pool_create(&device, 1, model, config, &pool));
    OK(moepage_expert_pool_pin(pool, 1, 2));
    NEW(moepage_expert_pool_info, now);
    OK(moepage_expert_pool_get_info(pool, now));
    CHECK(now->bus_form == MOEPAGE_FORM_DENSE);
    CHECK(now->host_tier_bytes > 0);
    CHECK(now->cold_reads >= 1);
    OK(moepage_expert_pool_destroy(pool));
    OK(moepage_device_close(device));
    OK(moepage_model_close(model));
}

static int32_t progress(void *user, uint64_t done, uint64_t total)
{
    CHECK(done <= total);
    *(uint64_t *)user = total;
    return 0;
}

void use_packs(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/old.moepack", folder);
    moepage_model *model = open_banks();
    uint64_t *total = guarded(sizeof *total);
    NEW(moepage_pack_config, config);
    config->forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT8;
    config->group_size = 32;
    config->threads = 1;
    config->verify = 1;
    config->progress = progress;
    config->progress_user = total;
    NEW(moepage_pack_stats, stats);
    OK(moepage_pack_write(model, path, config, stats));
    CHECK(*total > 0 && stats->file_bytes > 0 && stats->struct_size == sizeof *stats);
    OK(moepage_model_close(model));
    check_pack(path);
}

void use_codec(void)
{
    uint16_t *in = guarded(4096 * sizeof *in), *back = guarded(4096 * sizeof *back);
    for (uint32_t i = 0; i < 4096; i++)
        in[i] = (uint16_t)(0x3f00 + i * 7 % 512);
    const uint64_t bound = moepage_exph_bound(MOEPAGE_DTYPE_BF16, 4096);
    uint64_t *bytes = guarded(sizeof *bytes);
    void *stream = guarded(bound);
    OK(moepage_exph_encode(MOEPAGE_DTYPE_BF16, in, 4096, stream, bound, bytes));
    OK(moepage_exph_decode("portable", MOEPAGE_DTYPE_BF16, stream, *bytes, back, 4096));
    CHECK(*bytes < 8192 && !memcmp(in, back, 8192));
}
#else
void use_packs(const char *folder)
{
    (void)folder;
}

void use_codec(void)
{
}
#endif

#if MOEPAGE_VERSION >= 300
void use_paged(void)
{
    moepage_device *device = open_host();
    moepage_model *model = open_banks();
    NEW(moepage_paged_config, config);
    uint64_t *sizes = guarded(2 * sizeof *sizes);
    OK(moepage_paged_sizes(device, model, config, &sizes[0], &sizes[1]));
    CHECK(sizes[1] > 0);
    moepage_paged *paged = NULL;
    OK(moepage_paged_create(device, model, config, &paged));
    NEW(moepage_paged_tensor, tensor);
    OK(moepage_paged_get_tensor(paged, 1, tensor));
    CHECK(tensor->role == MOEPAGE_ROLE_DOWN && tensor->struct_size == sizeof *tensor);
    CHECK(tensor->expert_stride == sizeof(float) * MODEL_INNER * MODEL_HIDDEN);
    OK(moepage_paged_materialise(paged, 1));
    OK(moepage_paged_acquire(paged, 1, NULL));
    uint32_t *state = guarded(sizeof *state);
    OK(moepage_paged_get_state(paged, 1, state));
    CHECK(*state == MOEPAGE_PAGED_RESIDENT);
    CHECK(((float *)((char *)tensor->base + tensor->layer_stride))[0] != 0);
    OK(moepage_paged_release(paged, 1, NULL));
    OK(moepage_paged_destroy(paged));
    OK(moepage_model_close(model));
    OK(moepage_device_close(device));
}
#else
void use_paged(void)
{
}
#endif

#if MOEPAGE_VERSION >= 400
static void tick(moepage_controller *controller)
{
    NEW(moepage_controller_report, report);
    OK(moepage_controller_kv_use(controller, 7, 16));
    OK(moepage_controller_tick(controller, NULL, report));
    CHECK(report->struct_size == sizeof *report && report->expert_slots > 0);
    NEW(moepage_controller_info, info);
    OK(moepage_controller_get_info(controller, info));
    CHECK(info->mode == MOEPAGE_CONTROL_OBSERVE && info->steps == 8 && info->moves == 0);
    uint64_t *sizes = guarded(2 * sizeof *sizes);
    double *misses = guarded(2 * sizeof *misses);
    sizes[0] = 1;
    sizes[1] = MODEL_LAYERS * MODEL_EXPERTS;
    OK(moepage_controller_get_curve(controller, 0, sizes, 2, misses));
    CHECK(misses[0] >= misses[1]);
}

void use_controllers(void)
{
    moepage_device *device = open_host();
    moepage_model *model = open_banks();
    moepage_expert_pool *experts = NULL;
    moepage_session *session = NULL;
    moepage_controller *controller = NULL;
    NEW(moepage_expert_pool_config, pool);
    pool->slots = 6;
    pool->policy = "sieve";
    NEW(moepage_session_config, config);
    config->max_tokens = 8;
    config->regime = MOEPAGE_REGIME_CACHE;
    NEW(moepage_controller_config, control);
    control->mode = MOEPAGE_CONTROL_OBSERVE;
    control->burst_steps = 4;
    OK(moepage_expert_pool_create(&device, 1, model, pool, &experts));
    moepage_kv_pool *kv = open_kv(device);
    OK(moepage_controller_create(experts, kv, control, &controller));
    OK(moepage_session_create(experts, kv, config, &session));
    for (uint64_t step = 0; step < 8; step++)
        run_step(session, step);
    tick(controller);
    OK(moepage_session_destroy(session));
    OK(moepage_controller_destroy(controller));
    OK(moepage_kv_pool_destroy(kv));
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_model_close(model));
    OK(moepage_device_close(device));
}
#else
void use_controllers(void)
{
}
#endif

#if MOEPAGE_VERSION >= 500
static void check_predictor(moepage_predictor *predictor, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/old.predictor", folder);
    NEW(moepage_predictor_info, info);
    OK(moepage_predictor_get_info(predictor, info));
    CHECK(!strcmp(info->name, "coactivation") && info->struct_size == sizeof *info);
    OK(moepage_predictor_save(predictor, path));
    OK(moepage_predictor_load(predictor, path));
    NEW(moepage_rightsize, size);
    OK(moepage_predictor_rightsize(predictor, size));
    CHECK(size->layers == MODEL_LAYERS && size->experts <= MODEL_LAYERS * MODEL_EXPERTS);
}

/* Predictors hear of steps beside them, a little later, and of some not at all. */
static bool has_learnt(moepage_predictor *predictor)
{
    NEW(moepage_rightsize, size);
    moepage_status status = moepage_predictor_rightsize(predictor, size);
    CHECK(status == MOEPAGE_OK || status == MOEPAGE_E_STATE);
    return status == MOEPAGE_OK;
}

static void use_prefetch(moepage_session *session, moepage_predictor *predictor)
{
    NEW(moepage_remap_config, remap);
    remap->alpha = 2;
    remap->beta = 4;
    OK(moepage_session_set_remap(session, remap));
    OK(moepage_session_set_remap(session, NULL));
    for (uint64_t step = 0; step < 8 || !has_learnt(predictor); step++)
        run_step(session, step);
    NEW(moepage_prefetch_info, prefetch);
    OK(moepage_session_get_prefetch(session, 1, prefetch));
    CHECK(prefetch->layer == 1 && prefetch->struct_size == sizeof *prefetch);
}

void use_predictors(const char *folder)
{
    moepage_device *device = open_host();
    moepage_model *model = open_banks();
    moepage_expert_pool *experts = NULL;
    moepage_session *session = NULL;
    moepage_predictor *predictor = NULL;
    NEW(moepage_predictor_config, how);
    how->name = "coactivation";
    how->distance = 1;
    OK(moepage_predictor_create(model, how, &predictor));
    NEW(moepage_expert_pool_config, pool);
    pool->slots = 6;
    NEW(moepage_session_config, config);
    config->max_tokens = 8;
    config->prefetch = MOEPAGE_PREFETCH_PREDICTOR;
    config->predictor = predictor;
    OK(moepage_expert_pool_create(&device, 1, model, pool, &experts));
    OK(moepage_session_create(experts, NULL, config, &session));
    use_prefetch(session, predictor);
    CHECK(moepage_predictor_destroy(predictor) == MOEPAGE_E_BUSY);
    OK(moepage_session_destroy(session));
    check_predictor(predictor, folder);
    OK(moepage_predictor_destroy(predictor));
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_model_close(model));
    OK(moepage_device_close(device));
}
#else
void use_predictors(const char *folder)
{
    (void)folder;
}
#endif

#if MOEPAGE_VERSION >= 600
void use_stats(void)
{
    moepage_device *device = open_host();
    moepage_model *model = open_banks();
    moepage_expert_pool *experts = NULL;
    moepage_session *session = NULL;
    NEW(moepage_expert_pool_config, pool);
    pool->slots = 6;
    NEW(moepage_session_config, config);
    config->max_tokens = 8;
    OK(moepage_expert_pool_create(&device, 1, model, pool, &experts));
    OK(moepage_session_create(experts, NULL, config, &session));
    run_step(session, 0);
    NEW(moepage_session_stats, did);
    OK(moepage_expert_pool_get_stats(experts, did));
    CHECK(did->steps == 1 && did->struct_size == sizeof *did);
    NEW(moepage_stats_source, source);
    source->device = device;
    source->experts = experts;
    char *text = guarded(MOEPAGE_STATS_TEXT_BYTES);
    uint64_t *length = guarded(sizeof *length);
    OK(moepage_stats_text(source, text, MOEPAGE_STATS_TEXT_BYTES, length));
    CHECK(*length > 0 && text[*length] == '\0' && strlen(text) == *length);
    OK(moepage_session_destroy(session));
    OK(moepage_expert_pool_destroy(experts));
    OK(moepage_model_close(model));
    OK(moepage_device_close(device));
}
#else
void use_stats(void)
{
}
#endif

#if MOEPAGE_VERSION >= 700
void use_engine(const char *checkpoint)
{
    moepage_engine *engine = NULL;
    NEW(moepage_engine_config, config);
    config->budget_percent = 50;
    OK(moepage_engine_open(checkpoint, "max_tokens=2 policy=lfu", config, &engine));
    CHECK(moepage_engine_device(engine) && moepage_engine_expert_pool(engine));
    CHECK(moepage_engine_session(engine) && !moepage_engine_kv_pool(engine));
    CHECK(!moepage_engine_predictor(engine));
    NEW(moepage_model_info, info);
    OK(moepage_model_get_info(moepage_engine_model(engine), info));
    CHECK(moepage_engine_layers(engine) == info->moe_layers);
    float *x = guarded(info->hidden * sizeof *x), *y = guarded(info->hidden * sizeof *y);
    int32_t *ids = guarded(sizeof *ids);
    float *weights = guarded(sizeof *weights);
    weights[0] = 1;
    OK(moepage_engine_begin(engine, 1));
    OK(moepage_engine_experts(engine, 0, 1, ids, weights, x, y));
    NEW(moepage_session_stats, did);
    OK(moepage_engine_end(engine, did));
    CHECK(did->routed == 1);
    NEW(moepage_kv_pool_config, kv);
    uint32_t *bytes_per_token = guarded(sizeof *bytes_per_token);
    *bytes_per_token = 64;
    kv->layers = 1;
    kv->blocks = 3;
    kv->block_tokens = 16;
    kv->bytes_per_token = bytes_per_token;
    uint64_t *arena_bytes = guarded(sizeof *arena_bytes);
    OK(moepage_kv_pool_sizes(kv, arena_bytes));
    CHECK(*arena_bytes >= 3 * 16 * 64);
    OK(moepage_engine_close(engine));
}
#else
void use_engine(const char *checkpoint)
{
    (void)checkpoint;
}
#endif
