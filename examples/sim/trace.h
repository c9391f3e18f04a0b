/* trace.h — recorded routing in memory: how readers of the several forms make a sim_trace. */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include "sim/routes.h"

/* What a file does not say itself; 0 = it does, or it can be seen. */
typedef struct sim_trace_shape {
    uint32_t layers;
    uint32_t experts;
    uint32_t top_k;
} sim_trace_shape;

/* sim_trace_open for files that do not say their shape. */
sim_trace *sim_trace_open_as(const char *path, const sim_trace_shape *shape);

/* Drops all requests but the first `most`. */
void sim_trace_keep(sim_trace *trace, uint32_t most);

/* ---- for readers: each returns RUN_OK, or a code after a line on stderr ---- */

/* The readers; *out is the caller's, also after a failure, until it is closed. */
int sim_trace_read_raw(const char *path, const sim_trace_shape *shape, bool directory,
                       sim_trace **out);
int sim_trace_read_csv(const char *path, const sim_trace_shape *shape, sim_trace **out);
int sim_trace_read_library(const char *path, sim_trace **out);

/* An empty trace, named after the last part of the path. */
int sim_trace_new(const char *path, const sim_trace_shape *shape, sim_trace **out);

/* Room for so many rows, probabilities included where they are wanted. The arrays are zeros. */
int sim_trace_reserve(sim_trace *trace, uint64_t rows, bool probabilities);

/* One more request, at the end. `group` may be NULL. */
int sim_trace_add_request(sim_trace *trace, const sim_request *request, const char *group);

/* What every reader ends with: ids are in range and distinct in each layer, requests follow each
 * other through all rows and each has one. */
int sim_trace_check(const char *path, const sim_trace *trace);

/* A row's ids of one layer. */
static inline const uint16_t *sim_trace_ids(const sim_trace *trace, uint64_t row, uint32_t layer)
{
    return trace->ids + (row * trace->source.layers + layer) * trace->source.top_k;
}

#endif
