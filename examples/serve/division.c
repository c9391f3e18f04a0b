/* Divides a budget. */
#include "serve/division.h"

#include <inttypes.h>

#include "common/fail.h"
#include "serve/engine.h"
#include "serve/offload.h"

static uint64_t budget_of(const options *base, const moepage_model_info *model)
{
    if (base->budget_bytes)
        return base->budget_bytes;
    double all = (double)model->moe_layers * model->experts * (double)model->slot_bytes;
    return (uint64_t)(base->budget_percent * all / 100);
}

static uint64_t least_slots(const estate *e)
{
    return e->shared_out && e->moe_layers > e->layer_experts ? e->moe_layers : e->layer_experts;
}

int estate_open(const serve_options *opts, const moepage_model_info *model,
                const model_config *config, const arrivals *a, estate *out)
{
    *out = (estate){.bytes = budget_of(&opts->base, model),
                    .slot_bytes = model->slot_bytes,
                    .block_bytes = engine_block_bytes(config),
                    .experts = (uint64_t)model->moe_layers * model->experts,
                    .layer_experts = model->experts,
                    .moe_layers = model->moe_layers,
                    .floor_blocks = engine_blocks_for(a->longest),
                    .shared_out = opts->base.scope == MOEPAGE_SCOPE_LAYER};
    uint64_t experts = least_slots(out) * out->slot_bytes;
    uint64_t kv = out->floor_blocks * out->block_bytes;
    if (out->bytes >= experts + kv) {
        uint64_t usual = opts->kv_floor * engine_blocks_for((a->prompts + a->outputs) / a->n);
        uint64_t most = (out->bytes - experts) / out->block_bytes;
        usual = usual > out->floor_blocks ? usual : out->floor_blocks;
        out->usual_blocks = usual < most ? usual : most;
        return RUN_OK;
    }
    return fail(RUN_REFUSED,
                "--budget: %" PRIu64 " bytes; one layer's experts take %" PRIu64
                " and the longest request's KV %" PRIu64 ": at least %" PRIu64 " are needed",
                out->bytes, experts, kv, experts + kv);
}

void estate_divide(const estate *e, const serve_options *opts, const arrivals *a, uint64_t slots,
                   budget *out)
{
    uint64_t most = (e->bytes - e->floor_blocks * e->block_bytes) / e->slot_bytes;
    most = most < e->experts ? most : e->experts;
    slots = slots < most ? slots : most;
    if (e->shared_out)
        slots -= slots % e->moe_layers;
    slots = slots > least_slots(e) ? slots : least_slots(e);
    uint64_t rest = e->bytes - slots * e->slot_bytes;
    *out = (budget){.slots = slots,
                    .kv_blocks = rest / e->block_bytes,
                    .kv_bytes = rest,
                    .step_tokens = opts->step_tokens,
                    .max_positions = a->longest};
}

uint64_t estate_share(const estate *e, uint32_t percent)
{
    return (uint64_t)((double)e->bytes * percent / 100) / e->slot_bytes;
}

uint64_t estate_whole_layers(const estate *e)
{
    uint64_t most = (e->bytes - e->floor_blocks * e->block_bytes) / e->slot_bytes;
    uint64_t layers = estate_share(e, 50) / e->layer_experts;
    if (layers < OFFLOAD_WINDOW)
        layers = OFFLOAD_WINDOW;
    if (layers > e->moe_layers)
        layers = e->moe_layers;
    return layers * e->layer_experts <= most ? layers * e->layer_experts : 0;
}
