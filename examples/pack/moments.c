/* Gathers second moments, a few tokens at a time. */
#include "pack/moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/kernels.h"

#define TILE 32u /* tokens */
#define ROWS 8u  /* of a matrix */

/* One call's work. */
typedef struct work {
    const moments *m;
    const kernels *kernels;
    uint32_t layer, expert;
    const moepage_expert_tensor *tensors; /* of the expert */
    uint32_t n_tensors;
    const char *slot;
    uint32_t hidden, columns;
    bool down;           /* of the down projection's inputs, or of the layer's */
    uint32_t n;          /* tokens in the tile */
    float weights[TILE]; /* of tokens; those past n have inputs and weights of 0 */
    float *inputs;       /* [TILE][hidden] */
    float *inputs_t;     /* [hidden][TILE] */
    float *rows;         /* [ROWS][hidden] of a matrix */
    float *gate, *up;    /* [columns][TILE] */
    float *x;            /* [TILE][columns]: weighted */
    float *x_t;          /* [columns][TILE] */
    float *out;
} work;

/* ---- A tile's inputs of the matrix ---- */

static void transpose(const float *from, uint32_t rows, uint32_t columns, float *to)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++)
            to[(size_t)c * rows + r] = from[(size_t)r * columns + c];
}

/* Multiplies rows [first, first + columns) of a matrix with the tile's inputs. */
static void project(const work *w, const moepage_expert_tensor *of, uint32_t first, float *out)
{
    const size_t row_bytes = (size_t)w->hidden * (of->dtype == MOEPAGE_DTYPE_F32 ? 4 : 2);
    const char *matrix = w->slot + of->offset + first * row_bytes;
    for (uint32_t i = 0, n; i < w->columns; i += n) {
        float *to[ROWS];
        const float *rows[ROWS];
        n = w->columns - i < ROWS ? w->columns - i : ROWS;
        for (uint32_t q = 0; q < n; q++) {
            float *row = w->rows + (size_t)q * w->hidden;
            w->kernels->widen(row, matrix + (i + q) * row_bytes, of->dtype, w->hidden);
            rows[q] = row;
            to[q] = out + (size_t)(i + q) * TILE;
        }
        const weighted_sums sums = {.out = to,
                                    .weights = rows,
                                    .rows = w->inputs_t,
                                    .stride = TILE,
                                    .n_sums = n,
                                    .n_rows = w->hidden,
                                    .n = TILE};
        w->kernels->sum_rows(&sums);
    }
}

/* Computes the down projection's inputs. */
static void activate(const work *w)
{
    for (uint32_t t = 0; t < w->n_tensors; t++) {
        const moepage_expert_tensor *of = &w->tensors[t];
        if (of->role == MOEPAGE_ROLE_GATE || of->role == MOEPAGE_ROLE_GATE_UP)
            project(w, of, 0, w->gate);
        if (of->role == MOEPAGE_ROLE_UP || of->role == MOEPAGE_ROLE_GATE_UP)
            project(w, of, of->role == MOEPAGE_ROLE_UP ? 0 : w->columns, w->up);
    }
    for (size_t i = 0; i < (size_t)w->columns * TILE; i++) {
        const double gate = w->gate[i];
        w->x_t[i] = (float)(gate / (1 + exp(-gate)) * w->up[i]);
    }
}

/* ---- Adding up ---- */

/* Adds the products of the tile's rows: the upper triangle, and a little below it. */
static void add_products(const work *w)
{
    for (uint32_t i = 0, n; i < w->columns; i += n) {
        float *to[ROWS];
        const float *weights[ROWS];
        n = w->columns - i < ROWS ? w->columns - i : ROWS;
        for (uint32_t q = 0; q < n; q++) {
            to[q] = w->out + (size_t)(i + q) * w->columns + i;
            weights[q] = w->x_t + (size_t)(i + q) * TILE;
        }
        const weighted_sums sums = {.out = to,
                                    .weights = weights,
                                    .rows = w->x + i,
                                    .stride = w->columns,
                                    .n_sums = n,
                                    .n_rows = TILE,
                                    .n = w->columns - i,
                                    .resume = true};
        w->kernels->sum_rows(&sums);
    }
}

static void flush(work *w)
{
    for (uint32_t r = w->n; r < TILE; r++) {
        memset(w->inputs + (size_t)r * w->hidden, 0, w->hidden * sizeof *w->inputs);
        w->weights[r] = 0;
    }
    transpose(w->inputs, TILE, w->hidden, w->inputs_t);
    if (w->down)
        activate(w);
    else
        memcpy(w->x_t, w->inputs_t, (size_t)w->columns * TILE * sizeof *w->x_t);
    for (size_t i = 0; i < (size_t)w->columns * TILE; i++)
        w->x_t[i] *= w->weights[i % TILE];
    transpose(w->x_t, w->columns, TILE, w->x);
    add_products(w);
    w->n = 0;
}

static bool add_token(work *w, uint64_t token, float weight)
{
    if (!calibration_read(w->m->from, w->layer, token, w->inputs + (size_t)w->n * w->hidden))
        return false;
    w->weights[w->n++] = weight;
    if (w->n == TILE)
        flush(w);
    return true;
}

