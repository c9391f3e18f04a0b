/* The generator of routing: what its presets are like, and that every number of a description does
 * what it says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/replay.h"
#include "sim/synthetic.h"
#include "testing.h"

/* Exit codes of common/fail.h, whose fail() is a macro of cmocka. */
enum { DONE = 0, REFUSED = 2 };

#define MOST_IDS 8192

typedef struct running {
    sim_source *source;
    void *stream;
    uint32_t width;
    int32_t ids[MOST_IDS]; /* of the last token */
} running;

static sim_synthetic read_spec(const char *spec, uint64_t seed)
{
    sim_synthetic config;
    assert_int_equal(sim_synthetic_read(spec, seed, &config), DONE);
    return config;
}

static void start(running *r, const char *spec, uint64_t seed)
{
    sim_synthetic config = read_spec(spec, seed);
    assert_int_equal(sim_synthetic_open(&config, &r->source), DONE);
    r->width = config.layers * config.top_k;
    assert_true(r->width <= MOST_IDS);
    r->stream = malloc(r->source->stream_bytes);
    assert_non_null(r->stream);
    r->source->open(r->source, 0, r->stream);
}

static const int32_t *next(running *r)
{
    r->source->next(r->source, r->stream, false, r->ids);
    return r->ids;
}

static void stop(running *r)
{
    free(r->stream);
    r->source->close(r->source);
}

/* How often each expert of each layer comes in so many tokens of a request: [layers][experts]. */
static uint32_t *count_uses(running *r, uint32_t request, uint32_t skip, uint32_t tokens)
{
    const sim_source *s = r->source;
    uint32_t *counts = calloc((size_t)s->layers * s->experts, sizeof *counts);
    assert_non_null(counts);
    s->open(s, request, r->stream);
    for (uint32_t t = 0; t < skip; t++)
        next(r);
    for (uint32_t t = 0; t < tokens; t++) {
        const int32_t *ids = next(r);
        for (uint32_t i = 0; i < r->width; i++)
            counts[i / s->top_k * s->experts + (uint32_t)ids[i]]++;
    }
    return counts;
}

/* ---- Presets ------------------------------------------------------------------------------- */

/* DynaExq, table 1 and table 2. */
static const struct {
    const char *model;
    uint32_t layers, experts, top_k;
    double decode[6], prefill[6];
} published[] = {
    {"qwen3-30b-a3b",
     48,
     128,
     8,
     {6.3, 11.6, 20.1, 31.9, 46.5, 62.0},
     {46.9, 60.0, 73.4, 84.4, 92.8, 96.6}},
    {"qwen3-next-80b",
     48,
     512,
     10,
     {1.9, 3.7, 6.7, 14.9, 25.4, 39.2},
     {24.6, 35.3, 48.8, 67.1, 78.9, 86.2}},
    {"deepseek-v2-lite",
     26,
     64,
     6,
     {9.0, 14.9, 23.2, 35.9, 51.7, 67.6},
     {72.9, 86.9, 94.3, 96.0, 96.3, 96.3}},
};

static void assert_points(const char *what, const double *measured, const double *wanted)
{
    for (int i = 0; i < 6; i++)
        if (!(fabs(100 * measured[i] / wanted[i] - 1) <= 0.15))
            fail_msg("%s, batch %d: %.1f %%, published is %.1f %%", what, 1 << i, 100 * measured[i],
                     wanted[i]);
}

static void test_synthetic_presets_are_within_15_percent_of_the_published_tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            sim_synthetic config = read_spec(published[i].model, seed);
            assert_int_equal(config.layers, published[i].layers);
            assert_int_equal(config.experts, published[i].experts);
            assert_int_equal(config.top_k, published[i].top_k);
            assert_memory_equal(config.decode, published[i].decode, sizeof published[i].decode);
            assert_memory_equal(config.prefill, published[i].prefill, sizeof published[i].prefill);
            config.layers = 8;
            sim_activation activation;
            assert_int_equal(sim_activation_measure(&config, 2, &activation), DONE);
            assert_points(published[i].model, activation.decode, published[i].decode);
            assert_points(published[i].model, activation.prefill, published[i].prefill);
        }
}

