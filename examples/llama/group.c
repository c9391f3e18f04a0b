/* Runs the whole chain over one group's rows.
 *
 * The rows of a group are copied one behind the other, sorted by expert, so that each expert is one small product
 * with the rows that chose it. An expert's rows are never divided: the bits of a product by the host's kernels do not
 * depend on how many experts fit.
 *
 * Scratch is the host's memory. Where slots are on another device it has a twin there, laid out alike: what the products
 * need is copied to it before, and what they make is copied back. */
#include "group.h"

#include <string.h>

/* A tensor's rows of one group, one behind the other. */
typedef struct rows_of {
    const struct ggml_tensor *tensor;
    char *rows;
    uint64_t row_bytes;
} rows_of;

/* One group of a chain's experts. */
typedef struct group_run {
    const chain_run *whole;
    const moepage_plan *plan;
    rows_of values[2 * MOST_LINKS];
    uint32_t n_values;
    own_products products[MOST_LINKS];
    uint32_t n_products;
    char *next;               /* free scratch */
    ptrdiff_t twin;           /* from scratch to its twin */
    int32_t *zeros, *experts; /* [n_rows] ids: of a bank of one expert; of the biases */
    struct ggml_context *context;
    struct ggml_cgraph *graph;
} group_run;

/* ---- values ---- */

static char *take(group_run *run, uint64_t bytes)
{
    char *at = run->next;
    run->next += round_up(bytes);
    return at;
}

/* Copy scratch to its twin, and back, where there is one. */
static void send(const group_run *run, char *at, uint64_t bytes)
{
    compute *of = run->whole->of;
    if (of->away)
        device_write(&of->model->device, of->away_scratch, at + run->twin, at, bytes);
}

static void fetch(const group_run *run, char *at, uint64_t bytes)
{
    compute *of = run->whole->of;
    if (of->away)
        device_read(&of->model->device, of->away_scratch, at + run->twin, at, bytes);
}

static rows_of *find_value(group_run *run, const struct ggml_tensor *tensor)
{
    for (uint32_t i = 0; i < run->n_values; i++)
        if (run->values[i].tensor == tensor)
            return &run->values[i];
    return NULL;
}

static rows_of *add_value(group_run *run, const struct ggml_tensor *tensor)
{
    rows_of *value = &run->values[run->n_values++];
    const uint64_t row_bytes = (uint64_t)tensor->ne[0] * sizeof(float);
    *value = (rows_of){tensor, take(run, row_bytes * run->plan->n_rows), row_bytes};
    return value;
}

/* The rows of a product's input: made by the chain, or gathered from the host's tensor. */
static rows_of *input_of(group_run *run, const struct ggml_tensor *tensor)
{
    rows_of *value = find_value(run, tensor);
    if (value)
        return value;
    value = add_value(run, tensor);
    for (uint32_t r = 0; r < run->plan->n_rows; r++)
        memcpy(value->rows + r * value->row_bytes, host_row(run->whole, run->plan, tensor, r),
               value->row_bytes);
    send(run, value->rows, value->row_bytes * run->plan->n_rows);
    return value;
}

static void scatter(const group_run *run, const rows_of *value)
{
    fetch(run, value->rows, value->row_bytes * run->plan->n_rows);
    for (uint32_t r = 0; r < run->plan->n_rows; r++)
        memcpy(host_row(run->whole, run->plan, value->tensor, r),
               value->rows + r * value->row_bytes, value->row_bytes);
}

static uint64_t bias_row_bytes(const struct ggml_tensor *biases)
{
    return ggml_row_size(biases->type, biases->ne[0]);
}

/* ---- ggml's tensors for them ---- */

static struct ggml_tensor *at_scratch(const group_run *run, struct ggml_tensor *tensor, void *at)
{
    tensor->data = (char *)at + run->twin;
    tensor->buffer = run->whole->of->away_scratch;
    return tensor;
}

