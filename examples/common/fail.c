/* One line on stderr per failure. */
#include "common/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "moepage.h"

int fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

int fail_library(int code, const char *doing)
{
    return fail(code, "%s: %s", doing, moepage_last_error());
}

int fail_memory(void)
{
    return fail(RUN_FAILED, "out of memory");
}
