/* Formats a line and hands it to the host. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void mp_log_write(const mp_log *log, int32_t level, const char *format, ...)
{
    if (!log->fn)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log->fn(log->user, level, text);
}