/* [width][1][n_rows] from row `first` on. */
static struct ggml_tensor *tensor_of(group_run *run, const rows_of *value, uint32_t first,
                                     uint32_t n_rows)
{
    struct ggml_tensor *tensor =
        ggml_new_tensor_3d(run->context, GGML_TYPE_F32, (int64_t)(value->row_bytes / sizeof(float)),
                           1, n_rows);
    return at_scratch(run, tensor, value->rows + first * value->row_bytes);
}

/* The same of an operand that may be a view of a link: a part of its rows. */
static struct ggml_tensor *operand_of(group_run *run, const struct ggml_tensor *operand)
{
    if (!operand)
        return NULL;
    const rows_of *value = find_value(run, operand->view_src ? operand->view_src : operand);
    struct ggml_tensor *tensor = tensor_of(run, value, 0, run->plan->n_rows);
    if (operand->view_src) {
        tensor->ne[0] = operand->ne[0];
        tensor->data = (char *)tensor->data + operand->view_offs;
    }
    return tensor;
}

static struct ggml_tensor *ids_of(group_run *run, int32_t *ids, uint32_t n_rows)
{
    return at_scratch(run, ggml_new_tensor_2d(run->context, GGML_TYPE_I32, 1, n_rows), ids);
}

/* A bias's rows: the host's tensor, of which `experts` are rows, or on another device those of the group's experts. */
static struct ggml_tensor *biases_of(group_run *run, struct ggml_tensor *all)
{
    const moepage_plan *plan = run->plan;
    const uint64_t row_bytes = bias_row_bytes(all);
    if (!run->whole->of->away)
        return all;
    char *rows = take(run, row_bytes * plan->n_experts);
    for (uint32_t e = 0; e < plan->n_experts; e++)
        memcpy(rows + e * row_bytes,
               (const char *)all->data + (size_t)plan->experts[e].expert * all->nb[1], row_bytes);
    send(run, rows, row_bytes * plan->n_experts);
    return at_scratch(run,
                      ggml_new_tensor_2d(run->context, all->type, all->ne[0],
                                         (int64_t)plan->n_experts),
                      rows);
}

/* Adds a node with the host's operation and parameters. */
static void add_node(group_run *run, const struct ggml_tensor *like, struct ggml_tensor *result,
                     struct ggml_tensor *a, struct ggml_tensor *b, struct ggml_tensor *c)
{
    result->op = like->op;
    memcpy(result->op_params, like->op_params, sizeof result->op_params);
    result->src[0] = a;
    result->src[1] = b;
    result->src[2] = c;
    ggml_build_forward_expand(run->graph, result);
}

/* One product for each expert, with the rows that chose it. */
static void add_products(group_run *run, const struct ggml_tensor *link)
{
    uint32_t layer;
    const struct ggml_tensor *from = link->src[0];
    const uint32_t t = run->whole->chain->model->tensor_of[bank_kind(from->name, &layer)];
    const rows_of *input = input_of(run, link->src[1]), *result = add_value(run, link);
    for (uint32_t e = 0; e < run->plan->n_experts; e++) {
        const moepage_plan_expert *expert = &run->plan->experts[e];
        struct ggml_tensor *weights =
            ggml_new_tensor_3d(run->context, from->type, from->ne[0], from->ne[1], 1);
        weights->data = (void *)expert->tensors[t];
        weights->buffer = run->whole->chain->model->device.slots;
        add_node(run, link, tensor_of(run, result, expert->first_row, expert->n_rows), weights,
                 tensor_of(run, input, expert->first_row, expert->n_rows),
                 ids_of(run, run->zeros, expert->n_rows));
    }
}

/* The same by this library's kernels. */
static void add_own_products(group_run *run, const struct ggml_tensor *link)
{
    const rows_of *input = input_of(run, link->src[1]), *result = add_value(run, link);
    own_products *products = &run->products[run->n_products++];
    *products =
        (own_products){.session = run->whole->of->session, .layer = run->plan->layer, .n = 1};
    moepage_product *product = &products->of[0];
    *product = own_product(run->whole, link, take(run, own_operand_bytes(link, run->plan->n_rows)));
    product->x = (const float *)input->rows;
    product->x_rows = product->out_rows = MOEPAGE_ROWS_GROUP;
    product->out = (float *)result->rows;
    own_add(products, run->context, run->graph);
}

