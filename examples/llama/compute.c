/* Runs a graph's operations on paged experts: routes a layer once, and for each group of experts that has slots
 * runs the whole chain over the group's rows, by the host's own kernels.
 *
 * The rows of a group are copied one behind the other, sorted by expert, so that each expert is one small product
 * with the rows that chose it. An expert's rows are never divided: a product's bits do not depend on how many
 * experts fit. A single token's rows are not copied, for each is alone with its expert.
 *
 * The host uses memory again as soon as its order of operations allows: a result may lie where an input was. With
 * several groups, inputs are therefore put aside before the first, and results until after the last. */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

/* ---- a group's values ---- */

/* What a tensor of the host is replaced by while several groups run. */
typedef struct aside {
    const struct ggml_tensor *tensor;
    char *data;
} aside;

/* A chain on its way through a layer's groups. */
typedef struct chain_run {
    compute *of;
    const expert_chain *chain;
    aside asides[2 * MOST_LINKS];
    uint32_t n_asides; /* 0 with a single group */
} chain_run;

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
    int64_t top_k; /* of the host's tensors, by which a plan's rows are counted */
    bool direct;   /* one token: the host's rows are used where they are */
    rows_of values[2 * MOST_LINKS];
    uint32_t n_values;
    char *next;               /* free scratch */
    int32_t *zeros, *experts; /* [n_rows] ids: of a bank of one expert; of the biases */
    struct ggml_context *context;
    struct ggml_cgraph *graph;
} group_run;

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static char *data_of(const chain_run *whole, const struct ggml_tensor *tensor)
{
    for (uint32_t i = 0; i < whole->n_asides; i++)
        if (whole->asides[i].tensor == tensor)
            return whole->asides[i].data;
    return tensor->data;
}

/* The row of a host's tensor [width][top_k or 1][tokens] that plan row r means. */
static char *host_row(const group_run *run, const struct ggml_tensor *tensor, uint32_t r)
{
    const int64_t row = run->plan->rows[r];
    const int64_t token = row / run->top_k, k = row % run->top_k;
    return data_of(run->whole, tensor) + (size_t)token * tensor->nb[2] +
           (tensor->ne[1] == 1 ? 0 : (size_t)k * tensor->nb[1]);
}

static char *take(group_run *run, uint64_t bytes)
{
    char *at = run->next;
    run->next += round_up(bytes);
    return at;
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
    *value = (rows_of){tensor, NULL, row_bytes};
    if (!run->direct)
        value->rows = take(run, row_bytes * run->plan->n_rows);
    return value;
}

/* The rows of a product's input: made by the chain, or gathered from the host's tensor. */
static rows_of *input_of(group_run *run, const struct ggml_tensor *tensor)
{
    rows_of *value = find_value(run, tensor);
    if (value)
        return value;
    value = add_value(run, tensor);
    for (uint32_t r = 0; r < run->plan->n_rows && !run->direct; r++)
        memcpy(value->rows + r * value->row_bytes, host_row(run, tensor, r), value->row_bytes);
    return value;
}

static void scatter(const group_run *run, const rows_of *value)
{
    for (uint32_t r = 0; r < run->plan->n_rows && !run->direct; r++)
        memcpy(host_row(run, value->tensor, r), value->rows + r * value->row_bytes,
               value->row_bytes);
}

/* ---- ggml's tensors for them ---- */

/* [width][1][n_rows] from row `first` on. */
static struct ggml_tensor *tensor_of(group_run *run, const rows_of *value, uint32_t first,
                                     uint32_t n_rows)
{
    struct ggml_tensor *tensor =
        ggml_new_tensor_3d(run->context, GGML_TYPE_F32, (int64_t)(value->row_bytes / sizeof(float)),
                           1, n_rows);
    tensor->data =
        run->direct ? host_row(run, value->tensor, first) : value->rows + first * value->row_bytes;
    return tensor;
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
    struct ggml_tensor *tensor = ggml_new_tensor_2d(run->context, GGML_TYPE_I32, 1, n_rows);
    tensor->data = ids;
    return tensor;
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
        add_node(run, link, tensor_of(run, result, expert->first_row, expert->n_rows), weights,
                 tensor_of(run, input, expert->first_row, expert->n_rows),
                 ids_of(run, run->zeros, expert->n_rows));
    }
}

