/* scrape.h — the library's metrics in a file, for a Prometheus that collects such files. */
#ifndef SERVE_SCRAPE_H
#define SERVE_SCRAPE_H

#include "serve/server.h"

/* RUN_REFUSED where something is in the place of --metrics' file that cannot be replaced: a device, a
 * pipe, a directory. */
int scrape_check(const serve_options *opts);

/* Writes the file of --metrics, at most once a second unless `now`; nothing without one. It is replaced
 * whole: a reader never sees half of it. */
int scrape(server *s, bool now);

#endif
