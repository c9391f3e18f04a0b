/* The studies of splits on real traces, where they are here: their short forms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "findings.h"
#include "slow.h"
#include "testing.h"

static const char *const arms[] = {"mv-wsa",
                                   "50-50",
                                   "flux",
                                   "dual-resize",
                                   "flux-online",
                                   "mv-wsa-online",
                                   "mv-wsa-online, admission"};

#define N_ARMS (sizeof arms / sizeof *arms)

/* Returns the first line that says what became of an arm. */
static const sim_finding *line_of(const sim_findings *found, const char *where, const char *arm)
{
    size_t length = strlen(arm);
    for (uint32_t i = 0; i < found->n; i++) {
        const sim_finding *f = &found->findings[i];
        if (!strcmp(f->where, where) && !strncmp(f->what, arm, length) &&
            strchr(" ,", f->what[length]))
            return f;
    }
    fail_msg("nothing is said of %s", arm);
    return NULL;
}

static void check_line(const sim_finding *line)
{
    bool unserved = strstr(line->what, " does not start") || strstr(line->what, " serves ");
    assert_int_equal(isnan(line->ours), unserved);
    assert_true(unserved || line->ours > 0);
}

static void test_split_study_holds_on_real_traces(void **state)
{
    (void)state;
    slow_skip_sanitized("splits");
    sim_findings *found =
        findings_of("splits", findings_traces("test_split_study_holds_on_real_traces"), 0);
    assert_true(findings_holds(found, "MV-WSA's median"));
    assert_true(findings_holds(found, "its worst"));
    assert_true(findings_holds(found, "mv-wsa-online, admission has a median"));
    assert_true(findings_holds(found, "mv-wsa-online, admission has a worst"));
    assert_true(findings_holds(found, "0 workloads had admission failures"));
    for (size_t i = 0; i < N_ARMS; i++) {
        const sim_finding *line = line_of(found, "tools-1", arms[i]);
        check_line(line);
        char all[64];
        snprintf(all, sizeof all, "all: %s", arms[i]);
        double unserved = findings_figure(found, all, "workloads not served");
        assert_true(unserved == (isnan(line->ours) ? 1 : 0));
    }
    free(found);
}

static void test_split_study_of_synthetic_routes_runs_every_arm(void **state)
{
    (void)state;
    slow_skip_sanitized("splits-synthetic");
    sim_findings *found =
        findings_of("splits-synthetic",
                    findings_traces("test_split_study_of_synthetic_routes_runs_every_arm"), 7);
    for (size_t i = 0; i < N_ARMS; i++)
        check_line(line_of(found, "olmoe-short", arms[i]));
    free(found);
}

static void test_split_study_of_shifts_runs_every_arm(void **state)
{
    (void)state;
    slow_skip_sanitized("shifts");
    sim_findings *found =
        findings_of("shifts", findings_traces("test_split_study_of_shifts_runs_every_arm"), 0);
    double best = findings_figure(found, "short", "best split, s a job");
    assert_true(best > 0);
    for (size_t i = 3; i < N_ARMS; i++)
        check_line(line_of(found, "short", arms[i]));
    assert_true(findings_figure(found, "short", "mv-wsa-online, admission, gain") >= 0.97);
    /* One static split, and the best of them. */
    assert_true(findings_figure(found, "short", "mv-wsa for the first phase, gain") <= 1);
    free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_study_holds_on_real_traces),
        cmocka_unit_test(test_split_study_of_synthetic_routes_runs_every_arm),
        cmocka_unit_test(test_split_study_of_shifts_runs_every_arm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
