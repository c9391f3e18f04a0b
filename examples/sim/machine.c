/* Finds profiles and opens devices. */
#include "sim/machine.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena/home.h"
#include "common/fail.h"

#define PREFIX "sim:"

typedef bool (*visit_fn)(const char *folder, void *user);

static bool visit_in(const char *directory, visit_fn visit, void *user)
{
    static const char *const folders[] = {"examples/machines", "share/moepage/machines"};
    char folder[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(folder, sizeof folder, "%s/%s", directory, folders[i]);
        if (visit(folder, user))
            return true;
    }
    return false;
}

/* Calls `visit` with each folder that may hold profiles, the nearest first, until it returns
 * true. */
static bool each_folder(visit_fn visit, void *user)
{
    char directory[PATH_MAX];
    if (visit_in(".", visit, user))
        return true;
    ssize_t length = readlink("/proc/self/exe", directory, sizeof directory - 1);
    if (length < 0)
        return false;
    directory[length] = '\0';
    for (char *slash = strrchr(directory, '/'); slash; slash = strrchr(directory, '/')) {
        *slash = '\0';
        if (visit_in(directory, visit, user))
            return true;
    }
    return false;
}

typedef struct wanted {
    const char *name;
    char *path;
} wanted;

static bool find_profile(const char *folder, void *user)
{
    const wanted *w = user;
    int length = snprintf(w->path, PATH_MAX, "%s/%s.json", folder, w->name);
    return length > 0 && length < PATH_MAX && !access(w->path, R_OK);
}

static bool find_file(const char *name, char *out)
{
    return each_folder(find_profile, &(wanted){name, out});
}

int sim_machine_find(const char *name, sim_machine *out)
{
    if (strchr(name, '/') || strchr(name, '.'))
        snprintf(out->path, sizeof out->path, "%s", name);
    else if (!find_file(name, out->path))
        return fail(RUN_REFUSED,
                    "no machine %s: moepage-sim --list machines names them, or give a "
                    "profile's path",
                    name);
    return mp_sim_profile_read(out->path, &out->profile) ? fail_file(RUN_REFUSED, out->path)
                                                         : RUN_OK;
}

/* Lists the first folder with profiles, which is also searched first for a name. */
static bool list_folder(const char *folder, void *user)
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, alphasort);
    bool found = false;
    for (int i = 0; i < n; i++) {
        char *dot = strrchr(entries[i]->d_name, '.');
        if (dot && dot != entries[i]->d_name && !strcmp(dot, ".json")) {
            fprintf(user, "%.*s\n", (int)(dot - entries[i]->d_name), entries[i]->d_name);
            found = true;
        }
        free(entries[i]);
    }
    free(entries);
    return found;
}

void sim_machine_list(FILE *out)
{
    each_folder(list_folder, out);
}

int sim_machine_open(const sim_machine *machine, uint64_t arena_bytes, uint64_t workspace_bytes,
                     moepage_device **out)
{
    char name[sizeof PREFIX + PATH_MAX];
    snprintf(name, sizeof name, PREFIX "%s", machine->path);
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = arena_bytes + workspace_bytes,
                                    .workspace_bytes = workspace_bytes,
                                    .log = fail_log};
    mp_sim_register();
    return moepage_device_open(name, &config, out)
               ? fail_library(RUN_REFUSED, machine->profile.name)
               : RUN_OK;
}

mp_device *sim_machine_device(moepage_device *device)
{
    return device->device;
}
