/* Opens a stack for one tier. */
#include "bench/tier_stack.h"

#include <stdlib.h>

#include "common/fail.h"
#include "common/open_model.h"

#define ENTRY_MARGIN 8192u /* a host tier's entry is an image rounded out to pages */

const tier_case tier_cases[] = {
    {"device, exph", MOEPAGE_FORM_EXPH, TIER_HOST_NONE, true},
    {"host tier, exph", MOEPAGE_FORM_EXPH, TIER_HOST_ALL, false},
    {"host tier, dense", MOEPAGE_FORM_DENSE, TIER_HOST_ALL, false},
    {"mapped file, exph", MOEPAGE_FORM_EXPH, TIER_HOST_NONE, false},
    {"mapped file, dense", MOEPAGE_FORM_DENSE, TIER_HOST_NONE, false},
    {"cold, exph", MOEPAGE_FORM_EXPH, TIER_HOST_LAYER, false},
    {"cold, dense", MOEPAGE_FORM_DENSE, TIER_HOST_LAYER, false},
};

const uint32_t n_tier_cases = sizeof tier_cases / sizeof *tier_cases;

int tier_model_open(const char *path, uint64_t most_bytes, tier_model *out)
{
    out->info.struct_size = sizeof out->info;
    out->most_bytes = most_bytes;
    int code = open_model(path, &out->model);
    if (code)
        return code;
    if (moepage_model_get_info(out->model, &out->info))
        return fail_library(RUN_FAILED, "model");
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++) {
        out->forms[form].struct_size = sizeof out->forms[form];
        if (moepage_model_get_form(out->model, form, &out->forms[form]))
            return fail_library(RUN_FAILED, "form");
    }
    uint64_t layer = out->info.experts * out->info.slot_bytes, layers = most_bytes / layer;
    out->layers = layers < out->info.moe_layers ? (uint32_t)layers : out->info.moe_layers;
    if (out->info.moe_layers < 2)
        return fail(RUN_REFUSED, "%s has one MoE layer: tiers loads two in turn", path);
    if (out->layers < 2)
        return fail(RUN_REFUSED,
                    "--mb %llu: tiers loads two layers of %s in turn, at least --mb %llu is needed",
                    (unsigned long long)(most_bytes >> 20), path,
                    (unsigned long long)((2 * layer + (1 << 20) - 1) >> 20));
    return RUN_OK;
}

void tier_model_close(tier_model *m)
{
    moepage_model_close(m->model);
}

/* Returns the host tier's bytes for one layer's experts. */
static uint64_t layer_room(const tier_model *m, uint32_t form)
{
    uint64_t image = form == MOEPAGE_FORM_EXPH ? m->forms[form].most_bytes : m->info.slot_bytes;
    return m->info.experts * (image + ENTRY_MARGIN);
}

uint64_t tier_host_bytes(const tier_model *m)
{
    uint64_t all = m->info.moe_layers * layer_room(m, MOEPAGE_FORM_DENSE);
    return all < m->most_bytes ? all : m->most_bytes;
}

static moepage_expert_pool_config pool_config(const tier_model *m, const tier_case *which)
{
    uint64_t layer = layer_room(m, which->bus_form);
    return (moepage_expert_pool_config){
        .struct_size = sizeof(moepage_expert_pool_config),
        .slots = m->info.experts,
        .host_tier_bytes = which->host == TIER_HOST_ALL     ? m->layers * layer
                           : which->host == TIER_HOST_LAYER ? layer
                                                            : 0,
        .bus_form = which->bus_form,
        .compressed_experts = which->compressed ? m->info.experts : 0,
    };
}

/* Returns the arena bytes of slots and compressed experts; UINT64_MAX if the pool is impossible. */
static uint64_t arena_bytes(const tier_model *m, const tier_case *which)
{
    moepage_expert_pool_config pool = pool_config(m, which);
    uint64_t bytes;
    return moepage_expert_pool_sizes(m->model, &pool, 1, NULL, &bytes) ? UINT64_MAX : bytes;
}

bool tier_can_run(const tier_model *m, const tier_case *which)
{
    bool exph = m->forms[MOEPAGE_FORM_EXPH].present, dense = m->forms[MOEPAGE_FORM_DENSE].present;
    if (which->bus_form == MOEPAGE_FORM_EXPH && !exph)
        return false;
    /* Without a host tier dense loads need a dense form in the file: otherwise they would be
     * decoded. */
    if (which->bus_form == MOEPAGE_FORM_DENSE && which->host == TIER_HOST_NONE && !dense)
        return false;
    return !which->compressed || arena_bytes(m, which) <= m->most_bytes;
}

int tier_stack_open(const tier_model *m, const tier_case *which, uint32_t threads, tier_stack *out)
{
    uint32_t top_k = m->info.top_k, tokens = (m->info.experts + top_k - 1) / top_k;
    const moepage_device_config device = MOEPAGE_DEVICE_CONFIG(.threads = threads);
    const moepage_expert_pool_config pool = pool_config(m, which);
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = tokens, .regime = MOEPAGE_REGIME_CACHE);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.device = &device, .experts = &pool, .session = &session,
                              .model = m->model);
    out->layers = m->layers;
    out->experts = m->info.experts;
    out->top_k = top_k;
    out->expert_bytes = m->info.expert_bytes;
    out->ids = calloc((size_t)tokens * top_k, sizeof *out->ids);
    out->weights = calloc((size_t)tokens * top_k, sizeof *out->weights);
    if (!out->ids || !out->weights)
        return fail_memory();
    if (moepage_engine_open(NULL, NULL, &config, &out->engine))
        return fail_library(RUN_FAILED, which->name);
    out->pool = moepage_engine_expert_pool(out->engine);
    out->session = moepage_engine_session(out->engine);
    return RUN_OK;
}

void tier_stack_close(tier_stack *s)
{
    moepage_engine_close(s->engine);
    free(s->ids);
    free(s->weights);
}
