/* The tables: the fraction of a layer's experts used by batches of requests. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "sim/report.h"
#include "sim/synthetic.h"

#define GROUP 32u   /* requests: the largest batch */
#define DECODED 16u /* decoded tokens of a request before the measured step */
#define PRINT_GROUPS 16u

typedef struct looking {
    sim_source *source;
    void *stream;
    int32_t *ids;   /* of one token */
    size_t words;   /* of a set of one layer's experts */
    uint64_t *used; /* [2][GROUP][layers][words] by decoding and by prompts */
} looking;

static uint64_t *set_of(const looking *l, uint32_t table, uint32_t slot, uint32_t layer)
{
    return l->used + (((size_t)table * GROUP + slot) * l->source->layers + layer) * l->words;
}

static void use_token(looking *l, uint32_t table, uint32_t slot, bool prefill)
{
    const sim_source *s = l->source;
    s->next(s, l->stream, prefill, l->ids);
    for (uint32_t i = 0; i < s->layers * s->top_k; i++)
        set_of(l, table, slot, i / s->top_k)[l->ids[i] / 64] |= UINT64_C(1) << l->ids[i] % 64;
}

static void use_request(looking *l, uint32_t slot, uint32_t source_request, uint32_t prompt_tokens)
{
    const sim_source *s = l->source;
    s->open(s, source_request, l->stream);
    for (uint32_t i = 0; i < prompt_tokens; i++)
        use_token(l, 1, slot, true);
    s->open(s, source_request, l->stream);
    for (uint32_t i = 0; i < DECODED; i++)
        s->next(s, l->stream, false, l->ids);
    use_token(l, 0, slot, false);
}

static uint32_t count(const uint64_t *set, size_t words)
{
    uint32_t n = 0;
    for (size_t w = 0; w < words; w++)
        n += (uint32_t)__builtin_popcountll(set[w]);
    return n;
}

/* Adds the mean fraction of used experts; then unites neighbours' sets for the batch twice as
 * large. */
static void add_points(looking *l, uint32_t table, double share, double *points)
{
    const sim_source *s = l->source;
    for (uint32_t point = 0; point < SIM_TABLE_POINTS; point++) {
        uint32_t batches = GROUP >> point;
        uint64_t sum = 0;
        for (uint32_t b = 0; b < batches; b++)
            for (uint32_t layer = 0; layer < s->layers; layer++) {
                const uint64_t *set = set_of(l, table, b, layer);
                sum += count(set, l->words);
                uint64_t *to = set_of(l, table, b / 2, layer);
                for (size_t w = 0; w < l->words; w++)
                    to[w] = b % 2 ? to[w] | set[w] : set[w];
            }
        points[point] += share * (double)sum / batches / s->layers / s->experts;
    }
}

static int open_looking(const sim_synthetic *config, looking *l)
{
    *l = (looking){.words = (config->experts + 63) / 64};
    int code = sim_synthetic_open(config, &l->source);
    if (code)
        return code;
    l->stream = malloc(l->source->stream_bytes);
    l->ids = malloc((size_t)config->layers * config->top_k * sizeof *l->ids);
    l->used = calloc(2 * GROUP * (size_t)config->layers * l->words, sizeof *l->used);
    return l->stream && l->ids && l->used ? RUN_OK : fail_memory();
}

static void close_looking(looking *l)
{
    free(l->stream);
    free(l->ids);
    free(l->used);
    if (l->source)
        l->source->close(l->source);
}

int sim_activation_measure(const sim_synthetic *config, uint32_t groups, sim_activation *out)
{
    looking l;
    *out = (sim_activation){0};
    int code = open_looking(config, &l);
    for (uint32_t group = 0; group < groups && !code; group++) {
        memset(l.used, 0, 2 * GROUP * (size_t)config->layers * l.words * sizeof *l.used);
        for (uint32_t i = 0; i < GROUP; i++)
            use_request(&l, i, group * GROUP + i, config->prompt_tokens);
        add_points(&l, 0, 1.0 / groups, out->decode);
        add_points(&l, 1, 1.0 / groups, out->prefill);
    }
    close_looking(&l);
    return code;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static json_t *points_json(const double *points, double unit)
{
    json_t *array = json_array();
    int failed = 0;
    for (uint32_t i = 0; points && i < SIM_TABLE_POINTS; i++)
        failed |= json_array_append_new(array, json_real(points[i] * unit));
    return put_or_null(failed, array);
}

static int print_json(const sim_synthetic *c, const sim_activation *a)
{
    json_t *decode = json_pack("{s:o, s:o}", "measured", points_json(a->decode, 100), "published",
                               points_json(c->decode, 1));
    json_t *prefill = json_pack("{s:o, s:o}", "measured", points_json(a->prefill, 100), "published",
                                points_json(c->prefill, 1));
    json_t *batches = json_pack("[i,i,i,i,i,i]", 1, 2, 4, 8, 16, 32);
    return put_print(stdout, 0,
                     json_pack("{s:{s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:o}}", "tables", "source",
                               c->name, "layers", (int)c->layers, "experts", (int)c->experts,
                               "top_k", (int)c->top_k, "prompt_tokens", (int)c->prompt_tokens,
                               "batch", batches, "decode", decode, "prefill", prefill));
}

static void print_points(const char *title, const double *measured, const double *published)
{
    printf("\n%-24s", title);
    for (uint32_t i = 0; i < SIM_TABLE_POINTS; i++)
        printf(" %7u", 1u << i);
    printf("\n%-24s", "  measured");
    for (uint32_t i = 0; i < SIM_TABLE_POINTS; i++)
        printf(" %7.1f", 100 * measured[i]);
    if (published) {
        printf("\n%-24s", "  published");
        for (uint32_t i = 0; i < SIM_TABLE_POINTS; i++)
            printf(" %7.1f", published[i]);
        printf("\n%-24s", "  off by");
        for (uint32_t i = 0; i < SIM_TABLE_POINTS; i++)
            printf(" %+6.1f%%", 100 * (100 * measured[i] / published[i] - 1));
    }
    printf("\n");
}

static void print_text(const sim_synthetic *c, const sim_activation *a)
{
    printf("%s: %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
           " for each token\nexperts of a layer that a batch uses, %%\n",
           c->name, c->layers, c->experts, c->top_k);
    print_points("decode, batch", a->decode, c->decode);
    char title[64];
    snprintf(title, sizeof title, "prompts of %" PRIu32 " tokens", c->prompt_tokens);
    print_points(title, a->prefill, c->prefill);
}

static int report_activation(const sim_synthetic *config, const sim_options *options,
                             const sim_activation *activation)
{
    sim_report report;
    char about[128];
    snprintf(about, sizeof about,
             "%" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32 " for each token.",
             config->layers, config->experts, config->top_k);
    int code = sim_report_open(options, config->name, about, &report);
    if (!code)
        sim_report_activation(&report, config, activation);
    return page_close(&report, code);
}

int sim_activation_main(const sim_synthetic *config, const sim_options *options)
{
    sim_activation activation;
    int code = sim_activation_measure(config, PRINT_GROUPS, &activation);
    if (!code)
        code = report_activation(config, options, &activation);
    if (!code && options->json)
        code = print_json(config, &activation);
    else if (!code)
        print_text(config, &activation);
    return code;
}
