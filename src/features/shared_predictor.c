/* A shared predictor's life, its questions and its answers. */
#include "features/shared_predictor.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "planning/rightsize.h"
#include "policy/predictors.h"

#define DEFAULT_NAME "maps"
#define DEFAULT_DISTANCE 3u
#define DEFAULT_CAPACITY 1024u
#define DEFAULT_COVERAGE 0.99
#define MOST_SEMANTIC_DIM (1u << 20) /* exclusive */
#define STATE_ALIGN 64u

/* Returns zero-filled, aligned memory, or NULL; *block is the address to free. */
static void *alloc_aligned(uint64_t bytes, void **block)
{
    *block = bytes <= SIZE_MAX - STATE_ALIGN ? mp_alloc(bytes + STATE_ALIGN) : NULL;
    return *block ? (char *)*block + (-(uintptr_t)*block & (STATE_ALIGN - 1)) : NULL;
}

/* ---- Life -------------------------------------------------------------------------------- */

static moepage_status find_kind(const char *name, const mp_predictor **out)
{
    *out = mp_predictor_find(name);
    if (*out)
        return MOEPAGE_OK;
    char known[256] = "";
    for (uint32_t i = 0; mp_predictor_name(i); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", mp_predictor_name(i));
    }
    return mp_fail(MOEPAGE_E_NOT_FOUND, "there is no predictor \"%.64s\", there are %s", name,
                   known);
}

static moepage_status fill_config(const moepage_model_info *model,
                                  const moepage_predictor_config *given, mp_predict_config *out)
{
    uint32_t fallback = model->moe_layers < DEFAULT_DISTANCE ? model->moe_layers : DEFAULT_DISTANCE;
    *out = (mp_predict_config){
        .layers = model->moe_layers,
        .experts = model->experts,
        .top_k = model->top_k,
        .distance = given->distance ? given->distance : fallback,
        .capacity = given->capacity ? given->capacity : DEFAULT_CAPACITY,
        .semantic_dim = given->semantic_dim,
    };
    if (out->distance > out->layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "distance is %u, the model has %u MoE layers",
                       out->distance, out->layers);
    if (out->semantic_dim >= MOST_SEMANTIC_DIM)
        return mp_fail(MOEPAGE_E_ARGUMENT, "semantic_dim is %u, it must be below %u",
                       out->semantic_dim, MOST_SEMANTIC_DIM);
    return MOEPAGE_OK;
}

static moepage_status open_gates(const struct moepage_model *model,
                                 struct moepage_predictor *predictor)
{
    if (!(predictor->kind->needs & MP_NEEDS_HIDDEN))
        return MOEPAGE_OK;
    moepage_status status = mp_gates_open(model, &predictor->gates);
    if (status)
        return mp_fail_within(status, "predictor \"%s\"", predictor->kind->name);
    predictor->config.hidden = model->info.hidden;
    predictor->config.gates = predictor->gates.weights;
    predictor->config.gate_biases = predictor->gates.biases;
    predictor->bytes += predictor->gates.bytes;
    return MOEPAGE_OK;
}

static moepage_status open_state(struct moepage_predictor *predictor)
{
    uint64_t bytes = predictor->kind->state_bytes(&predictor->config);
    predictor->state = alloc_aligned(bytes, &predictor->state_block);
    if (!predictor->state)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for predictor \"%s\", %llu bytes",
                       predictor->kind->name, (unsigned long long)bytes);
    predictor->bytes += bytes;
    predictor->kind->init(predictor->state, &predictor->config);
    return MOEPAGE_OK;
}

moepage_status mp_predictor_create(const struct moepage_model *model,
                                   const moepage_predictor_config *config,
                                   struct moepage_predictor **out)
{
    const mp_predictor *kind;
    mp_predict_config filled;
    moepage_status status = find_kind(config->name ? config->name : DEFAULT_NAME, &kind);
    if (!status)
        status = fill_config(&model->info, config, &filled);
    if (status)
        return status;
    struct moepage_predictor *predictor = mp_alloc(sizeof *predictor);
    if (!predictor)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a predictor");
    pthread_mutex_init(&predictor->lock, NULL);
    predictor->kind = kind;
    predictor->config = filled;
    predictor->slot_bytes = model->info.slot_bytes;
    predictor->bytes = sizeof *predictor;
    status = open_gates(model, predictor);
    if (!status)
        status = open_state(predictor);
    if (status) {
        mp_predictor_free(predictor);
        return status;
    }
    mp_handle_open(&predictor->handle, MP_KIND_PREDICTOR);
    *out = predictor;
    return MOEPAGE_OK;
}

void mp_predictor_free(struct moepage_predictor *predictor)
{
    if (!predictor)
        return;
    mp_handle_kill(&predictor->handle);
    mp_gates_close(&predictor->gates);
    mp_free(predictor->state_block);
    pthread_mutex_destroy(&predictor->lock);
    mp_free(predictor);
}

