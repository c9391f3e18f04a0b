/* Arms of a study: what is said of those that serve and of those that do not, and their medians. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/study_arms.h"
#include "testing.h"

static const sim_jobs five = {.n = 5};
static const sim_serve_config config = {.jobs = &five};

static sim_arm_run *run_of(bool feasible, bool starts, uint32_t jobs)
{
    sim_arm_run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->feasible = feasible;
    run->result = (sim_result){.starts = starts, .jobs = jobs, .wall_ns = 1000, .idle_ns = 400};
    return run;
}

/* Reports the run against another that is twice as fast; returns the line, to be freed. */
static sim_finding *line_of(sim_arm_run *run)
{
    sim_findings *found = calloc(1, sizeof *found);
    sim_finding *line = malloc(sizeof *line);
    assert_non_null(found);
    assert_non_null(line);
    const sim_result other = {.jobs = 5, .wall_ns = 300};
    double ratio = sim_study_arm_ratio(&config, run, &other);
    sim_study_arm_find(&config, SIM_ARM_HALF, run, ratio, " / oracle", "here", found);
    assert_int_equal(found->n, 1);
    *line = found->findings[0];
    free(found);
    free(run);
    return line;
}

static void test_study_arms_compare_busy_time(void **state)
{
    (void)state;
    sim_finding *line = line_of(run_of(true, true, 5));
    assert_string_equal(line->what, "50-50 / oracle");
    assert_string_equal(line->where, "here");
    assert_true(line->ours == 2);
    free(line);
}

static void test_study_arms_say_why_one_has_no_figure(void **state)
{
    (void)state;
    sim_finding *infeasible = line_of(run_of(false, false, 0));
    sim_finding *stuck = line_of(run_of(true, false, 0));
    sim_finding *some = line_of(run_of(true, true, 3));
    assert_string_equal(infeasible->what, "50-50 does not start");
    assert_string_equal(stuck->what, "50-50 does not start");
    assert_string_equal(some->what, "50-50 serves 3 of 5 jobs");
    assert_true(isnan(infeasible->ours) && isnan(stuck->ours) && isnan(some->ours));
    free(infeasible);
    free(stuck);
    free(some);
}

static void test_study_arms_count_one_that_does_not_serve_as_worst(void **state)
{
    (void)state;
    sim_study_tally tally = {0};
    assert_true(isnan(sim_study_tally_median(&tally)));
    sim_study_tally_add(&tally, 3, false);
    sim_study_tally_add(&tally, 1, true);
    assert_true(sim_study_tally_median(&tally) == 2 && sim_study_tally_worst(&tally) == 3);
    sim_study_tally_add(&tally, NAN, true);
    assert_true(sim_study_tally_median(&tally) == 3);
    assert_true(isinf(sim_study_tally_worst(&tally)));
    assert_int_equal(tally.needless, 2);
}

static void test_study_arms_tell_of_all_workloads(void **state)
{
    (void)state;
    static const double figures[] = {4, 4, 1, 1};
    sim_findings *found = calloc(1, sizeof *found);
    assert_non_null(found);
    sim_study_tally tally = {0};
    sim_study_tally_add(&tally, 4, true);
    sim_study_tally_add(&tally, NAN, false);
    sim_study_tally_add(&tally, 2, false);
    sim_study_tally_find(&tally, SIM_ARM_FLUX, found);
    assert_int_equal(found->n, 4); /* median, worst served, not served, needless failures */
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(found->findings[i].where, "all: flux");
        assert_true(found->findings[i].ours == figures[i]);
    }
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study_arms_compare_busy_time),
        cmocka_unit_test(test_study_arms_say_why_one_has_no_figure),
        cmocka_unit_test(test_study_arms_count_one_that_does_not_serve_as_worst),
        cmocka_unit_test(test_study_arms_tell_of_all_workloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
