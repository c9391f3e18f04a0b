/* Records signals. */
#include "serve/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t seen;

static void handle(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void note(int signal_number)
{
    seen = signal_number;
    handle(SIG_DFL);
}

/* System calls are restarted: a signal must not cut off a report being written. */
void interrupt_open(void)
{
    handle(note);
}

int interrupt_seen(void)
{
    return seen;
}
