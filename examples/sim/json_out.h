/* json_out.h — the one JSON object that --json prints. */
#ifndef SIM_JSON_OUT_H
#define SIM_JSON_OUT_H

#include <jansson.h>

/* Prints the object on one line and drops it; RUN_FAILED after a line on stderr if that fails, or
 * if building it failed (`failed`, or root NULL). */
int sim_json_print(int failed, json_t *root);

#endif
