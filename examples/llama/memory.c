/* How much memory is free: the least of what the system has and of what the limits of the process's control groups
 * leave, of both versions. Page cache counts as used in a group, but is dropped when the group runs short. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "plugin.h"

/* How a version of control groups names its files. */
typedef struct group_files {
    const char *mount, *limit, *usage;
    const char *inactive, *active; /* page cache, in memory.stat */
} group_files;

static const group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                      "inactive_file ", "active_file "};
static const group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_inactive_file ",
                                      "total_active_file "};

/* The number after `key` at the start of a line of folder/name; `otherwise` if there is none. */
static uint64_t number_in(const char *folder, const char *name, const char *key, uint64_t otherwise)
{
    char path[PATH_MAX + 64], line[256];
    unsigned long long number = otherwise;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), "%llu", &number) == 1)
            break;
    if (file)
        fclose(file);
    return number;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t left_in_group(const group_files *files, const char *folder)
{
    const uint64_t limit = number_in(folder, files->limit, "", UINT64_MAX);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = number_in(folder, files->usage, "", 0);
    used = less(used, number_in(folder, "memory.stat", files->inactive, 0));
    used = less(used, number_in(folder, "memory.stat", files->active, 0));
    return less(limit, used);
}

/* The least over a group and those above it. In a container only the upper ones may exist. */
static uint64_t left_in_chain(const group_files *files, const char *group)
{
    char folder[PATH_MAX];
    uint64_t least = UINT64_MAX;
    const size_t top = strlen(files->mount);
    if (snprintf(folder, sizeof folder, "%s%s", files->mount, group) >= (int)sizeof folder)
        return least;
    for (;;) {
        const uint64_t left = left_in_group(files, folder);
        least = left < least ? left : least;
        char *slash = strrchr(folder + top, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Of a line "ID:CONTROLLERS:GROUP"; version 2 has no controllers there. */
static uint64_t left_by_line(char *line)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *group++ = 0;
    if (controllers[1] == 0)
        return left_in_chain(&version_2, group);
    return strstr(controllers, "memory") ? left_in_chain(&version_1, group) : UINT64_MAX;
}

uint64_t memory_free(void)
{
    char line[PATH_MAX + 64];
    uint64_t least = number_in("/proc", "meminfo", "MemAvailable:", 0) << 10;
    FILE *groups = fopen("/proc/self/cgroup", "re");
    while (groups && fgets(line, sizeof line, groups)) {
        const uint64_t left = left_by_line(line);
        least = left < least ? left : least;
    }
    if (groups)
        fclose(groups);
    return least;
}
