/* A program of the oldest header: every function of it, in the order in which a host would call
 * them. Built with the header of each minor version in turn; later.c has what those added. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "old.h"

#define TOKENS 4u
#define EXPERT_FLOATS (3 * MODEL_INNER * MODEL_HIDDEN) /* gate and up, then down */

const char *volatile doing;
static float weights[MODEL_LAYERS][MODEL_EXPERTS][EXPERT_FLOATS];

static void touched(int signal)
{
    static const char why[] = ": something behind a struct, array or string was touched\n";
    const ssize_t written = write(2, doing, strlen(doing)) + write(2, why, sizeof why - 1);
    _exit(written > 0 ? signal : 1);
}

void *guarded(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *start =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED && mprotect(start + room, page, PROT_NONE) == 0);
    return start + room - bytes;
}

/* ---- device and model ---- */

moepage_device *open_host(void)
{
    NEW(moepage_device_config, config);
    config->threads = 1;
    config->budget_bytes = 8u << 20;
    config->workspace_bytes = 4u << 20;
    moepage_device *device = NULL;
    OK(moepage_device_open("host", config, &device));
    NEW(moepage_device_info, info);
    OK(moepage_device_get_info(device, info));
    CHECK(info->struct_size == sizeof *info && info->threads == 1);
    CHECK(info->budget_bytes == config->budget_bytes && !strcmp(info->name, "host"));
    CHECK(info->workspace_bytes == config->workspace_bytes && info->kernels[0]);
    return device;
}

static void describe(moepage_banks *banks)
{
    static const uint64_t rows[] = {2 * MODEL_INNER, MODEL_HIDDEN};
    moepage_expert_tensor *tensors = guarded(2 * sizeof *tensors);
    for (uint32_t t = 0; t < 2; t++) {
        tensors[t].role = t ? MOEPAGE_ROLE_DOWN : MOEPAGE_ROLE_GATE_UP;
        tensors[t].dtype = MOEPAGE_DTYPE_F32;
        tensors[t].rank = 2;
        tensors[t].shape[0] = rows[t];
        tensors[t].shape[1] = t ? MODEL_INNER : MODEL_HIDDEN;
    }
    banks->moe_layers = MODEL_LAYERS;
    banks->experts = MODEL_EXPERTS;
    banks->top_k = MODEL_TOP_K;
    banks->hidden = MODEL_HIDDEN;
    banks->expert_intermediate = MODEL_INNER;
    banks->n_tensors = 2;
    banks->tensors = tensors;
}

static void check_model(moepage_model *model)
{
    NEW(moepage_model_info, info);
    OK(moepage_model_get_info(model, info));
    CHECK(info->moe_layers == MODEL_LAYERS && info->experts == MODEL_EXPERTS);
    CHECK(info->expert_bytes == sizeof weights[0][0] && info->routed_bytes == sizeof weights);
    CHECK(info->ffn_supported == 1 && info->expert_tensors == 2);
    moepage_expert_tensor *tensors = guarded(2 * sizeof *tensors);
    OK(moepage_model_get_expert_tensors(model, tensors, 2));
    CHECK(tensors[1].role == MOEPAGE_ROLE_DOWN && tensors[1].shape[0] == MODEL_HIDDEN);
    CHECK(tensors[0].bytes == 2 * sizeof(float) * MODEL_INNER * MODEL_HIDDEN);
    CHECK(moepage_model_layer_index(model, 1) == 1 && moepage_model_layer_index(model, 2) == -1);
    CHECK(moepage_model_config_json(model) == NULL);
}

moepage_model *open_banks(void)
{
    const void **data = guarded(MODEL_LAYERS * MODEL_EXPERTS * 2 * sizeof *data);
    uint32_t random = 1;
    for (uint32_t e = 0; e < MODEL_LAYERS * MODEL_EXPERTS; e++) {
        float *expert = weights[e / MODEL_EXPERTS][e % MODEL_EXPERTS];
        for (uint32_t i = 0; i < EXPERT_FLOATS; i++) {
            random = random * 1664525u + 1013904223u;
            expert[i] = (float)(random >> 24) / 256.0f - 0.5f;
        }
        data[2 * e] = expert;
        data[2 * e + 1] = expert + 2 * MODEL_INNER * MODEL_HIDDEN;
    }
    NEW(moepage_banks, banks);
    describe(banks);
    banks->data = data;
    moepage_model *model = NULL;
    OK(moepage_model_open_banks(banks, NULL, &model));
    check_model(model);
    return model;
}

