/* interrupt.h — SIGINT and SIGTERM as a request to end instead of an immediate end. */
#ifndef SERVE_INTERRUPT_H
#define SERVE_INTERRUPT_H

/* Installs the handlers: from now on the first of either signal is only recorded; the second ends
 * the program. */
void interrupt_open(void);

/* Returns the signal received; 0 = none. */
int interrupt_seen(void);

#endif
