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

static int read_scaling(const char *text, rope *out)
{
    json_error_t error;
    json_t *config = json_loads(text, 0, &error);
    assert_non_null(config);
    int code = rope_read(config, DIM, 1e4, out);
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
    assert_int_equal(read_scaling(text, &r), 0);
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
        "{\"rope_scaling\": {\"type\": \"yarn\", \"beta_fast\": 1, \"beta_slow\": 1, " SCALING
        "}}"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rope r;
        assert_int_not_equal(read_scaling(wrong[i], &r), 0);
        rope_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_yarn_has_the_frequencies_of_transformers),
        cmocka_unit_test(test_rope_yarn_refuses_what_it_does_not_compute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
