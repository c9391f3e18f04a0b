/* Streams tokens, and prints the table or the JSON object. */
#include "common/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/forms.h"
#include "common/json_out.h"
#include "common/tokenizer.h"
#include "common/units.h"

/* ---- Tokens as they come ----------------------------------------------------------------- */

static void print_token(const streamer *s, const model_config *config, uint32_t token)
{
    size_t n;
    const unsigned char *text = tokenizer_text(s->tokens, token, &n);
    if (!tokenizer_has_text(s->tokens))
        fprintf(s->out, "%s%" PRIu32, s->shown ? " " : "", token);
    else if (n && !config_is_eos(config, token))
        fwrite(text, 1, n, s->out);
}

void report_stream(void *self, const generation *g)
{
    streamer *s = self;
    while (s->current < g->n_sequences) {
        const sequence *q = &g->sequences[s->current];
        uint32_t generated = q->n_tokens - q->n_prompt;
        if (generated && s->shown == 0 && g->n_sequences > 1)
            fprintf(s->out, "[%" PRIu32 "] ", s->current + 1);
        for (; s->shown < generated; s->shown++)
            print_token(s, g->decoder->config, q->tokens[q->n_prompt + s->shown]);
        if (!q->done)
            break;
        fputc('\n', s->out);
        s->current++;
        s->shown = 0;
    }
    fflush(s->out);
}

/* ---- Numbers ----------------------------------------------------------------------------- */

typedef struct numbers {
    moepage_session_stats session;
    moepage_expert_pool_info experts;
    moepage_kv_pool_info kv;
    moepage_device_info device;
    uint64_t prompt_tokens;
    uint64_t generated_tokens;
    uint64_t dense_ns;
    double hit_rate;
    double accounted; /* fraction of the wall time measured as compute or stall */
    double tok_s, prefill_tok_s, decode_tok_s;
    double cold_bytes_per_token;
} numbers;

static double per_second(uint64_t count, uint64_t ns)
{
    return ns ? (double)count * 1e9 / (double)ns : 0;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static int collect(const host *h, const generation *g, numbers *out)
{
    *out = (numbers){.session.struct_size = sizeof out->session,
                     .experts.struct_size = sizeof out->experts,
                     .kv.struct_size = sizeof out->kv,
                     .device.struct_size = sizeof out->device};
    if (moepage_session_get_stats(h->session, &out->session) ||
        moepage_expert_pool_get_info(h->experts, &out->experts) ||
        moepage_kv_pool_get_info(h->kv, &out->kv) ||
        moepage_device_get_info(h->device, &out->device))
        return fail_library(RUN_FAILED, "statistics");
    for (uint32_t i = 0; i < g->n_sequences; i++) {
        out->prompt_tokens += g->sequences[i].n_prompt;
        out->generated_tokens += g->sequences[i].n_tokens - g->sequences[i].n_prompt;
    }
    out->dense_ns = g->decoder->dense_ns + g->sampling_ns;
    out->hit_rate = share(out->session.hits, out->session.routed);
    out->accounted =
        share(out->session.stall_ns + out->session.compute_ns + out->dense_ns, g->wall_ns);
    out->tok_s = per_second(out->generated_tokens, g->wall_ns);
    out->prefill_tok_s = per_second(out->prompt_tokens, g->prefill_ns);
    out->decode_tok_s = per_second(g->decode_tokens, g->decode_ns);
    out->cold_bytes_per_token =
        out->session.tokens ? (double)out->experts.cold_bytes / (double)out->session.tokens : 0;
    return RUN_OK;
}

/* ---- The table --------------------------------------------------------------------------- */

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

/* Prints rates measured at the pool's creation; tiers absent from the run have none. */
static void print_rates(FILE *out, const moepage_expert_pool_info *e)
{
    const struct {
        const char *what;
        uint64_t bytes_per_s;
    } rates[] = {
        {"over the bus", e->bus_bytes_per_s},
        {"decoding", e->decode_bytes_per_s},
        {"cold reads", e->cold_bytes_per_s},
    };
    const char *before = "bandwidths      ";
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].bytes_per_s) {
            fprintf(out, "%s%s %.2f", before, rates[i].what, (double)rates[i].bytes_per_s / 1e9);
            before = ", ";
        }
    if (*before == ',')
        fprintf(out, " GB/s of dense experts\n");
}

