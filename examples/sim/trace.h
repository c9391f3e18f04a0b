/* trace.h — recorded routing in memory: how readers of the various formats build a sim_trace. */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include "sim/routes.h"

/* Properties that a file does not state; 0 = stated, or derived. */
typedef struct sim_trace_shape {
    uint32_t layers;
    uint32_t experts;
    uint32_t top_k;
} sim_trace_shape;

/* Opens a trace, as sim_trace_open does, from a file that does not state its shape. */
sim_trace *sim_trace_open_as(const char *path, const sim_trace_shape *shape);

/* Drops all requests but the first `most`. */
void sim_trace_keep(sim_trace *trace, uint32_t most);

/* ---- for readers: each returns RUN_OK, or a code after a line on stderr ---- */

/* The readers; even after a failure *out must be closed by the caller. */
int sim_trace_read_raw(const char *path, const sim_trace_shape *shape, bool directory,
                       sim_trace **out);
int sim_trace_read_csv(const char *path, const sim_trace_shape *shape, sim_trace **out);
int sim_trace_read_library(const char *path, sim_trace **out);

/* Creates an empty trace, named after the last part of the path. */
int sim_trace_new(const char *path, const sim_trace_shape *shape, sim_trace **out);

/* Allocates room for `rows`, with probabilities if wanted. The arrays are zeroed. */
int sim_trace_reserve(sim_trace *trace, uint64_t rows, bool probabilities);

/* Appends a request. `group` may be NULL. */
int sim_trace_add_request(sim_trace *trace, const sim_request *request, const char *group);

/* Checks a complete trace, as the last act of every reader: ids are in range and distinct in each
 * layer, requests cover all rows consecutively and each has at least one. */
int sim_trace_check(const char *path, const sim_trace *trace);

/* Returns a row's ids of one layer. */
static inline const uint16_t *sim_trace_ids(const sim_trace *trace, uint64_t row, uint32_t layer)
{
    return trace->ids + (row * trace->source.layers + layer) * trace->source.top_k;
}

#endif
