/* Products of experts that few rows chose, as while tokens are decoded: one operation of the host's graph multiplies
 * with all experts of a layer. The host has one for each bank, and expects its experts at equal distances, which slots
 * do not have. What it does with few rows is a dot product of every row of weights with every rounded row of the input;
 * the same functions are called here, so that the bits are the host's.
 *
 * The rows are used where the host has them. Products of one input, a layer's gate and up, are one operation. */
#include "group.h"

#include <dlfcn.h>
#include <string.h>

#include <ggml-cpu.h>

enum {
    MOST_ROWS = 7, /* of an expert: from 8 on the host has another kernel */
    CHUNK = 32,    /* rows of weights that a thread takes at once */
};

typedef const struct ggml_type_traits_cpu *traits_of(enum ggml_type type);

/* One operation: products of the same input. */
typedef struct row_products {
    const chain_run *whole;
    const moepage_plan *plan;
    const struct ggml_tensor *input;
    const struct ggml_tensor *links[MOST_BANKS];
    uint32_t n_links;
    const struct ggml_type_traits_cpu *traits; /* of the weights */
    char *
        rounded; /* the input's rows in the type that dot products take; NULL = they do as they are */
    size_t rounded_bytes; /* of a row */
    atomic_uint next;     /* chunk */
} row_products;

/* ---- the host's functions ---- */

static traits_of *traits;

static void look_for_traits(void)
{
    ggml_backend_reg_t cpu =
        ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    Dl_info library;
    void *handle = NULL;
    traits = (traits_of *)dlsym(RTLD_DEFAULT, "ggml_get_type_traits_cpu");
    if (!traits && dladdr((void *)cpu->iface.get_name, &library))
        handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle)
        traits = (traits_of *)dlsym(handle, "ggml_get_type_traits_cpu");
    if (!traits)
        say("the host's dot products are not to be found: tokens are decoded more slowly");
}

/* NULL, after a sentence, if the host has none that can be found. */
static traits_of *find_traits(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_traits);
    return traits;
}

bool rows_are_few(const chain_run *whole, const moepage_plan *plan)
{
    const expert_chain *chain = whole->chain;
    if (plan->n_groups > 1)
        return false;
    for (uint32_t e = 0; e < plan->n_experts; e++)
        if (plan->experts[e].n_rows > MOST_ROWS)
            return false;
    traits_of *found = find_traits();
    for (uint32_t i = 0; found && i < chain->n_links; i++)
        if (is_bank_product(chain->links[i]) && !found(chain->links[i]->src[0]->type)->vec_dot)
            return false;
    return found;
}

bool rows_multiply_one(enum ggml_type type, int64_t columns, int64_t rows, const char *weights,
                       const float *x, void *rounded, float *out)
{
    traits_of *found = find_traits();
    const struct ggml_type_traits_cpu *of = found ? found(type) : NULL;
    if (!of || !of->vec_dot)
        return false;
    const size_t row_bytes = ggml_row_size(type, columns);
    const bool is_plain = of->vec_dot_type == GGML_TYPE_F32;
    if (!is_plain)
        found(of->vec_dot_type)->from_float(x, rounded, columns);
    for (int64_t r = 0; r < rows; r++)
        of->vec_dot((int)columns, out + r, 0, weights + (size_t)r * row_bytes, 0,
                    is_plain ? (const void *)x : rounded, 0, 1);
    return true;
}

/* ---- in the host's threads ---- */

static const float *input_row(const row_products *of, int64_t i)
{
    const struct ggml_tensor *input = of->input;
    return (const float *)((const char *)input->data + (size_t)(i % input->ne[1]) * input->nb[1] +
                           (size_t)(i / input->ne[1]) * input->nb[2]);
}

static void round_input(struct ggml_tensor *node, int thread, int n_threads, void *data)
{
    (void)node;
    const row_products *of = data;
    const struct ggml_tensor *input = of->input;
    const ggml_from_float_t from_float = find_traits()(of->traits->vec_dot_type)->from_float;
    for (int64_t i = thread; i < input->ne[1] * input->ne[2]; i += n_threads)
        from_float(input_row(of, i), of->rounded + (size_t)i * of->rounded_bytes, input->ne[0]);
}

/* What row r of the plan is multiplied with. */
static const void *operand(const row_products *of, uint32_t r)
{
    const int64_t top_k = of->whole->chain->ids->ne[0], row = of->plan->rows[r];
    const int64_t i = of->input->ne[1] == 1 ? row / top_k : row;
    return of->rounded ? of->rounded + (size_t)i * of->rounded_bytes
                       : (const void *)input_row(of, i);
}

