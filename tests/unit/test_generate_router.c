/* The example's routers against definitions that rank all experts: softmax and sigmoids, biases of the
 * choice, groups, and scales. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/router.h"
#include "testing.h"

enum { MOST = 64 };

static uint64_t state_of_random = 0x9e3779b97f4a7c15u;

static double draw(void)
{
    state_of_random ^= state_of_random >> 12;
    state_of_random ^= state_of_random << 25;
    state_of_random ^= state_of_random >> 27;
    return (double)(state_of_random * 0x2545f4914f6cdd1du >> 11) / 0x1p53;
}

/* Returns how many of n values are ahead of value i: greater, or as great and before it. */
static uint32_t rank_of(const double *values, uint32_t n, uint32_t i)
{
    uint32_t ahead = 0;
    for (uint32_t j = 0; j < n; j++)
        ahead += values[j] > values[i] || (values[j] == values[i] && j < i);
    return ahead;
}

/* What an expert is chosen by: outside the best groups, less than all others. */
static void naive_choice(const model_config *c, const double *scores, const float *bias,
                         double *choice)
{
    const uint32_t each = c->experts / c->groups;
    double groups[MOST] = {0};
    for (uint32_t e = 0; e < c->experts; e++)
        choice[e] = scores[e] + (bias ? (double)bias[e] : 0);
    for (uint32_t e = 0; e < c->experts; e++) {
        const uint32_t g = e / each, rank = rank_of(choice + g * each, each, e % each);
        if (rank == 0 || (rank == 1 && c->router == ROUTER_SIGMOID))
            groups[g] += choice[e];
    }
    for (uint32_t e = 0; e < c->experts; e++)
        if (rank_of(groups, c->groups, e / each) >= c->top_groups)
            choice[e] = -1e9;
}

static void naive_scores(const model_config *c, const float *logits, double *scores)
{
    double sum = 0;
    for (uint32_t e = 0; e < c->experts; e++)
        sum += exp((double)logits[e]);
    for (uint32_t e = 0; e < c->experts; e++)
        scores[e] = c->router == ROUTER_SIGMOID ? 1 / (1 + exp(-(double)logits[e]))
                                                : exp((double)logits[e]) / sum;
}

static void check(const model_config *c, const float *bias)
{
    float logits[MOST], top[MOST];
    double scores[MOST], choice[MOST], all = 0, chosen = 0;
    int32_t ids[MOST];
    for (uint32_t e = 0; e < c->experts; e++)
        logits[e] = (float)(8 * draw() - 4);
    naive_scores(c, logits, scores);
    naive_choice(c, scores, bias, choice);
    router_choose(NULL, c, bias, logits, ids, top);
    for (uint32_t e = 0; e < c->experts; e++) {
        all += scores[e];
        chosen += rank_of(choice, c->experts, e) < c->top_k ? scores[e] : 0;
    }
    for (uint32_t e = 0; e < c->experts; e++) {
        const uint32_t rank = rank_of(choice, c->experts, e);
        assert_true(fabs((double)logits[e] - scores[e] / all) <= 1e-6);
        if (rank >= c->top_k)
            continue;
        const double weight = scores[e] / (c->normalize_top_k ? chosen : 1);
        assert_int_equal(ids[rank], e);
        assert_true(fabs((double)top[rank] - weight * (double)c->router_scale) <= 1e-5);
    }
}

static void test_generate_router_chooses_as_its_definition_says(void **state)
{
    static const struct {
        uint32_t experts, top_k, groups, top_groups;
    } sizes[] = {{8, 3, 1, 1},   {64, 8, 8, 4}, {12, 3, 4, 2}, {60, 6, 3, 1},
                 {16, 16, 4, 4}, {6, 1, 3, 2},  {2, 2, 1, 1}};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < 8; kind++)
            for (int round = 0; round < 200; round++) {
                const model_config c = {.experts = sizes[s].experts,
                                        .top_k = sizes[s].top_k,
                                        .groups = sizes[s].groups,
                                        .top_groups = sizes[s].top_groups,
                                        .router = kind & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                                        .normalize_top_k = kind & 2,
                                        .router_scale = kind & 4 ? 2.5f : 1};
                float bias[MOST];
                for (uint32_t e = 0; e < c.experts; e++)
                    bias[e] = (float)(draw() - 0.7);
                check(&c, kind & 1 ? bias : NULL);
            }
}

static void test_generate_router_gives_ties_to_lower_ids(void **state)
{
    const model_config c = {.experts = 8,
                            .top_k = 3,
                            .groups = 4,
                            .top_groups = 2,
                            .router = ROUTER_SIGMOID,
                            .router_scale = 1};
    float logits[8] = {0}, top[3];
    int32_t ids[3];
    (void)state;
    router_choose(NULL, &c, NULL, logits, ids, top);
    for (int32_t k = 0; k < 3; k++)
        assert_true(ids[k] == k && top[k] == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_router_chooses_as_its_definition_says),
        cmocka_unit_test(test_generate_router_gives_ties_to_lower_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