static int32_t read_weights(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                            uint64_t offset, uint64_t bytes, void *out)
{
    const float *from = weights[layer][expert] + (tensor ? 2 * MODEL_INNER * MODEL_HIDDEN : 0);
    ++*(_Atomic uint32_t *)user;
    memcpy(out, (const char *)from + offset, bytes);
    return 0;
}

/* Experts that come through a callback, by a pin. */
static void use_callback(moepage_device *device)
{
    static _Atomic uint32_t reads;
    NEW(moepage_banks, banks);
    describe(banks);
    banks->read = read_weights;
    banks->read_user = &reads;
    NEW(moepage_model_config, config);
    moepage_model *model = NULL;
    moepage_expert_pool *pool = NULL;
    OK(moepage_model_open_banks(banks, config, &model));
    OK(moepage_expert_pool_create(&device, 1, model, NULL, &pool));
    OK(moepage_expert_pool_pin(pool, 1, 3));
    NEW(moepage_residency, where);
    OK(moepage_expert_pool_lookup(pool, 1, 3, where));
    CHECK(reads >= 2 && where->state == MOEPAGE_EXPERT_RESIDENT && where->slot >= 0);
    OK(moepage_expert_pool_unpin(pool, 1, 3));
    CHECK(moepage_expert_pool_unpin(pool, 1, 3) == MOEPAGE_E_STATE);
    OK(moepage_expert_pool_destroy(pool));
    OK(moepage_model_close(model));
}

static void use_checkpoint(const char *path)
{
    moepage_model *model = NULL;
    OK(moepage_model_open(path, NULL, &model));
    NEW(moepage_tensor_view, view);
    OK(moepage_model_find_tensor(model, "model.norm.weight", view));
    CHECK(view->rank == 1 && view->shape[0] && view->data && view->struct_size == sizeof *view);
    CHECK(moepage_model_find_tensor(model, "no.such.tensor", view) == MOEPAGE_E_NOT_FOUND);
    CHECK(strstr(moepage_model_config_json(model), "qwen3_moe"));
    OK(moepage_model_close(model));
}

/* ---- KV ---- */

/* The bytes of a sequence's `token` in `layer`, as the header says to find them. */
static unsigned char *kv_token(moepage_kv_pool *kv, moepage_seq seq, uint32_t layer, uint64_t token)
{
    NEW(moepage_kv_table, table);
    NEW(moepage_kv_layer_view, view);
    OK(moepage_kv_get_table(kv, seq, table));
    OK(moepage_kv_pool_get_layer(kv, layer, view));
    CHECK(!table->swapped && token < table->n_tokens && view->struct_size == sizeof *view);
    const uint32_t block = table->blocks[token / 4];
    return (unsigned char *)view->base + block / view->id_stride * view->granule_bytes +
           block % view->id_stride * view->block_bytes + token % 4 * 64;
}

static void fill_kv(moepage_kv_pool *kv, moepage_seq seq, uint64_t from, uint64_t to)
{
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        for (uint64_t t = from; t < to; t++)
            memset(kv_token(kv, seq, layer, t), (int)(1 + layer * 100 + t), 64);
}

static void check_kv(moepage_kv_pool *kv, moepage_seq seq, uint64_t tokens)
{
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        for (uint64_t t = 0; t < tokens; t++)
            for (uint32_t i = 0; i < 64; i++)
                CHECK(kv_token(kv, seq, layer, t)[i] == 1 + layer * 100 + t);
}

moepage_kv_pool *open_kv(moepage_device *device)
{
    uint32_t *bytes_per_token = guarded(MODEL_LAYERS * sizeof *bytes_per_token);
    for (uint32_t i = 0; i < MODEL_LAYERS; i++)
        bytes_per_token[i] = 64;
    NEW(moepage_kv_pool_config, config);
    config->block_tokens = 4;
    config->layers = MODEL_LAYERS;
    config->bytes_per_token = bytes_per_token;
    config->blocks = 64;
    config->max_sequences = 8;
    moepage_kv_pool *kv = NULL;
    OK(moepage_kv_pool_create(device, config, &kv));
    return kv;
}

