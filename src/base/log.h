/* The host's log callback, with formatting. */
#ifndef MP_BASE_LOG_H
#define MP_BASE_LOG_H

#include "moepage.h"

typedef struct mp_log {
    moepage_log_fn fn; /* NULL = silent */
    void *user;
} mp_log;

void mp_log_write(const mp_log *log, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
