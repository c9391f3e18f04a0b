/* Sets of high versions, by public means only: routing makes an expert hot, and hot experts become
 * high. */
#include "eval/high_set.h"

#include <stdlib.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/sampler.h"

#define PATIENCE_NS 60000000000u

void high_set_slowly(options *opts)
{
    opts->interval_us = 1; /* a decision after every step, independent of the steps' speed */
    opts->hotness_alpha = 0.9999;
    opts->hotness_margin = -1;
}

void high_set_for_good(options *opts)
{
    opts->interval_us = 1;
    opts->hotness_alpha = 1 - 1e-9; /* the first step's hotness is kept, */
    opts->hotness_margin = 1e9;     /* and no expert gets so much hotter */
}

static int open_set(const host *h, high_set *out)
{
    *out = (high_set){h->info.moe_layers, h->info.experts, 0, NULL};
    out->order = calloc((size_t)out->layers * out->experts, sizeof *out->order);
    return out->order ? RUN_OK : fail_memory();
}

void high_set_free(high_set *set)
{
    free(set->order);
    *set = (high_set){0};
}

/* ---- Orders ------------------------------------------------------------------------------ */

int high_set_read(const host *h, high_set *out)
{
    int code = open_set(h, out);
    for (uint32_t l = 0; l < out->layers && !code; l++) {
        int32_t *order = out->order + (size_t)l * out->experts;
        uint32_t n = 0;
        for (uint32_t high = 2; high-- > 0;)
            for (uint32_t e = 0; e < out->experts && !code; e++) {
                moepage_residency found = {.struct_size = sizeof found};
                if (moepage_expert_pool_lookup(h->experts, l, e, &found))
                    code = fail_library(RUN_FAILED, "expert pool");
                if ((found.state == MOEPAGE_EXPERT_RESIDENT) == high)
                    order[n++] = (int32_t)e;
            }
    }
    return code;
}

int high_set_shuffle(const host *h, uint64_t seed, high_set *out)
{
    int code = open_set(h, out);
    for (uint32_t l = 0; l < out->layers && !code; l++) {
        int32_t *order = out->order + (size_t)l * out->experts;
        sampler_state random = sampler_seed(seed, l);
        for (uint32_t e = 0; e < out->experts; e++) {
            uint32_t other = (uint32_t)(sampler_random(&random) % (e + 1));
            order[e] = order[other];
            order[other] = (int32_t)e;
        }
    }
    return code;
}

/* ---- Applying a set to a pool ----------------------------------------------------------- */

/* Runs step `turn`, which routes to a part of the set in every layer and computes nothing. */
static moepage_status choose_some(const high_set *set, const host *h, uint32_t turn, int32_t *ids,
                                  const float *weights)
{
    const uint32_t k = h->info.top_k;
    const moepage_step step = {.struct_size = sizeof step,
                               .n_tokens = 1,
                               .phase = MOEPAGE_PHASE_PREFILL};
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = k,
                                     .ids = ids,
                                     .weights = weights};
    moepage_status status = moepage_session_begin(h->session, &step);
    for (uint32_t l = 0; l < set->layers && !status; l++) {
        const int32_t *order = set->order + (size_t)l * set->experts;
        for (uint32_t i = 0; i < k; i++)
            ids[i] = order[((uint64_t)turn * k + i) % set->n];
        status = moepage_session_route(h->session, l, &routing, NULL);
        if (!status)
            status = moepage_session_retire(h->session, l);
    }
    return status ? status : moepage_session_end(h->session, NULL);
}

static int choose_until_high(const high_set *set, const host *h, int32_t *ids, const float *weights)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    const uint64_t start = clock_now_ns();
    for (uint32_t turn = 0; info.hi_published < (uint64_t)set->n * set->layers; turn++) {
        if (choose_some(set, h, turn, ids, weights) ||
            moepage_expert_pool_get_info(h->experts, &info))
            return fail_library(RUN_FAILED, "--high-set");
        if (clock_now_ns() - start > PATIENCE_NS)
            return fail(RUN_FAILED, "--high-set: the experts do not become high");
    }
    return RUN_OK;
}

int high_set_give(high_set *set, const host *h)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    int32_t *ids = calloc(h->info.top_k, sizeof *ids);
    float *weights = calloc(h->info.top_k, sizeof *weights);
    int code = ids && weights ? RUN_OK : fail_memory();
    for (uint32_t i = 0; i < h->info.top_k && !code; i++)
        weights[i] = 1;
    if (!code && moepage_expert_pool_get_info(h->experts, &info))
        code = fail_library(RUN_FAILED, "expert pool");
    set->n = info.hi_experts;
    if (!code)
        code = choose_until_high(set, h, ids, weights);
    free(ids);
    free(weights);
    return code;
}
