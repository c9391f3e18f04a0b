/* scrape.h — the library's metrics in a file, for a Prometheus collector that reads files. */
#ifndef SERVE_SCRAPE_H
#define SERVE_SCRAPE_H

#include "serve/server.h"

/* Checks the path of --metrics; RUN_REFUSED for an existing device, pipe or directory, which cannot
 * be replaced. */
int scrape_check(const serve_options *opts);

/* Writes the file of --metrics, at most once a second unless `now`; does nothing without the flag.
 * The file is replaced atomically: a reader never sees a part of it. */
int scrape(server *s, bool now);

#endif
