/* slow.h — leaves what takes minutes in a sanitized build to the plain one. */
#ifndef SLOW_H
#define SLOW_H

/* Skips the running test there, unless MP_TEST_LONG is set. */
void slow_skip_sanitized(const char *what);

#endif
