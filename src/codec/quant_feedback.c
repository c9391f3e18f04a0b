/* Rounding with error feedback (GPTQ, Frantar et al. 2022).
 *
 * Let e = w - v be a row's weights less their values once rounded. Under moments M the products with the
 * matrix's inputs are off by e M e', squared. With M = (I + U) D (I + U)', U strictly upper triangular and D
 * diagonal, that is the sum over columns k of
 *
 *     D[k] * (w[k] + (the sum over j < k of e[j] * U[j][k]) - v[k])^2
 *
 * so each column in turn is rounded to the level next to its target: the weight, and what the errors before
 * it add. These are GPTQ's integers, found without an inverse.
 *
 * A group's grid is that of its targets if none of its columns were rounded. A search tries others, and
 * takes the one with the least of that sum over the group. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "codec/quant_inside.h"

#define TILE 8       /* rows that share a pass over U */
#define DAMPING 0.01 /* of the diagonal's mean, added to it */

#define LANES 4
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

static vector load(const float *from)
{
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* ---- The factor ---- */

/* Sums a[i] * b[i] in LANES sums, lane l taking elements l, l + LANES, ..., and these in order. */
static double dot(const float *a, const float *b, uint64_t n)
{
    doubles sums = {0};
    double total = 0;
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sums += __builtin_convertvector(load(a + i), doubles) *
                __builtin_convertvector(load(b + i), doubles);
    for (uint32_t l = 0; i + l < n; l++)
        sums[l] += (double)a[i + l] * b[i + l];
    for (uint32_t l = 0; l < LANES; l++)
        total += sums[l];
    return total;
}

/* Turns moments M, damped, into R, upper triangular, with M = R R'. */
static moepage_status factor(float *m, uint64_t n, double damping)
{
    for (uint64_t k = n; k-- > 0;) {
        const float *row = m + k * n + k + 1;
        const uint64_t after = n - k - 1;
        const double pivot = m[k * n + k] + damping - dot(row, row, after);
        if (!(pivot > 0) || !isfinite(pivot))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "no inputs have these moments: they are not positive at column %llu",
                           (unsigned long long)k);
        const double root = sqrt(pivot);
        m[k * n + k] = (float)root;
        for (uint64_t i = 0; i < k; i++)
            m[i * n + k] = (float)((m[i * n + k] - dot(m + i * n + k + 1, row, after)) / root);
    }
    return MOEPAGE_OK;
}

/* Turns R into U above the diagonal, and D on it. */
static void unscale(float *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = i + 1; k < n; k++)
            r[i * n + k] /= r[k * n + k];
    for (uint64_t k = 0; k < n; k++)
        r[k * n + k] *= r[k * n + k];
}

/* Makes U and D of moments; those of a matrix without inputs leave each weight to itself. */
static moepage_status prepare(float *m, uint64_t n)
{
    double mean = 0;
    for (uint64_t i = 0; i < n; i++)
        mean += m[i * n + i] / (double)n;
    if (!isfinite(mean) || mean < 0)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "no inputs have these moments: the mean of their diagonal is %g", mean);
    moepage_status status = factor(m, n, mean > 0 ? DAMPING * mean : 1);
    if (!status)
        unscale(m, n);
    return status;
}

/* ---- Rounding ---- */

typedef struct rounding {
    const mp_quant_shape *shape;
    mp_quant_layout layout;
    uint32_t dtype;
    int search;
    const void *weights;
    const float *u; /* and D */
    uint8_t *out;
    float *targets; /* [TILE][columns], of those that are not rounded yet */
    float errors[TILE * MP_QUANT_MAX_GROUP]; /* of the group that was rounded last */
} rounding;

/* A group of one row. */
typedef struct group {
    uint64_t row, column;
    uint32_t n;
    const float *u; /* row k of the group's part of U and D is at u[k * columns] */
    uint64_t columns;
    float weights[MP_QUANT_MAX_GROUP];
    float targets[MP_QUANT_MAX_GROUP]; /* as the columns before the group determine them */
} group;

static void add_scaled(float *y, const float *x, float scale, uint64_t n)
{
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vector sum = load(y + i) + load(x + i) * scale;
        memcpy(y + i, &sum, sizeof sum);
    }
    for (; i < n; i++)
        y[i] += x[i] * scale;
}

/* Adds to targets[k + 1..n) what column k's error does. */
static void feed_back(const group *g, uint32_t k, float error, float *targets)
{
    add_scaled(targets + k + 1, g->u + k * g->columns + k + 1, error, g->n - k - 1);
}

/* Gives the targets of columns none of which is rounded. */
static void free_targets(const group *g, float *out)
{
    memcpy(out, g->targets, g->n * sizeof *out);
    for (uint32_t k = 0; k < g->n; k++)
        feed_back(g, k, g->weights[k] - out[k], out);
}

/* Rounds the group, and gives the errors of its weights. */
static void round_to(const group *g, const mp_quant_grid *grid, int32_t *q, float *errors)
{
    float targets[MP_QUANT_MAX_GROUP];
    memcpy(targets, g->targets, g->n * sizeof *targets);
    for (uint32_t k = 0; k < g->n; k++) {
        q[k] = mp_quant_round(grid, targets[k]);
        errors[k] = g->weights[k] - mp_quant_value(grid, q[k]);
        feed_back(g, k, errors[k], targets);
    }
}