static bool add_tokens(work *w)
{
    const calibration *c = w->m->from;
    const uint64_t more = c->n_tokens < c->hidden ? c->n_tokens : c->hidden;
    const float weight = (float)sqrt(w->m->mean_squares[w->layer]);
    bool read = true;
    for (uint64_t t = 0; t < c->n_tokens && read; t++) {
        const choice *of = calibration_choices(c, w->layer, t);
        for (uint32_t k = 0; k < c->top_k && read; k++)
            if (of[k].expert == (int32_t)w->expert)
                read = add_token(w, t, of[k].weight);
    }
    for (uint64_t i = 0; i < more && read; i++)
        read = add_token(w, i * c->n_tokens / more, weight);
    if (read && w->n)
        flush(w);
    return read;
}

/* ---- The callback ---- */

static const char *fill(work *w)
{
    const size_t h = w->hidden, n = w->columns;
    float *all = malloc((2 * TILE * h + ROWS * h + 4 * TILE * n) * sizeof *all);
    if (!all)
        return "out of memory";
    w->inputs = all;
    w->inputs_t = w->inputs + TILE * h;
    w->rows = w->inputs_t + TILE * h;
    w->gate = w->rows + ROWS * h;
    w->up = w->gate + TILE * n;
    w->x = w->up + TILE * n;
    w->x_t = w->x + TILE * n;
    const bool read = add_tokens(w);
    free(all);
    return read ? NULL : "TMPDIR: recorded inputs cannot be read";
}

int32_t moments_fill(void *user, uint32_t layer, uint32_t expert, uint32_t tensor, const void *slot,
                     uint64_t columns, float *out)
{
    moments *m = user;
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS] = {0};
    const char *failure = "the expert's tensors cannot be told apart";
    if (!moepage_model_get_layer_tensors(m->model, layer, tensors, MOEPAGE_MAX_EXPERT_TENSORS)) {
        work w = {.m = m,
                  .kernels = kernels_choose(),
                  .layer = layer,
                  .expert = expert,
                  .tensors = tensors,
                  .n_tensors = MOEPAGE_MAX_EXPERT_TENSORS,
                  .slot = slot,
                  .hidden = m->from->hidden,
                  .columns = (uint32_t)columns,
                  .down = tensors[tensor].role == MOEPAGE_ROLE_DOWN,
                  .out = out};
        failure = fill(&w);
    }
    if (failure)
        m->failure = failure;
    return failure != NULL;
}

/* ---- Opening ---- */

int moments_check(const moepage_model *model)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    if (moepage_model_get_info(model, &info))
        return fail_library(RUN_FAILED, "model");
    if (info.activation != MOEPAGE_ACTIVATION_SWIGLU)
        return fail(RUN_REFUSED,
                    "--calibrate: the inputs of %s's down projections are not SwiGLU's",
                    info.architecture);
    for (uint32_t l = 0; l < info.moe_layers; l++) {
        if (moepage_model_get_layer_tensors(model, l, tensors, MOEPAGE_MAX_EXPERT_TENSORS))
            return fail_library(RUN_FAILED, "model");
        for (uint32_t t = 0; t < info.expert_tensors; t++) {
            const moepage_expert_tensor *of = &tensors[t];
            const bool floats = of->dtype == MOEPAGE_DTYPE_F32 || of->dtype == MOEPAGE_DTYPE_F16 ||
                                of->dtype == MOEPAGE_DTYPE_BF16;
            if (of->role < MOEPAGE_ROLE_GATE_UP || of->role > MOEPAGE_ROLE_DOWN || !floats)
                return fail(RUN_REFUSED,
                            "--calibrate: %s's experts are not matrices of F32, F16 or BF16 alone",
                            info.architecture);
        }
    }
    return RUN_OK;
}

/* Looks at all choices of a layer; counts[experts] starts with zeros. */
static void survey(moments *m, uint32_t layer, uint64_t *counts)
{
    const calibration *c = m->from;
    const choice *of = calibration_choices(c, layer, 0);
    const uint64_t n = c->n_tokens * c->top_k;
    for (uint64_t i = 0; i < n; i++) {
        m->mean_squares[layer] += (double)of[i].weight * of[i].weight / (double)n;
        counts[of[i].expert]++;
    }
    for (uint32_t e = 0; e < c->experts; e++) {
        m->n_few += counts[e] < c->hidden;
        m->least = counts[e] < m->least ? counts[e] : m->least;
    }
}

int moments_open(const moepage_model *model, const calibration *from, moments *out)
{
    *out = (moments){.model = model, .from = from, .least = UINT64_MAX};
    out->mean_squares = calloc(from->moe_layers, sizeof *out->mean_squares);
    for (uint32_t l = 0; l < from->moe_layers; l++) {
        uint64_t *counts = calloc(from->experts, sizeof *counts);
        if (!counts || !out->mean_squares) {
            free(counts);
            return fail_memory();
        }
        survey(out, l, counts);
        free(counts);
    }
    return RUN_OK;
}

void moments_close(moments *m)
{
    free(m->mean_squares);
}
