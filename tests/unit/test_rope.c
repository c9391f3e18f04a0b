/* YaRN's frequencies, against those of transformers 5.23.0 for a head of 32, a base of 10000, a factor of
 * 4 and 1024 trained positions: rounded ranges, the default, and gpt-oss's. */
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include "common/rope.h"
#include "testing.h"

enum { DIM = 32 };

#define SCALING "\"factor\": 4.0, \"original_max_position_embeddings\": 1024"

static const double same_ends[][2] = {{0, 1.0},
                                      {1, 0.5623413324356079},
                                      {2, 0.3162277638912201},
                                      {9, 0.0014058533124625683},
                                      {12, 0.0002500000118743628},
                                      {15, 4.4456985051510856e-05}};
static const double rounded[] = {0.1587749421596527,  0.07857143133878708,  0.03815887123346329,
                                 0.01807015761733055, 0.008256297558546066, 0.00357142835855484};
static const double exact[] = {0.174015074968338,    0.08539863675832748,  0.041017964482307434,
                               0.019126776605844498, 0.008540532551705837, 0.003556971438229084};

static const rope_traits whole = {.theta = 1e4}, half = {.theta = 1e4, .partial = 0.5};

static int read_scaling(const char *text, const rope_traits *traits, rope *out)
{
    json_error_t error;
    json_t *config = json_loads(text, 0, &error);
    assert_non_null(config);
    int code = rope_read(config, DIM, traits, out);
    json_decref(config);
    return code;
}

/* transformers computes in floats: a few roundings. */
static void expect_near(double found, double right)
{
    if (!(fabs(found - right) <= 8 * 0x1p-24 * right))
        fail_msg("%.9g instead of %.9g", found, right);
}

static void expect_frequencies(const char *text, const double *middle)
{
    rope r;
    assert_int_equal(read_scaling(text, &whole, &r), 0);
    for (size_t i = 0; i < sizeof same_ends / sizeof *same_ends; i++)
        expect_near(r.inverse_frequency[(int)same_ends[i][0]], same_ends[i][1]);
    for (uint32_t i = 0; i < 6; i++)
        expect_near(r.inverse_frequency[3 + i], middle[i]);
    expect_near(r.amplitude, 1.138629436111989);
    rope_free(&r);
}

static void test_rope_yarn_has_the_frequencies_of_transformers(void **state)
{
    (void)state;
    expect_frequencies("{\"rope_scaling\": {\"type\": \"yarn\", " SCALING "}}", rounded);
    expect_frequencies("{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000, "
                       "\"beta_fast\": 32, \"beta_slow\": 1, \"truncate\": false, " SCALING "}}",
                       exact);
}

static void test_rope_yarn_refuses_what_it_does_not_compute(void **state)
{
    static const char *const wrong[] = {
        "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 1024}}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"mscale\": 1.0, " SCALING "}}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"mscale_all_dim\": 1.0, " SCALING "}}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"mscale\": 0, \"mscale_all_dim\": 1, " SCALING
        "}}",
        "{\"partial_rotary_factor\": 0.5}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"beta_fast\": 1, \"beta_slow\": 1, " SCALING
        "}}"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rope r;
        assert_int_not_equal(read_scaling(wrong[i], &whole, &r), 0);
        rope_free(&r);
    }
}

/* By the formulas of DeepSeek-V2's own code, worked out with Python: yarn_get_mscale(4, 0.5) is
 * 1.0693147180559945, yarn_get_mscale(4, 1.5) is 1.2079441541679836. */
static void test_rope_yarn_divides_mscale_between_angles_and_scores(void **state)
{
    rope r;
    (void)state;
    assert_int_equal(read_scaling("{\"rope_scaling\": {\"type\": \"yarn\", \"mscale\": 0.5, "
                                  "\"mscale_all_dim\": 1.5, " SCALING "}}",
                                  &whole, &r),
                     0);
    expect_near(r.amplitude, 1.0693147180559945 / 1.2079441541679836);
    expect_near(r.score_factor, 1.2079441541679836 * 1.2079441541679836);
    rope_free(&r);
    assert_int_equal(read_scaling("{}", &whole, &r), 0);
    assert_true(r.amplitude == 1 && r.score_factor == 1);
    rope_free(&r);
}

static void test_rope_rotates_a_part_of_a_head_where_the_model_does(void **state)
{
    static const struct {
        const char *text;
        uint32_t dims;
    } parts[] = {{"{}", DIM / 2},
                 {"{\"partial_rotary_factor\": 0.25}", DIM / 4},
                 {"{\"rope_parameters\": {\"partial_rotary_factor\": 1.0}}", DIM}};
    static const char *const wrong[] = {"{\"partial_rotary_factor\": 0}",
                                        "{\"partial_rotary_factor\": 1.5}",
                                        "{\"partial_rotary_factor\": 0.05}"};
    rope r;
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(read_scaling(parts[i].text, &half, &r), 0);
        assert_int_equal(r.dims, parts[i].dims);
        expect_near(r.inverse_frequency[1], pow(1e4, -2.0 / parts[i].dims));
        rope_free(&r);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_not_equal(read_scaling(wrong[i], &half, &r), 0);
}

static void test_rope_turns_adjacent_pairs_or_halves(void **state)
{
    const float cosines[] = {0.6f, 0.8f}, sines[] = {0.8f, -0.6f};
    rope r = {.dims = 4};
    float halves[] = {1, 2, 3, 4}, pairs[] = {1, 3, 2, 4};
    (void)state;
    rope_turn(&r, cosines, sines, halves);
    r.interleaved = true;
    rope_turn(&r, cosines, sines, pairs);
    expect_near(-halves[0], 1.8);
    expect_near(halves[1], 4);
    assert_true(pairs[0] == halves[0] && pairs[1] == halves[2]);
    assert_true(pairs[2] == halves[1] && pairs[3] == halves[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_yarn_has_the_frequencies_of_transformers),
        cmocka_unit_test(test_rope_yarn_refuses_what_it_does_not_compute),
        cmocka_unit_test(test_rope_yarn_divides_mscale_between_angles_and_scores),
        cmocka_unit_test(test_rope_rotates_a_part_of_a_head_where_the_model_does),
        cmocka_unit_test(test_rope_turns_adjacent_pairs_or_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
