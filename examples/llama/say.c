/* Sentences on standard error. */
#include <stdarg.h>
#include <stdio.h>

#include "plugin.h"

void say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "moepage: %s\n", line);
}
