/* interrupt.h — SIGINT and SIGTERM as a wish to end, not as an end. */
#ifndef SERVE_INTERRUPT_H
#define SERVE_INTERRUPT_H

/* From now on the first of either is only noted; the second ends the program. */
void interrupt_open(void);

/* The signal that has come; 0 = none. */
int interrupt_seen(void);

#endif