static void print_host_tier(FILE *out, const moepage_expert_pool_info *e, double cold_per_token)
{
    char node[32] = "bound to no NUMA node";
    if (e->host_node >= 0)
        snprintf(node, sizeof node, "NUMA node %" PRId32, e->host_node);
    fprintf(out,
            "host tier       %.1f MiB for %" PRIu64 " experts, %" PRIu64 " there now; %.0f KiB "
            "pages, %s\n",
            mib(e->host_tier_bytes), e->host_tier_experts, e->host_tier_resident,
            e->host_page_bytes / 1024.0, node);
    if (e->host_page_bytes < 2u << 20)
        fprintf(out, "                plain pages: the system gave no huge ones\n");
    fprintf(out,
            "cold tier       %" PRIu64 " experts read, %.1f MiB: %.2f MiB per token; %.2f%% of "
            "loads were in the host tier\n",
            e->cold_reads, mib(e->cold_bytes), cold_per_token / (1 << 20),
            100 * share(e->host_hits, e->host_hits + e->cold_reads));
}

/* Prints the tiers beyond slots and mapped files, if the run had any. */
static void print_tiers(FILE *out, const numbers *n)
{
    const moepage_expert_pool_info *e = &n->experts;
    if (e->host_tier_bytes)
        print_host_tier(out, e, n->cold_bytes_per_token);
    if (e->bus_form == MOEPAGE_FORM_EXPH || e->compressed_experts)
        fprintf(out, "bus form        %s: %" PRIu64 " experts decoded\n", form_name(e->bus_form),
                e->decodes);
    if (e->compressed_experts)
        fprintf(out,
                "compressed      %" PRIu32 " experts per layer in device memory, %.1f MiB: %" PRIu64
                " decoded from there\n",
                e->compressed_experts, mib(e->compressed_bytes), e->compressed_loads);
    print_rates(out, e);
}

/* Prints every approximation that took place; never omitted. */
static void print_lossy(FILE *out, const numbers *n)
{
    const moepage_session_stats *s = &n->session;
    if (n->experts.slot_form >= MOEPAGE_FORM_INT8)
        fprintf(out, "low precision   all experts are %s\n", form_name(n->experts.slot_form));
    if (s->low_experts)
        fprintf(out,
                "low precision   %.2f%% of the experts that were routed, %" PRIu64 " choices\n",
                100 * share(s->low_experts, s->routed), s->low_rows);
    if (s->host_experts)
        fprintf(out, "where they lie  %.2f%% of the experts that were routed\n",
                100 * share(s->host_experts, s->routed));
    if (s->remap_layers)
        fprintf(out, "remapped        %.2f experts per layer instead of %.2f, %.1f us each\n",
                (double)s->remap_after / (double)s->remap_layers,
                (double)s->remap_before / (double)s->remap_layers,
                (double)s->remap_ns / 1e3 / (double)s->remap_layers);
}

/* Prints the arena; its expert side also holds compressed ones. */
static void print_arena(FILE *out, const host *h, const numbers *n)
{
    fprintf(out, "arena, experts  %.1f MiB: %" PRIu64 " slots of %" PRIu64 " experts",
            mib(n->device.arena_expert_bytes), n->experts.slots,
            (uint64_t)h->info.moe_layers * h->info.experts);
    if (n->experts.compressed_experts)
        fprintf(out, ", %" PRIu64 " kept compressed",
                (uint64_t)n->experts.compressed_experts * h->info.moe_layers);
    fprintf(out, "\narena, KV       %.1f MiB: %" PRIu64 " blocks, %" PRIu64 " used at the peak\n",
            mib(n->device.arena_kv_bytes), n->kv.blocks, n->kv.peak_blocks);
}

int report_table(FILE *out, const host *h, const generation *g)
{
    numbers n;
    int code = collect(h, g, &n);
    if (code)
        return code;
    fprintf(out, "\n");
    fprintf(out, "tokens          %" PRIu64 " prompt, %" PRIu64 " generated\n", n.prompt_tokens,
            n.generated_tokens);
    fprintf(out, "tok/s           %.1f overall, %.1f prefill, %.1f decode\n", n.tok_s,
            n.prefill_tok_s, n.decode_tok_s);
    fprintf(out,
            "hit rate        %.2f%% (%" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64 " late)\n",
            100 * n.hit_rate, n.session.hits, n.session.misses, n.session.late);
    fprintf(out, "bytes moved     %.1f MiB on demand, %.1f MiB ahead\n",
            mib(n.session.demand_bytes), mib(n.experts.prefetch_bytes));
    fprintf(out, "time            %.1f ms: stall %.1f, experts %.1f, dense %.1f (%.1f%% known)\n",
            ms(g->wall_ns), ms(n.session.stall_ns), ms(n.session.compute_ns), ms(n.dense_ns),
            100 * n.accounted);
    print_arena(out, h, &n);
    fprintf(out, "dense weights   %.1f MiB of host memory", mib(g->decoder->stored->bytes));
    if (g->decoder->stored->decoded_bytes)
        fprintf(out, ", of which %.1f MiB were decoded from blocks",
                mib(g->decoder->stored->decoded_bytes));
    fprintf(out, "\n");
    if (g->decoder->dense->device_bytes)
        fprintf(out, "dense parts     %.1f MiB of device memory beside the budget; products: %s\n",
                mib(g->decoder->dense->device_bytes), g->decoder->dense->products);
    print_tiers(out, &n);
    print_lossy(out, &n);
    return RUN_OK;
}

