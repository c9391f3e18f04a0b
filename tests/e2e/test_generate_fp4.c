/* moepage-generate on models of NVFP4 weights and of FP8 with one scale for a matrix (tests/data/fp4): from a pack
 * as from the directory or file, and in integers. test_generate compares them with transformers. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "generation.h"
#include "testing.h"
#include "tool_runs.h"

#define FIXTURES "tests/data/fp4/"

static const struct {
    const char *model, *reference;
    bool in_blocks;
} stored[] = {
    {FIXTURES "modelopt", FIXTURES "modelopt", true},
    {FIXTURES "modelopt.gguf", FIXTURES "modelopt", true},
    {FIXTURES "packed", FIXTURES "packed", true},
    {FIXTURES "stacked", FIXTURES "stacked", true},
    {FIXTURES "fp8", FIXTURES "fp8", false},
};

static void run(const char *model, const reference *ref, const char *const *flags, generation *out)
{
    const generation_part part = {.n = ref->n_prompts,
                                  .n_tokens = UINT32_MAX,
                                  .max_tokens = ref->prompts[0].n_greedy};
    generation_run(model, ref, &part, flags, out);
}

static void expect_same(const generation *expected, const char *model, const reference *ref,
                        const char *const *flags)
{
    generation found;
    run(model, ref, flags, &found);
    generation_assert_same(expected, &found, model);
    generation_free(&found);
}

static void test_generate_fp4_from_a_pack_gives_the_same(void **state)
{
    static const char *const maths[] = {"fp32", "bf16"};
    (void)state;
    for (size_t i = 0; i < COUNT(stored); i++) {
        place at;
        reference ref;
        reference_load_hf(stored[i].reference, &ref);
        place_open(&at);
        pack(LIST(stored[i].model, at.path, "--verify"));
        for (size_t m = 0; m < COUNT(maths); m++) {
            generation expected;
            run(stored[i].model, &ref, LIST("--math", maths[m]), &expected);
            expect_same(&expected, at.path, &ref, LIST("--math", maths[m], "--budget", "50%"));
            expect_same(&expected, at.path, &ref,
                        LIST("--math", maths[m], "--budget", "25%", "--host-tier", "256K",
                             "--prefetch", "previous", "--threads", "2"));
            generation_free(&expected);
        }
        place_close(&at);
        reference_free(&ref);
    }
}

/* Integers times integers: not the bits of floats, but one result at every budget. */
static void test_generate_fp4_in_integers_is_the_same_at_every_budget(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(stored) && stored[i].in_blocks; i++) {
        generation expected, exact;
        reference ref;
        reference_load_hf(stored[i].reference, &ref);
        run(stored[i].model, &ref, LIST("--math", "int8"), &expected);
        run(stored[i].model, &ref, LIST("--math", "fp32"), &exact);
        assert_true(memcmp(expected.logits, exact.logits, exact.n_logits * sizeof(float)) != 0);
        expect_same(&expected, stored[i].model, &ref,
                    LIST("--math", "int8", "--budget", "25%", "--threads", "2"));
        generation_free(&expected);
        generation_free(&exact);
        reference_free(&ref);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_fp4_from_a_pack_gives_the_same),
        cmocka_unit_test(test_generate_fp4_in_integers_is_the_same_at_every_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
