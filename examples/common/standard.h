/* standard.h — the standard descriptors: there when the program starts, written to when it ends. */
#ifndef EXAMPLE_STANDARD_H
#define EXAMPLE_STANDARD_H

/* Sees that descriptors 0 to 2 are taken: the first thing that each main does. A program started
 * without one of them would give its number to the next file, and print into that. What stands in
 * cannot be written to, so that output which gets nowhere is still noticed. */
void standard_open(void);

/* Prints a help text. One line and RUN_FAILED where it cannot be written. */
int standard_print(const char *text);

/* Writes what standard output still holds: `code`, or one line and RUN_FAILED if that was RUN_OK and
 * the output got lost. */
int standard_finish(int code);

#endif
