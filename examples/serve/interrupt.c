/* Noting signals. */
#include "serve/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t seen;

static void note(int signal_number)
{
    seen = signal_number;
}

void interrupt_open(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int interrupt_seen(void)
{
    return seen;
}
