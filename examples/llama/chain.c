/* The operations on a layer's experts that belong together: its products, their biases and activations, which the
 * host puts one behind the other. They are run together, so that each expert is loaded once for all of them. */
#include <string.h>

#include "plugin.h"

/* ---- kinds, by name, for the numbers change from version to version ---- */

static op_kind kind_of_name(const char *name)
{
    static const struct {
        const char *name;
        op_kind kind;
    } known[] = {{"MUL_MAT_ID", OP_MUL_MAT_ID}, {"ADD_ID", OP_ADD_ID},    {"GLU", OP_GLU},
                 {"NONE", OP_NOTHING},          {"VIEW", OP_NOTHING},     {"RESHAPE", OP_NOTHING},
                 {"PERMUTE", OP_NOTHING},       {"TRANSPOSE", OP_NOTHING}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].kind;
    return OP_OTHER;
}

op_kind op_kind_of(const struct ggml_tensor *node)
{
    static _Atomic uint8_t kinds[GGML_OP_COUNT]; /* 1 + the kind; 0 = not asked for yet */
    if (kinds[node->op] == 0)
        kinds[node->op] = (uint8_t)(kind_of_name(ggml_op_name(node->op)) + 1);
    return (op_kind)(kinds[node->op] - 1);
}

/* ---- what is ours ---- */

bool is_bank_product(const struct ggml_tensor *node)
{
    uint32_t layer;
    return op_kind_of(node) == OP_MUL_MAT_ID && node->src[0]->buffer &&
           node->src[0]->buffer->buft == buffers_type() &&
           bank_kind(node->src[0]->name, &layer) >= 0 && node->src[1]->type == GGML_TYPE_F32;
}

/* What a node is, or is a view of. */
static const struct ggml_tensor *origin(const struct ggml_tensor *node)
{
    return node->view_src ? node->view_src : node;
}

/* True for a product of a bank, and for what has been made of one. */
static bool comes_of_bank(const struct ggml_tensor *node)
{
    for (int depth = 0; node && depth < MOST_LINKS; depth++) {
        node = origin(node);
        if (is_bank_product(node))
            return true;
        if (op_kind_of(node) != OP_ADD_ID && op_kind_of(node) != OP_GLU)
            return false;
        node = node->src[0];
    }
    return false;
}

bool follows_bank_product(const struct ggml_tensor *node)
{
    const op_kind kind = op_kind_of(node);
    if (kind == OP_ADD_ID)
        return comes_of_bank(node->src[0]);
    if (kind == OP_GLU)
        return comes_of_bank(node->src[0]) && (!node->src[1] || comes_of_bank(node->src[1]));
    return false;
}

/* ---- collecting ---- */

static bool is_linked(const expert_chain *of, const struct ggml_tensor *node)
{
    for (uint32_t i = 0; i < of->n_links; i++)
        if (of->links[i] == origin(node))
            return true;
    return false;
}

/* True if the node continues the chain. A product's input is a tensor of the host's or a whole link: parts of links
 * are for activations. */
static bool continues(const expert_chain *of, const struct ggml_tensor *node)
{
    uint32_t layer;
    if (is_bank_product(node))
        return bank_kind(node->src[0]->name, &layer) >= 0 && layer == of->layer &&
               buffers_model_of(node->src[0]) == of->model && node->src[2] == of->ids &&
               (!node->src[1]->view_src || !is_linked(of, node->src[1]));
    switch (op_kind_of(node)) {
    case OP_ADD_ID: return is_linked(of, node->src[0]) && node->src[2] == of->ids;
    case OP_GLU:
        return is_linked(of, node->src[0]) && (!node->src[1] || is_linked(of, node->src[1]));
    default: return false;
    }
}

void chain_collect(struct ggml_cgraph *graph, int first, expert_chain *out)
{
    struct ggml_tensor *node = ggml_graph_node(graph, first);
    const int n_nodes = ggml_graph_n_nodes(graph);
    *out = (expert_chain){.model = buffers_model_of(node->src[0]), .ids = node->src[2]};
    bank_kind(node->src[0]->name, &out->layer);
    for (out->end = first; out->end < n_nodes && out->n_links < MOST_LINKS; out->end++) {
        node = ggml_graph_node(graph, out->end);
        if (op_kind_of(node) == OP_NOTHING)
            continue;
        if (!continues(out, node))
            return;
        out->links[out->n_links++] = node;
    }
}
