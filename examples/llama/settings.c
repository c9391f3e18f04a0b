/* The settings of the plug-in: variables of the environment, and what the machine has free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

/* Bytes that programs can still get, by the system's own estimate; 0 if it gives none. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib << 10;
}

/* What a control group still allows; UINT64_MAX without a limit. */
static uint64_t group_bytes(const char *limit_path, const char *usage_path)
{
    unsigned long long limit = 0, usage = 0;
    FILE *file = fopen(limit_path, "r");
    const bool limited = file && fscanf(file, "%llu", &limit) == 1;
    if (file)
        fclose(file);
    file = fopen(usage_path, "r");
    const bool used = file && fscanf(file, "%llu", &usage) == 1;
    if (file)
        fclose(file);
    return limited && used ? (limit > usage ? limit - usage : 0) : UINT64_MAX;
}

/* All that is free, but for a part that KV, compute buffers and the system need: an eighth, at least 512 MiB. */
static bool choose_budget(settings *out)
{
    uint64_t bytes = available_bytes();
    const uint64_t groups[] = {
        group_bytes("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        group_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        bytes = bytes < groups[i] ? bytes : groups[i];
    const uint64_t rest = bytes / 8 > 512u << 20 ? bytes / 8 : 512u << 20;
    if (bytes <= rest) {
        say("MOEPAGE_BUDGET=auto: %llu bytes of memory are free, and %llu must stay so: give a "
            "budget",
            (unsigned long long)bytes, (unsigned long long)rest);
        return false;
    }
    snprintf(out->budget, sizeof out->budget, "%llu", (unsigned long long)(bytes - rest));
    return true;
}

static bool copy(const char *name, const char *value, const char *without, char *out, size_t room)
{
    const size_t n = strlen(value);
    if (n > 0 && n < room && !strpbrk(value, without)) {
        memcpy(out, value, n + 1);
        return true;
    }
    say("%s=%s: it is empty, too long, or has a character that must not be there", name, value);
    return false;
}

static const char *value_of(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static bool read_settings(settings *out)
{
    const char *budget = value_of("MOEPAGE_BUDGET", "auto");
    out->options = value_of("MOEPAGE_OPTIONS", "");
    return copy("MOEPAGE_POLICY", value_of("MOEPAGE_POLICY", "cycle"), " \t\n=", out->policy,
                sizeof out->policy) &&
           copy("MOEPAGE_STATS", value_of("MOEPAGE_STATS", "text"), "", out->stats,
                sizeof out->stats) &&
           (strcmp(budget, "auto") == 0
                ? choose_budget(out)
                : copy("MOEPAGE_BUDGET", budget, " \t\n=", out->budget, sizeof out->budget));
}

const settings *settings_get(void)
{
    static settings found;
    return read_settings(&found) ? &found : NULL;
}