static void use_kv(moepage_kv_pool *kv)
{
    moepage_seq *seq = guarded(2 * sizeof *seq);
    OK(moepage_kv_create(kv, &seq[0]));
    OK(moepage_kv_append(kv, seq[0], 10, NULL));
    fill_kv(kv, seq[0], 0, 10);
    OK(moepage_kv_fork(kv, seq[0], &seq[1]));
    OK(moepage_kv_append(kv, seq[1], 3, NULL));
    fill_kv(kv, seq[1], 10, 13);
    OK(moepage_kv_swap_out(kv, seq[1], NULL));
    CHECK(moepage_kv_swap_out(kv, seq[1], NULL) == MOEPAGE_E_STATE);
    OK(moepage_kv_swap_in(kv, seq[1], NULL));
    check_kv(kv, seq[0], 10);
    check_kv(kv, seq[1], 13);
    OK(moepage_kv_truncate(kv, seq[1], 5));
    check_kv(kv, seq[1], 5);
    NEW(moepage_kv_pool_info, info);
    OK(moepage_kv_pool_get_info(kv, info));
    CHECK(info->sequences == 2 && info->swapped == 0 && info->copies_on_write >= 1);
    CHECK(info->swapped_out_blocks == 4 && info->swapped_in_blocks == 4);
    uint64_t *tokens = guarded(sizeof *tokens);
    *tokens = 4 * info->free_blocks;
    NEW(moepage_kv_admission, admission);
    OK(moepage_kv_admit(kv, tokens, 1, admission));
    CHECK(admission->fits == 1 && admission->needed_blocks == info->free_blocks);
    OK(moepage_kv_free(kv, seq[1]));
    CHECK(moepage_kv_free(kv, seq[1]) == MOEPAGE_E_HANDLE);
    OK(moepage_kv_free(kv, seq[0]));
}

/* ---- steps ---- */

static float input(uint64_t step, uint32_t i)
{
    return (float)((step * 31 + i * 17) % 64) / 64.0f - 0.5f;
}

/* y = weight * down(silu(gate(x)) * up(x)), added up by hand. */
static void add_expert(uint32_t layer, int32_t expert, double weight, const float *x, double *y)
{
    const float *gate = weights[layer][expert], *up = gate + MODEL_INNER * MODEL_HIDDEN;
    const float *down = up + MODEL_INNER * MODEL_HIDDEN;
    for (uint32_t i = 0; i < MODEL_INNER; i++) {
        double g = 0, u = 0;
        for (uint32_t h = 0; h < MODEL_HIDDEN; h++) {
            g += (double)gate[i * MODEL_HIDDEN + h] * x[h];
            u += (double)up[i * MODEL_HIDDEN + h] * x[h];
        }
        for (uint32_t h = 0; h < MODEL_HIDDEN; h++)
            y[h] += weight * g / (1 + exp(-g)) * u * down[h * MODEL_INNER + i];
    }
}

static moepage_routing *make_routing(uint64_t step, uint32_t layer)
{
    int32_t *ids = guarded(TOKENS * MODEL_TOP_K * sizeof *ids);
    float *shares = guarded(TOKENS * MODEL_TOP_K * sizeof *shares);
    for (uint32_t i = 0; i < TOKENS * MODEL_TOP_K; i++) {
        ids[i] = (int32_t)((step * 5 + layer * 3 + i * 3 + i / 4) % MODEL_EXPERTS);
        shares[i] = 0.25f + 0.5f * (float)(i % 2);
    }
    NEW(moepage_routing, routing);
    routing->top_k = MODEL_TOP_K;
    routing->ids = ids;
    routing->weights = shares;
    return routing;
}

