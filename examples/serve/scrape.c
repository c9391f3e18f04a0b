/* Metrics to a file. */
#include "serve/scrape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/report.h"

#define EVERY_NS 1000000000u

static int refuse(const char *path)
{
    return fail(RUN_FAILED, "--metrics %s: %s", path, strerror(errno));
}

static int write_metrics(const server *s, const char *path)
{
    char labels[64];
    FILE *out = fopen(path, "we");
    if (!out)
        return refuse(path);
    snprintf(labels, sizeof labels, "arm=\"%s\"", s->config->name);
    int code = report_metrics(out, &s->engine.host, s->engine.controller, labels);
    if (fclose(out) && !code)
        code = refuse(path);
    return code;
}

/* Under another name first, in the same directory. */
static int replace(const server *s, const char *path)
{
    char *other;
    if (asprintf(&other, "%s.%ld", path, (long)getpid()) < 0)
        return fail_memory();
    int code = write_metrics(s, other);
    if (!code && rename(other, path))
        code = refuse(path);
    if (code)
        unlink(other);
    free(other);
    return code;
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
