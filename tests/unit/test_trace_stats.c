/* What --stats says of a trace, against every measure's definition, worked out with sets. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/trace.h"
#include "sim/trace_stats.h"
#include "testing.h"

enum { LAYERS = 3, EXPERTS = 12, TOP_K = 3, KEYS = LAYERS * EXPERTS };

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("%.12g, %.12g expected", found, expected);
}

static sim_trace *make_trace(const uint32_t *lengths, uint32_t n, bool weighed)
{
    sim_trace *trace = NULL;
    uint64_t rows = 0;
    for (uint32_t r = 0; r < n; r++)
        rows += lengths[r];
    assert_int_equal(sim_trace_new("made", &(sim_trace_shape){LAYERS, EXPERTS, TOP_K}, &trace), 0);
    assert_int_equal(sim_trace_reserve(trace, rows, weighed), 0);
    rows = 0;
    for (uint32_t r = 0; r < n; rows += lengths[r++]) {
        sim_request request = {.first_row = rows, .rows = lengths[r]};
        assert_int_equal(sim_trace_add_request(trace, &request, NULL), 0);
    }
    for (uint64_t at = 0; at < rows * LAYERS; at++) {
        uint32_t reach = 4 + below(EXPERTS - 3);
        for (uint32_t k = 0; k < TOP_K; k++) {
            uint16_t *ids = trace->ids + at * TOP_K;
            bool again;
            do {
                ids[k] = (uint16_t)below(reach);
                again = (k > 0 && ids[0] == ids[k]) || (k > 1 && ids[1] == ids[k]);
            } while (again);
            if (weighed)
                trace->probabilities[at * TOP_K + k] = (float)(k + 1) / 6;
        }
    }
    assert_int_equal(sim_trace_check("made", trace), 0);
    return trace;
}

/* Which keys the rows from..to-1 use, and how many they are. */
static uint32_t keys_of(const sim_trace *trace, uint64_t from, uint64_t to, bool *used)
{
    uint32_t n = 0;
    memset(used, 0, KEYS * sizeof *used);
    for (uint64_t row = from; row < to; row++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t k = 0; k < TOP_K; k++)
                used[layer * EXPERTS + sim_trace_ids(trace, row, layer)[k]] = true;
    for (uint32_t key = 0; key < KEYS; key++)
        n += used[key];
    return n;
}

static uint32_t common(const bool *a, const bool *b)
{
    uint32_t n = 0;
    for (uint32_t key = 0; key < KEYS; key++)
        n += a[key] && b[key];
    return n;
}

/* In bits, of the weights that rows from..to-1 give the layer's experts. */
static double entropy(const sim_trace *trace, uint64_t from, uint64_t to, uint32_t layer)
{
    double weight[EXPERTS] = {0}, sum = 0, bits = 0;
    for (uint64_t row = from; row < to; row++)
        for (uint32_t k = 0; k < TOP_K; k++) {
            size_t at = (row * LAYERS + layer) * TOP_K + k;
            double w = trace->probabilities ? (double)trace->probabilities[at] : 1;
            weight[trace->ids[at]] += w;
            sum += w;
        }
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (weight[e] > 0)
            bits -= weight[e] / sum * log2(weight[e] / sum);
    return bits;
}

/* ---- One layer ------------------------------------------------------------------------------- */

static void check_layer(const sim_trace *trace, const sim_layer_stats *found, uint32_t layer)
{
    double carried = 0, pairs = 0, touched = 0, token_bits = 0, request_bits = 0;
    uint32_t n = trace->source.n_requests;
    for (uint32_t r = 0; r < n; r++) {
        const sim_request *q = &trace->requests[r];
        bool used[KEYS], before[KEYS], now[KEYS];
        keys_of(trace, q->first_row, q->first_row + q->rows, used);
        for (uint32_t e = 0; e < EXPERTS; e++)
            touched += used[layer * EXPERTS + e];
        request_bits += entropy(trace, q->first_row, q->first_row + q->rows, layer);
        for (uint64_t row = q->first_row; row < q->first_row + q->rows; row++) {
            token_bits += entropy(trace, row, row + 1, layer);
            if (row == q->first_row)
                continue;
            keys_of(trace, row - 1, row, before);
            keys_of(trace, row, row + 1, now);
            for (uint32_t e = layer * EXPERTS; e < (layer + 1) * EXPERTS; e++)
                carried += before[e] && now[e];
            pairs += TOP_K;
        }
    }
    assert_near(found->carry_over, carried / pairs);
    assert_near(found->touched, touched / n);
    assert_near(found->token_bits, token_bits / (double)trace->rows);
    assert_near(found->request_bits, request_bits / n);
}

