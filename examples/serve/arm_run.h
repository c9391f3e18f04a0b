/* arm_run.h — one arm from its name to its result. */
#ifndef SERVE_ARM_RUN_H
#define SERVE_ARM_RUN_H

#include "serve/division.h"
#include "serve/server.h"

typedef struct arm_setting {
    const serve_options *options;
    const model_config *model;
    const arrivals *arrivals;
    estate estate;
} arm_setting;

/* RUN_REFUSED if the budget has no room for the arm. */
int arm_check(const arm_setting *setting, const serve_arm *arm);

/* Serves all requests of an arm that has room. The result is to be freed in any case. */
int arm_run(const arm_setting *setting, const serve_arm *arm, server_result *result);

#endif
