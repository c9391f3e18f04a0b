/* tool.h — runs one of the project's command-line tools and keeps what it printed. */
#ifndef TOOL_H
#define TOOL_H

typedef struct tool_result {
    int exit_status; /* 128 + the signal's number where one ended it */
    char *out;       /* NUL-terminated */
    char *err;
} tool_result;

/* Runs `name` with `arguments` (NULL-terminated, without the program itself) to its end, standard
 * input empty. The tool is the one built beside this test program, so that a sanitized test runs a
 * sanitized tool where there is one, or in $MOEPAGE_BIN_DIR. */
void tool_run(const char *name, const char *const *arguments, tool_result *out);

/* The same, with a signal (0 = none) blocked and pending when it starts: it comes the moment that
 * the tool is ready for it. */
void tool_run_signalled(const char *name, const char *const *arguments, int pending,
                        tool_result *out);

void tool_result_free(tool_result *result);

#endif