static void run_layer(moepage_session *session, uint32_t layer, uint64_t step)
{
    moepage_routing *routing = make_routing(step, layer);
    float *x = guarded(TOKENS * MODEL_HIDDEN * sizeof *x);
    float *y = guarded(TOKENS * MODEL_HIDDEN * sizeof *y);
    for (uint32_t i = 0; i < TOKENS * MODEL_HIDDEN; i++)
        x[i] = input(step, i);
    NEW(moepage_ffn, ffn);
    ffn->dtype = MOEPAGE_DTYPE_F32;
    ffn->x = x;
    ffn->y = y;
    OK(moepage_session_route(session, layer, routing, NULL));
    OK(moepage_session_ffn(session, layer, ffn));
    OK(moepage_session_retire(session, layer));
    for (uint32_t t = 0; t < TOKENS; t++) {
        double want[MODEL_HIDDEN] = {0};
        for (uint32_t k = 0; k < MODEL_TOP_K; k++)
            add_expert(layer, routing->ids[t * MODEL_TOP_K + k],
                       (double)routing->weights[t * MODEL_TOP_K + k], x + t * MODEL_HIDDEN, want);
        for (uint32_t h = 0; h < MODEL_HIDDEN; h++)
            CHECK(fabs(want[h] - y[t * MODEL_HIDDEN + h]) < 1e-5);
    }
}

static void begin(moepage_session *session)
{
    moepage_step_sequence *part = guarded(sizeof *part);
    part->n_tokens = TOKENS;
    part->phase = MOEPAGE_PHASE_DECODE;
    NEW(moepage_step, step);
    step->n_tokens = TOKENS;
    step->n_sequences = 1;
    step->sequences = part;
    OK(moepage_session_begin(session, step));
}

void run_step(moepage_session *session, uint64_t step)
{
    begin(session);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        run_layer(session, layer, step);
    NEW(moepage_session_stats, stats);
    OK(moepage_session_end(session, stats));
    CHECK(stats->struct_size == sizeof *stats && stats->steps == 1 && stats->tokens == TOKENS);
    CHECK(stats->layers == MODEL_LAYERS && stats->routed > 0);
    CHECK(stats->hits + stats->misses + stats->late == stats->routed);
}

/* A layer by its plan: every slot holds the expert that it says. */
static void run_plan(moepage_session *session)
{
    uint32_t groups = 0, rows = 0;
    begin(session);
    int32_t *hint = guarded(sizeof *hint);
    OK(moepage_session_hint(session, 1, hint, 1));
    NEW(moepage_plan, plan);
    OK(moepage_session_route(session, 0, make_routing(0, 0), plan));
    for (;; groups++) {
        CHECK(plan->struct_size == sizeof *plan && plan->layer == 0 && plan->group == groups);
        for (uint32_t i = 0; i < plan->n_experts; i++) {
            const moepage_plan_expert *e = &plan->experts[i];
            const float *expert = weights[0][e->expert];
            CHECK(!memcmp(e->tensors[0], expert, 2 * MODEL_INNER * MODEL_HIDDEN * sizeof *expert));
            CHECK(!memcmp(e->tensors[1], expert + 2 * MODEL_INNER * MODEL_HIDDEN,
                          MODEL_INNER * MODEL_HIDDEN * sizeof *expert));
            CHECK(plan->expert_map[e->expert] == e->slot);
            CHECK((char *)plan->slot_base + (uint64_t)e->slot * plan->slot_stride_bytes ==
                  e->tensors[0]);
            rows += e->n_rows;
        }
        if (groups + 1 == plan->n_groups)
            break;
        OK(moepage_session_next_group(session, 0, plan));
    }
    CHECK(rows == TOKENS * MODEL_TOP_K && plan->n_groups > 1);
    CHECK(moepage_session_next_group(session, 0, plan) == MOEPAGE_E_STATE);
    OK(moepage_session_retire(session, 0));
    OK(moepage_session_cancel(session));
}

static void read_trace(const char *path, uint64_t steps)
{
    moepage_trace *trace = NULL;
    OK(moepage_trace_open(path, &trace));
    NEW(moepage_trace_info, info);
    OK(moepage_trace_get_info(trace, info));
    CHECK(info->moe_layers == MODEL_LAYERS && info->experts == MODEL_EXPERTS);
    NEW(moepage_trace_step, step);
    for (uint64_t i = 0; i < steps; i++) {
        OK(moepage_trace_next(trace, step));
        CHECK(step->step == i && step->n_tokens == TOKENS && step->layer_present[1]);
        for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
            CHECK(!memcmp(step->ids + layer * TOKENS * MODEL_TOP_K, make_routing(i, layer)->ids,
                          TOKENS * MODEL_TOP_K * sizeof *step->ids));
    }
    CHECK(moepage_trace_next(trace, step) == MOEPAGE_E_END);
    OK(moepage_trace_close(trace));
}

