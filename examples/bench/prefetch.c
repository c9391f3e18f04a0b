/* moepage-bench prefetch: the same generation with prefetch off and on, turn by turn in one run.
 *
 * Runs moepage-generate (found beside this program) and reads its statistics. */
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "common/fail.h"

enum { ROUNDS = 9 };

extern char **environ;

typedef struct prefetch_options {
    const char *model, *budget, *bus, *max_tokens;
} prefetch_options;

typedef struct prefetch_run {
    double tokens_per_s[ROUNDS];
    double accounted[ROUNDS];
    double stall_share[ROUNDS];
    double hit_rate;
    double demand_bytes, prefetch_bytes;
} prefetch_run;

static int parse(int argc, char **argv, prefetch_options *out)
{
    *out = (prefetch_options){.budget = "25%", .bus = "1000000000", .max_tokens = "64"};
    for (int i = 1; i < argc; i += 2) {
        const char **value = !strcmp(argv[i], "--model")        ? &out->model
                             : !strcmp(argv[i], "--budget")     ? &out->budget
                             : !strcmp(argv[i], "--bus")        ? &out->bus
                             : !strcmp(argv[i], "--max-tokens") ? &out->max_tokens
                                                                : NULL;
        if (!value || i + 1 == argc)
            return fail(RUN_REFUSED, "prefetch: %s %s", argv[i],
                        value ? "needs a value" : "is not known");
        *value = argv[i + 1];
    }
    return out->model ? RUN_OK : fail(RUN_REFUSED, "prefetch needs --model DIR");
}

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
static int start(const char *program, const prefetch_options *o, const char *prefetch, pid_t *pid,
                 FILE **out)
{
    char *argv[] = {(char *)program,  "--model",         (char *)o->model,
                    "--budget",       (char *)o->budget, "--bus",
                    (char *)o->bus,   "--max-tokens",    (char *)o->max_tokens,
                    "--prompt",       "The library ",    "--prefetch",
                    (char *)prefetch, "--json",          NULL};
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

static double number(const json_t *stats, const char *key)
{
    return json_number_value(json_object_get(stats, key));
}

static int one_run(const char *program, const prefetch_options *o, const char *prefetch,
                   prefetch_run *run, int round)
{
    pid_t pid = 0;
    FILE *out = NULL;
    int code = start(program, o, prefetch, &pid, &out);
    if (code)
        return code;
    json_t *root = json_loadf(out, 0, NULL);
    fclose(out);
    int exit_status = 0;
    waitpid(pid, &exit_status, 0);
    const json_t *stats = json_object_get(root, "stats");
    if (exit_status || !stats) {
        json_decref(root);
        return fail(RUN_FAILED, "moepage-generate did not end well");
    }
    double wall_ns = number(stats, "wall_ns");
    run->tokens_per_s[round] = number(stats, "generated_tokens") / wall_ns * 1e9;
    run->accounted[round] = number(stats, "accounted");
    run->stall_share[round] = number(stats, "stall_ns") / wall_ns;
    run->hit_rate = number(stats, "hit_rate");
    run->demand_bytes = number(stats, "demand_bytes");
    run->prefetch_bytes = number(stats, "prefetch_bytes");
    json_decref(root);
    return RUN_OK;
}

static void print_run(const char *name, prefetch_run *run)
{
    spread speed = bench_spread(run->tokens_per_s, ROUNDS);
    printf("%-8s  %8.1f %8.1f %8.1f   %8.1f%% %8.1f%%  %7.1f%% %9.1f %9.1f\n", name, speed.low,
           speed.median, speed.high, 100 * bench_spread(run->stall_share, ROUNDS).median,
           100 * bench_spread(run->accounted, ROUNDS).median, 100 * run->hit_rate,
           run->demand_bytes / 1e6, run->prefetch_bytes / 1e6);
}

int bench_prefetch(int argc, char **argv)
{
    prefetch_options o;
    char program[PATH_MAX];
    static prefetch_run off, on;
    int code = parse(argc, argv, &o);
    if (!code)
        code = find_generate(program);
    for (int round = 0; round < ROUNDS && !code; round++) {
        code = one_run(program, &o, "off", &off, round);
        if (!code)
            code = one_run(program, &o, "on", &on, round);
    }
    if (code)
        return code;
    printf("prefetch: %s, budget %s, bus %s bytes/s, %s tokens, %d rounds each, in turn\n\n",
           o.model, o.budget, o.bus, o.max_tokens, ROUNDS);
    printf("prefetch  tok/s p10      p50      p90      stalled accounted hit rate demand MB  "
           "ahead MB\n");
    print_run("off", &off);
    print_run("on", &on);
    printf("\non / off (medians): %.3f\n", bench_spread(on.tokens_per_s, ROUNDS).median /
                                               bench_spread(off.tokens_per_s, ROUNDS).median);
    return RUN_OK;
}
