/* Status codes with a sentence: the thread-local last error behind moepage_last_error(). */
#ifndef MP_BASE_STATUS_H
#define MP_BASE_STATUS_H

#include <stdarg.h>

#include "moepage.h"

/* Records one sentence for this thread and yields `status`, so that a failing path reads
 * `return mp_fail(MOEPAGE_E_FORMAT, "...", ...)`. The sentence names the bad value and says what
 * would be right. A macro, so that compilers see the status that comes back. */
#define mp_fail(status, ...) (mp_error_set(__VA_ARGS__), (moepage_status)(status))

void mp_error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mp_error_set_list(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* Puts `prefix: ` before the sentence already recorded; keeps the status. For callers that know
 * the file or tensor that a lower layer does not. */
moepage_status mp_fail_within(moepage_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
