/* Split, regime and how many run, decided online, in virtual time: no worse than the best of a grid served in full, in
 * the study's short form, on a seed that nothing was chosen by. */
#include <math.h>
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

/* At least so many claims hold, and there is such a figure. */
static void check_study(const char *study, uint64_t seed, uint32_t claims, const char *where,
                        const char *figure)
{
    sim_findings *found = findings_of(study, NULL, seed);
    findings_check_claims(found, claims);
    const double value = findings_figure(found, where, figure);
    assert_true(isfinite(value) && value > 0);
    free(found);
}

static void test_turns_study_keeps_up_with_the_oracle(void **state)
{
    (void)state;
    check_study("turns", 101, 3, "olmoe-1b-7b, 256, load 0.90", "ours, mean s a job");
}

/* Over seeds, too. */
static void test_turns_study_keeps_up_over_seeds(void **state)
{
    (void)state;
    check_study("turns-seeds", 102, 2, "olmoe-1b-7b, 256", "of the best point's, all seeds");
}

/* And times that are promised are kept. */
static void test_turns_targets_are_met(void **state)
{
    (void)state;
    check_study("targets", 101, 2, "deepseek-v2-lite, 2048, no target", "ms a token");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_study_keeps_up_with_the_oracle),
        cmocka_unit_test(test_turns_study_keeps_up_over_seeds),
        cmocka_unit_test(test_turns_targets_are_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
