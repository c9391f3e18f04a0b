/* The choice of regime where it matters most, in virtual time: the study's short form, on seeds that
 * nothing was chosen by. */
#include <stdlib.h>

#include "findings.h"
#include "testing.h"

static void check(const char *traces)
{
    const uint64_t last = getenv("MP_TEST_LONG") ? 103 : 101;
    for (uint64_t seed = 101; seed <= last; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        sim_findings *found = findings_of("regimes", traces, seed);
        findings_check_claims(found, 3);
        assert_true(
            findings_figure(found, "olmoe-1b-7b, 50 %, batch 8", "auto of the better one") >= 0.97);
        for (uint32_t i = 0; i < found->n; i++) /* each of them runs, and neither regime is idle */
            assert_true(found->findings[i].ours > 0);
        free(found);
        if (traces) /* the trace has no seed; the others have been run without it */
            return;
    }
}

static void test_regime_study_chooses_the_better_one(void **state)
{
    (void)state;
    check(NULL);
}

static void test_regime_study_chooses_the_better_one_on_real_routes(void **state)
{
    (void)state;
    check(findings_traces("test_regime_study_chooses_the_better_one_on_real_routes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regime_study_chooses_the_better_one),
        cmocka_unit_test(test_regime_study_chooses_the_better_one_on_real_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
