/* The study of splits on real traces, where they are here: its short form. */
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

static void test_split_study_holds_on_real_traces(void **state)
{
    (void)state;
    const char *traces = findings_traces("test_split_study_holds_on_real_traces");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (!getenv("MP_TEST_LONG")) {
        print_message("the study of splits: skipped in a sanitized build without MP_TEST_LONG\n");
        skip();
    }
#endif
    sim_findings *found = findings_of("splits", traces, 0);
    assert_int_equal(found->n_claims, 3);
    findings_check_claims(found, 3);
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_study_holds_on_real_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
