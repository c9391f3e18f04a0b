/* Runs moepage-generate. */
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
#include "common/options.h"

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

/* Runs the program with its standard output on a pipe; *out is the reading end. */
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
    close(ends[0]); /* the program ends when it next writes */
    if (!error)
        waitpid(*pid, NULL, 0);
    return fail(RUN_FAILED, "cannot run %s", program);
}

#define MAX_WORDS 32

/* Fills argv, NULL-terminated; argv[0] is the program's path. */
static int make_words(const child_options *o, const char *const *more, const char **argv)
{
    const char *const words[] = {"--json", "--model", o->model,       "--budget",   o->budget,
                                 "--bus",  o->bus,    "--max-tokens", o->max_tokens};
    size_t n = 1;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        argv[n++] = words[i];
    for (; *more; more++) {
        if (n == MAX_WORDS)
            return fail(RUN_FAILED, "more than %d words for moepage-generate", MAX_WORDS);
        argv[n++] = *more;
    }
    argv[n] = NULL;
    return RUN_OK;
}

int child_check(const child_options *o)
{
    static const char *const more[] = {"--tokens", "1", NULL};
    const char *argv[MAX_WORDS + 1] = {"moepage-generate"};
    int argc = 0;
    options read = {0};
    int code = make_words(o, more, argv);
    while (argv[argc])
        argc++;
    if (!code)
        code = options_parse(argc, (char **)(uintptr_t)argv, &read);
    options_free(&read);
    return code;
}

/* Collects the program's output and exit status. A refusal or failure has printed its own line;
 * only after a signal is one missing. */
static int collect(pid_t pid, FILE *out, json_t **stats)
{
    int status = 0;
    json_t *root = json_loadf(out, 0, NULL);
    fclose(out);
    waitpid(pid, &status, 0);
    *stats = json_incref(json_object_get(root, "stats"));
    json_decref(root);
    if (!status && *stats)
        return RUN_OK;
    json_decref(*stats);
    *stats = NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status))
        return WEXITSTATUS(status);
    return fail(RUN_FAILED, "moepage-generate did not end well");
}

int child_generate(const child_options *o, const char *const *more, json_t **stats)
{
    char program[PATH_MAX];
    const char *argv[MAX_WORDS + 1] = {program};
    pid_t pid = 0;
    FILE *out = NULL;
    int code = make_words(o, more, argv);
    if (!code)
        code = find_generate(program);
    if (!code)
        code = start(program, (char *const *)(uintptr_t)argv, &pid, &out);
    return code ? code : collect(pid, out, stats);
}

double child_number(const json_t *stats, const char *key)
{
    return json_number_value(json_object_get(stats, key));
}
