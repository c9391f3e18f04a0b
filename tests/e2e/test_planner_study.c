/* The residency planner where steps are of one sequence, in virtual time: the study's short form, on a seed that nothing
 * was chosen by. */
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

static void test_planner_study_is_near_the_best_mode_at_batch_1(void **state)
{
    (void)state;
    sim_findings *found = findings_of("planner", NULL, 101);
    findings_check_claims(found, 1);
    for (uint32_t i = 0; i < found->n; i++)
        assert_true(found->findings[i].ours > 0);
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_study_is_near_the_best_mode_at_batch_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
