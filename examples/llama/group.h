/* group.h — a chain on its way through a layer's groups of experts: what the files that run one share.
 *
 *   compute.c    graphs, steps, a layer's groups one after the other
 *   own.c        products by this library's kernels, and a layer of one group whose rows are used where they are
 *   rows.c       by the host's: a layer whose experts have few rows each, which are used where they are
 *   group.c      one group, of which the rows are copied one behind the other */
#ifndef LLAMA_GROUP_H
#define LLAMA_GROUP_H

#include <stdatomic.h>

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

/* Adds a node that does no operation of ggml's: each of the host's threads calls `task` once. */
void add_task(struct ggml_context *context, struct ggml_cgraph *graph, ggml_custom_op_t task,
              void *data);

/* Adds the nodes of the products from link `first` on, with scratch that it takes from *room; returns the first link
 * behind them. */
typedef uint32_t add_products_fn(void *run, uint32_t first, struct ggml_context *context,
                                 struct ggml_cgraph *graph, char **room);

/* Runs a chain on the rows where the host has them: products by `add`, all else as it is. */
enum ggml_status run_in_place(const chain_run *whole, uint64_t scratch_bytes, add_products_fn *add,
                              void *run);

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

/* ---- own.c ---- */

/* Products with the same rows, by this library's kernels. */
typedef struct own_products {
    moepage_session *session;
    uint32_t layer; /* of the engine */
    moepage_product of[MOST_BANKS];
    uint32_t n;
    atomic_uint next; /* share */
    atomic_bool failed;
} own_products;

/* Room for what n_rows rows of a product's input are multiplied as. */
uint64_t own_operand_bytes(const struct ggml_tensor *product, uint64_t n_rows);

/* Describes the product of a bank; rows and results are the caller's to name. */
moepage_product own_product(const chain_run *whole, const struct ggml_tensor *product,
                            void *operands);

/* Adds the nodes of these products, which must live until the graph has run. */
void own_add(own_products *products, struct ggml_context *context, struct ggml_cgraph *graph);

/* FAILED if one of n of them has failed in one of the host's threads, else `status`. */
enum ggml_status own_status(const own_products *products, uint32_t n, enum ggml_status status);

/* True if a plan's rows can be used where the host has them. */
bool own_rows_are_even(const chain_run *whole, const moepage_plan *plan);

/* Runs a layer of which that is true. */
enum ggml_status own_run_chain(const chain_run *whole, const moepage_plan *plan);

/* ---- group.c ---- */

enum ggml_status group_run_chain(const chain_run *whole, const moepage_plan *plan);

/* ---- rows.c ---- */

/* True if a plan's experts have so few rows each that the host multiplies these one by one, and its function for that
 * has been found. */
bool rows_are_few(const chain_run *whole, const moepage_plan *plan);

/* Runs a layer of a single group of which that is true. */
enum ggml_status rows_run_chain(const chain_run *whole, const moepage_plan *plan);

#endif
