/* moepage-generate on directories of 4-bit weights: the bits of the floats that the formats' own decoders make of
 * them (tests/data/w4), at every budget and from a pack. */
#include <stdio.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "testing.h"
#include "tool_runs.h"

#define FIXTURES "tests/data/w4/"
#define FLOATS FIXTURES "floats"
enum { VOCABULARY = 48 };

static const char *const stored[] = {FIXTURES "gptq", FIXTURES "awq", FIXTURES "packed"};

static uint32_t tokens[2][7] = {{1, 2, 3, 4, 5, 6, 7}, {40, 11, 29, 3, 17, 8, 33}};
static reference_prompt prompts[] = {{.tokens = tokens[0], .n_tokens = 7},
                                     {.tokens = tokens[1], .n_tokens = 7}};
static const reference ref = {.prompts = prompts, .n_prompts = 2, .vocabulary = VOCABULARY};
static const generation_part part = {.n = 2, .n_tokens = 7, .max_tokens = 16};

static void run(const char *model, const char *const *flags, generation *out)
{
    generation_run(model, &ref, &part, flags, out);
}

/* Another run must give the same. */
static void expect_same(const generation *expected, const char *model, const char *const *flags)
{
    generation found;
    run(model, flags, &found);
    generation_assert_same(expected, &found, model);
    generation_free(&found);
}

static void test_generate_w4_gives_the_bits_of_the_decoded_weights(void **state)
{
    static const char *const maths[] = {"fp32", "bf16"};
    (void)state;
    for (size_t m = 0; m < COUNT(maths); m++) {
        generation expected;
        run(FLOATS, LIST("--math", maths[m]), &expected);
        for (size_t i = 0; i < COUNT(stored); i++)
            expect_same(&expected, stored[i], LIST("--math", maths[m]));
        generation_free(&expected);
    }
}

static void test_generate_w4_gives_the_same_at_every_budget(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(stored); i++) {
        generation expected;
        run(stored[i], LIST("--math", "fp32"), &expected);
        expect_same(&expected, stored[i], LIST("--budget", "50%"));
        expect_same(&expected, stored[i], LIST("--budget", "25%", "--threads", "2"));
        expect_same(&expected, stored[i],
                    LIST("--budget", "25%", "--host-tier", "64K", "--prefetch", "previous"));
        generation_free(&expected);
    }
}

/* Integers times integers: not the bits of floats, but one result for all layouts. */
static void test_generate_w4_in_integers_is_the_same_of_every_layout(void **state)
{
    generation expected, exact;
    (void)state;
    run(stored[0], LIST("--math", "int8"), &expected);
    run(stored[0], LIST("--math", "fp32"), &exact);
    assert_true(memcmp(expected.logits, exact.logits, exact.n_logits * sizeof(float)) != 0);
    for (size_t i = 0; i < COUNT(stored); i++)
        expect_same(&expected, stored[i],
                    LIST("--math", "int8", "--budget", "50%", "--threads", "2"));
    generation_free(&expected);
    generation_free(&exact);
}

static void test_generate_w4_from_a_pack_gives_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(stored); i++) {
        place at;
        generation expected;
        place_open(&at);
        pack(LIST(stored[i], at.path, "--verify"));
        run(FLOATS, LIST("--math", "fp32"), &expected);
        expect_same(&expected, at.path, LIST("--budget", "50%"));
        generation_free(&expected);
        place_close(&at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_w4_gives_the_bits_of_the_decoded_weights),
        cmocka_unit_test(test_generate_w4_gives_the_same_at_every_budget),
        cmocka_unit_test(test_generate_w4_in_integers_is_the_same_of_every_layout),
        cmocka_unit_test(test_generate_w4_from_a_pack_gives_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
