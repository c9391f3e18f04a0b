/* child.h — runs moepage-generate, found beside this program, and reads its statistics. */
#ifndef EXAMPLE_CHILD_H
#define EXAMPLE_CHILD_H

#include <jansson.h>

#define CHILD_MAX_FLAGS 32

/* One run with these words (NULL-terminated) and --json; *stats is its "stats", to be given back
 * with json_decref. One line and RUN_FAILED when it did not end well. */
int child_generate(const char *const *flags, json_t **stats);

/* A number of the statistics. */
double child_number(const json_t *stats, const char *key);

#endif
