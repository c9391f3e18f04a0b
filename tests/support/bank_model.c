/* Experts in memory and in files, and their arithmetic without any cleverness. */
#include "bank_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"

#define CLAMPED_LIMIT 1.5f

uint64_t bank_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- weights ---- */

static uint32_t dtype_bytes(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
}

/* Exact: |value| < 1 and a multiple of 1/64. */
static void store(uint32_t dtype, float value, unsigned char *out)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy(out, &bits, 4);
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == MOEPAGE_DTYPE_F16)
        half = value == 0
                   ? 0
                   : (uint16_t)((bits >> 16 & 0x8000u) | (((bits >> 23 & 0xffu) - 112) << 10) |
                                (bits >> 13 & 0x3ffu));
    memcpy(out, &half, 2);
}

static double load(uint32_t dtype, const unsigned char *in)
{
    uint32_t bits = 0;
    uint16_t half;
    float value;
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy(&bits, in, 4);
    } else {
        memcpy(&half, in, 2);
        bits = (uint32_t)half << 16;
        if (dtype == MOEPAGE_DTYPE_F16)
            bits = (half & 0x7fffu) == 0
                       ? 0
                       : (uint32_t)(half & 0x8000u) << 16 | (((half >> 10 & 0x1fu) + 112u) << 23) |
                             (uint32_t)(half & 0x3ffu) << 13;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_odd(const bank_model *bank, uint32_t layer)
{
    return bank->shape.odd_dtype && layer % 2;
}

static uint32_t dtype_of(const bank_model *bank, uint32_t layer)
{
    return is_odd(bank, layer) ? bank->shape.odd_dtype : bank->shape.dtype;
}

uint64_t bank_model_expert_bytes(const bank_model *bank, uint32_t layer)
{
    return is_odd(bank, layer) ? bank->odd_bytes : bank->expert_bytes;
}

static uint64_t tensor_at(const bank_model *bank, uint32_t layer, uint32_t tensor)
{
    return is_odd(bank, layer) ? bank->odd_tensor_at[tensor] : bank->tensor_at[tensor];
}

uint64_t bank_model_tensor_bytes(const bank_model *bank, uint32_t layer, uint32_t tensor)
{
    uint64_t end = tensor + 1 < bank->n_tensors ? tensor_at(bank, layer, tensor + 1)
                                                : bank_model_expert_bytes(bank, layer);
    return end - tensor_at(bank, layer, tensor);
}

static void add_tensor(bank_model *bank, uint32_t role, uint64_t rows, uint64_t columns)
{
    uint32_t t = bank->n_tensors++;
    uint64_t elements = rows * (columns ? columns : 1);
    bank->tensors[t] = (moepage_expert_tensor){.role = role,
                                               .dtype = bank->shape.dtype,
                                               .rank = columns ? 2 : 1,
                                               .shape = {rows, columns}};
    bank->odd_tensors[t] = bank->tensors[t];
    bank->odd_tensors[t].dtype = dtype_of(bank, 1);
    bank->tensor_at[t] = bank->expert_bytes;
    bank->odd_tensor_at[t] = bank->odd_bytes;
    bank->expert_bytes += elements * dtype_bytes(bank->shape.dtype);
    bank->odd_bytes += elements * dtype_bytes(dtype_of(bank, 1));
    bank->stride = bank->odd_bytes > bank->expert_bytes ? bank->odd_bytes : bank->expert_bytes;
}

static void add_tensors(bank_model *bank)
{
    uint64_t h = bank->shape.hidden, i = bank->shape.intermediate;
    /* Down first: nothing may depend on the order. */
    add_tensor(bank, MOEPAGE_ROLE_DOWN, h, i);
    if (bank->shape.split) {
        add_tensor(bank, MOEPAGE_ROLE_GATE, i, h);
        add_tensor(bank, MOEPAGE_ROLE_UP, i, h);
    } else {
        add_tensor(bank, MOEPAGE_ROLE_GATE_UP, 2 * i, h);
    }
    if (!bank->shape.bias)
        return;
    if (bank->shape.split) {
        add_tensor(bank, MOEPAGE_ROLE_GATE_BIAS, i, 0);
        add_tensor(bank, MOEPAGE_ROLE_UP_BIAS, i, 0);
    } else {
        add_tensor(bank, MOEPAGE_ROLE_GATE_UP_BIAS, 2 * i, 0);
    }
    add_tensor(bank, MOEPAGE_ROLE_DOWN_BIAS, h, 0);
}

static unsigned char *expert_at(const bank_model *bank, uint32_t layer, uint32_t expert)
{
    return bank->bytes + ((uint64_t)layer * bank->shape.experts + expert) * bank->stride;
}

const void *bank_model_tensor(const bank_model *bank, uint32_t layer, uint32_t expert,
                              uint32_t tensor)
{
    return expert_at(bank, layer, expert) + tensor_at(bank, layer, tensor);
}

/* ---- the callback ---- */

static int32_t read_bytes(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                          uint64_t offset, uint64_t bytes, void *out)
{
    bank_model *bank = user;
    if (bank->before)
        bank->before(bank, layer, expert, tensor);
    uint32_t key = layer * bank->shape.experts + expert;
    uint64_t call = atomic_fetch_add(&bank->calls, 1) + 1;
    if (tensor == 0 && offset == 0)
        atomic_fetch_add(&bank->loads[key], 1);
    uint64_t every = atomic_load(&bank->fail_every), countdown = atomic_load(&bank->fail_call);
    while (countdown && !atomic_compare_exchange_weak(&bank->fail_call, &countdown, countdown - 1))
        ;
    if (countdown == 1 || key == atomic_load(&bank->fail_key) || (every && call % every == 0)) {
        memset(out, 0xee, bytes); /* what a failed read leaves must never be served */
        return -5;
    }
    memcpy(out, (const unsigned char *)bank_model_tensor(bank, layer, expert, tensor) + offset,
           bytes);
    return 0;
}

/* ---- files ---- */

#define BANK_FILES 2

typedef struct bank_files {
    char paths[BANK_FILES][32];
    const char *list[BANK_FILES];
    moepage_file_place *places; /* [layers][experts][n_tensors] */
} bank_files;

/* Writes the tensors from the last to the first, now to the one file and now to the other, with a gap
 * before each. */
static void write_files(const bank_model *bank, bank_files *files)
{
    int file[BANK_FILES];
    uint64_t end[BANK_FILES] = {0}, random = bank->shape.seed ^ 0xf11e5;
    uint64_t n = (uint64_t)bank->shape.layers * bank->shape.experts * bank->n_tensors;
    files->places = calloc(n, sizeof *files->places);
    assert_non_null(files->places);
    for (uint32_t f = 0; f < BANK_FILES; f++) {
        strcpy(files->paths[f], "/tmp/moepage-bank-XXXXXX");
        files->list[f] = files->paths[f];
        file[f] = mkstemp(files->paths[f]);
        assert_true(file[f] >= 0);
    }
    for (uint64_t i = n; i-- > 0;) {
        uint32_t f = bank_below(&random, BANK_FILES);
        uint32_t layer = (uint32_t)(i / bank->n_tensors / bank->shape.experts);
        uint64_t bytes = bank_model_tensor_bytes(bank, layer, (uint32_t)(i % bank->n_tensors));
        end[f] += bank_below(&random, 8);
        files->places[i] = (moepage_file_place){.file = f, .offset = end[f]};
        assert_int_equal(pwrite(file[f], bank->data[i], bytes, (off_t)end[f]), bytes);
        end[f] += bytes;
    }
    for (uint32_t f = 0; f < BANK_FILES; f++)
        close(file[f]);
}

/* An open model needs neither the files' names nor the description. */
static void drop_files(bank_files *files)
{
    for (uint32_t f = 0; f < BANK_FILES; f++)
        assert_int_equal(unlink(files->paths[f]), 0);
    free(files->places);
    memset(files, 0, sizeof *files);
}

/* ---- life ---- */

static void fill_weights(bank_model *bank)
{
    uint64_t random = bank->shape.seed;
    uint64_t n = (uint64_t)bank->shape.layers * bank->shape.experts;
    for (uint64_t e = 0; e < n; e++) {
        uint32_t layer = (uint32_t)(e / bank->shape.experts), dtype = dtype_of(bank, layer);
        uint64_t bytes = bank_model_expert_bytes(bank, layer);
        for (uint64_t at = 0; at < bytes; at += dtype_bytes(dtype))
            store(dtype, ((int)bank_below(&random, 127) - 63) / 64.0f,
                  bank->bytes + e * bank->stride + at);
    }
}

/* The same model, from a pack of it. An open pack needs its file's name no more. */
static void serve_from_pack(bank_model *bank)
{
    char path[] = "/tmp/moepage-bank-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    moepage_pack_config config = {
        .struct_size = sizeof config,
        .forms = bank->shape.pack_forms,
        .cold_level = bank->shape.cold_level,
        .threads = 1,
    };
    assert_int_equal(moepage_pack_write(bank->model, path, &config, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(bank->model), MOEPAGE_OK);
    assert_int_equal(moepage_model_open(path, NULL, &bank->model), MOEPAGE_OK);
    assert_int_equal(unlink(path), 0);
}

static moepage_expert_tensor *list_layers(const bank_model *bank)
{
    moepage_expert_tensor *list = calloc(bank->shape.layers, bank->n_tensors * sizeof *list);
    assert_non_null(list);
    for (uint32_t l = 0; l < bank->shape.layers; l++)
        memcpy(list + (uint64_t)l * bank->n_tensors,
               is_odd(bank, l) ? bank->odd_tensors : bank->tensors, bank->n_tensors * sizeof *list);
    return list;
}

void bank_model_open(bank_model *bank, const bank_shape *shape)
{
    *bank = (bank_model){.shape = *shape};
    if (!bank->shape.dtype)
        bank->shape.dtype = MOEPAGE_DTYPE_F32;
    atomic_init(&bank->fail_key, UINT32_MAX);
    add_tensors(bank);
    uint64_t experts = (uint64_t)shape->layers * shape->experts;
    bank->bytes = malloc(experts * bank->stride);
    bank->data = calloc(experts * bank->n_tensors, sizeof *bank->data);
    bank->loads = calloc(experts, sizeof *bank->loads);
    assert_true(bank->bytes && bank->data && bank->loads);
    fill_weights(bank);
    for (uint64_t i = 0; i < experts * bank->n_tensors; i++) {
        uint64_t expert = i / bank->n_tensors;
        bank->data[i] =
            bank_model_tensor(bank, (uint32_t)(expert / shape->experts),
                              (uint32_t)(expert % shape->experts), (uint32_t)(i % bank->n_tensors));
    }
    moepage_expert_tensor *layers = shape->odd_dtype ? list_layers(bank) : NULL;
    bank_files files = {0};
    if (shape->files)
        write_files(bank, &files);
    moepage_banks banks = {
        .struct_size = sizeof banks,
        .moe_layers = shape->layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .hidden = shape->hidden,
        .expert_intermediate = shape->intermediate,
        .n_tensors = bank->n_tensors,
        .tensors = layers ? NULL : bank->tensors,
        .layer_tensors = layers,
        .data = shape->callback || shape->files ? NULL : bank->data,
        .read = shape->callback ? read_bytes : NULL,
        .read_user = bank,
        .activation =
            shape->clamped ? MOEPAGE_ACTIVATION_SWIGLU_CLAMPED : MOEPAGE_ACTIVATION_SWIGLU,
        .activation_limit = shape->clamped ? CLAMPED_LIMIT : 0,
        .n_files = shape->files ? BANK_FILES : 0,
        .files = shape->files ? files.list : NULL,
        .places = files.places,
    };
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &bank->model), MOEPAGE_OK);
    free(layers);
    if (shape->files)
        drop_files(&files);
    if (shape->pack_forms)
        serve_from_pack(bank);
}

