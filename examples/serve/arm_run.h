/* arm_run.h — runs one arm by name. */
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

/* Checks that the budget has room for the arm; RUN_REFUSED otherwise. */
int arm_check(const arm_setting *setting, const serve_arm *arm);

/* Serves all requests of an arm that fits. Free the result in any case. */
int arm_run(const arm_setting *setting, const serve_arm *arm, server_result *result);

#endif