static void record_steps(moepage_session *session, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/steps.trace", folder);
    NEW(moepage_trace_info, info);
    info->moe_layers = MODEL_LAYERS;
    info->experts = MODEL_EXPERTS;
    info->max_top_k = MODEL_TOP_K;
    strcpy(info->model, "banks");
    moepage_trace *trace = NULL;
    OK(moepage_trace_create(path, info, &trace));
    OK(moepage_session_record(session, trace));
    for (uint64_t step = 0; step < 5; step++)
        run_step(session, step);
    OK(moepage_session_record(session, NULL));
    OK(moepage_trace_close(trace));
    read_trace(path, 5);
}

/* ---- pools and sessions ---- */

static void use_session(moepage_expert_pool *experts, moepage_kv_pool *kv, moepage_model *model,
                        const char *folder)
{
    NEW(moepage_session_config, config);
    config->max_tokens = TOKENS;
    config->prefetch = MOEPAGE_PREFETCH_HINT;
    uint64_t *bytes = guarded(sizeof *bytes);
    OK(moepage_session_workspace(model, config, bytes));
    CHECK(*bytes > 0 && *bytes <= 4u << 20);
    moepage_session *session = NULL;
    OK(moepage_session_create(experts, kv, config, &session));
    record_steps(session, folder);
    run_plan(session);
    NEW(moepage_session_stats, stats);
    OK(moepage_session_get_stats(session, stats));
    CHECK(stats->steps == 6 && stats->tokens == 6 * TOKENS && stats->demand_bytes > 0);
    CHECK(moepage_expert_pool_destroy(experts) == MOEPAGE_E_BUSY);
    OK(moepage_session_destroy(session));
}

static void use_pools(moepage_device *device, moepage_model *model, const char *folder)
{
    NEW(moepage_expert_pool_config, config);
    config->slots = 4;
    config->policy = "lfu";
    moepage_expert_pool *experts = NULL;
    OK(moepage_expert_pool_create(&device, 1, model, config, &experts));
    moepage_kv_pool *kv = open_kv(device);
    CHECK(moepage_device_close(device) == MOEPAGE_E_BUSY);
    use_kv(kv);
    use_session(experts, kv, model, folder);
    OK(moepage_split_set(experts, kv, 6, 32, NULL));
    NEW(moepage_expert_pool_info, info);
    OK(moepage_expert_pool_get_info(experts, info));
    CHECK(info->struct_size == sizeof *info && info->devices == 1 && info->slots == 6);
    CHECK(info->hits + info->misses + info->late > 0 && info->evictions > 0);
    CHECK(info->failed_loads == 0 && info->slot_bytes >= sizeof weights[0][0]);
    OK(moepage_kv_pool_destroy(kv));
    OK(moepage_expert_pool_destroy(experts));
}

int main(int argc, char **argv)
{
    signal(SIGSEGV, touched);
    CHECK(argc == 3); /* a folder to write to, a checkpoint to read */
    CHECK(moepage_version() >= MOEPAGE_VERSION && moepage_version_text()[0] == '0');
    CHECK(!strcmp(moepage_last_error(), "") && moepage_status_text(MOEPAGE_E_BUSY)[0]);
    moepage_device *device = open_host();
    use_callback(device);
    moepage_model *model = open_banks();
    use_pools(device, model, argv[1]);
    OK(moepage_model_close(model));
    OK(moepage_device_close(device));
    use_checkpoint(argv[2]);
    use_packs(argv[1]);
    use_codec();
    use_paged();
    use_controllers();
    use_predictors(argv[1]);
    use_stats();
    use_engine(argv[2]);
    printf("built against %d.%d, run on %s\n", MOEPAGE_VERSION_MAJOR, MOEPAGE_VERSION_MINOR,
           moepage_version_text());
    return 0;
}
