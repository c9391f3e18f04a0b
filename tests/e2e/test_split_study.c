/* The study of splits on real traces, where they are here: its short form. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim/study.h"
#include "testing.h"

static void test_split_study_holds_on_real_traces(void **state)
{
    (void)state;
    const char *shared = getenv("MOEPAGE_SHARED");
    char traces[4096], experts[4200];
    snprintf(traces, sizeof traces, "%s/traces", shared ? shared : "../shared");
    snprintf(experts, sizeof experts, "%s/gpt-oss-20b/experts.u8", traces);
    if (access(experts, R_OK) != 0) {
        print_message("test_split_study_holds_on_real_traces: skipped, %s is not here "
                      "(set MOEPAGE_SHARED)\n",
                      experts);
        skip();
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (!getenv("MP_TEST_LONG")) {
        print_message("the study of splits: skipped in a sanitized build without MP_TEST_LONG\n");
        skip();
    }
#endif
    sim_findings *found = calloc(1, sizeof *found);
    assert_non_null(found);
    found->traces = traces;
    assert_int_equal(sim_study_find("splits")->run(true, 0, found), 0);
    assert_int_equal(found->n_claims, 3);
    for (uint32_t i = 0; i < found->n_claims; i++)
        if (!found->claims[i].holds)
            fail_msg("%s", found->claims[i].text);
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_study_holds_on_real_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
