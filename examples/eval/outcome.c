/* Arithmetic on counters. */
#include "eval/outcome.h"

#include "common/fail.h"

#define MEMBERS (sizeof(counters) / sizeof(uint64_t))

_Static_assert(sizeof(counters) % sizeof(uint64_t) == 0, "counters are uint64_t");

int counters_read(const host *h, counters *out)
{
    moepage_session_stats s = {.struct_size = sizeof s};
    moepage_expert_pool_info e = {.struct_size = sizeof e};
    if (moepage_session_get_stats(h->session, &s) || moepage_expert_pool_get_info(h->experts, &e))
        return fail_library(RUN_FAILED, "statistics");
    if (e.slot_form >= MOEPAGE_FORM_INT8) { /* no row of any expert is exact */
        s.low_experts = s.routed;
        s.low_rows = s.tokens * h->info.moe_layers * h->info.top_k;
    }
    *out = (counters){.steps = s.steps,
                      .tokens = s.tokens,
                      .layers = s.layers,
                      .routed = s.routed,
                      .hits = s.hits,
                      .demand_bytes = s.demand_bytes,
                      .stall_ns = s.stall_ns,
                      .compute_ns = s.compute_ns,
                      .wall_ns = s.wall_ns,
                      .low_experts = s.low_experts,
                      .low_rows = s.low_rows,
                      .host_experts = s.host_experts,
                      .remap_layers = s.remap_layers,
                      .remap_before = s.remap_before,
                      .remap_after = s.remap_after,
                      .remap_tokens = s.remap_tokens,
                      .remap_rows = s.remap_rows,
                      .remap_ns = s.remap_ns,
                      .prefetch_bytes = e.prefetch_bytes,
                      .promotions = e.promotions,
                      .demotions = e.demotions,
                      .transition_bytes = e.transition_bytes};
    for (uint32_t layer = 0; layer < h->info.moe_layers && h->predictor; layer++) {
        moepage_prefetch_info info = {.struct_size = sizeof info};
        if (moepage_session_get_prefetch(h->session, layer, &info))
            return fail_library(RUN_FAILED, "statistics");
        out->guessed += info.guessed;
        out->right += info.right;
    }
    return RUN_OK;
}

void counters_subtract(counters *from, const counters *what)
{
    uint64_t *a = (uint64_t *)from;
    const uint64_t *b = (const uint64_t *)what;
    for (size_t i = 0; i < MEMBERS; i++)
        a[i] -= b[i];
}

void counters_add(counters *to, const counters *what)
{
    uint64_t *a = (uint64_t *)to;
    const uint64_t *b = (const uint64_t *)what;
    for (size_t i = 0; i < MEMBERS; i++)
        a[i] += b[i];
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

double measure_experts(const measure *m)
{
    return share(m->counted.routed, m->counted.layers);
}

double measure_experts_routed(const measure *m)
{
    const counters *c = &m->counted;
    return share(c->routed + c->remap_before - c->remap_after, c->layers);
}

double measure_low_percent(const measure *m, uint32_t top_k)
{
    const counters *c = &m->counted;
    const double rows = share(c->layers, c->steps) * (double)c->tokens * top_k;
    return rows > 0 ? 100 * (double)c->low_rows / rows : 0;
}

double measure_hit_percent(const measure *m)
{
    return 100 * share(m->counted.hits, m->counted.routed);
}

double measure_remap_percent(const measure *m)
{
    return 100 * share(m->counted.remap_ns, m->counted.wall_ns);
}

uint64_t measure_moved(const measure *m)
{
    const counters *c = &m->counted;
    return c->demand_bytes + c->prefetch_bytes + c->transition_bytes;
}
