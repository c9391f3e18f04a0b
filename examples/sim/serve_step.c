/* One forward pass: its batch, its layers, its results. */
#include <string.h>

#include "common/fail.h"
#include "sim/serve_inside.h"

static int broken(const char *doing)
{
    return fail_library(RUN_FAILED, doing);
}

/* ---- The batch --------------------------------------------------------------------------- */

/* Returns the tokens that a sequence must process before its next output token. */
static uint32_t wanted(const sim_host *host, const sim_running *r)
{
    return host->jobs->jobs[r->job].prompt_tokens + r->generated - r->tokens;
}

static bool decodes(const sim_host *host, const sim_running *r)
{
    return r->generated && wanted(host, r) == 1;
}

static void add(sim_host *host, uint32_t i, uint32_t n_tokens, bool prefill)
{
    host->batch[host->n_batch++] = (sim_batch_entry){i, n_tokens, prefill};
    host->n_tokens += n_tokens;
}

/* Adds decoding sequences, which always come first: if they do not fit, the sequence admitted last
 * is preempted. */
static int add_decodes(sim_host *host)
{
    for (uint32_t i = 0; i < host->n_running && host->n_tokens < host->step_tokens; i++) {
        bool fits = false;
        if (!decodes(host, &host->running[i]))
            continue;
        for (;;) {
            int code = sim_kv_grow(host, &host->running[i], 1, &fits);
            if (code || fits)
                break;
            if (host->n_running == 1)
                return RUN_OK;
            code = sim_kv_preempt(host);
            if (code)
                return code;
            if (i == host->n_running)
                break;
        }
        if (fits)
            add(host, i, 1, false);
    }
    return RUN_OK;
}

/* Fills the rest of the step with chunks of prompts, as far as there is room. */
static int add_prefills(sim_host *host)
{
    for (uint32_t i = 0; i < host->n_running && host->n_tokens < host->step_tokens; i++) {
        sim_running *r = &host->running[i];
        uint32_t left = host->step_tokens - host->n_tokens, n = wanted(host, r);
        bool fits;
        if (!n || decodes(host, r))
            continue;
        n = n < left ? n : left;
        int code = sim_kv_grow(host, r, n, &fits);
        if (code)
            return code;
        if (fits)
            add(host, i, n, true);
    }
    return RUN_OK;
}

/* Builds the batch: at least one sequence progresses, unless the only one left exceeds the pool. */
static int build(sim_host *host)
{
    for (;;) {
        host->n_batch = host->n_tokens = 0;
        int code = add_decodes(host);
        if (!code)
            code = add_prefills(host);
        if (code || host->n_batch || host->n_running <= 1)
            return code;
        code = sim_kv_preempt(host);
        if (code)
            return code;
    }
}

/* ---- Its routing ------------------------------------------------------------------------- */

static void draw_routes(sim_host *host)
{
    const sim_source *source = host->source;
    size_t row = (size_t)source->layers * source->top_k;
    int32_t *at = host->rows;
    for (uint32_t b = 0; b < host->n_batch; b++) {
        const sim_batch_entry *entry = &host->batch[b];
        void *stream = host->running[entry->running].stream;
        for (uint32_t i = 0; i < entry->n_tokens; i++, at += row)
            source->next(source, stream, entry->prefill, at);
    }
}

static void gather_layer(sim_host *host, uint32_t layer)
{
    size_t top_k = host->source->top_k, row = host->source->layers * top_k;
    const int32_t *from = host->rows + layer * top_k;
    for (uint32_t t = 0; t < host->n_tokens; t++)
        memcpy(host->ids + t * top_k, from + t * row, top_k * sizeof *host->ids);
}

/* ---- Its layers -------------------------------------------------------------------------- */

/* Attention's work in one layer that keeps KV. */
typedef struct attention {
    uint64_t pairs;   /* tokens of the step times the tokens that each attends to */
    uint64_t tokens;  /* tokens read: the sequences' own */
    uint32_t outputs; /* sequences with an output token */
} attention;