void bank_model_close(bank_model *bank)
{
    assert_int_equal(moepage_model_close(bank->model), MOEPAGE_OK);
    free(bank->bytes);
    free(bank->data);
    free((void *)bank->loads);
}

bool bank_model_matches(const bank_model *bank, uint32_t layer, uint32_t expert,
                        const void *const *tensors)
{
    for (uint32_t t = 0; t < bank->n_tensors; t++)
        if (memcmp(tensors[t], bank_model_tensor(bank, layer, expert, t),
                   bank_model_tensor_bytes(bank, layer, t)))
            return false;
    return true;
}

/* ---- the reference ---- */

#define U_FP32 0x1p-24
#define U_BF16 0x1p-8
#define SILU_SLOPE 1.1 /* of silu, at most */

/* A value and how far an implementation may be from it. */
typedef struct approximate {
    double value, error;
} approximate;

typedef struct expert_view {
    const bank_model *bank;
    uint32_t layer, expert;
} expert_view;

static double weight_of(const expert_view *view, uint32_t role, uint64_t row, uint64_t column)
{
    const bank_model *bank = view->bank;
    for (uint32_t t = 0; t < bank->n_tensors; t++)
        if (bank->tensors[t].role == role) {
            uint64_t columns = bank->tensors[t].rank == 2 ? bank->tensors[t].shape[1] : 1;
            const unsigned char *tensor = bank_model_tensor(bank, view->layer, view->expert, t);
            uint32_t dtype = dtype_of(bank, view->layer);
            return load(dtype, tensor + (row * columns + column) * dtype_bytes(dtype));
        }
    return 0; /* an absent bias */
}

