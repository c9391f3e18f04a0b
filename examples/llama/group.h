/* group.h — a chain on its way through a layer's groups of experts: what the files that run one share.
 *
 *   compute.c    graphs, steps, a layer's groups one after the other
 *   group.c      one group, of which the rows are copied one behind the other
 *   rows.c       a layer whose experts have few rows each, which are used where they are */
#ifndef LLAMA_GROUP_H
#define LLAMA_GROUP_H

#include "plugin.h"

/* What a tensor of the host is replaced by while several groups run. */
typedef struct aside {
    const struct ggml_tensor *tensor;
    char *data;
} aside;

typedef struct chain_run {
    compute *of;
    const expert_chain *chain;
    aside asides[2 * MOST_LINKS];
    uint32_t n_asides; /* 0 with a single group */
} chain_run;

static inline uint64_t round_up(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Makes a block of memory as large as that; its contents are lost. False after a sentence. */
bool grow(char **memory, size_t *room, size_t bytes);

/* Gets memory for a graph of so many nodes and tensors, and begins it. NULL after a sentence. */
struct ggml_context *begin_graph(compute *of, size_t n_tensors, struct ggml_cgraph **out);

static inline char *data_of(const chain_run *whole, const struct ggml_tensor *tensor)
{
    for (uint32_t i = 0; i < whole->n_asides; i++)
        if (whole->asides[i].tensor == tensor)
            return whole->asides[i].data;
    return tensor->data;
}

/* The row of a host's tensor [width][top_k or 1][tokens] that row r of a plan means. */
static inline char *host_row(const chain_run *whole, const moepage_plan *plan,
                             const struct ggml_tensor *tensor, uint32_t r)
{
    const int64_t top_k = whole->chain->ids->ne[0], row = plan->rows[r];
    const int64_t token = row / top_k, k = row % top_k;
    return data_of(whole, tensor) + (size_t)token * tensor->nb[2] +
           (tensor->ne[1] == 1 ? 0 : (size_t)k * tensor->nb[1]);
}

/* ---- group.c ---- */

enum ggml_status group_run_chain(const chain_run *whole, const moepage_plan *plan);

/* ---- rows.c ---- */

/* True if a plan's experts have so few rows each that the host multiplies these one by one, and its function for that
 * has been found. */
bool rows_are_few(const chain_run *whole, const moepage_plan *plan);

/* Runs a layer of a single group of which that is true. */
enum ggml_status rows_run_chain(const chain_run *whole, const moepage_plan *plan);

#endif