static void add_link(group_run *run, struct ggml_tensor *link)
{
    const uint32_t n_rows = run->plan->n_rows;
    if (is_bank_product(link) && run->whole->of->model->own_kernels) {
        add_own_products(run, link);
    } else if (is_bank_product(link)) {
        add_products(run, link);
    } else {
        const bool is_bias = op_kind_of(link) == OP_ADD_ID;
        struct ggml_tensor *a = operand_of(run, link->src[0]);
        struct ggml_tensor *b =
            is_bias ? biases_of(run, link->src[1]) : operand_of(run, link->src[1]);
        struct ggml_tensor *result = tensor_of(run, add_value(run, link), 0, n_rows);
        add_node(run, link, result, a, b, is_bias ? ids_of(run, run->experts, n_rows) : NULL);
    }
}

/* ---- the group ---- */

/* Gets scratch for all values of a group, and memory for its tensors and graph. */
static bool prepare(group_run *run)
{
    const expert_chain *chain = run->whole->chain;
    compute *of = run->whole->of;
    const uint64_t n_rows = run->plan->n_rows;
    uint64_t bytes = 2 * round_up(n_rows * sizeof(int32_t));
    size_t n_tensors = 0;
    for (uint32_t i = 0; i < chain->n_links; i++) {
        const struct ggml_tensor *link = chain->links[i];
        const bool is_product = is_bank_product(link);
        n_tensors += 4 * (is_product ? run->plan->n_experts : 1);
        bytes += round_up((uint64_t)link->ne[0] * sizeof(float) * n_rows);
        if (is_product)
            bytes += round_up((uint64_t)link->src[1]->ne[0] * sizeof(float) * n_rows);
        if (is_product && chain->model->own_kernels)
            bytes += own_operand_bytes(link, n_rows);
        if (op_kind_of(link) == OP_ADD_ID && of->away)
            bytes += round_up(bias_row_bytes(link->src[1]) * run->plan->n_experts);
    }
    if (!grow(&of->scratch, &of->scratch_bytes, bytes) ||
        (of->away && !device_room(&of->model->device, &of->away_scratch, bytes)))
        return false;
    run->next = of->scratch;
    if (of->away)
        run->twin = (char *)ggml_backend_buffer_get_base(of->away_scratch) - of->scratch;
    run->context = begin_graph(of, n_tensors, &run->graph);
    return run->context != NULL;
}

static void list_ids(group_run *run)
{
    const uint64_t bytes = run->plan->n_rows * sizeof(int32_t);
    run->zeros = (int32_t *)take(run, bytes);
    run->experts = (int32_t *)take(run, bytes);
    memset(run->zeros, 0, bytes);
    for (uint32_t e = 0; e < run->plan->n_experts; e++) {
        const moepage_plan_expert *expert = &run->plan->experts[e];
        const uint32_t id = run->whole->of->away ? e : expert->expert; /* biases_of */
        for (uint32_t r = 0; r < expert->n_rows; r++)
            run->experts[expert->first_row + r] = (int32_t)id;
    }
    send(run, (char *)run->zeros, bytes);
    send(run, (char *)run->experts, bytes);
}

enum ggml_status group_run_chain(const chain_run *whole, const moepage_plan *plan)
{
    const expert_chain *chain = whole->chain;
    group_run run = {.whole = whole, .plan = plan};
    if (!prepare(&run))
        return GGML_STATUS_ALLOC_FAILED;
    list_ids(&run);
    for (uint32_t i = 0; i < chain->n_links; i++)
        add_link(&run, chain->links[i]);
    compute *of = whole->of;
    enum ggml_status status = of->away ? device_compute(&of->model->device, of->away, run.graph)
                                       : ggml_backend_graph_compute(of->cpu, run.graph);
    status = own_status(run.products, run.n_products, status);
    for (uint32_t i = 0; i < chain->n_links && status == GGML_STATUS_SUCCESS; i++)
        scatter(&run, find_value(&run, chain->links[i]));
    ggml_free(run.context);
    return status;
}