static void add_link(group_run *run, struct ggml_tensor *link)
{
    const uint32_t n_rows = run->plan->n_rows;
    if (is_bank_product(link)) {
        add_products(run, link);
    } else if (run->direct) {
        ggml_graph_add_node(run->graph, link);
        add_value(run, link);
    } else {
        const bool is_bias = op_kind_of(link) == OP_ADD_ID;
        struct ggml_tensor *a = operand_of(run, link->src[0]);
        struct ggml_tensor *b = is_bias ? link->src[1] : operand_of(run, link->src[1]);
        struct ggml_tensor *result = tensor_of(run, add_value(run, link), 0, n_rows);
        add_node(run, link, result, a, b, is_bias ? ids_of(run, run->experts, n_rows) : NULL);
    }
}

/* ---- memory ---- */

static bool grow(char **memory, size_t *room, size_t bytes)
{
    if (bytes <= *room)
        return true;
    free(*memory);
    *memory = aligned_alloc(64, round_up(bytes));
    *room = *memory ? bytes : 0;
    if (!*memory)
        say("no memory for %zu bytes of activations", bytes);
    return *memory != NULL;
}

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
    }
    const size_t graph_bytes =
        n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false);
    if (!grow(&of->scratch, &of->scratch_bytes, bytes) ||
        !grow(&of->graph_memory, &of->graph_bytes, graph_bytes))
        return false;
    run->next = of->scratch;
    run->context = ggml_init((struct ggml_init_params){.mem_size = graph_bytes,
                                                       .mem_buffer = of->graph_memory,
                                                       .no_alloc = true});
    if (!run->context)
        return false;
    run->graph = ggml_new_graph_custom(run->context, n_tensors, false);
    return true;
}

/* ---- a group ---- */

static void list_ids(group_run *run)
{
    const uint64_t bytes = run->plan->n_rows * sizeof(int32_t);
    run->zeros = (int32_t *)take(run, bytes);
    run->experts = (int32_t *)take(run, bytes);
    memset(run->zeros, 0, bytes);
    for (uint32_t e = 0; e < run->plan->n_experts; e++) {
        const moepage_plan_expert *expert = &run->plan->experts[e];
        for (uint32_t r = 0; r < expert->n_rows; r++)
            run->experts[expert->first_row + r] = (int32_t)expert->expert;
    }
}

static enum ggml_status run_group(const chain_run *whole, const moepage_plan *plan)
{
    const expert_chain *chain = whole->chain;
    group_run run = {.whole = whole,
                     .plan = plan,
                     .top_k = chain->ids->ne[0],
                     .direct = plan->n_groups == 1 && chain->ids->ne[1] == 1 &&
                               plan->n_experts == plan->n_rows};
    if (!prepare(&run))
        return GGML_STATUS_ALLOC_FAILED;
    list_ids(&run);
    for (uint32_t i = 0; i < chain->n_links; i++)
        add_link(&run, chain->links[i]);
    const enum ggml_status status = ggml_backend_graph_compute(whole->of->cpu, run.graph);
    for (uint32_t i = 0; i < chain->n_links && status == GGML_STATUS_SUCCESS; i++)
        scatter(&run, find_value(&run, chain->links[i]));
    ggml_free(run.context);
    return status;
}

/* ---- what is put aside ---- */

static void list_aside(chain_run *run, const struct ggml_tensor *tensor)
{
    for (uint32_t i = 0; i < run->n_asides; i++)
        if (run->asides[i].tensor == tensor)
            return;
    run->asides[run->n_asides++] = (aside){tensor, NULL};
}