/* Row `row` of a matrix times x, plus bias. */
static approximate dot(const expert_view *view, uint32_t role, uint32_t bias_role, uint64_t row,
                       const approximate *x, uint32_t n)
{
    double bias = bias_role ? weight_of(view, bias_role, row, 0) : 0;
    double sum = bias, magnitude = fabs(bias), carried = 0;
    for (uint32_t i = 0; i < n; i++) {
        double w = weight_of(view, role, row, i);
        sum += w * x[i].value;
        magnitude += fabs(w) * (fabs(x[i].value) + x[i].error);
        carried += fabs(w) * x[i].error;
    }
    return (approximate){sum, carried + (n + 2) * U_FP32 * magnitude};
}

static approximate swiglu(approximate gate, approximate up, double operand_rounding)
{
    double silu = gate.value / (1 + exp(-gate.value));
    double value = silu * up.value;
    double error = SILU_SLOPE * gate.error * (fabs(up.value) + up.error) + fabs(silu) * up.error;
    error += 16 * U_FP32 * (fabs(value) + error);
    return (approximate){value, error + operand_rounding * (fabs(value) + error)};
}

static double bounded(double value, double least)
{
    return fmin(fmax(value, least), CLAMPED_LIMIT);
}

/* The slope is silu's, and bounds pass errors on as they are. The rounded product in the sigmoid moves
 * the result by at most its own size. */
