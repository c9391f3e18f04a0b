/* The host's own part beside the library: hints for it, and whole layers loaded without it. */
#include "common/fail.h"
#include "sim/serve_inside.h"

#define PIECE_BYTES (8u << 20)

static uint64_t layer_bytes(const sim_host *host)
{
    uint32_t experts = host->config->own_experts ? host->config->own_experts : host->shape->experts;
    return host->shape->expert_bytes * experts;
}

int sim_own_open(sim_host *host)
{
    host->random = host->config->seed * 2 + 1;
    if (!host->config->own_layers)
        return RUN_OK;
    const mp_device_ops *ops = host->stack.clock->ops;
    return ops->stream_create(host->stack.clock, MP_STREAM_PREFETCH, &host->own_stream)
               ? fail_library(RUN_FAILED, "a stream")
               : RUN_OK;
}

void sim_own_close(sim_host *host)
{
    if (host->own_stream)
        host->stack.clock->ops->stream_destroy(host->own_stream);
}

/* ---- Hints ------------------------------------------------------------------------------- */

static uint32_t draw(sim_host *host, uint32_t below)
{
    host->random = host->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((host->random >> 32) * below) >> 32);
}

/* Names the layer's experts, each once, with the configured accuracy. */
static uint32_t predict(sim_host *host, uint32_t layer)
{
    const sim_source *source = host->source;
    size_t row = (size_t)source->layers * source->top_k;
    uint32_t n = 0;
    host->mark++;
    for (uint32_t t = 0; t < host->n_tokens; t++)
        for (uint32_t k = 0; k < source->top_k; k++) {
            uint32_t expert = (uint32_t)host->rows[t * row + layer * source->top_k + k];
            if (draw(host, 1000) >= host->config->hints.accuracy_permille)
                expert = draw(host, source->experts);
            if (host->marks[expert] == host->mark)
                continue;
            host->marks[expert] = host->mark;
            host->hint[n++] = (int32_t)expert;
        }
    return n;
}

/* Pins the experts, which waits for them. For a prefetch a missing slot is not a failure. */
static int fetch_now(sim_host *host, uint32_t layer, uint32_t n)
{
    moepage_expert_pool *pool = host->stack.experts;
    uint64_t before = sim_stack_now(&host->stack);
    for (uint32_t i = 0; i < n; i++) {
        moepage_status status = moepage_expert_pool_pin(pool, layer, (uint32_t)host->hint[i]);
        if (!status)
            status = moepage_expert_pool_unpin(pool, layer, (uint32_t)host->hint[i]);
        if (status && status != MOEPAGE_E_BUDGET && status != MOEPAGE_E_BUSY)
            return fail_library(RUN_FAILED, "a prefetch");
    }
    host->own_stall_ns += sim_stack_now(&host->stack) - before;
    return RUN_OK;
}

static int hint(sim_host *host, uint32_t layer)
{
    uint32_t n = 0;
    if (host->config->hints.whole_layer)
        for (; n < host->shape->experts; n++)
            host->hint[n] = (int32_t)n;
    else
        n = predict(host, layer);
    if (host->config->hints.synchronous)
        return fetch_now(host, layer, n);
    return moepage_session_hint(host->stack.session, layer, host->hint, n)
               ? fail_library(RUN_FAILED, "a hint")
               : RUN_OK;
}

/* ---- Layers that the host loads ---------------------------------------------------------- */

/* Loads into one of two buffers, alternately, in pieces, so that urgent transfers can go
 * between. */
static int bring(sim_host *host, uint32_t layer)
{
    const mp_device_ops *ops = host->stack.clock->ops;
    for (uint64_t left = layer_bytes(host); left;) {
        uint64_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        mp_copy copy = {.dst = host->rows, .src = host->ids, .bytes = bytes};
        if (ops->copy(host->own_stream, &copy, 1, &host->own_ticks[layer % 2]))
            return fail_library(RUN_FAILED, "a transfer");
        left -= bytes;
    }
    return RUN_OK;
}

static int bring_layers(sim_host *host, uint32_t layer)
{
    uint32_t layers = host->shape->moe_layers, first = layers - host->config->own_layers;
    if (!host->config->own_layers || host->config->own_in_place)
        return RUN_OK;
    if (!host->config->own_ahead)
        return layer >= first ? bring(host, layer) : RUN_OK;
    int code = layer == 0 && first == 0 ? bring(host, 0) : RUN_OK;
    if (!code && layer + 1 >= first && layer + 1 < layers)
        code = bring(host, layer + 1);
    return code;
}

int sim_own_before(sim_host *host, uint32_t layer)
{
    const sim_hints *hints = &host->config->hints;
    uint32_t ahead = layer + hints->distance;
    int code = RUN_OK;
    if (hints->distance && ahead < host->shape->moe_layers && !sim_own_layer(host, ahead))
        code = hint(host, ahead);
    if (!code)
        code = bring_layers(host, layer);
    if (host->config->layer_overhead_ns)
        mp_sim_pass(host->stack.clock, host->config->layer_overhead_ns);
    return code;
}

static uint32_t count_used(sim_host *host)
{
    uint64_t rows = (uint64_t)host->n_tokens * host->source->top_k;
    uint32_t used = 0;
    host->mark++;
    for (uint64_t i = 0; i < rows; i++)
        if (host->marks[host->ids[i]] != host->mark) {
            host->marks[host->ids[i]] = host->mark;
            used++;
        }
    return used;
}

/* Waits for the layer's weights, or reads the used ones over the bus. */
static int own_weights(sim_host *host, uint32_t layer, uint64_t used_bytes)
{
    mp_device *device = host->stack.clock;
    uint64_t before = sim_stack_now(&host->stack);
    if (host->config->own_in_place)
        mp_sim_transfer(device, used_bytes);
    else if (device->ops->sync(host->own_stream, host->own_ticks[layer % 2]))
        return fail_library(RUN_FAILED, "a transfer");
    host->own_stall_ns += sim_stack_now(&host->stack) - before;
    return RUN_OK;
}

int sim_own_ffn(sim_host *host, uint32_t layer)
{
    uint64_t used_bytes = count_used(host) * host->shape->expert_bytes;
    uint64_t rows = (uint64_t)host->n_tokens * host->source->top_k;
    uint64_t weights = 3ull * host->shape->hidden * host->shape->expert_intermediate;
    int code = own_weights(host, layer, used_bytes);
    if (!code)
        mp_sim_work(host->stack.clock, 2 * weights * rows, used_bytes);
    return code;
}
