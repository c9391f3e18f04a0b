/* Running studies in brief, and looking through what they found. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"

#include "findings.h"

const char *findings_traces(const char *test)
{
    static char traces[4096];
    const char *shared = getenv("MOEPAGE_SHARED");
    char experts[4200];
    snprintf(traces, sizeof traces, "%s/traces", shared ? shared : "../shared");
    snprintf(experts, sizeof experts, "%s/gpt-oss-20b/experts.u8", traces);
    if (access(experts, R_OK) != 0) {
        print_message("%s: skipped, %s is not here (set MOEPAGE_SHARED)\n", test, experts);
        skip();
    }
    return traces;
}

sim_findings *findings_of(const char *name, const char *traces, uint64_t seed)
{
    const sim_study *study = sim_study_find(name);
    sim_findings *found = calloc(1, sizeof *found);
    assert_non_null(study);
    assert_non_null(found);
    found->traces = traces;
    assert_int_equal(study->run(true, seed, found), 0);
    return found;
}

void findings_check_claims(const sim_findings *found, uint32_t least)
{
    assert_true(found->n_claims >= least);
    for (uint32_t i = 0; i < found->n_claims; i++)
        if (!found->claims[i].holds)
            fail_msg("does not hold: %s", found->claims[i].text);
}

bool findings_holds(const sim_findings *found, const char *text)
{
    for (uint32_t i = 0; i < found->n_claims; i++)
        if (!strncmp(found->claims[i].text, text, strlen(text)))
            return found->claims[i].holds;
    fail_msg("nothing is claimed of '%s'", text);
    return false;
}

double findings_figure(const sim_findings *found, const char *where, const char *what)
{
    for (uint32_t i = 0; i < found->n; i++)
        if (!strncmp(found->findings[i].where, where, strlen(where)) &&
            !strcmp(found->findings[i].what, what))
            return found->findings[i].ours;
    fail_msg("no figure '%s' of '%s'", what, where);
    return NAN;
}
