/* The pages of moepage-sim. */
#include "sim/report.h"

#include <inttypes.h>

int sim_report_open(const sim_options *options, const char *subject, const char *about,
                    sim_report *report)
{
    const page_command command = {"moepage-sim", options->argc, options->argv};
    return page_open(options->report, &command, subject, about, report);
}

int sim_report_open_trace(const sim_options *options, const sim_trace *trace, sim_report *report)
{
    const sim_source *s = &trace->source;
    char about[192];
    snprintf(about, sizeof about,
             "%" PRIu32 " requests, %" PRIu64 " tokens, %" PRIu32 " layers of %" PRIu32
             " experts, %" PRIu32 " for each token.",
             s->n_requests, trace->rows, s->layers, s->experts, s->top_k);
    return sim_report_open(options, s->name, about, report);
}
