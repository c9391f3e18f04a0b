/* dashboard.h — what happens now, redrawn in place on a terminal. */
#ifndef SERVE_DASHBOARD_H
#define SERVE_DASHBOARD_H

#include "serve/server.h"

/* Draws a few times a second, if --dashboard asks for it or standard output is a terminal. */
int dashboard_show(server *s);

/* Takes it off the terminal again. */
void dashboard_clear(server *s);

#endif
