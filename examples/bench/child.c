/* Running moepage-generate. */
#include "bench/child.h"

#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fail.h"

extern char **environ;

static int find_generate(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n < 0)
        return fail(RUN_FAILED, "cannot find this program's own path");
    path[n] = 0;
    char *folder = dirname(path);
    size_t length = strlen(folder);
    memmove(path, folder, length + 1);
    if (length + sizeof "/moepage-generate" > PATH_MAX)
        return fail(RUN_FAILED, "the path of this program is too long");
    memcpy(path + length, "/moepage-generate", sizeof "/moepage-generate");
    return RUN_OK;
}

/* Runs the program with its standard output on a pipe; *out is its end to read. */
static int start(const char *program, char *const *argv, pid_t *pid, FILE **out)
{
    int ends[2];
    if (pipe(ends))
        return fail(RUN_FAILED, "no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int error = posix_spawn(pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *out = error ? NULL : fdopen(ends[0], "r");
    if (*out)
        return RUN_OK;
    close(ends[0]); /* the program ends when it writes */
    if (!error)
        waitpid(*pid, NULL, 0);
    return fail(RUN_FAILED, "cannot run %s", program);
}

int child_generate(const char *const *flags, json_t **stats)
{
    char program[PATH_MAX];
    const char *argv[CHILD_MAX_FLAGS + 3] = {program};
    size_t n = 0;
    for (; flags[n]; n++) {
        if (n == CHILD_MAX_FLAGS)
            return fail(RUN_FAILED, "more than %d words for moepage-generate", CHILD_MAX_FLAGS);
        argv[n + 1] = flags[n];
    }
    argv[n + 1] = "--json";
    pid_t pid = 0;
    FILE *out = NULL;
    int code = find_generate(program);
    if (!code)
        code = start(program, (char *const *)(uintptr_t)argv, &pid, &out);
    if (code)
        return code;
    json_t *root = json_loadf(out, 0, NULL);
    fclose(out);
    int exit_status = 0;
    waitpid(pid, &exit_status, 0);
    *stats = json_incref(json_object_get(root, "stats"));
    json_decref(root);
    if (!exit_status && *stats)
        return RUN_OK;
    json_decref(*stats);
    *stats = NULL;
    return fail(RUN_FAILED, "moepage-generate did not end well");
}

double child_number(const json_t *stats, const char *key)
{
    return json_number_value(json_object_get(stats, key));
}