/* ---- JSON -------------------------------------------------------------------------------- */

/* Appends the text of a sequence's generated tokens to `out`, if that is not NULL; returns its
 * length. */
static size_t gather_text(const sequence *q, const model_config *config, const tokenizer *tokens,
                          unsigned char *out)
{
    size_t length = 0, n;
    for (uint32_t i = q->n_prompt; i < q->n_tokens; i++) {
        const unsigned char *text = tokenizer_text(tokens, q->tokens[i], &n);
        if (!n || config_is_eos(config, q->tokens[i]))
            continue;
        if (out)
            memcpy(out + length, text, n);
        length += n;
    }
    return length;
}

static json_t *sequence_text(const sequence *q, const model_config *config, const tokenizer *tokens)
{
    const size_t length = gather_text(q, config, tokens, NULL);
    unsigned char *raw = malloc(length + 1);
    char *text = malloc(3 * length + 1);
    json_t *json = NULL;
    if (raw && text) {
        gather_text(q, config, tokens, raw);
        json = json_stringn(text, tokenizer_to_utf8(raw, length, text));
    }
    free(raw);
    free(text);
    return json;
}

static json_t *sequence_json(const sequence *q, const model_config *config, const tokenizer *tokens)
{
    json_t *output = json_object(), *ids = json_array();
    int failed = 0;
    for (uint32_t i = q->n_prompt; i < q->n_tokens; i++)
        failed |= json_array_append_new(ids, json_integer(q->tokens[i]));
    failed |= json_object_set_new(output, "tokens", ids);
    failed |= json_object_set_new(output, "text", sequence_text(q, config, tokens));
    return put_or_null(failed, output);
}

static int set_run(json_t *stats, const host *h, const generation *g, const numbers *n)
{
    const put_count_row counts[] = {
        {"prompt_tokens", n->prompt_tokens},
        {"generated_tokens", n->generated_tokens},
        {"steps", n->session.steps},
        {"wall_ns", g->wall_ns},
        {"prefill_ns", g->prefill_ns},
        {"decode_ns", g->decode_ns},
        {"stall_ns", n->session.stall_ns},
        {"expert_compute_ns", n->session.compute_ns},
        {"dense_compute_ns", n->dense_ns},
        {"library_ns", g->decoder->library_ns},
        {"routed", n->session.routed},
        {"hits", n->session.hits},
        {"misses", n->session.misses},
        {"late", n->session.late},
        {"layers", n->session.layers},
        {"groups", n->session.groups},
        {"demand_bytes", n->session.demand_bytes},
        {"prefetch_bytes", n->experts.prefetch_bytes},
        {"hint_experts", n->session.hint_experts},
        {"streamed_layers", n->session.streamed_layers},
        {"regime_changes", n->session.regime_changes},
        {"prefetch_useful", n->experts.prefetch_useful},
        {"prefetch_late", n->experts.prefetch_late},
        {"prefetch_wasted", n->experts.prefetch_wasted},
        {"prefetch_cancelled", n->experts.prefetch_cancelled},
        {"prefetch_refused", n->experts.prefetch_refused},
        {"evictions", n->experts.evictions},
        {"slots", n->experts.slots},
        {"slot_bytes", n->experts.slot_bytes},
        {"experts", (uint64_t)h->info.moe_layers * h->info.experts},
        {"routed_bytes", h->info.routed_bytes},
        {"kv_blocks", n->kv.blocks},
        {"kv_block_bytes", n->kv.block_bytes},
        {"kv_peak_blocks", n->kv.peak_blocks},
        {"budget_bytes", n->device.budget_bytes},
        {"workspace_bytes", n->device.workspace_bytes},
        {"arena_bytes", n->device.arena_bytes},
        {"arena_expert_bytes", n->device.arena_expert_bytes},
        {"arena_kv_bytes", n->device.arena_kv_bytes},
        {"peak_bytes", n->device.peak_bytes},
        {"threads", n->device.threads},
        {"dense_device_bytes", g->decoder->dense->device_bytes},
        {"dense_bytes", g->decoder->stored->bytes},
        {"dense_decoded_bytes", g->decoder->stored->decoded_bytes},
    };
    return PUT_COUNTS(stats, counts);
}

