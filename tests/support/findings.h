/* findings.h — what a study found, asked for by name. */
#ifndef FINDINGS_H
#define FINDINGS_H

#include "sim/study.h"

/* Runs a study in brief; `traces` may be NULL. It must end well. Freed by the caller. */
sim_findings *findings_of(const char *study, const char *traces, uint64_t seed);

/* The folder of real traces, until the next call; skips the test, by its name, where it is not there. */
const char *findings_traces(const char *test);

/* Every study says what has to be so, and finds that it is; `least` claims at least. */
void findings_check_claims(const sim_findings *found, uint32_t least);

/* Whether the claim whose text begins so holds. */
bool findings_holds(const sim_findings *found, const char *text);

/* The figure of the case whose name begins so. */
double findings_figure(const sim_findings *found, const char *where, const char *what);

#endif
