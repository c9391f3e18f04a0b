/* The main program of a test suite: one of its programs, or all, each in a process of its own.
 *
 *   SUITE                         every program
 *   SUITE PROGRAM[:PATTERN]...    these; with a pattern (fnmatch), those of their cases that match it
 *   SUITE --list                  a line "PROGRAM CASE" for each case
 *
 * A single program runs in this process, for debuggers. Exit status: that of the single program,
 * or 1 if one of several failed. */
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "testing.h"

/* The linker's names for the ends of the section. */
extern const suite_program __start_suite_programs[], __stop_suite_programs[];

static const char *listed; /* the program whose cases are listed, not run */
static const char *pattern;

int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* Stands between the programs and cmocka, so that cases can be listed and chosen. */
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    struct CMUnitTest *chosen = calloc(n ? n : 1, sizeof *chosen);
    size_t n_chosen = 0;
    if (!chosen)
        abort();
    for (size_t i = 0; i < n; i++) {
        if (listed)
            printf("%s %s\n", listed, tests[i].name);
        else if (!pattern || !fnmatch(pattern, tests[i].name, 0))
            chosen[n_chosen++] = tests[i];
    }
    int failed = 0;
    if (n_chosen)
        failed = __real__cmocka_run_group_tests(group, chosen, n_chosen, set_up, tear_down);
    free(chosen);
    return failed;
}

static const suite_program *find(const char *name, size_t length)
{
    for (const suite_program *p = __start_suite_programs; p < __stop_suite_programs; p++)
        if (strlen(p->name) == length && !memcmp(p->name, name, length))
            return p;
    return NULL;
}

static int run(const suite_program *program, const char *cases)
{
    pattern = cases;
    return program->run();
}

static bool run_in_child(const suite_program *program, const char *cases)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        exit(run(program, cases));
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
}

static int run_all(bool listing)
{
    bool passed = true;
    for (const suite_program *p = __start_suite_programs; p < __stop_suite_programs; p++) {
        listed = listing ? p->name : NULL;
        passed &= run_in_child(p, NULL);
    }
    return !passed;
}

int main(int argc, char **argv)
{
    bool passed = true;
    if (argc == 1)
        return run_all(false);
    if (argc == 2 && !strcmp(argv[1], "--list"))
        return run_all(true);
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], ":");
        const char *cases = argv[i][length] ? argv[i] + length + 1 : NULL;
        const suite_program *program = find(argv[i], length);
        if (!program) {
            fprintf(stderr, "%s: no program %.*s\n", argv[0], (int)length, argv[i]);
            return 2;
        }
        if (argc == 2)
            return run(program, cases);
        passed &= run_in_child(program, cases);
    }
    return !passed;
}
