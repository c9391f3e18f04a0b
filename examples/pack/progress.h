/* progress.h — the progress of a long call: a bar on a terminal, an occasional line elsewhere;
 * SIGINT, SIGTERM or SIGHUP ends the call. */
#ifndef EXAMPLE_PROGRESS_H
#define EXAMPLE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *doing;
    bool terminal; /* lines can be redrawn */
    bool drawn;    /* a bar is on the terminal's last line */
    uint64_t began_ns;
    uint64_t shown_ns;
    uint64_t next_bytes; /* when the next line is due */
} progress;

/* Catches these signals from now on, so that they end the call. */
void progress_begin(progress *p, const char *doing);

/* For moepage_pack_config: returns non-zero once a signal has arrived. `self` is a progress. */
int32_t progress_show(void *self, uint64_t done_bytes, uint64_t total_bytes);

/* Ends the bar's line. */
void progress_end(progress *p);

/* Returns true if a signal has arrived. */
bool progress_stopped(void);

#endif
