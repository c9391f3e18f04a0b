/* Running the command-line tools. */
#include "tool.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"

#define MAX_ARGUMENTS 256

extern char **environ;

static bool is_program(const char *path)
{
    return access(path, X_OK) == 0;
}

/* This program is BUILD/CONFIG/suites/SUITE. Tools are in BUILD/CONFIG/bin, or, where that
 * configuration has none, in BUILD/bin. */
static void find_tool(const char *name, char *path, size_t room)
{
    const char *given = getenv("MOEPAGE_BIN_DIR");
    if (given) {
        snprintf(path, room, "%s/%s", given, name);
        return;
    }
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_in_range(n, 1, sizeof self - 1);
    self[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(self, '/') = '\0';
    snprintf(path, room, "%s/bin/%s", self, name);
    if (!is_program(path))
        snprintf(path, room, "%s/../bin/%s", self, name);
}

/* Everything written to a memory file, NUL-terminated. */
static char *take_text(int file)
{
    off_t size = lseek(file, 0, SEEK_END);
    assert_true(size >= 0);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(pread(file, text, (size_t)size, 0), size);
    text[size] = '\0';
    close(file);
    return text;
}

static int wait_for(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Replaces this child process; `pending` is what comes back to the program when it unblocks. */
static void become(const char *path, char **argv, const int text[2], int pending)
{
    int input = open("/dev/null", O_RDONLY);
    bool ready = input >= 0 && dup2(input, STDIN_FILENO) >= 0 &&
                 dup2(text[0], STDOUT_FILENO) >= 0 && dup2(text[1], STDERR_FILENO) >= 0;
    if (pending) {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, pending);
        ready = ready && !sigprocmask(SIG_BLOCK, &blocked, NULL) &&
                signal(pending, SIG_DFL) != SIG_ERR && !kill(getpid(), pending);
    }
    if (ready)
        execve(path, argv, environ);
    _exit(127);
}

/* Output goes to memory files rather than pipes: no reader is needed to keep the tool going. */
void tool_run_signalled(const char *name, const char *const *arguments, int pending,
                        tool_result *out)
{
    char path[PATH_MAX + 64];
    char *argv[MAX_ARGUMENTS + 2] = {path};
    find_tool(name, path, sizeof path);
    if (!is_program(path))
        fail_msg("%s is not there: build the tools first", path);
    for (size_t i = 0; arguments[i]; i++) {
        assert_in_range(i, 0, MAX_ARGUMENTS - 1);
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    int text[2] = {memfd_create("out", MFD_CLOEXEC), memfd_create("err", MFD_CLOEXEC)};
    assert_true(text[0] >= 0 && text[1] >= 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become(path, argv, text, pending);
    out->exit_status = wait_for(child);
    out->out = take_text(text[0]);
    out->err = take_text(text[1]);
}

void tool_run(const char *name, const char *const *arguments, tool_result *out)
{
    tool_run_signalled(name, arguments, 0, out);
}

void tool_result_free(tool_result *result)
{
    free(result->out);
    free(result->err);
}
