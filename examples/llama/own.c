/* Products of experts by this library's kernels, in the host's threads.
 *
 * Each bank is one operation over all experts of a group. Where the group is the whole layer, rows are read and
 * results written where the host has them. The bits of a sum depend on its row and its weights alone. */
#include "group.h"

enum { SHARES = 4 /* of a thread: those that others hold up take fewer */ };

/* ---- in the host's threads ---- */

static void tell(own_products *of, moepage_status status)
{
    if (status && !atomic_exchange(&of->failed, true))
        say("%s", moepage_last_error());
}

static void convert(struct ggml_tensor *node, int thread, int n_threads, void *data)
{
    (void)node;
    own_products *of = data;
    tell(of, moepage_session_convert(of->session, of->layer, &of->of[0], (uint32_t)thread,
                                     (uint32_t)n_threads));
}

static void multiply(struct ggml_tensor *node, int thread, int n_threads, void *data)
{
    (void)node, (void)thread;
    own_products *of = data;
    const uint32_t shares = SHARES * (uint32_t)n_threads, n = of->n * shares;
    for (uint32_t i = atomic_fetch_add(&of->next, 1); i < n; i = atomic_fetch_add(&of->next, 1))
        tell(of, moepage_session_multiply(of->session, of->layer, &of->of[i / shares], i % shares,
                                          shares));
}

/* ---- products ---- */

uint64_t own_operand_bytes(const struct ggml_tensor *product, uint64_t n_rows)
{
    return round_up(n_rows * (uint64_t)product->src[1]->ne[0] * sizeof(float));
}

moepage_product own_product(const chain_run *whole, const struct ggml_tensor *product,
                            void *operands)
{
    uint32_t layer;
    const struct ggml_tensor *from = product->src[0];
    return MOEPAGE_PRODUCT(.math = layers_math(from->type),
                           .tensor = whole->chain->model->tensor_of[bank_kind(from->name, &layer)],
                           .operands = operands);
}

void own_add(own_products *products, struct ggml_context *context, struct ggml_cgraph *graph)
{
    add_task(context, graph, convert, products);
    add_task(context, graph, multiply, products);
}

enum ggml_status own_status(const own_products *products, uint32_t n, enum ggml_status status)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(&products[i].failed))
            return GGML_STATUS_FAILED;
    return status;
}

/* ---- a layer whose rows are used where they are ---- */

static bool are_even(const struct ggml_tensor *rows)
{
    return rows->nb[0] == sizeof(float) &&
           (rows->ne[1] == 1 || rows->nb[2] == (size_t)rows->ne[1] * rows->nb[1]);
}

bool own_rows_are_even(const chain_run *whole, const moepage_plan *plan)
{
    const expert_chain *chain = whole->chain;
    if (plan->n_groups > 1 || plan->top_k != chain->ids->ne[0])
        return false;
    for (uint32_t i = 0; i < chain->n_links; i++) {
        const struct ggml_tensor *link = chain->links[i];
        if (is_bank_product(link) && !(are_even(link->src[1]) && ggml_is_contiguous(link)))
            return false;
    }
    return true;
}

static moepage_product product_in_place(const chain_run *whole, const struct ggml_tensor *link,
                                        void *operands)
{
    const struct ggml_tensor *input = link->src[1];
    const bool by_token = input->ne[1] == 1;
    moepage_product product = own_product(whole, link, operands);
    product.x = input->data;
    product.x_rows = by_token ? MOEPAGE_ROWS_TOKENS : MOEPAGE_ROWS_CHOICES;
    product.x_stride = input->nb[by_token ? 2 : 1] / sizeof(float);
    product.out = link->data;
    product.out_rows = MOEPAGE_ROWS_CHOICES;
    return product;
}

/* Takes the products that follow each other with one input and one math, and so share its operands; returns the first
 * link behind them. */
static uint32_t take_products(const chain_run *whole, uint32_t first, void *operands,
                              own_products *out)
{
    const expert_chain *chain = whole->chain;
    uint32_t i = first;
    for (; i < chain->n_links && out->n < MOST_BANKS; i++) {
        const struct ggml_tensor *link = chain->links[i];
        if (!is_bank_product(link) || link->src[1] != chain->links[first]->src[1])
            break;
        const moepage_product product = product_in_place(whole, link, operands);
        if (out->n > 0 && product.math != out->of[0].math)
            break;
        out->of[out->n++] = product;
    }
    return i;
}

static uint64_t all_operand_bytes(const expert_chain *chain, uint64_t n_rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < chain->n_links; i++)
        if (is_bank_product(chain->links[i]))
            bytes += own_operand_bytes(chain->links[i], n_rows);
    return bytes;
}

/* A layer's products. */
typedef struct own_run {
    const chain_run *whole;
    const moepage_plan *plan;
    own_products products[MOST_LINKS];
    uint32_t n_products;
} own_run;

static uint32_t add_products(void *data, uint32_t first, struct ggml_context *context,
                             struct ggml_cgraph *graph, char **room)
{
    own_run *run = data;
    own_products *of = &run->products[run->n_products++];
    *of = (own_products){.session = run->whole->of->session, .layer = run->plan->layer};
    const uint32_t behind = take_products(run->whole, first, *room, of);
    *room += own_operand_bytes(run->whole->chain->links[first], run->plan->n_rows);
    own_add(of, context, graph);
    return behind;
}

enum ggml_status own_run_chain(const chain_run *whole, const moepage_plan *plan)
{
    own_run run = {.whole = whole, .plan = plan};
    const enum ggml_status status =
        run_in_place(whole, all_operand_bytes(whole->chain, plan->n_rows), add_products, &run);
    return own_status(run.products, run.n_products, status);
}
