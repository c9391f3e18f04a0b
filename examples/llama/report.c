/* What the pages have done: a line at the end, and a file of metrics that is written anew every second. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugin.h"

static bool write_part(const char *part, const char *text, size_t n)
{
    FILE *file = fopen(part, "we");
    if (!file)
        return false;
    const bool written = fwrite(text, 1, n, file) == n;
    return !fclose(file) && written;
}

/* Contexts in several threads write the same file, one after the other. */
static bool write_file(const char *path, const char *text, size_t n)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char part[sizeof((paged_model *)NULL)->stats + 8];
    snprintf(part, sizeof part, "%s.part", path);
    pthread_mutex_lock(&lock);
    const bool written = write_part(part, text, n) && !rename(part, path);
    pthread_mutex_unlock(&lock);
    return written;
}

static void write_metrics(paged_model *of, const char *path)
{
    const moepage_stats_source source =
        MOEPAGE_STATS_SOURCE(.device = moepage_engine_device(of->engine),
                             .experts = moepage_engine_expert_pool(of->engine));
    char *text = malloc(MOEPAGE_STATS_TEXT_BYTES);
    uint64_t n = 0;
    if (text && moepage_stats_text(&source, text, MOEPAGE_STATS_TEXT_BYTES, &n))
        say("%s", moepage_last_error());
    else if (text && !write_file(path, text, n) && !atomic_exchange(&of->stats_failed, true))
        say("%s cannot be written: %s", path, strerror(errno));
    free(text);
}

static bool is_path(const char *stats)
{
    return *stats && strcmp(stats, "text") != 0 && strcmp(stats, "off") != 0;
}

void report_now_and_then(paged_model *of)
{
    struct timespec now;
    if (is_path(of->stats) && !clock_gettime(CLOCK_MONOTONIC, &now) &&
        atomic_exchange(&of->stats_at, now.tv_sec) != now.tv_sec)
        write_metrics(of, of->stats);
}

void report_at_the_end(paged_model *of)
{
    moepage_session_stats did = MOEPAGE_SESSION_STATS();
    if (is_path(of->stats))
        write_metrics(of, of->stats);
    if (strcmp(of->stats, "off") == 0 ||
        moepage_expert_pool_get_stats(moepage_engine_expert_pool(of->engine), &did) || !did.routed)
        return;
    say("%.1f %% of %llu expert uses were hits; %.2f GB read; %.2f s waited for them",
        100.0 * (double)did.hits / (double)did.routed, (unsigned long long)did.routed,
        (double)did.demand_bytes / 1e9, (double)did.stall_ns / 1e9);
}
