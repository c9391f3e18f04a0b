/* Available memory: the least of what the system has (/proc/meminfo) and of what the limits of the
 * process's control groups leave, version 2 and version 1. */
#include "device/available.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* How a version of control groups names its files. */
typedef struct cgroup_files {
    const char *mount;
    const char *limit, *usage;
    const char *inactive_cache, *active_cache; /* lines of memory.stat, groups below included */
} cgroup_files;

static const cgroup_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                       "inactive_file ", "active_file "};
static const cgroup_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                       "memory.usage_in_bytes", "total_inactive_file ",
                                       "total_active_file "};

/* Returns the number after `key` at the start of a line of directory/name; `otherwise` if
 * there is none. */
static uint64_t number_in(const char *directory, const char *name, const char *key,
                          uint64_t otherwise)
{
    char path[PATH_MAX], line[256];
    uint64_t number = otherwise;
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = n < (int)sizeof path ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long value;
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%llu", &value) == 1) {
            number = value;
            break;
        }
    }
    if (file)
        fclose(file);
    return number;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Returns what one group's own limit leaves. Page cache counts as used in a group, but is dropped
 * when the group runs short: a checkpoint that was read earlier must not count as memory in use. */
static uint64_t left_in_group(const cgroup_files *files, const char *directory)
{
    uint64_t limit = number_in(directory, files->limit, "", UINT64_MAX); /* "max" is no number */
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = number_in(directory, files->usage, "", 0);
    used = less(used, number_in(directory, "memory.stat", files->inactive_cache, 0));
    used = less(used, number_in(directory, "memory.stat", files->active_cache, 0));
    return less(limit, used);
}

/* Returns the least over a group and those above it. In a container the path may be the host's;
 * then only its upper end exists here. */
static uint64_t left_in_chain(const char *root, const cgroup_files *files, const char *group)
{
    char directory[PATH_MAX];
    uint64_t least = UINT64_MAX;
    size_t top = strlen(root) + strlen(files->mount);
    int n = snprintf(directory, sizeof directory, "%s%s%s", root, files->mount, group);
    if (n >= (int)sizeof directory)
        return least;
    for (;;) {
        uint64_t left = left_in_group(files, directory);
        least = left < least ? left : least;
        char *slash = strrchr(directory + top, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Evaluates one line of /proc/self/cgroup, "ID:CONTROLLERS:GROUP"; version 2 has
 * no controllers there. */
static uint64_t left_by_line(const char *root, char *line)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *controllers++ = *group++ = 0;
    if (!strcmp(group, "/"))
        group++;
    if (!*controllers)
        return left_in_chain(root, &version_2, group);
    for (char *rest, *name = strtok_r(controllers, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest))
        if (!strcmp(name, "memory"))
            return left_in_chain(root, &version_1, group);
    return UINT64_MAX;
}

static uint64_t left_in_groups(const char *root)
{
    char text[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;
    snprintf(text, sizeof text, "%s/proc/self/cgroup", root);
    FILE *file = fopen(text, "re");
    while (file && fgets(text, sizeof text, file)) {
        uint64_t left = left_by_line(root, text);
        least = left < least ? left : least;
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t mp_available_bytes(const char *root)
{
    char proc[PATH_MAX];
    snprintf(proc, sizeof proc, "%s/proc", root);
    uint64_t kib = number_in(proc, "meminfo", "MemAvailable: ", UINT64_MAX);
    uint64_t in_system = kib == UINT64_MAX ? UINT64_MAX : kib * 1024;
    uint64_t in_groups = left_in_groups(root);
    return in_system < in_groups ? in_system : in_groups;
}