static attention measure(const sim_host *host)
{
    attention a = {0};
    for (uint32_t b = 0; b < host->n_batch; b++) {
        const sim_batch_entry *entry = &host->batch[b];
        const sim_running *r = &host->running[entry->running];
        uint64_t n = entry->n_tokens, before = r->tokens - n;
        a.pairs += n * before + n * (n + 1) / 2;
        a.tokens += r->tokens;
        a.outputs += wanted(host, r) == 0;
    }
    return a;
}

/* Charges everything in a layer but its routed experts. With several ranks their sums cross the bus
 * twice, as between cards without a direct link. */
static void compute_layer(sim_host *host, const attention *a, uint32_t layer)
{
    const sim_shape *s = host->shape;
    uint64_t weights = sim_shape_layer_bytes(s, layer), tokens = host->n_tokens;
    uint64_t flops = weights * tokens, bytes = weights;
    if (sim_shape_keeps_kv(s, layer)) {
        flops += a->pairs * s->context_flops;
        bytes += (a->tokens + tokens) * s->kv_token_bytes;
    }
    mp_sim_work(host->stack.clock, flops, bytes);
    if (s->tp > 1)
        mp_sim_transfer(host->stack.clock, 2 * tokens * s->hidden * 2 * 2 * (s->tp - 1) / s->tp);
}

static int run_experts(sim_host *host, uint32_t layer)
{
    moepage_session *session = host->stack.session;
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = host->source->top_k,
                               .ids = host->ids,
                               .weights = host->weights};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_BF16,
                       .x = host->rows, /* never read or written */
                       .y = host->rows};
    if (moepage_session_route(session, layer, &routing, NULL) ||
        moepage_session_ffn(session, layer, &ffn) || moepage_session_retire(session, layer))
        return broken("a layer");
    return RUN_OK;
}

static int run_layers(sim_host *host)
{
    const sim_shape *s = host->shape;
    attention a = measure(host);
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        uint32_t moe = layer - s->first_moe;
        int code = RUN_OK;
        if (layer >= s->first_moe)
            code = sim_own_before(host, moe);
        compute_layer(host, &a, layer);
        if (code || layer < s->first_moe)
            continue;
        gather_layer(host, moe);
        code = sim_own_layer(host, moe) ? sim_own_ffn(host, moe) : run_experts(host, moe);
        if (code)
            return code;
    }
    uint64_t head = s->vocabulary_params * 2;
    mp_sim_work(host->stack.clock, head * a.outputs, a.outputs ? head : 0);
    return RUN_OK;
}

/* ---- The step ---------------------------------------------------------------------------- */

static int begin(sim_host *host)
{
    for (uint32_t b = 0; b < host->n_batch; b++) {
        const sim_batch_entry *entry = &host->batch[b];
        host->sequences[b] =
            (moepage_step_sequence){.seq = host->kv[host->running[entry->running].job].seq,
                                    .n_tokens = entry->n_tokens,
                                    .phase = entry->prefill ? MOEPAGE_PHASE_PREFILL
                                                            : MOEPAGE_PHASE_DECODE};
    }
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = host->n_tokens,
                         .n_sequences = host->n_batch,
                         .sequences = host->sequences};
    return moepage_session_begin(host->stack.session, &step) ? broken("a step") : RUN_OK;
}

/* Measures steps with prompts and steps without: the difference is the cost of prompts. */
static void time_prompts(sim_host *host, const moepage_session_stats *stats, uint64_t wall_ns)
{
    uint64_t prompt = 0, blocks = 0;
    for (uint32_t b = 0; b < host->n_batch; b++)
        prompt += host->batch[b].prefill ? host->batch[b].n_tokens : 0;
    for (uint32_t i = 0; i < host->n_running; i++)
        blocks += (host->running[i].tokens + host->block_tokens - 1) / host->block_tokens;
    if (blocks > host->result->peak_running_blocks)
        host->result->peak_running_blocks = blocks;
    host->prompt_steps += prompt > 0;
    host->prompt_tokens += prompt;
    *(prompt ? &host->prompt_wall_ns : &host->other_wall_ns) += wall_ns;
    uint32_t size = host->n_batch < SIM_BATCHES ? host->n_batch : SIM_BATCHES;
    host->result->decode[size].steps += !prompt;
    host->result->decode[size].ns += prompt ? 0 : wall_ns;
    host->result->decode[size].high += prompt ? 0 : stats->routed - stats->low_experts;
}