/* Rows [first, first + CHUNK) of an expert's weights, with all rows that chose it. */
static void multiply_chunk(const row_products *of, const struct ggml_tensor *link,
                           const moepage_plan_expert *expert, int64_t first)
{
    uint32_t layer;
    const struct ggml_tensor *from = link->src[0];
    const int64_t last = first + CHUNK < from->ne[1] ? first + CHUNK : from->ne[1];
    const char *weights =
        expert->tensors[of->whole->chain->model->tensor_of[bank_kind(from->name, &layer)]];
    for (uint32_t r = expert->first_row; r < expert->first_row + expert->n_rows; r++) {
        const void *with = operand(of, r);
        float *out = (float *)host_row(of->whole, of->plan, link, r);
        for (int64_t i = first; i < last; i++)
            of->traits->vec_dot((int)from->ne[0], out + i, 0, weights + (size_t)i * from->nb[1], 0,
                                with, 0, 1);
    }
}

static void multiply(struct ggml_tensor *node, int thread, int n_threads, void *data)
{
    (void)node, (void)thread, (void)n_threads;
    row_products *of = data;
    const uint32_t chunks = (uint32_t)((of->links[0]->src[0]->ne[1] + CHUNK - 1) / CHUNK);
    const uint32_t n = of->n_links * of->plan->n_experts * chunks;
    for (uint32_t i = atomic_fetch_add(&of->next, 1); i < n; i = atomic_fetch_add(&of->next, 1)) {
        const uint32_t expert = i / chunks % of->plan->n_experts;
        multiply_chunk(of, of->links[i / chunks / of->plan->n_experts], &of->plan->experts[expert],
                       (int64_t)(i % chunks) * CHUNK);
    }
}

/* ---- the graph ---- */

/* Takes the products of one input that follow each other, with weights of one type and height; returns the first link
 * behind them. */
static uint32_t take_products(row_products *of, uint32_t first)
{
    const expert_chain *chain = of->whole->chain;
    const struct ggml_tensor *like = chain->links[first]->src[0];
    uint32_t i = first;
    of->input = chain->links[first]->src[1];
    for (; i < chain->n_links && of->n_links < MOST_BANKS; i++) {
        const struct ggml_tensor *link = chain->links[i];
        if (!is_bank_product(link) || link->src[1] != of->input ||
            link->src[0]->type != like->type || link->src[0]->ne[1] != like->ne[1])
            break;
        of->links[of->n_links++] = link;
    }
    of->traits = find_traits()(like->type);
    return i;
}

/* Bytes for the rounded rows of all products' inputs. */
static uint64_t rounded_bytes(const expert_chain *chain)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < chain->n_links; i++) {
        const struct ggml_tensor *link = chain->links[i], *input = link->src[1];
        if (is_bank_product(link))
            bytes += round_up(
                (uint64_t)(input->ne[1] * input->ne[2]) *
                ggml_row_size(find_traits()(link->src[0]->type)->vec_dot_type, input->ne[0]));
    }
    return bytes;
}

/* A layer's products, by their first links. */
typedef struct row_run {
    const chain_run *whole;
    const moepage_plan *plan;
    row_products products[MOST_LINKS];
} row_run;

static uint32_t add_products(void *data, uint32_t first, struct ggml_context *context,
                             struct ggml_cgraph *graph, char **room)
{
    row_run *run = data;
    row_products *of = &run->products[first];
    *of = (row_products){.whole = run->whole, .plan = run->plan};
    const uint32_t behind = take_products(of, first);
    const struct ggml_tensor *input = of->input;
    if (of->traits->vec_dot_type != GGML_TYPE_F32) {
        of->rounded = *room;
        of->rounded_bytes = ggml_row_size(of->traits->vec_dot_type, input->ne[0]);
        *room += round_up((uint64_t)(input->ne[1] * input->ne[2]) * of->rounded_bytes);
        add_task(context, graph, round_input, of);
    }
    add_task(context, graph, multiply, of);
    return behind;
}

enum ggml_status rows_run_chain(const chain_run *whole, const moepage_plan *plan)
{
    row_run run = {.whole = whole, .plan = plan};
    return run_in_place(whole, rounded_bytes(whole->chain), add_products, &run);
}