/* Facts of the recorded routing: LRU's misses with room for 96, 192 and 384 of 768 experts, experts
 * per layer and request, and how much comes back. */
static void test_synthetic_gpt_oss_is_like_recorded_routing(void **state)
{
    (void)state;
    static const double misses[3] = {56.0, 38.7, 9.1};
    sim_synthetic config = read_spec("gpt-oss-20b:tokens=321", 0);
    sim_trace *trace;
    assert_int_equal(sim_synthetic_record(&config, 24, &trace), DONE);
    for (int i = 0; i < 3; i++) {
        sim_replay_config replay = {.policy = "lru", .capacity = UINT64_C(96) << i};
        sim_replay_result result;
        assert_int_equal(sim_replay(trace, &replay, &result), DONE);
        double percent = 100.0 * (double)result.misses / (double)result.accesses;
        if (fabs(percent - misses[i]) > 3)
            fail_msg("room for %d: %.1f %% misses, recorded are %.1f", 96 << i, percent, misses[i]);
    }
    uint64_t touched = 0, same = 0;
    for (uint32_t r = 0; r < 24; r++)
        for (uint32_t layer = 0; layer < 24; layer++) {
            uint32_t seen = 0, before = 0;
            for (uint32_t t = 0; t < 321; t++) {
                uint32_t set = 0;
                for (uint32_t k = 0; k < 4; k++)
                    set |= 1u << sim_trace_ids(trace, r * 321ull + t, layer)[k];
                same += (uint32_t)__builtin_popcount(set & before);
                seen |= before = set;
            }
            touched += (uint32_t)__builtin_popcount(seen);
        }
    assert_true(fabs((double)touched / (24 * 24) - 26.5) < 1.5);
    assert_true(fabs((double)same / (24 * 24 * 320 * 4) - 0.437) < 0.02);
    trace->source.close(&trace->source);
}

/* Counted here, token by token, in plain arrays. */
static double naive_activation(running *r, uint32_t first, uint32_t requests, uint32_t skip,
                               uint32_t tokens)
{
    const sim_source *s = r->source;
    bool *used = calloc((size_t)s->layers * s->experts, sizeof *used);
    uint32_t n = 0;
    assert_non_null(used);
    for (uint32_t i = 0; i < requests; i++) {
        uint32_t *counts = count_uses(r, first + i, skip, tokens);
        for (uint32_t e = 0; e < s->layers * s->experts; e++)
            used[e] |= counts[e] > 0;
        free(counts);
    }
    for (uint32_t e = 0; e < s->layers * s->experts; e++)
        n += used[e];
    free(used);
    return (double)n / s->layers / s->experts;
}

static void test_synthetic_activation_is_the_mean_over_batches(void **state)
{
    (void)state;
    static const char spec[] = "olmoe-1b-7b:layers=3,prompt=5";
    sim_synthetic config = read_spec(spec, 7);
    sim_activation activation;
    running r;
    assert_int_equal(sim_activation_measure(&config, 2, &activation), DONE);
    start(&r, spec, 7);
    for (uint32_t point = 0; point < SIM_TABLE_POINTS; point++) {
        uint32_t batch = 1u << point, batches = 64 / batch;
        double decode = 0, prefill = 0;
        for (uint32_t b = 0; b < batches; b++) {
            decode += naive_activation(&r, b * batch, batch, 16, 1) / batches;
            prefill += naive_activation(&r, b * batch, batch, 0, 5) / batches;
        }
        assert_true(fabs(activation.decode[point] - decode) < 1e-9);
        assert_true(fabs(activation.prefill[point] - prefill) < 1e-9);
    }
    stop(&r);
}

