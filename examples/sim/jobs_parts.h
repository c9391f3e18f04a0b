/* jobs_parts.h — what the readers of request files share. */
#ifndef SIM_JOBS_PARTS_H
#define SIM_JOBS_PARTS_H

#include <stdio.h>

#include "sim/jobs.h"

/* Makes room for one more and returns it, zeroed but for what is none; NULL when out of memory. */
sim_job *sim_jobs_add(sim_jobs *jobs);

/* A line of a file. */
typedef struct sim_line {
    const char *path;
    uint32_t number; /* from 1 */
    char *text;
    size_t room;
} sim_line;

/* "<path>:<line>: expected <wanted>", RUN_REFUSED. */
int sim_line_refuse(const sim_line *line, const char *wanted);

/* Whether a job of these lengths is to be left out, and how many have been seen. */
typedef struct sim_jobs_cut {
    const sim_jobs_config *config;
    uint32_t seen;
} sim_jobs_cut;
bool sim_jobs_takes(sim_jobs_cut *cut, uint64_t prompt_tokens, uint64_t output_tokens);
bool sim_jobs_enough(const sim_jobs_cut *cut, const sim_jobs *jobs);

int sim_jobs_azure(FILE *in, sim_line *line, const sim_jobs_config *config, sim_jobs *out);
int sim_jobs_mooncake(FILE *in, sim_line *line, const sim_jobs_config *config, sim_jobs *out);

#endif
