/* The study of two versions per expert in short: in virtual time steps wait for nothing, the rate is a
 * multiple of a cache's, and what is hot is followed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/study.h"
#include "testing.h"

#define MODEL "qwen3-30b-a3b"

static sim_findings kept; /* of one run, for all that is asked of it */

static const sim_findings *run(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (!getenv("MP_TEST_LONG")) {
        print_message(
            "the study of precision: skipped in a sanitized build without MP_TEST_LONG\n");
        skip();
    }
#endif
    if (!kept.n)
        assert_int_equal(sim_study_find("precision")->run(true, 0, &kept), 0);
    return &kept;
}

static double figure(const char *where, const char *what)
{
    const sim_findings *found = run();
    for (uint32_t i = 0; i < found->n; i++)
        if (!strcmp(found->findings[i].where, where) && !strcmp(found->findings[i].what, what))
            return found->findings[i].ours;
    fail_msg("no figure '%s' of '%s'", what, where);
    return NAN;
}

static void test_study_precision_all_that_is_claimed_holds(void **state)
{
    (void)state;
    const sim_findings *found = run();
    assert_int_equal(found->n_claims, 5);
    for (uint32_t i = 0; i < found->n_claims; i++)
        if (!found->claims[i].holds)
            fail_msg("does not hold: %s", found->claims[i].text);
}

static void test_study_precision_rates_are_in_the_order_of_bytes_moved(void **state)
{
    (void)state;
    double low = figure(MODEL ", batch 32, static low", "tok/s");
    double own = figure(MODEL ", batch 32, DynaExq", "tok/s");
    double cache = figure(MODEL ", batch 32, expertflow", "tok/s");
    assert_true(low > own && own > 2.7 * cache);
    assert_true(
        fabs(own / cache - figure(MODEL ", batch 32, DynaExq", "times expertflow's tok/s")) < 1e-9);
    /* With every choice high a step would read BF16 for int4: at most four times the bytes. */
    assert_true(own > low / 4);
}

static void test_study_precision_a_shift_is_followed(void **state)
{
    (void)state;
    double before = figure(MODEL ", before a shift", "% of choices served high");
    double first = figure(MODEL ", interval 1 after it", "% of choices served high");
    double fifth = figure(MODEL ", interval 5 after it", "% of choices served high");
    double last = figure(MODEL ", interval 10 after it", "% of choices served high");
    assert_true(first < 0.8 * before);
    assert_true(fifth >= 0.95 * before && last >= 0.97 * before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study_precision_all_that_is_claimed_holds),
        cmocka_unit_test(test_study_precision_rates_are_in_the_order_of_bytes_moved),
        cmocka_unit_test(test_study_precision_a_shift_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