/* ---- Streams ------------------------------------------------------------------------------- */

static void test_synthetic_ids_are_distinct_whatever_the_numbers(void **state)
{
    (void)state;
    static const char *const specs[] = {"toy",
                                        "qwen3-30b-a3b:layers=3,skew=8",
                                        "toy:experts=256,top-k=256,layers=2,skew=3",
                                        "toy:experts=64,top-k=60,skew=8,topic=8,carry=0.9",
                                        "toy:reach=0,carry=0.5",
                                        "mixtral-8x7b:layers=2,skew=8,carry=0",
                                        "toy:segment=3,reach=0.3,shift-tokens=5,shift=1",
                                        "toy:experts=1,top-k=1,shift=1",
                                        "deepseek-v3"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        running r;
        start(&r, specs[i], i);
        const sim_source *s = r.source;
        bool *seen = calloc(s->experts, sizeof *seen);
        assert_non_null(seen);
        for (uint32_t token = 0; token < 40; token++) {
            if (token == 20)
                s->open(s, 3, r.stream);
            const int32_t *ids = next(&r);
            for (uint32_t layer = 0; layer < s->layers; layer++, ids += s->top_k) {
                memset(seen, 0, s->experts * sizeof *seen);
                for (uint32_t k = 0; k < s->top_k; k++) {
                    assert_in_range(ids[k], 0, s->experts - 1);
                    if (seen[ids[k]])
                        fail_msg("%s: expert %d twice", specs[i], ids[k]);
                    seen[ids[k]] = true;
                }
            }
        }
        free(seen);
        stop(&r);
    }
}

static void test_synthetic_requests_are_the_same_every_time(void **state)
{
    (void)state;
    static const char spec[] = "qwen3-30b-a3b:layers=4,segment=7,shift=2";
    sim_synthetic config = read_spec(spec, 3);
    sim_trace *trace;
    running a, b;
    config.tokens = 30;
    assert_int_equal(sim_synthetic_record(&config, 5, &trace), DONE);
    start(&a, spec, 3);
    start(&b, spec, 4);
    void *other = malloc(a.source->stream_bytes);
    int32_t ids[MOST_IDS];
    assert_non_null(other);
    uint32_t differ = 0;
    for (uint32_t request = 5; request-- > 0;) {
        a.source->open(a.source, request, a.stream);
        a.source->open(a.source, 4 - request, other);
        b.source->open(b.source, request, b.stream);
        for (uint32_t t = 0; t < 30; t++) {
            next(&a);
            next(&b);
            a.source->next(a.source, other, t % 2, ids);
            for (uint32_t i = 0; i < a.width; i++) {
                assert_int_equal(a.ids[i], sim_trace_ids(trace, request * 30ull + t, 0)[i]);
                assert_int_equal(ids[i], sim_trace_ids(trace, (4 - request) * 30ull + t, 0)[i]);
                differ += a.ids[i] != b.ids[i];
            }
        }
    }
    assert_true(differ > a.width * 30); /* another seed: others */
    free(other);
    stop(&a);
    stop(&b);
    trace->source.close(&trace->source);
}

static void test_synthetic_streams_are_small(void **state)
{
    (void)state;
    running r;
    start(&r, "deepseek-v3", 0);
    assert_int_equal(r.source->layers, 58);
    assert_true(r.source->stream_bytes <= 1024);
    assert_int_equal(r.source->stream_bytes % 8, 0);
    stop(&r);
}

/* ---- Numbers ------------------------------------------------------------------------------- */