/* Returns how many of the step's tokens had been computed before. */
static uint32_t count_tokens(sim_host *host)
{
    uint32_t again = 0;
    for (uint32_t b = 0; b < host->n_batch; b++) {
        const sim_batch_entry *entry = &host->batch[b];
        const sim_running *r = &host->running[entry->running];
        uint32_t from = r->tokens - entry->n_tokens;
        uint32_t known = r->known > from ? r->known - from : 0;
        known = known < entry->n_tokens ? known : entry->n_tokens;
        again += known;
        if (entry->prefill)
            host->result->prompt_tokens += entry->n_tokens - known;
    }
    host->result->again_tokens += again;
    return again;
}

static void account(sim_host *host, const moepage_session_stats *stats, uint64_t wall_ns)
{
    sim_result *result = host->result;
    double again = (double)count_tokens(host) / host->n_tokens;
    uint64_t stall = stats->stall_ns + host->own_stall_ns;
    stall = stall < wall_ns ? stall : wall_ns;
    host->own_stall_ns = 0;
    uint64_t again_ns = (uint64_t)((double)wall_ns * again);
    uint64_t again_stall = (uint64_t)((double)stall * again);
    time_prompts(host, stats, wall_ns);
    result->steps++;
    result->all_stall_ns += stall;
    result->again_ns += again_ns;
    result->stall_ns += stall - again_stall;
    result->compute_ns += wall_ns - stall - (again_ns - again_stall);
    result->routed += stats->routed;
    result->hits += stats->hits;
    result->misses += stats->misses;
    result->late += stats->late;
    result->streamed_layers += stats->streamed_layers;
    result->low_experts += stats->low_experts;
    result->low_rows += stats->low_rows;
    result->rows += (uint64_t)host->n_tokens * host->shape->moe_layers * host->shape->top_k;
}

/* Outputs a token for each sequence that has processed all of its own; ends those that are
 * complete. */
static int give_out(sim_host *host)
{
    uint64_t now = sim_stack_now(&host->stack);
    for (uint32_t b = 0; b < host->n_batch; b++) {
        sim_running *r = &host->running[host->batch[b].running];
        if (wanted(host, r))
            continue;
        host->result->output_tokens++;
        if (!r->generated++)
            host->times[r->job].first_ns = now;
    }
    for (uint32_t i = host->n_running; i-- > 0;) {
        sim_running ended = host->running[i];
        if (ended.generated < host->jobs->jobs[ended.job].output_tokens)
            continue;
        host->times[ended.job].end_ns = now;
        int code = sim_kv_end(host, &ended);
        if (code)
            return code;
        uint32_t behind = host->n_running + host->n_preempted - i - 1;
        memmove(&host->running[i], &host->running[i + 1], behind * sizeof ended);
        host->running[--host->n_running + host->n_preempted].stream = ended.stream;
        sim_queue_done(host, ended.job);
    }
    return RUN_OK;
}

/* Refuses the only job left, for which the pool is too small. */
static int refuse_running(sim_host *host)
{
    sim_running *r = &host->running[0];
    host->times[r->job].refused = true;
    host->result->refused++;
    if (moepage_kv_free(host->stack.kv, host->kv[r->job].seq))
        return broken("freeing KV");
    host->kv[r->job].state = SIM_KV_NONE;
    host->n_running = 0;
    sim_queue_done(host, r->job);
    memmove(r, r + 1, host->n_preempted * sizeof *r);
    return RUN_OK;
}

int sim_host_step(sim_host *host)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    int code = build(host);
    if (code)
        return code;
    if (!host->n_batch)
        return refuse_running(host);
    draw_routes(host);
    uint64_t began = sim_stack_now(&host->stack);
    code = begin(host);
    if (!code)
        code = run_layers(host);
    if (code)
        return code;
    if (moepage_session_end(host->stack.session, &stats))
        return broken("the end of a step");
    account(host, &stats, sim_stack_now(&host->stack) - began);
    host->clock_ns = sim_stack_now(&host->stack);
    return give_out(host);
}
