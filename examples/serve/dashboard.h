/* dashboard.h — the run's present state, redrawn in place on a terminal. */
#ifndef SERVE_DASHBOARD_H
#define SERVE_DASHBOARD_H

#include "serve/server.h"

/* Draws a few times a second, if --dashboard asks for it or standard output is a terminal. */
int dashboard_show(server *s);

/* Clears it from the terminal. */
void dashboard_clear(server *s);

#endif
