/* tool_runs.h — a directory to run tools in, and runs that must go well or be refused. */
#ifndef TOOL_RUNS_H
#define TOOL_RUNS_H

#include <stdint.h>

#include <jansson.h>

#include "tool.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define TINY "examples/models/tiny-qwen3moe"

/* A directory of the test's own, and a path in it. */
typedef struct place {
    char dir[64];
    char path[96]; /* dir/x.moepack, which is not there yet */
} place;

void place_open(place *p);
void place_close(place *p);

/* Files in a directory, hidden ones left out. */
unsigned count_files(const char *dir);

/* `arguments` are NULL-terminated, as for tool_run. Exit status 0. */
void run_well(const char *tool, const char *const *arguments, tool_result *out);

/* The same, and standard output is one JSON object. */
json_t *run_json(const char *tool, const char *const *arguments);

/* moepage-pack runs well. */
void pack(const char *const *arguments);

/* Members of an object, which must be there. */
int64_t integer(const json_t *json, const char *key);
double real(const json_t *json, const char *key);

/* Exit status 2, nothing on standard output, and on standard error one line that has `named`. */
void assert_refused(const char *tool, const char *const *arguments, const char *named);

#endif
