/* slow.h — leaves what takes minutes in a sanitized build to the plain one. */
#ifndef SLOW_H
#define SLOW_H

#include <stdbool.h>

/* Is this a sanitized build, without MP_TEST_LONG? */
bool slow_here(void);

/* Skips the running test there. */
void slow_skip_sanitized(const char *what);

#endif
