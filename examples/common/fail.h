/* fail.h — how the examples report an error: one line on stderr and an exit code. */
#ifndef EXAMPLE_FAIL_H
#define EXAMPLE_FAIL_H

#include <stdbool.h>
#include <stdint.h>

/* Exit codes of the programs, and return values of all functions that can fail. */
enum {
    RUN_OK = 0,
    RUN_FAILED = 1, /* a failure while running: memory, a device, a write */
    RUN_REFUSED = 2 /* usage, a missing or invalid file, a budget that cannot work */
};

/* Prints "<program>: <text>" and returns `code`. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reports a failed library call: "<doing>: <moepage_last_error()>". */
int fail_library(int code, const char *doing);

/* Reports a failed library call about a file, whose name comes first, and once. */
int fail_file(int code, const char *path);

/* Returns true if the library's sentence begins with this file's name. */
bool fail_names(const char *path);

/* For the `log` of configs: prints warnings and errors in the same format. */
void fail_log(void *user, int32_t level, const char *text);

/* Reports that host memory is exhausted. */
int fail_memory(void);

#endif
