/* standard.h — the standard descriptors: open when the program starts, flushed when it ends. */
#ifndef EXAMPLE_STANDARD_H
#define EXAMPLE_STANDARD_H

/* Ensures that descriptors 0 to 2 are open; every main calls it first. A program started without
 * one of them would give its number to the next file and print into that file. The substitutes
 * cannot be written to, so that lost output is still noticed. */
void standard_open(void);

/* Prints a help text. One line and RUN_FAILED where it cannot be written. */
int standard_print(const char *text);

/* Flushes standard output; returns `code`, or one line and RUN_FAILED if `code` was RUN_OK and
 * output was lost. */
int standard_finish(int code);

#endif
