/* The studies of prediction in brief: on the excerpt of a real trace, in virtual time, and on routing
 * recorded from the trained model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "findings.h"
#include "sim/study.h"
#include "slow.h"
#include "testing.h"
#include "tool_runs.h"

/* Counts of a deterministic trace: they move only when a predictor or a policy does. */
static void test_predict_studies_rank_predictors_and_policies(void **state)
{
    (void)state;
    slow_skip_sanitized("routing");
    sim_findings *found = findings_of("routing", NULL, 0);
    findings_check_claims(found, 5);
    const char *named = "% of routed experts named";
    double previous = findings_figure(found, "previous, distance 1", named);
    double near = findings_figure(found, "coactivation, distance 1", named);
    double far = findings_figure(found, "coactivation, distance 2", named);
    assert_true(near > far && far > previous);
    assert_true(findings_figure(found, "previous, distance 2", named) == previous);
    double lru = findings_figure(found, "warm, lru, 25.0 %", "hits, %");
    double ours = findings_figure(found, "warm, cycle, 25.0 %", "hits, %");
    double bound = findings_figure(found, "warm, belady, 25.0 %", "hits, %");
    assert_true(lru < ours && ours < bound);
    /* What the layer used last time is what LRU has at one token's cycle: the same count twice. */
    assert_true(previous == findings_figure(found, "warm, lru, 12.5 %", "hits, %"));
    free(found);
}

static void test_predict_studies_prefetching_never_costs(void **state)
{
    (void)state;
    slow_skip_sanitized("prefetch");
    sim_findings *found = findings_of("prefetch", NULL, 0);
    findings_check_claims(found, 1);
    free(found);
}

static void test_predict_studies_maps_name_more_than_counts(void **state)
{
    (void)state;
    slow_skip_sanitized("maps");
    place p;
    tool_result recorded;
    char path[128];
    place_open(&p);
    snprintf(path, sizeof path, "%s/eval.trace", p.dir);
    run_well("moepage-eval",
             LIST("--model", TINY, "--data", TINY "/eval/en.bin", TINY "/eval/c.bin",
                  TINY "/eval/de.bin", "--windows", "4", "--batch", "4", "--trace-out", path),
             &recorded);
    tool_result_free(&recorded);
    sim_findings *found = findings_of("maps", path, 0);
    findings_check_claims(found, 6);
    assert_true(findings_figure(found, "map (T+S)", "% of routed experts named") >
                findings_figure(found, "hit count", "% of routed experts named") + 10);
    free(found);
    remove(path);
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predict_studies_rank_predictors_and_policies),
        cmocka_unit_test(test_predict_studies_prefetching_never_costs),
        cmocka_unit_test(test_predict_studies_maps_name_more_than_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