/* Copies the chain's inputs, and gives its results a place. */
static bool put_aside(chain_run *run)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->chain->n_links; i++) {
        if (is_bank_product(run->chain->links[i]))
            list_aside(run, run->chain->links[i]->src[1]);
        list_aside(run, run->chain->links[i]);
    }
    for (uint32_t i = 0; i < run->n_asides; i++)
        bytes += round_up(ggml_nbytes(run->asides[i].tensor));
    if (!grow(&run->of->aside, &run->of->aside_bytes, bytes))
        return false;
    char *next = run->of->aside;
    for (uint32_t i = 0; i < run->n_asides; i++) {
        aside *to = &run->asides[i];
        to->data = next;
        memcpy(next, to->tensor->data, ggml_nbytes(to->tensor));
        next += round_up(ggml_nbytes(to->tensor));
    }
    return true;
}

/* The results, in the order in which the host would have written them. */
static void put_back(const chain_run *run)
{
    for (uint32_t i = 0; i < run->chain->n_links; i++) {
        struct ggml_tensor *link = run->chain->links[i];
        const char *from = data_of(run, link);
        if (from != link->data)
            memcpy(link->data, from, ggml_nbytes(link));
    }
}

/* ---- a chain ---- */

static enum ggml_status fail(void)
{
    say("%s", moepage_last_error());
    return GGML_STATUS_FAILED;
}

static bool use_model(compute *of, paged_model *model)
{
    if (of->model == model)
        return true;
    if (of->session)
        pages_give_session(of->model, of->session);
    of->model = NULL;
    of->session = pages_open(model) ? pages_take_session(model) : NULL;
    of->step_tokens = 0;
    if (!of->session)
        return false;
    of->model = model;
    return true;
}

/* A step is one pass over the layers. */
static moepage_status open_step(compute *of, int64_t n_tokens, int64_t layer)
{
    moepage_status status = MOEPAGE_OK;
    if (of->step_tokens == n_tokens && layer >= of->last_layer) {
        of->last_layer = layer;
        return MOEPAGE_OK;
    }
    if (of->step_tokens)
        status = moepage_session_end(of->session, NULL);
    of->step_tokens = 0;
    report_now_and_then(of->model);
    if (!status)
        status = moepage_session_begin(of->session, &MOEPAGE_STEP((uint32_t)n_tokens));
    if (!status) {
        of->step_tokens = n_tokens;
        of->last_layer = layer;
    }
    return status;
}

static void copy_ids(const struct ggml_tensor *ids, int32_t *out)
{
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t k = 0; k < ids->ne[0]; k++)
            memcpy(out++, (const char *)ids->data + (size_t)t * ids->nb[1] + (size_t)k * ids->nb[0],
                   sizeof *out);
}

static enum ggml_status run_groups(compute *of, const expert_chain *chain, uint32_t layer,
                                   const moepage_routing *routing)
{
    chain_run run = {.of = of, .chain = chain};
    moepage_plan plan = MOEPAGE_PLAN();
    if (moepage_session_route(of->session, layer, routing, &plan))
        return fail();
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (plan.n_groups > 1 && !put_aside(&run))
        status = GGML_STATUS_ALLOC_FAILED;
    for (uint32_t g = 0; g < plan.n_groups && status == GGML_STATUS_SUCCESS; g++) {
        if (g > 0 && moepage_session_next_group(of->session, layer, &plan))
            status = fail();
        else
            status = run_group(&run, &plan);
    }
    if (status == GGML_STATUS_SUCCESS)
        put_back(&run);
    if (moepage_session_retire(of->session, layer) && status == GGML_STATUS_SUCCESS)
        status = fail();
    return status;
}

/* False, after a sentence, if a tensor is not the one whose place was noted: its pages would be another's. */
static bool is_as_noted(const expert_chain *chain)
{
    const paged_model *model = chain->model;
    uint32_t layer;
    for (uint32_t i = 0; i < chain->n_links; i++) {
        const struct ggml_tensor *from = chain->links[i]->src[0];
        if (!is_bank_product(chain->links[i]))
            continue;
        const bank *noted = &model->banks[chain->layer][bank_kind(from->name, &layer)];
        if (noted->address == from->data && noted->type == from->type &&
            chain->layer < model->n_layers && model->moe_layer[chain->layer] >= 0)
            continue;
        say("%s is not where it was when its model was loaded: load one model at a time", from->name);
        return false;
    }
    return true;
}