/* Sets figures of approximations, and of work done elsewhere. */
static int set_lossy(json_t *stats, const numbers *n)
{
    const put_count_row counts[] = {
        {"low_experts", n->session.low_experts},
        {"low_rows", n->session.low_rows},
        {"host_experts", n->session.host_experts},
        {"remap_layers", n->session.remap_layers},
        {"remap_before", n->session.remap_before},
        {"remap_after", n->session.remap_after},
        {"remap_tokens", n->session.remap_tokens},
        {"remap_rows", n->session.remap_rows},
        {"remap_ns", n->session.remap_ns},
        {"hi_experts", n->experts.hi_experts},
        {"slot_form", n->experts.slot_form},
        {"lo_bytes", n->experts.lo_bytes},
        {"promotions", n->experts.promotions},
        {"demotions", n->experts.demotions},
        {"transition_bytes", n->experts.transition_bytes},
    };
    return PUT_COUNTS(stats, counts);
}

/* Sets the run's settings, so that its numbers can be told from those of other runs. */
static int set_request(json_t *stats, const options *opts, const generation *g,
                       const moepage_expert_pool_info *e)
{
    int failed = put_text(stats, "model", opts->model);
    failed |= put_text(stats, "policy", opts->policy);
    failed |= put_text(stats, "device", opts->device);
    failed |= put_text(stats, "products", g->decoder->dense->products);
    return failed | put_count(stats, "io_threads", e->host_tier_bytes ? opts->io_threads : 0);
}

static int set_tiers(json_t *stats, const moepage_expert_pool_info *e)
{
    const put_count_row counts[] = {
        {"compressed_experts", e->compressed_experts},
        {"compressed_bytes", e->compressed_bytes},
        {"staging_bytes", e->staging_bytes},
        {"host_tier_bytes", e->host_tier_bytes},
        {"host_tier_experts", e->host_tier_experts},
        {"host_tier_resident", e->host_tier_resident},
        {"host_page_bytes", e->host_page_bytes},
        {"host_hits", e->host_hits},
        {"cold_reads", e->cold_reads},
        {"cold_bytes", e->cold_bytes},
        {"decodes", e->decodes},
        {"compressed_loads", e->compressed_loads},
        {"bus_bytes_per_s", e->bus_bytes_per_s},
        {"decode_bytes_per_s", e->decode_bytes_per_s},
        {"cold_bytes_per_s", e->cold_bytes_per_s},
    };
    int failed = put_text(stats, "bus_form", form_name(e->bus_form));
    failed |= put_count(stats, "host_node", e->host_node);
    return failed | PUT_COUNTS(stats, counts);
}

static json_t *stats_json(const options *opts, const host *h, const generation *g, const numbers *n)
{
    const put_real_row reals[] = {
        {"tok_s", n->tok_s},
        {"prefill_tok_s", n->prefill_tok_s},
        {"decode_tok_s", n->decode_tok_s},
        {"hit_rate", n->hit_rate},
        {"accounted", n->accounted},
        {"cold_bytes_per_token", n->cold_bytes_per_token},
    };
    json_t *stats = json_object();
    int failed = set_request(stats, opts, g, &n->experts) | set_run(stats, h, g, n) |
                 set_tiers(stats, &n->experts) | set_lossy(stats, n);
    failed |= PUT_REALS(stats, reals);
    return put_or_null(failed, stats);
}

int report_json(FILE *out, const options *opts, const host *h, const generation *g,
                const tokenizer *tokens)
{
    numbers n;
    int code = collect(h, g, &n);
    if (code)
        return code;
    json_t *root = json_object(), *outputs = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < g->n_sequences; i++)
        failed |= json_array_append_new(outputs, sequence_json(&g->sequences[i], g->decoder->config,
                                                               tokens));
    failed |= json_object_set_new(root, "outputs", outputs);
    failed |= json_object_set_new(root, "stats", stats_json(opts, h, g, &n));
    return put_print(out, failed, root);
}

int report_logits(FILE *out, const generation *g)
{
    for (uint32_t i = 0; i < g->n_sequences; i++) {
        const sequence *q = &g->sequences[i];
        size_t n = (size_t)q->n_logits * g->decoder->config->vocabulary;
        if (fwrite(q->logits, sizeof *q->logits, n, out) != n)
            return fail(RUN_FAILED, "cannot write the logits");
    }
    return RUN_OK;
}

int report_metrics(FILE *out, const host *h, moepage_controller *controller, const char *labels)
{
    const moepage_stats_source source = {.struct_size = sizeof source,
                                         .device = h->device,
                                         .experts = h->experts,
                                         .kv = h->kv,
                                         .controller = controller,
                                         .predictor = h->predictor,
                                         .labels = labels};
    uint64_t n = 0;
    char *text = malloc(MOEPAGE_STATS_TEXT_BYTES);
    if (!text)
        return fail_memory();
    int code = RUN_OK;
    if (moepage_stats_text(&source, text, MOEPAGE_STATS_TEXT_BYTES, &n))
        code = fail_library(RUN_FAILED, "the metrics");
    else if (fwrite(text, 1, n, out) != n)
        code = fail(RUN_FAILED, "cannot write the metrics");
    free(text);
    return code;
}