static double carry_of(const char *spec)
{
    running r;
    start(&r, spec, 0);
    uint64_t same = 0, n = 0;
    for (uint32_t request = 0; request < 16; request++) {
        int32_t before[MOST_IDS];
        r.source->open(r.source, request, r.stream);
        for (uint32_t t = 0; t < 100; t++) {
            const int32_t *ids = next(&r);
            uint32_t k = r.source->top_k;
            for (uint32_t i = 0; t && i < r.width; i++)
                for (uint32_t j = i / k * k; j < i / k * k + k; j++)
                    same += before[j] == ids[i];
            n += t ? r.width : 0;
            memcpy(before, ids, r.width * sizeof *before);
        }
    }
    stop(&r);
    return (double)same / (double)n;
}

static void test_synthetic_experts_come_back_as_asked(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        double carry;
    } asked[] = {{"qwen3-30b-a3b:layers=4", 0.50},
                 {"qwen3-30b-a3b:layers=4,carry=0.4", 0.40},
                 {"qwen3-next-80b:layers=4,carry=0.75", 0.75},
                 {"mixtral-8x7b:layers=8,carry=0.4", 0.40},
                 {"toy:carry=1", 1.00}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        double carry = carry_of(asked[i].spec);
        if (fabs(carry - asked[i].carry) > 0.02)
            fail_msg("%s: %.3f come back", asked[i].spec, carry);
    }
    /* All alike and drawn anew: by chance. */
    double chance = carry_of("toy:experts=32,top-k=8,carry=0,skew=0,topic=0,reach=1");
    assert_true(fabs(chance - 8.0 / 32) < 0.01);
}

/* The deviation of the logarithm of how often an expert is drawn. */
static double deviation_of(const char *spec)
{
    running r;
    start(&r, spec, 1);
    uint32_t *counts = count_uses(&r, 0, 0, 20000), n = r.source->layers * r.source->experts;
    double sum = 0, squares = 0;
    for (uint32_t e = 0; e < n; e++) {
        double x = log(counts[e] + 0.5);
        sum += x / n;
        squares += x * x / n;
    }
    free(counts);
    stop(&r);
    return sqrt(squares - sum * sum);
}

static void test_synthetic_popularity_spreads_as_asked(void **state)
{
    (void)state;
    double flat = deviation_of("toy:top-k=1,carry=0,experts=64,skew=0,topic=0,reach=1");
    double skew = deviation_of("toy:top-k=1,carry=0,experts=64,skew=1,topic=0,reach=1");
    double both = deviation_of("toy:top-k=1,carry=0,experts=64,skew=0.6,topic=0.8,reach=1");
    assert_true(flat < 0.08); /* 312 draws each: 1 / sqrt(312) = 0.057 */
    assert_true(fabs(skew - 1) < 0.15);
    assert_true(fabs(both - 1) < 0.15);
}

static uint32_t touched(const uint32_t *counts, uint32_t n)
{
    uint32_t used = 0;
    for (uint32_t e = 0; e < n; e++)
        used += counts[e] > 0;
    return used;
}

static void test_synthetic_a_topic_reaches_its_share(void **state)
{
    (void)state;
    running one, many;
    start(&one, "toy:layers=2,experts=40,top-k=4,reach=0.25,skew=0,topic=0.5,carry=0.2", 0);
    start(&many, "toy:layers=2,experts=40,top-k=4,reach=0.25,topic=2,segment=50,carry=0.2", 0);
    uint32_t *a = count_uses(&one, 0, 0, 1000), *b = count_uses(&many, 0, 0, 1000);
    assert_int_equal(touched(a, 80), 20);
    assert_true(touched(b, 80) > 40); /* and topics change inside a request */
    free(a);
    free(b);
    stop(&one);
    stop(&many);
}

/* Of the eight most used experts of each layer, the share that is so in both. */
static double hot_share(const uint32_t *a, const uint32_t *b, uint32_t layers, uint32_t experts)
{
    uint32_t common = 0;
    for (uint32_t layer = 0; layer < layers; layer++, a += experts, b += experts)
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t above_a = 0, above_b = 0;
            for (uint32_t f = 0; f < experts; f++) {
                above_a += a[f] > a[e] || (a[f] == a[e] && f < e);
                above_b += b[f] > b[e] || (b[f] == b[e] && f < e);
            }
            common += above_a < 8 && above_b < 8;
        }
    return (double)common / (8.0 * layers);
}