static approximate swiglu_clamped(approximate gate, approximate up, double operand_rounding)
{
    const double alpha = 1.702f, g = bounded(gate.value, -INFINITY);
    const double more = bounded(up.value, -CLAMPED_LIMIT) + 1, silu = g / (1 + exp(-alpha * g));
    double value = silu * more;
    double error = SILU_SLOPE * gate.error * (fabs(more) + up.error) + fabs(silu) * up.error;
    error += (16 + alpha * fabs(g)) * U_FP32 * (fabs(value) + error);
    return (approximate){value, error + operand_rounding * (fabs(value) + error)};
}

static void run_expert(const expert_view *view, const approximate *x, uint32_t math,
                       approximate *out)
{
    const bank_shape *shape = &view->bank->shape;
    uint32_t h = shape->hidden, n = shape->intermediate;
    bool split = shape->split;
    uint32_t gate = split ? MOEPAGE_ROLE_GATE : MOEPAGE_ROLE_GATE_UP;
    uint32_t up = split ? MOEPAGE_ROLE_UP : MOEPAGE_ROLE_GATE_UP;
    uint32_t gate_bias = split ? MOEPAGE_ROLE_GATE_BIAS : MOEPAGE_ROLE_GATE_UP_BIAS;
    uint32_t up_bias = split ? MOEPAGE_ROLE_UP_BIAS : MOEPAGE_ROLE_GATE_UP_BIAS;
    uint32_t up_row = split ? 0 : n;
    approximate *inner = calloc(n, sizeof *inner);
    assert_non_null(inner);
    for (uint32_t i = 0; i < n; i++)
        inner[i] =
            (shape->clamped ? swiglu_clamped : swiglu)(dot(view, gate, gate_bias, i, x, h),
                                                       dot(view, up, up_bias, up_row + i, x, h),
                                                       math == MOEPAGE_MATH_BF16 ? U_BF16 : 0);
    for (uint32_t i = 0; i < h; i++)
        out[i] = dot(view, MOEPAGE_ROLE_DOWN, MOEPAGE_ROLE_DOWN_BIAS, i, inner, n);
    free(inner);
}

