/* One line on stderr per failure. */
#include "common/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

/* Skips a file's name at the beginning of the library's sentence, either as given or without
 * directories. Returns the rest of the sentence, or NULL if it begins otherwise. */
static const char *skip_name(const char *sentence, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *const names[] = {path, slash && slash[1] ? slash + 1 : path};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(names[i]);
        if (!strncmp(sentence, names[i], length) && memchr(": .", sentence[length], 3))
            return sentence + length;
    }
    return NULL;
}

int fail_file(int code, const char *path)
{
    const char *rest = skip_name(moepage_last_error(), path);
    return rest ? fail(code, "%s%s", path, rest) : fail_library(code, path);
}

bool fail_names(const char *path)
{
    return skip_name(moepage_last_error(), path) != NULL;
}

void fail_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= MOEPAGE_LOG_WARNING)
        fail(RUN_OK, "%s", text);
}

int fail_memory(void)
{
    return fail(RUN_FAILED, "out of memory");
}
