/* child.h — runs moepage-generate, found beside this program, and reads its statistics. */
#ifndef EXAMPLE_CHILD_H
#define EXAMPLE_CHILD_H

#include <jansson.h>

#include "common/flags.h"

/* Options common to all generations of one benchmark, in moepage-generate's syntax. */
typedef struct child_options {
    const char *model, *budget, *bus, *max_tokens;
    const char *for_generation; /* a flag that only affects generations, or NULL */
} child_options;

/* Rows of the command line of a struct that begins with a child_options. */
#define CHILD_FLAG(flag_name, member)                                                    \
    {                                                                                    \
        .name = flag_name, .read = flag_text, .offset = offsetof(child_options, member), \
        .note = offsetof(child_options, for_generation)                                  \
    }
#define CHILD_FLAGS                                                                   \
    {.name = "--model", .read = flag_text, .offset = offsetof(child_options, model)}, \
        CHILD_FLAG("--budget", budget), CHILD_FLAG("--bus", bus),                     \
        CHILD_FLAG("--max-tokens", max_tokens)

/* Refuses, in one line, values that moepage-generate would not understand. */
int child_check(const child_options *o);

/* Runs one generation with these options, `more` words (NULL-terminated) and --json; *stats is its
 * "stats", to be released with json_decref. One line and an exit code if it fails. */
int child_generate(const child_options *o, const char *const *more, json_t **stats);

/* Returns a number of the statistics. */
double child_number(const json_t *stats, const char *key);

#endif
