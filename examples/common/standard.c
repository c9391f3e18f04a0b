/* Opens missing descriptors, and flushes output. */
#include "common/standard.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "common/fail.h"

void standard_open(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDONLY);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int standard_print(const char *text)
{
    fputs(text, stdout);
    return standard_finish(RUN_OK);
}

int standard_finish(int code)
{
    if (!code && (fflush(stdout) || ferror(stdout)))
        return fail(RUN_FAILED, "cannot write to standard output");
    return code;
}