static void test_synthetic_a_shift_moves_the_hot_set(void **state)
{
    (void)state;
    static const char common[] = "qwen3-30b-a3b:layers=8,topic=0,skew=2,carry=0.2,";
    char spec[128];
    running r;
    snprintf(spec, sizeof spec, "%sshift=10", common);
    start(&r, spec, 0);
    uint32_t *before = count_uses(&r, 0, 0, 1000), *last = count_uses(&r, 9, 0, 1000);
    uint32_t *after = count_uses(&r, 10, 0, 1000);
    assert_true(hot_share(before, last, 8, 128) > 0.8);
    assert_true(hot_share(before, after, 8, 128) < 0.3);
    free(last);
    free(after);
    stop(&r);
    snprintf(spec, sizeof spec, "%sshift-tokens=1000", common);
    start(&r, spec, 0);
    last = count_uses(&r, 0, 0, 1000);
    after = count_uses(&r, 0, 1000, 1000);
    assert_true(hot_share(before, last, 8, 128) > 0.8);
    assert_true(hot_share(last, after, 8, 128) < 0.3);
    free(before);
    free(last);
    free(after);
    stop(&r);
}

/* ---- Descriptions ---------------------------------------------------------------------------- */

static void test_synthetic_descriptions_are_read(void **state)
{
    (void)state;
    sim_synthetic c = read_spec("Qwen3-30B-A3B:skew=0.5,topics=3,tokens=9,seed=11,shift=4", 2);
    assert_true(c.skew == 0.5);
    assert_int_equal(c.topics, 3);
    assert_int_equal(c.tokens, 9);
    assert_int_equal(c.seed, 11);
    assert_int_equal(c.shift, 4);
    assert_int_equal(c.experts, 128);
    assert_int_equal(read_spec("toy", 2).seed, 2);
    assert_null(read_spec("toy", 2).decode);
}

static void test_synthetic_descriptions_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {"",
                                          "no-such-model",
                                          "toy:",
                                          "toy:skew",
                                          "toy:skew=",
                                          "toy:skew=-1",
                                          "toy:carry=1.01",
                                          "toy:carry=x",
                                          "toy:topics=0",
                                          "toy:colour=3",
                                          "toy:top-k=17",
                                          "toy:experts=4097",
                                          "toy:skew=1,,topic=1",
                                          "toy:--skew=1"};
    sim_synthetic config;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (sim_synthetic_read(refused[i], 0, &config) != REFUSED)
            fail_msg("'%s' is read", refused[i]);
    config = read_spec("deepseek-v3:topics=65536", 0); /* 8 GB of tables */
    sim_source *source;
    assert_int_equal(sim_synthetic_open(&config, &source), REFUSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synthetic_presets_are_within_15_percent_of_the_published_tables),
        cmocka_unit_test(test_synthetic_gpt_oss_is_like_recorded_routing),
        cmocka_unit_test(test_synthetic_activation_is_the_mean_over_batches),
        cmocka_unit_test(test_synthetic_ids_are_distinct_whatever_the_numbers),
        cmocka_unit_test(test_synthetic_requests_are_the_same_every_time),
        cmocka_unit_test(test_synthetic_streams_are_small),
        cmocka_unit_test(test_synthetic_experts_come_back_as_asked),
        cmocka_unit_test(test_synthetic_popularity_spreads_as_asked),
        cmocka_unit_test(test_synthetic_a_topic_reaches_its_share),
        cmocka_unit_test(test_synthetic_a_shift_moves_the_hot_set),
        cmocka_unit_test(test_synthetic_descriptions_are_read),
        cmocka_unit_test(test_synthetic_descriptions_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
