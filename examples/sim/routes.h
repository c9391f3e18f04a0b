/* routes.h — sources of routing: recorded traces and generators behind one interface.
 *
 * A source has requests; each is a stream of tokens, first its prompt's and then its decoded ones,
 * and each token routes to top_k distinct experts in every MoE layer. A request's stream is always
 * the same; several may be open at once, each with its own state. */
#ifndef SIM_ROUTES_H
#define SIM_ROUTES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_source sim_source;

struct sim_source {
    const char *name;
    uint32_t layers; /* MoE layers */
    uint32_t experts;
    uint32_t top_k;
    uint32_t n_requests;   /* UINT32_MAX: unlimited */
    uint64_t stream_bytes; /* state of one stream, aligned to 8 */
    /* Opens the stream of a request (< n_requests), at its first token. */
    void (*open)(const sim_source *source, uint32_t request, void *stream);
    /* Gives the next token's routing: ids [layers][top_k], distinct in a layer, in the router's
     * order. For a trace without prompts, or past its end, tokens are drawn from the request's own
     * rows, deterministically. */
    void (*next)(const sim_source *source, void *stream, bool prefill, int32_t *ids);
    void (*close)(sim_source *source); /* frees it */
};

/* A recorded trace held in memory, row after row, one row per token. */
typedef struct sim_request {
    uint64_t first_row;
    uint64_t rows;          /* decoded tokens recorded */
    uint32_t prompt_tokens; /* if known; 0 = unknown */
    uint32_t group;         /* category or dataset, numbered in order of appearance */
} sim_request;

typedef struct sim_trace {
    sim_source source; /* first; source.close frees all of it */
    char name[64];
    uint16_t *ids;        /* [rows][layers][top_k] in the file's order */
    float *probabilities; /* [rows][layers][top_k], or NULL */
    uint64_t rows;
    sim_request *requests;
    uint32_t n_groups;
    char (*groups)[64]; /* the groups' names */
} sim_trace;

/* Opens a .trace file of the library (docs/format-trace.md), a directory with experts.u8 and
 * requests.csv, or a CSV file with the columns request,token,layer,experts (ids separated by
 * spaces). Returns NULL after saying why on stderr. */
sim_trace *sim_trace_open(const char *path);

/* A generator: see synthetic.h. */

#endif
