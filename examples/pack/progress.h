/* progress.h — how far a long call is: a bar on a terminal, a line now and then elsewhere, and an
 * end to it on SIGINT, SIGTERM or SIGHUP. */
#ifndef EXAMPLE_PROGRESS_H
#define EXAMPLE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *doing;
    bool terminal; /* that can draw over a line */
    bool drawn;    /* a bar stands on the terminal's last line */
    uint64_t began_ns;
    uint64_t shown_ns;
    uint64_t next_bytes; /* when the next line is due */
} progress;

/* From now on these signals are caught and end the call. */
void progress_begin(progress *p, const char *doing);

/* For moepage_pack_config: non-zero once a signal has come. `self` is a progress. */
int32_t progress_show(void *self, uint64_t done_bytes, uint64_t total_bytes);

/* Ends the bar's line. */
void progress_end(progress *p);

/* Has a signal come? */
bool progress_stopped(void);

#endif
