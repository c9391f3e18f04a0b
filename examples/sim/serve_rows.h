/* serve_rows.h — serving results: one row for each arm, budget, concurrency and length. */
#ifndef SIM_SERVE_ROWS_H
#define SIM_SERVE_ROWS_H

#include <jansson.h>

#include "sim/arms.h"

typedef struct sim_serve_row {
    char arm[32]; /* "mv-wsa", "fixed:0.4", "vllm" */
    bool baseline;
    uint64_t budget_bytes;
    uint32_t concurrency;
    uint32_t prompt_tokens, output_tokens; /* 0: from --arrivals */
    sim_arm_run run;
} sim_serve_row;

typedef struct sim_serve_rows {
    const sim_options *options;
    const sim_shape *shape;
    const sim_machine *machine;
    const char *routing;
    uint32_t n;
    sim_serve_row *rows;
} sim_serve_rows;

void sim_serve_table(const sim_serve_rows *rows);
/* Returns {"machine", "model", "routing", "results": [...]}; NULL when out of memory. */
json_t *sim_serve_json(const sim_serve_rows *rows);

/* Prints --configure's output: the split, its bounds, and how many KV tokens each cap leaves at the
 * same budget (WiSP table 3). */
void sim_configured_table(const sim_serve_config *config, const sim_configured *configured);
json_t *sim_configured_json(const sim_serve_config *config, const sim_configured *configured);

#endif