/* Gini: the mean difference of two experts' uses, by twice their mean. */
static void check_skew(const sim_trace *trace, const sim_layer_stats *found, uint32_t layer)
{
    double uses[EXPERTS] = {0}, differences = 0, sum = 0, first = 0, second = 0;
    for (uint64_t row = 0; row < trace->rows; row++)
        for (uint32_t k = 0; k < TOP_K; k++)
            uses[sim_trace_ids(trace, row, layer)[k]]++;
    for (uint32_t i = 0; i < EXPERTS; i++) {
        sum += uses[i];
        for (uint32_t j = 0; j < EXPERTS; j++)
            differences += fabs(uses[i] - uses[j]);
        if (uses[i] > first) {
            second = first;
            first = uses[i];
        } else if (uses[i] > second) {
            second = uses[i];
        }
    }
    assert_near(found->gini, differences / (2 * EXPERTS * sum));
    assert_near(found->top_tenth, (first + second) / sum); /* 1.2 experts are two */
}

static void test_trace_stats_of_layers_are_their_definitions(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 40, 17, 2, 64};
    for (int weighed = 0; weighed < 2; weighed++) {
        random_state = 11;
        sim_trace *trace = make_trace(lengths, 5, weighed);
        sim_trace_stats stats;
        assert_int_equal(sim_trace_stats_measure(trace, 0, 0, 0, &stats), 0);
        assert_int_equal(stats.n_layers, LAYERS);
        double carry_over = 0, bits = 0;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            check_layer(trace, &stats.layers[layer], layer);
            check_skew(trace, &stats.layers[layer], layer);
            carry_over += stats.layers[layer].carry_over / LAYERS;
            bits += stats.layers[layer].request_bits / LAYERS;
        }
        assert_near(stats.mean.carry_over, carry_over);
        assert_near(stats.mean.request_bits, bits);
        sim_trace_stats_free(&stats);
        trace->source.close(&trace->source);
    }
}

/* ---- Bursts ---------------------------------------------------------------------------------- */

/* Of a burst's experts, those that the burst before it has too; bursts shorter than they should be
 * do not count, and bursts of tokens do not follow each other from one request to the next. */
static void check_bursts(const sim_trace *trace, const sim_trace_stats *found, uint32_t burst)
{
    bool used[2][KEYS];
    double unions = 0, most = 0, overlap = 0, jaccard = 0;
    uint32_t bursts = 0, pairs = 0, now = 0, before_n = 0;
    for (uint32_t r = 0; r < trace->source.n_requests; r++) {
        const sim_request *q = &trace->requests[r];
        uint64_t step = burst ? burst : q->rows;
        before_n = burst ? 0 : before_n;
        for (uint64_t at = 0; at + step <= q->rows; at += step) {
            now = !now;
            uint32_t n = keys_of(trace, q->first_row + at, q->first_row + at + step, used[now]);
            bursts++;
            unions += n / (double)KEYS;
            most = fmax(most, n / (double)KEYS);
            if (before_n) {
                double both = common(used[0], used[1]);
                pairs++;
                overlap += both / n;
                jaccard += both / (n + before_n - both);
            }
            before_n = n;
        }
    }
    assert_int_equal(found->bursts, bursts);
    assert_near(found->burst_union, bursts ? unions / bursts : 0);
    assert_near(found->burst_union_max, most);
    assert_near(found->burst_overlap, pairs ? overlap / pairs : 0);
    assert_near(found->burst_jaccard, pairs ? jaccard / pairs : 0);
}

