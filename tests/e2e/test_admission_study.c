/* Controllers that decide how many run at once, in virtual time: the study's short form, on a seed that nothing was
 * chosen by. */
#include <math.h>
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

static void check(const char *traces)
{
    sim_findings *found = findings_of("admission", traces, 101);
    findings_check_claims(found, 3);
    assert_true(findings_figure(found, "olmoe-1b-7b, cache, burst, from 0.9",
                                "of the configured split's") <= 1.15);
    for (uint32_t i = 0; i < found->n; i++)
        assert_true(isfinite(found->findings[i].ours) && found->findings[i].ours > 0);
    free(found);
}

static void test_admission_study_leaves_no_thrash(void **state)
{
    (void)state;
    check(NULL);
}

static void test_admission_study_leaves_no_thrash_on_real_routes(void **state)
{
    (void)state;
    check(findings_traces("test_admission_study_leaves_no_thrash_on_real_routes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission_study_leaves_no_thrash),
        cmocka_unit_test(test_admission_study_leaves_no_thrash_on_real_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
