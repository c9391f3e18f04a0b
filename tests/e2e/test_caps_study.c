/* What caps by right-sizing are worth, in virtual time: the study's short form, on a seed that nothing was chosen by. */
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

static void test_caps_study_frees_memory_and_costs_little(void **state)
{
    (void)state;
    sim_findings *found = findings_of("caps", NULL, 101);
    findings_check_claims(found, 3);
    const double without = findings_figure(found, "20 of 64 experts, dual-resize, none",
                                           "slots at the end"),
                 with = findings_figure(found, "20 of 64 experts, dual-resize, 0.99",
                                        "slots at the end");
    assert_true(with <= 16 * 20 && without > 16 * 20); /* all that routing reaches */
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caps_study_frees_memory_and_costs_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