moepage_status mp_predictor_hold(struct moepage_predictor *predictor,
                                 const moepage_model_info *model)
{
    const mp_predict_config *config = &predictor->config;
    if (config->layers != model->moe_layers || config->experts != model->experts ||
        (config->hidden && config->hidden != model->hidden))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the predictor is for %u layers of %u experts%s, the model has %u of %u",
                       config->layers, config->experts,
                       config->hidden ? " and its own routers" : "", model->moe_layers,
                       model->experts);
    atomic_fetch_add(&predictor->users, 1);
    return MOEPAGE_OK;
}

void mp_predictor_release(struct moepage_predictor *predictor)
{
    atomic_fetch_sub(&predictor->users, 1);
}

moepage_status mp_predictor_context_open(const struct moepage_predictor *predictor,
                                         mp_predict_context *out)
{
    uint64_t bytes = predictor->kind->context_bytes(&predictor->config);
    out->memory = alloc_aligned(bytes, &out->block);
    if (!out->memory)
        return mp_fail(MOEPAGE_E_NO_MEMORY,
                       "no memory for what \"%s\" knows of a sequence, %llu "
                       "bytes",
                       predictor->kind->name, (unsigned long long)bytes);
    return MOEPAGE_OK;
}

void mp_predictor_context_close(mp_predict_context *context)
{
    mp_free(context->block);
    *context = (mp_predict_context){0};
}

/* ---- Questions and answers --------------------------------------------------------------- */

void mp_predictor_request(struct moepage_predictor *predictor, mp_predict_context *context)
{
    pthread_mutex_lock(&predictor->lock);
    predictor->kind->request(predictor->state, context->memory);
    pthread_mutex_unlock(&predictor->lock);
}

void mp_predictor_begin(struct moepage_predictor *predictor, mp_predict_context *context,
                        const float *semantic)
{
    pthread_mutex_lock(&predictor->lock);
    predictor->kind->begin(predictor->state, context->memory, semantic);
    pthread_mutex_unlock(&predictor->lock);
}

void mp_predictor_observe(struct moepage_predictor *predictor, mp_predict_context *context,
                          const mp_seen *seen)
{
    pthread_mutex_lock(&predictor->lock);
    predictor->kind->observe(predictor->state, context->memory, seen);
    pthread_mutex_unlock(&predictor->lock);
}

uint32_t mp_predictor_predict(struct moepage_predictor *predictor, mp_predict_context *context,
                              uint32_t layer, mp_guess *out, float *score)
{
    pthread_mutex_lock(&predictor->lock);
    uint32_t n = predictor->kind->predict(predictor->state, context->memory, layer, out, score);
    predictor->asked++;
    pthread_mutex_unlock(&predictor->lock);
    return n;
}

void mp_predictor_end(struct moepage_predictor *predictor, mp_predict_context *context)
{
    pthread_mutex_lock(&predictor->lock);
    predictor->kind->end(predictor->state, context->memory);
    predictor->iterations++;
    pthread_mutex_unlock(&predictor->lock);
}

void mp_predictor_info(struct moepage_predictor *predictor, moepage_predictor_info *info)
{
    *info =
        (moepage_predictor_info){.distance = predictor->config.distance, .bytes = predictor->bytes};
    snprintf(info->name, sizeof info->name, "%s", predictor->kind->name);
    pthread_mutex_lock(&predictor->lock);
    info->iterations = predictor->iterations;
    info->asked = predictor->asked;
    pthread_mutex_unlock(&predictor->lock);
}

static uint64_t keys_of(const struct moepage_predictor *predictor)
{
    return (uint64_t)predictor->config.layers * predictor->config.experts;
}

moepage_status mp_predictor_check_uses(const struct moepage_predictor *predictor)
{
    if (predictor->kind == &mp_predictor_coactivation)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "predictor \"%s\" cannot size a working set, \"coactivation\" can",
                   predictor->kind->name);
}

void mp_predictor_uses(struct moepage_predictor *predictor, uint32_t *out)
{
    pthread_mutex_lock(&predictor->lock);
    memcpy(out, mp_predictor_coactivation_uses(predictor->state), keys_of(predictor) * sizeof *out);
    pthread_mutex_unlock(&predictor->lock);
}

moepage_status mp_predictor_rightsize(struct moepage_predictor *predictor, moepage_rightsize *size)
{
    const uint64_t all = keys_of(predictor);
    moepage_status status = mp_predictor_check_uses(predictor);
    if (status)
        return status;
    /* Negated, so that NaN is refused, too. */
    if (!(size->coverage >= 0 && size->coverage < 1))
        return mp_fail(MOEPAGE_E_ARGUMENT, "coverage is %g, it must be at least 0 and below 1",
                       size->coverage);
    double coverage = size->coverage > 0 ? size->coverage : DEFAULT_COVERAGE;
    mp_working_set set;
    pthread_mutex_lock(&predictor->lock);
    mp_rightsize(mp_predictor_coactivation_uses(predictor->state), all, coverage, &set);
    pthread_mutex_unlock(&predictor->lock);
    if (!set.choices)
        return mp_fail(MOEPAGE_E_STATE, "the predictor has learnt nothing yet");
    size->layers = predictor->config.layers;
    size->coverage = coverage;
    size->experts = set.experts;
    size->bytes = set.experts * predictor->slot_bytes;
    size->freed = (all - set.experts) * predictor->slot_bytes;
    size->unseen = set.unseen;
    return MOEPAGE_OK;
}
