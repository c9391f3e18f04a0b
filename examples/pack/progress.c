/* Bars, lines and signals. */
#include "pack/progress.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/clock.h"

enum { BAR_WIDTH = 30, LEAST_BAR = 5, COLUMNS = 60, MOST_COLUMNS = 200 };

#define REDRAW_NS 100000000u /* at most ten times a second */
#define LINE_NS 1000000000u  /* and lines at most once */

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    (void)signal;
    stopped = 1;
}

/* Installs the handlers. A signal that was ignored at the program's start stays ignored; one that
 * was blocked is unblocked. */
static void catch_signals(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART}, before;
    sigset_t ours;
    sigemptyset(&action.sa_mask);
    sigemptyset(&ours);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        if (!sigaction(caught[i], NULL, &before) && before.sa_handler == SIG_IGN)
            continue;
        sigaction(caught[i], &action, NULL);
        sigaddset(&ours, caught[i]);
    }
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
}

bool progress_stopped(void)
{
    return stopped;
}

/* Returns true for a terminal whose lines can be redrawn. */
static bool can_redraw(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && kind && *kind && strcmp(kind, "dumb") != 0;
}

void progress_begin(progress *p, const char *doing)
{
    catch_signals();
    *p = (progress){.doing = doing, .terminal = can_redraw(), .began_ns = clock_now_ns()};
    p->shown_ns = p->began_ns;
}

static void print_numbers(char *out, size_t room, uint64_t done, uint64_t total, uint64_t ns)
{
    double rate = ns ? (double)done * 1e9 / (double)ns : 0;
    uint64_t left_s = rate > 0 ? (uint64_t)((double)(total - done) / rate + 0.5) : 0;
    bool large = total >= 1000000000u;
    snprintf(out, room, "%3.0f%% of %.1f %s, %.0f MB/s, %" PRIu64 ":%02" PRIu64 " left",
             100.0 * (double)done / (double)total, (double)total / (large ? 1e9 : 1e6),
             large ? "GB" : "MB", rate / 1e6, left_s / 60, left_s % 60);
}

static size_t columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
        return COLUMNS;
    return size.ws_col < MOST_COLUMNS ? size.ws_col : MOST_COLUMNS;
}

/* Draws as much as fits into a line: a wider text would wrap and remain. */
static void draw_bar(progress *p, uint64_t done, uint64_t total, uint64_t now)
{
    char numbers[80], bar[BAR_WIDTH + 4] = "", line[MOST_COLUMNS];
    print_numbers(numbers, sizeof numbers, done, total, now - p->began_ns);
    size_t room = columns() - 1, taken = strlen(p->doing) + strlen(numbers) + sizeof " [] " - 1;
    size_t width = room < taken ? 0 : room - taken;
    if (width > BAR_WIDTH)
        width = BAR_WIDTH;
    size_t full = (size_t)((double)width * (double)done / (double)total);
    if (width >= LEAST_BAR) {
        bar[0] = '[';
        memset(bar + 1, '#', full);
        memset(bar + 1 + full, '.', width - full);
        memcpy(bar + 1 + width, "] ", sizeof "] ");
    }
    snprintf(line, room < sizeof line ? room + 1 : sizeof line, "%s %s%s", p->doing, bar, numbers);
    fprintf(stderr, "\r%s\033[K", line); /* clears a longer earlier text */
    p->drawn = true;
    p->shown_ns = now;
}

/* Prints a line after every tenth of the whole, but not too often to read. */
static void print_line(progress *p, uint64_t done, uint64_t total, uint64_t now)
{
    if (done < p->next_bytes || now - p->shown_ns < LINE_NS)
        return;
    char numbers[80];
    print_numbers(numbers, sizeof numbers, done, total, now - p->began_ns);
    fprintf(stderr, "%s: %s\n", p->doing, numbers);
    p->shown_ns = now;
    p->next_bytes = done + total / 10;
}

int32_t progress_show(void *self, uint64_t done_bytes, uint64_t total_bytes)
{
    progress *p = self;
    uint64_t now = clock_now_ns();
    if (total_bytes && done_bytes <= total_bytes) {
        if (!p->terminal)
            print_line(p, done_bytes, total_bytes, now);
        else if (now - p->shown_ns >= REDRAW_NS || done_bytes == total_bytes)
            draw_bar(p, done_bytes, total_bytes, now);
    }
    return progress_stopped();
}

void progress_end(progress *p)
{
    if (p->drawn)
        fputc('\n', stderr);
    p->drawn = false;
}
