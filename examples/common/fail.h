/* fail.h — how the example ends when something is wrong: one line on stderr and an exit code. */
#ifndef EXAMPLE_FAIL_H
#define EXAMPLE_FAIL_H

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

/* Out of host memory. */
int fail_memory(void);

#endif