/* Rows of more experts than a session has room for, as a warm-up chooses them, are routed as tokens. */
static enum ggml_status run_chain(compute *of, const expert_chain *chain)
{
    int64_t n_tokens = chain->ids->ne[1], top_k = chain->ids->ne[0];
    if (!use_model(of, chain->model) || !is_as_noted(chain))
        return GGML_STATUS_FAILED;
    if (top_k > MOST_TOP_K) {
        n_tokens *= top_k;
        top_k = 1;
    }
    if (n_tokens > MOST_TOKENS) {
        say("a batch of %lld tokens is too long: at most %d (--ubatch-size)", (long long)n_tokens,
            MOST_TOKENS);
        return GGML_STATUS_FAILED;
    }
    const uint32_t layer = (uint32_t)chain->model->moe_layer[chain->layer];
    copy_ids(chain->ids, of->ids);
    const moepage_routing routing = MOEPAGE_ROUTING((uint32_t)top_k, of->ids, NULL);
    if (open_step(of, n_tokens, layer))
        return fail();
    return run_groups(of, chain, layer, &routing);
}

/* ---- a graph ---- */

/* One operation as it is, where the host asks for it alone. */
static enum ggml_status run_node(compute *of, struct ggml_tensor *node)
{
    const size_t bytes = ggml_graph_overhead_custom(1, false) + ggml_tensor_overhead();
    if (!grow(&of->graph_memory, &of->graph_bytes, bytes))
        return GGML_STATUS_ALLOC_FAILED;
    struct ggml_context *context =
        ggml_init((struct ggml_init_params){.mem_size = bytes,
                                            .mem_buffer = of->graph_memory,
                                            .no_alloc = true});
    if (!context)
        return GGML_STATUS_ALLOC_FAILED;
    struct ggml_cgraph *graph = ggml_new_graph_custom(context, 1, false);
    ggml_graph_add_node(graph, node);
    const enum ggml_status status = ggml_backend_graph_compute(of->cpu, graph);
    ggml_free(context);
    return status;
}

enum ggml_status compute_graph(compute *of, struct ggml_cgraph *graph)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;
    const int n_nodes = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n_nodes && status == GGML_STATUS_SUCCESS;) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        if (op_kind_of(node) == OP_NOTHING) {
            i++;
        } else if (is_bank_product(node) && !buffers_model_of(node->src[0])->in_memory) {
            expert_chain chain;
            chain_collect(graph, i, &chain);
            status = run_chain(of, &chain);
            i = chain.end;
        } else {
            status = run_node(of, node);
            i++;
        }
    }
    return status;
}

/* ---- opening and closing ---- */

void compute_set_threads(compute *of, int n_threads)
{
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(of->cpu));
    ggml_backend_set_n_threads_t set = (ggml_backend_set_n_threads_t)
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set && n_threads != of->n_threads)
        set(of->cpu, n_threads);
    of->n_threads = n_threads;
}

compute *compute_open(void)
{
    compute *of = calloc(1, sizeof *of);
    if (!of)
        return NULL;
    of->cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    of->ids = malloc(sizeof *of->ids * MOST_TOKENS * MOST_TOP_K);
    if (!of->cpu || !of->ids) {
        say("the host has no CPU backend, or no memory");
        compute_close(of);
        return NULL;
    }
    return of;
}

void compute_close(compute *of)
{
    if (of->session)
        pages_give_session(of->model, of->session);
    if (of->cpu)
        ggml_backend_free(of->cpu);
    free(of->ids);
    free(of->scratch);
    free(of->aside);
    free(of->graph_memory);
    free(of);
}