static void test_trace_stats_of_bursts_are_their_definitions(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {8, 1, 40, 16, 3, 33};
    static const uint32_t bursts[] = {0, 1, 2, 7, 8, 16, 40, 41};
    random_state = 12;
    sim_trace *trace = make_trace(lengths, 6, false);
    for (size_t i = 0; i < sizeof bursts / sizeof *bursts; i++) {
        sim_trace_stats stats;
        assert_int_equal(sim_trace_stats_measure(trace, bursts[i], 0, 0, &stats), 0);
        check_bursts(trace, &stats, bursts[i]);
        sim_trace_stats_free(&stats);
    }
    trace->source.close(&trace->source);
}

/* ---- Growth ---------------------------------------------------------------------------------- */

static void check_point(const sim_trace *trace, const sim_stats_point *found, uint64_t tokens)
{
    double footprint = 0, bits = 0;
    uint32_t n = 0;
    for (uint32_t r = 0; r < trace->source.n_requests; r++) {
        const sim_request *q = &trace->requests[r];
        bool used[KEYS];
        if (q->rows < tokens)
            continue;
        n++;
        footprint += keys_of(trace, q->first_row, q->first_row + tokens, used) / (double)KEYS;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            bits += entropy(trace, q->first_row, q->first_row + tokens, layer) / LAYERS;
    }
    assert_int_equal(found->tokens, tokens);
    assert_int_equal(found->requests, n);
    assert_near(found->footprint, footprint / n);
    assert_near(found->bits, bits / n);
}

static void test_trace_stats_of_growth_are_their_definitions(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {5, 100, 31, 64};
    random_state = 13;
    sim_trace *trace = make_trace(lengths, 4, true);
    sim_trace_stats stats;
    bool used[KEYS];
    double tokens = 0;
    assert_int_equal(sim_trace_stats_measure(trace, 0, 0, 0, &stats), 0);
    assert_int_equal(stats.n_points, 7);
    for (uint32_t i = 0; i < stats.n_points; i++)
        check_point(trace, &stats.points[i], UINT64_C(1) << i);
    for (uint32_t r = 0; r < 4; r++) {
        const sim_request *q = &trace->requests[r];
        uint64_t at = 0;
        double all = keys_of(trace, q->first_row, q->first_row + q->rows, used);
        while (keys_of(trace, q->first_row, q->first_row + at, used) < 0.9 * all)
            at++;
        tokens += (double)at / 4;
    }
    assert_near(stats.saturation_tokens, tokens);
    assert_near(stats.all_footprint, keys_of(trace, 0, trace->rows, used) / (double)KEYS);
    sim_trace_stats_free(&stats);
    trace->source.close(&trace->source);
}

/* ---- The bus --------------------------------------------------------------------------------- */

/* Two tokens, by hand: in each of the layers one expert of three comes again. */
static void test_trace_stats_bound_what_the_bus_allows(void **state)
{
    (void)state;
    static const uint16_t rows[2][TOP_K] = {{0, 1, 2}, {2, 3, 4}};
    static const uint32_t lengths[] = {2};
    sim_trace *trace = make_trace(lengths, 1, false);
    for (uint32_t i = 0; i < 2 * LAYERS * TOP_K; i++)
        trace->ids[i] = rows[i / (LAYERS * TOP_K)][i % TOP_K];
    sim_trace_stats stats;
    assert_int_equal(sim_trace_stats_measure(trace, 0, 1000, 120000, &stats), 0);
    assert_near(stats.mandatory_experts, 6);
    assert_near(stats.mandatory_bytes, 6000);
    assert_near(stats.tokens_per_s, 20);
    sim_trace_stats_free(&stats);
    assert_int_equal(sim_trace_stats_measure(trace, 0, 0, 120000, &stats), 0);
    assert_near(stats.tokens_per_s, 0);
    sim_trace_stats_free(&stats);
    trace->source.close(&trace->source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_stats_of_layers_are_their_definitions),
        cmocka_unit_test(test_trace_stats_of_bursts_are_their_definitions),
        cmocka_unit_test(test_trace_stats_of_growth_are_their_definitions),
        cmocka_unit_test(test_trace_stats_bound_what_the_bus_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