void bank_model_reference(const bank_model *bank, uint32_t layer, uint32_t n_tokens, uint32_t top_k,
                          const int32_t *ids, const float *weights, const float *x, uint32_t math,
                          double *y, double *bound)
{
    uint32_t h = bank->shape.hidden;
    approximate *in = calloc(h, sizeof *in), *out = calloc(h, sizeof *out);
    assert_true(in && out);
    for (uint32_t t = 0; t < n_tokens; t++, y += h, bound += h) {
        for (uint32_t i = 0; i < h; i++) {
            double value = x[(uint64_t)t * h + i];
            in[i] = (approximate){value, math == MOEPAGE_MATH_BF16 ? U_BF16 * fabs(value) : 0};
            y[i] = bound[i] = 0;
        }
        for (uint32_t k = 0; k < top_k; k++) {
            uint32_t row = t * top_k + k;
            if (ids[row] < 0)
                continue;
            expert_view view = {bank, layer, (uint32_t)ids[row]};
            run_expert(&view, in, math, out);
            for (uint32_t i = 0; i < h; i++) {
                y[i] += weights[row] * out[i].value;
                bound[i] +=
                    fabs(weights[row]) *
                    (out[i].error + (top_k + 2) * U_FP32 * (fabs(out[i].value) + out[i].error));
            }
        }
    }
    free(in);
    free(out);
}

void bank_model_route(const bank_model *bank, uint64_t *random, uint32_t n_tokens, uint32_t top_k,
                      bool holes, int32_t *ids, float *weights)
{
    for (uint32_t t = 0; t < n_tokens; t++, ids += top_k, weights += top_k)
        for (uint32_t k = 0; k < top_k; k++) {
            bool again;
            do {
                ids[k] = (int32_t)bank_below(random, bank->shape.experts);
                again = false;
                for (uint32_t j = 0; j < k; j++)
                    again = again || ids[j] == ids[k];
            } while (again);
            weights[k] = (float)(1 + bank_below(random, 255)) / 256.0f;
            if (holes && bank_below(random, 8) == 0)
                ids[k] = MOEPAGE_NO_EXPERT;
        }
}
