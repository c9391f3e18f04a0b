/* Writes metrics to a file. */
#include "serve/scrape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/report.h"

#define EVERY_NS 1000000000u

static int refuse(const server *s)
{
    return fail(RUN_FAILED, "--metrics %s: %s", s->config->options->base.metrics, strerror(errno));
}

static int write_metrics(const server *s, const char *path)
{
    char labels[64];
    FILE *out = fopen(path, "we");
    if (!out)
        return refuse(s);
    snprintf(labels, sizeof labels, "arm=\"%s\"", s->config->name);
    int code = report_metrics(out, &s->engine.host, s->engine.controller, labels);
    if (fclose(out) && !code)
        code = refuse(s);
    return code;
}

/* Writes to a temporary name in the same directory, then renames. For a symbolic link the target is
 * replaced. */
static int replace(const server *s, const char *path)
{
    char *file = realpath(path, NULL), *other;
    const char *target = file ? file : path;
    if (asprintf(&other, "%s.%ld", target, (long)getpid()) < 0) {
        free(file);
        return fail_memory();
    }
    int code = write_metrics(s, other);
    if (!code && rename(other, target))
        code = refuse(s);
    if (code)
        unlink(other);
    free(other);
    free(file);
    return code;
}

int scrape_check(const serve_options *opts)
{
    const char *path = opts->base.metrics;
    struct stat there;
    if (!path || stat(path, &there) || S_ISREG(there.st_mode))
        return RUN_OK;
    return fail(RUN_REFUSED,
                "--metrics %s: not a regular file, and the file is replaced whole every second",
                path);
}

int scrape(server *s, bool now)
{
    const char *path = s->config->options->base.metrics;
    uint64_t at = clock_now_ns();
    if (!path || s->config->quiet || (!now && at - s->scraped_ns < EVERY_NS))
        return RUN_OK;
    s->scraped_ns = at;
    return replace(s, path);
}
