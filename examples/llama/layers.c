/* A model's expert tensors as libmoepage has them described: layers of one shape, and each tensor's type and place in a
 * file. */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t roles[MOST_BANKS] = {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP, MOEPAGE_ROLE_DOWN,
                                           MOEPAGE_ROLE_GATE_UP};

/* ---- shape ---- */

static bool has_banks(const bank *banks)
{
    for (int k = 0; k < MOST_BANKS; k++)
        if (banks[k].address)
            return true;
    return false;
}

static bool is_alike(const bank *a, const bank *b)
{
    return !a->address == !b->address && a->columns == b->columns && a->rows == b->rows &&
           a->experts == b->experts;
}

/* Numbers the layers that have banks; false, after a sentence, unless all have the same. */
static bool number_layers(paged_model *of, uint32_t *n_moe, const bank **first)
{
    *n_moe = 0;
    *first = NULL;
    for (uint32_t l = 0; l < of->n_layers; l++) {
        of->moe_layer[l] = -1;
        if (!has_banks(of->banks[l]))
            continue;
        if (!*first)
            *first = of->banks[l];
        for (int k = 0; k < MOST_BANKS; k++)
            if (!is_alike(&(*first)[k], &of->banks[l][k])) {
                say("layer %u has experts of another shape than the first: they cannot be paged",
                    l);
                return false;
            }
        of->moe_layer[l] = (int32_t)(*n_moe)++;
    }
    return *n_moe > 0;
}

/* ---- description ---- */

typedef struct description {
    moepage_banks banks;
    moepage_expert_tensor *tensors; /* [moe_layers][n_tensors] */
    moepage_file_place *places;     /* [moe_layers][experts][n_tensors] */
    int32_t *layer_index;           /* [moe_layers] */
} description;

/* The bytes of unknown blocks are moved all the same. */
uint32_t layers_dtype(enum ggml_type type)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } known[] = {
        {"f32", MOEPAGE_DTYPE_F32},       {"f16", MOEPAGE_DTYPE_F16},
        {"bf16", MOEPAGE_DTYPE_BF16},     {"q4_0", MOEPAGE_DTYPE_Q4_0},
        {"q4_1", MOEPAGE_DTYPE_Q4_1},     {"q5_0", MOEPAGE_DTYPE_Q5_0},
        {"q5_1", MOEPAGE_DTYPE_Q5_1},     {"q8_0", MOEPAGE_DTYPE_Q8_0},
        {"q2_K", MOEPAGE_DTYPE_Q2_K},     {"q3_K", MOEPAGE_DTYPE_Q3_K},
        {"q4_K", MOEPAGE_DTYPE_Q4_K},     {"q5_K", MOEPAGE_DTYPE_Q5_K},
        {"q6_K", MOEPAGE_DTYPE_Q6_K},     {"iq4_nl", MOEPAGE_DTYPE_IQ4_NL},
        {"iq4_xs", MOEPAGE_DTYPE_IQ4_XS}, {"mxfp4", MOEPAGE_DTYPE_MXFP4},
        {"nvfp4", MOEPAGE_DTYPE_NVFP4},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, ggml_type_name(type)) == 0)
            return known[i].dtype;
    return MOEPAGE_DTYPE_U8;
}

uint32_t layers_math(enum ggml_type type)
{
    switch (layers_dtype(type)) {
    case MOEPAGE_DTYPE_F32:
    case MOEPAGE_DTYPE_F16: return MOEPAGE_MATH_FP32;
    case MOEPAGE_DTYPE_BF16: return MOEPAGE_MATH_BF16;
    default: return MOEPAGE_MATH_INT8;
    }
}

static moepage_expert_tensor describe_tensor(int kind, const bank *of)
{
    const uint32_t dtype = layers_dtype(of->type);
    const uint64_t rows = (uint64_t)of->rows;
    return (moepage_expert_tensor){
        .role = roles[kind],
        .dtype = dtype,
        .rank = 2,
        .shape = {rows,
                  dtype == MOEPAGE_DTYPE_U8 ? of->expert_bytes / rows : (uint64_t)of->columns},
    };
}

static void describe_layer(paged_model *of, uint32_t layer, description *out)
{
    const uint32_t moe = (uint32_t)of->moe_layer[layer], n = out->banks.n_tensors;
    uint32_t t = 0;
    out->layer_index[moe] = (int32_t)layer;
    for (int k = 0; k < MOST_BANKS; k++) {
        const bank *from = &of->banks[layer][k];
        if (!from->address)
            continue;
        of->tensor_of[k] = t;
        out->tensors[moe * n + t] = describe_tensor(k, from);
        for (uint32_t e = 0; e < out->banks.experts; e++)
            out->places[((uint64_t)moe * out->banks.experts + e) * n + t] =
                (moepage_file_place){.file = from->file,
                                     .offset = from->offset + e * from->expert_bytes};
        t++;
    }
}

static void count_tensors(const bank *first, moepage_banks *out)
{
    for (int k = 0; k < MOST_BANKS; k++)
        if (first[k].address) {
            out->n_tensors++;
            out->experts = (uint32_t)first[k].experts;
        }
    const bank *down = first[2].address ? &first[2] : &first[0];
    out->hidden = (uint32_t)down->rows;
    out->expert_intermediate = (uint32_t)down->columns;
}

static bool describe(paged_model *of, description *out)
{
    const bank *first;
    *out = (description){.banks = MOEPAGE_BANKS()};
    moepage_banks *banks = &out->banks;
    if (!number_layers(of, &banks->moe_layers, &first))
        return false;
    count_tensors(first, banks);
    const uint64_t n = (uint64_t)banks->moe_layers * banks->n_tensors;
    out->tensors = calloc(n, sizeof *out->tensors);
    out->places = calloc(n * banks->experts, sizeof *out->places);
    out->layer_index = calloc(banks->moe_layers, sizeof *out->layer_index);
    if (!out->tensors || !out->places || !out->layer_index) {
        say("no memory to describe %u layers of experts", banks->moe_layers);
        return false;
    }
    for (uint32_t l = 0; l < of->n_layers; l++)
        if (of->moe_layer[l] >= 0)
            describe_layer(of, l, out);
    banks->layers = of->n_layers;
    banks->top_k = banks->experts < 8 ? banks->experts : 8; /* not said by the tensors */
    banks->activation = MOEPAGE_ACTIVATION_OTHER;           /* the host's kernels know */
    banks->layer_tensors = out->tensors;
    banks->layer_index = out->layer_index;
    banks->places = out->places;
    banks->files = (const char *const *)of->files;
    banks->n_files = of->n_files;
    return true;
}

static void forget(description *of)
{
    free(of->tensors);
    free(of->places);
    free(of->layer_index);
}

bool layers_open(paged_model *of)
{
    description all;
    bool good = describe(of, &all);
    if (good && moepage_model_open_banks(&all.banks, NULL, &of->model)) {
        say("%s", moepage_last_error());
        good = false;
    }
    forget(&all);
    return good;
}
