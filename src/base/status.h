/* Status codes with a sentence: the thread-local last error returned by moepage_last_error(). */
#ifndef MP_BASE_STATUS_H
#define MP_BASE_STATUS_H

#include <stdarg.h>

#include "moepage.h"

/* Records a sentence for this thread and yields `status`; a failing path reads
 * `return mp_fail(MOEPAGE_E_FORMAT, "...", ...)`. The sentence names the bad value and says what
 * would be right. A macro, so that the compiler sees the returned status. */
#define mp_fail(status, ...) (mp_error_set(__VA_ARGS__), (moepage_status)(status))

void mp_error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mp_error_set_list(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* Puts `prefix: ` before the recorded sentence; returns `status`. For callers that know a file or
 * tensor name unknown to the layer below. */
moepage_status mp_fail_within(moepage_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Keep the recorded sentence while cleaning up may record others, and record it again; `status` is
 * returned. */
typedef struct mp_kept_error {
    char sentence[512];
} mp_kept_error;
mp_kept_error mp_error_keep(void);
moepage_status mp_fail_kept(moepage_status status, const mp_kept_error *kept);

#endif
