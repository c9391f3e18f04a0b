/* Running studies in brief, and looking through what they found. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#include "findings.h"

sim_findings *findings_of(const char *name, const char *traces)
{
    const sim_study *study = sim_study_find(name);
    sim_findings *found = calloc(1, sizeof *found);
    assert_non_null(study);
    assert_non_null(found);
    found->traces = traces;
    assert_int_equal(study->run(true, 0, found), 0);
    return found;
}

void findings_check_claims(const sim_findings *found, uint32_t least)
{
    assert_true(found->n_claims >= least);
    for (uint32_t i = 0; i < found->n_claims; i++)
        if (!found->claims[i].holds)
            fail_msg("does not hold: %s", found->claims[i].text);
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
