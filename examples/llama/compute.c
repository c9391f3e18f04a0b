/* Runs a graph's operations on paged experts: routes a layer once, and runs the whole chain for each group of
 * experts that has slots.
 *
 * The host uses memory again as soon as its order of operations allows: a result may lie where an input was. With
 * several groups, inputs are therefore put aside before the first, and results until after the last. */
#include "group.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

bool grow(char **memory, size_t *room, size_t bytes)
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

struct ggml_context *begin_graph(compute *of, size_t n_tensors, struct ggml_cgraph **out)
{
    const size_t bytes =
        n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false);
    if (!grow(&of->graph_memory, &of->graph_bytes, bytes))
        return NULL;
    struct ggml_context *context =
        ggml_init((struct ggml_init_params){.mem_size = bytes,
                                            .mem_buffer = of->graph_memory,
                                            .no_alloc = true});
    if (context)
        *out = ggml_new_graph_custom(context, n_tensors, false);
    return context;
}

void add_task(struct ggml_context *context, struct ggml_cgraph *graph, ggml_custom_op_t task,
              void *data)
{
    struct ggml_tensor *node =
        ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, NULL, 0, task, GGML_N_TASKS_MAX, data);
    node->data = data; /* is not written to, but must be somewhere */
    ggml_build_forward_expand(graph, node);
}

enum ggml_status run_in_place(const chain_run *whole, uint64_t scratch_bytes, add_products_fn *add,
                              void *run)
{
    const expert_chain *chain = whole->chain;
    compute *of = whole->of;
    struct ggml_cgraph *graph;
    if (!grow(&of->scratch, &of->scratch_bytes, scratch_bytes))
        return GGML_STATUS_ALLOC_FAILED;
    struct ggml_context *context = begin_graph(of, 2 * MOST_LINKS, &graph);
    if (!context)
        return GGML_STATUS_ALLOC_FAILED;
    char *room = of->scratch;
    for (uint32_t i = 0; i < chain->n_links;) {
        if (is_bank_product(chain->links[i]))
            i = add(run, i, context, graph, &room);
        else
            ggml_graph_add_node(graph, chain->links[i++]);
    }
    const enum ggml_status status = ggml_backend_graph_compute(of->cpu, graph);
    ggml_free(context);
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

/* Ends the open step, if it can be, and gives the session back. */
static void leave_model(compute *of)
{
    if (of->step_tokens && moepage_session_end(of->session, NULL))
        say("%s", moepage_last_error());
    if (of->session)
        pages_give_session(of->model, of->session);
    if (of->away_scratch)
        ggml_backend_buffer_free(of->away_scratch);
    if (of->away)
        ggml_backend_free(of->away);
    of->away_scratch = NULL;
    of->away = NULL;
    of->session = NULL;
    of->model = NULL;
    of->step_tokens = 0;
}

/* A backend of its own for each context: they keep state between calls. */
static bool open_away(compute *of, const paged_model *model)
{
    if (model->device.device)
        of->away = ggml_backend_dev_init(model->device.device, NULL);
    if (!model->device.device || of->away)
        return true;
    say("%s cannot be opened", ggml_backend_dev_name(model->device.device));
    return false;
}

static bool use_model(compute *of, paged_model *model)
{
    if (of->model == model)
        return true;
    leave_model(of);
    if (!pages_open(model) || !open_away(of, model))
        return false;
    of->session = pages_take_session(model);
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
        else if (of->model->own_kernels && own_rows_are_even(&run, &plan))
            status = own_run_chain(&run, &plan);
        else if (!of->model->own_kernels && !of->away && rows_are_few(&run, &plan))
            status = rows_run_chain(&run, &plan);
        else
            status = group_run_chain(&run, &plan);
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
        say("%s is not where it was when its model was loaded: load one model at a time",
            from->name);
        return false;
    }
    return true;
}

/* Rows of more experts than a session has room for, as a warm-up chooses them, are routed as tokens. */
static enum ggml_status run_chain(compute *of, const expert_chain *chain)
{
    int64_t n_tokens = chain->ids->ne[1], top_k = chain->ids->ne[0];
    if (n_tokens == 0) { /* the last layer of a part of a prompt without logits: the pass is over */
        of->last_layer = INT64_MAX;
        return GGML_STATUS_SUCCESS;
    }
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
    struct ggml_cgraph *graph;
    struct ggml_context *context = begin_graph(of, 1, &graph);
    if (!context)
        return GGML_STATUS_ALLOC_FAILED;
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
    leave_model(of);
    if (of->cpu)
        ggml_backend_free(of->cpu);
    free(of->ids);
    free(of->scratch);
    free(of->aside);
    free(of->graph_memory);
    free(of);
}
