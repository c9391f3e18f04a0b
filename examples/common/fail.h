/* fail.h — how the example ends when something is wrong: one line on stderr and an exit code. */
#ifndef EXAMPLE_FAIL_H
#define EXAMPLE_FAIL_H

#include <stdbool.h>
#include <stdint.h>

/* Exit codes of the programs, and what every function here that can fail returns. */
enum {
    RUN_OK = 0,
    RUN_FAILED = 1, /* something broke on the way: memory, a device, a write */
    RUN_REFUSED = 2 /* usage, a missing or foreign file, a budget that cannot work */
};

/* Prints "<program>: <text>" and returns `code`. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a library call that failed: "<doing>: <moepage_last_error()>". */
int fail_library(int code, const char *doing);

/* The same about a file, whose name comes first, and once. */
int fail_file(int code, const char *path);

/* Does the library's sentence begin with this file's name? */
bool fail_names(const char *path);

/* For the `log` of configs: prints warnings and worse in the same way. */
void fail_log(void *user, int32_t level, const char *text);

/* Out of host memory. */
int fail_memory(void);

#endif
