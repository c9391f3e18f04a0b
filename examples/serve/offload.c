/* Offloads whole layers with pins and hints. */
#include "serve/offload.h"

#include <stdlib.h>

#include "common/fail.h"

static int pin_layer(const offload *o, uint32_t layer)
{
    for (uint32_t e = 0; e < o->layer_experts; e++)
        if (moepage_expert_pool_pin(o->experts, layer, e))
            return fail_library(RUN_FAILED, "bringing a layer in");
    return RUN_OK;
}

static int unpin_layer(const offload *o, uint32_t layer)
{
    for (uint32_t e = 0; e < o->layer_experts; e++)
        if (moepage_expert_pool_unpin(o->experts, layer, e))
            return fail_library(RUN_FAILED, "letting a layer go");
    return RUN_OK;
}

int offload_open(const model_config *model, const host *h, offload *out)
{
    moepage_expert_pool_info pool = {.struct_size = sizeof pool};
    *out = (offload){.model = model,
                     .experts = h->experts,
                     .session = h->session,
                     .moe_layers = h->info.moe_layers,
                     .layer_experts = h->info.experts,
                     .held = OFFLOAD_NONE};
    out->all = calloc(out->layer_experts, sizeof *out->all);
    if (!out->all)
        return fail_memory();
    for (uint32_t e = 0; e < out->layer_experts; e++)
        out->all[e] = (int32_t)e;
    if (moepage_expert_pool_get_info(h->experts, &pool))
        return fail_library(RUN_FAILED, "expert pool");
    uint64_t layers = pool.slots / out->layer_experts;
    int code = RUN_OK;
    if (layers >= out->moe_layers) /* all layers stay */
        out->resident = out->moe_layers;
    for (; !code && layers < out->moe_layers && out->resident + OFFLOAD_WINDOW < layers;)
        code = pin_layer(out, out->resident++);
    return code;
}

void offload_close(offload *o)
{
    free(o->all);
    o->all = NULL;
}

/* Returns the next layer to load, in a cycle over the layers that do not stay. */
static uint32_t next_brought(const offload *o, uint32_t layer)
{
    return layer + 1 < o->moe_layers && layer + 1 > o->resident ? layer + 1 : o->resident;
}

/* Hints the next layer before this one computes; the preceding layer has computed, so its slots are
 * free for the window. */
int offload_before_layer(void *user, uint32_t layer)
{
    offload *o = user;
    int code = RUN_OK;
    if (o->model->moe_layer[layer] < 0 || o->resident == o->moe_layers)
        return RUN_OK;
    uint32_t now = (uint32_t)o->model->moe_layer[layer];
    if (o->held != OFFLOAD_NONE)
        code = unpin_layer(o, o->held);
    o->held = OFFLOAD_NONE;
    if (code)
        return code;
    if (now >= o->resident) {
        if ((code = pin_layer(o, now)))
            return code;
        o->held = now;
    }
    uint32_t next = next_brought(o, now);
    if ((now >= o->resident || now + 1 == o->resident) && next != now &&
        moepage_session_hint(o->session, next, o->all, o->layer_experts))
        return fail_library(RUN_FAILED, "naming a layer");
    return RUN_OK;
}