/* Returns what rounding the group adds to the products' error; in single precision, which is good enough
 * to choose by. */
static float error_under(const group *g, const mp_quant_grid *grid)
{
    const float scale = grid->scale, inverse = 1 / scale, offset = grid->levels.offset;
    const float least = (float)grid->levels.least, most = (float)grid->levels.most;
    float targets[MP_QUANT_MAX_GROUP], sum = 0;
    memcpy(targets, g->targets, g->n * sizeof *targets);
    for (uint32_t k = 0; k < g->n; k++) {
        float q =
            (targets[k] * inverse - offset + 0x1.8p23f) - 0x1.8p23f; /* to the nearest integer */
        q = q > most ? most : q < least ? least : q;
        const float value = (q + offset) * scale, off = targets[k] - value;
        sum += off * off * g->u[k * g->columns + k];
        feed_back(g, k, g->weights[k] - value, targets);
    }
    return sum;
}

/* Replaces the grid by a better one of those that a search tries. */
static void search_grid(const mp_quant_shape *shape, const group *g, const float *unrounded,
                        mp_quant_grid *best)
{
    mp_quant_grid tried;
    if (best->scale == 0)
        return;
    float least = error_under(g, best);
    for (uint32_t i = 0; mp_quant_candidate(shape, unrounded, g->n, i, &tried); i++) {
        const float error = tried.scale > 0 ? error_under(g, &tried) : INFINITY;
        if (error < least) {
            least = error;
            *best = tried;
        }
    }
}

static moepage_status round_group(const rounding *r, const group *g, float *errors)
{
    float unrounded[MP_QUANT_MAX_GROUP];
    int32_t q[MP_QUANT_MAX_GROUP];
    mp_quant_grid grid;
    free_targets(g, unrounded);
    moepage_status status = mp_quant_choose(r->shape, unrounded, g->n, g->row, g->column, 0, &grid);
    if (status)
        return status;
    if (r->search)
        search_grid(r->shape, g, unrounded, &grid);
    round_to(g, &grid, q, errors);
    uint8_t *packed = r->out + g->row * r->layout.row_bytes;
    uint8_t *scales = r->out + r->layout.scale_offset;
    for (uint32_t k = 0; k < g->n; k++)
        mp_quant_put(packed, g->column + k, r->shape->bits, q[k]);
    memcpy(scales + (g->row * r->layout.row_groups + g->column / r->shape->group) * 2, &grid.stored,
           sizeof grid.stored);
    return MOEPAGE_OK;
}

/* Adds what the errors of columns [first, first + n) do to the targets of those after them. */
static void feed_on(rounding *r, uint64_t first, uint32_t n, uint32_t n_rows)
{
    const uint64_t columns = r->shape->columns, next = first + n;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < n_rows; i++)
            add_scaled(r->targets + i * columns + next, r->u + (first + k) * columns + next,
                       r->errors[i * MP_QUANT_MAX_GROUP + k], columns - next);
}

/* Rounds rows [row, row + n_rows), group by group. */
static moepage_status round_rows(rounding *r, uint64_t row, uint32_t n_rows)
{
    const uint64_t columns = r->shape->columns;
    for (uint64_t i = 0; i < n_rows * columns; i++)
        r->targets[i] = mp_quant_load(r->dtype, r->weights, row * columns + i);
    for (uint64_t first = 0; first < columns; first += r->shape->group) {
        const uint64_t left = columns - first;
        group g = {.column = first,
                   .n = left < r->shape->group ? (uint32_t)left : r->shape->group,
                   .u = r->u + first * columns + first,
                   .columns = columns};
        for (uint32_t i = 0; i < n_rows; i++) {
            g.row = row + i;
            for (uint32_t k = 0; k < g.n; k++)
                g.weights[k] = mp_quant_load(r->dtype, r->weights, g.row * columns + first + k);
            memcpy(g.targets, r->targets + i * columns + first, g.n * sizeof *g.targets);
            moepage_status status = round_group(r, &g, r->errors + i * MP_QUANT_MAX_GROUP);
            if (status)
                return status;
        }
        feed_on(r, first, g.n, n_rows);
    }
    return MOEPAGE_OK;
}

moepage_status mp_quant_encode_for(const mp_quant_shape *shape, uint32_t dtype, const void *weights,
                                   int search, float *moments, void *out)
{
    rounding r = {.shape = shape,
                  .dtype = dtype,
                  .search = search,
                  .weights = weights,
                  .u = moments,
                  .out = out};
    moepage_status status = mp_quant_begin(shape, dtype, &r.layout);
    if (!status)
        status = prepare(moments, shape->columns);
    if (status)
        return status;
    r.targets = mp_alloc_array(TILE * shape->columns, sizeof *r.targets);
    if (!r.targets)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u rows of %llu weights", TILE,
                       (unsigned long long)shape->columns);
    memset(out, 0, r.layout.bytes);
    for (uint64_t row = 0; !status && row < shape->rows; row += TILE)
        status =
            round_rows(&r, row, shape->rows - row < TILE ? (uint32_t)(shape->rows - row) : TILE);
    mp_free(r.targets);
    return status;
}
