/* The arithmetic of --budget. */
#include "common/budget.h"

#include <math.h>

#include "common/attention.h"
#include "common/fail.h"
#include "common/host.h"

typedef unsigned long long number; /* for %llu */

static void plan_kv(const model_config *config, const uint32_t *prompt_tokens, uint32_t n_prompts,
                    uint32_t max_tokens, budget *out)
{
    uint64_t block_bytes =
        (uint64_t)KV_BLOCK_TOKENS * config->layers * attention_bytes_per_token(config);
    for (uint32_t i = 0; i < n_prompts; i++) {
        uint64_t tokens = (uint64_t)prompt_tokens[i] + max_tokens - 1;
        out->kv_blocks += (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        if (tokens > out->max_positions)
            out->max_positions = tokens;
    }
    out->kv_bytes = out->kv_blocks * block_bytes;
}

static uint32_t plan_step(const options *opts, const uint32_t *prompt_tokens, uint32_t n_prompts)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_prompts; i++)
        total += prompt_tokens[i];
    uint32_t prefill = total < opts->prefill_tokens ? (uint32_t)total : opts->prefill_tokens;
    return prefill > n_prompts ? prefill : n_prompts; /* decode: one token of each */
}

/* Slots of --budget BYTES; those of a percentage are the engine's to count. */
static int plan_slots(const options *opts, const moepage_model_info *model, uint64_t slot_bytes,
                      budget *out)
{
    if (!opts->budget_bytes)
        return RUN_OK;
    uint64_t experts = (uint64_t)model->moe_layers * model->experts;
    uint64_t least = opts->scope == MOEPAGE_SCOPE_LAYER ? model->moe_layers : 1;
    uint64_t least_bytes = least * slot_bytes;
    uint64_t wanted = out->kv_bytes + least_bytes;
    if (opts->budget_bytes < wanted)
        return fail(RUN_REFUSED,
                    "--budget %llu: the KV of this run takes %llu bytes and %llu "
                    "expert slot(s) %llu: at least %llu are needed",
                    (number)opts->budget_bytes, (number)out->kv_bytes, (number)least,
                    (number)least_bytes, (number)wanted);
    out->slots = (opts->budget_bytes - out->kv_bytes) / slot_bytes;
    if (out->slots > experts)
        out->slots = experts;
    if (opts->scope == MOEPAGE_SCOPE_LAYER)
        out->slots -= out->slots % model->moe_layers;
    return RUN_OK;
}

static int plan_tiers(const options *opts, const moepage_model_info *model,
                      const moepage_form_info *exph, budget *out)
{
    out->compressed_experts =
        (uint32_t)ceil(opts->compressed_percent * (double)model->experts / 100 - 1e-9);
    if (!exph->present && (out->compressed_experts || opts->bus_form == MOEPAGE_FORM_EXPH))
        return fail(RUN_REFUSED, "%s: %s has no exph images: moepage-pack makes them",
                    out->compressed_experts ? "--tiers" : "--bus-form exph", opts->model);
    return RUN_OK;
}

int budget_plan(const options *opts, const struct host *h, const model_config *config,
                const uint32_t *prompt_tokens, uint32_t n_prompts, budget *out)
{
    const moepage_model_info *model = &h->info;
    uint64_t slot_bytes = model->slot_bytes;
    *out = (budget){.step_tokens = plan_step(opts, prompt_tokens, n_prompts)};
    plan_kv(config, prompt_tokens, n_prompts, opts->max_tokens, out);
    int code = precision_slot_bytes(&opts->precision, h->model, &slot_bytes);
    if (!code)
        code = plan_slots(opts, model, slot_bytes, out);
    if (!code)
        code = plan_tiers(opts, model, &h->exph, out);
    return code;
}
