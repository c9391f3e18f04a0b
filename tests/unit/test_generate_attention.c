/* The loops of moepage-generate's attention, on every instruction set that this machine runs, bit for bit
 * against naive loops in the order that their headers state; and attention itself: a row's bits are its
 * own, whatever is computed beside it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/compute.h"
#include "numbers.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static float *draw(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = num_random();
    return x;
}

static void expect_bits(const char *who, const float *found, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!num_same(found[i], right[i]))
            fail_msg("%s: value %zu is %.9g, not %.9g", who, i, (double)found[i], (double)right[i]);
}

/* ---- Weighted sums of rows ---- */

static void check_sums(const kernels *k, uint32_t n_sums, uint32_t n_rows, uint32_t n, bool resume)
{
    enum { SPARE = 3 };
    const size_t stride = n + SPARE;
    float *rows = draw(n_rows * stride), *weights = draw((size_t)n_sums * n_rows);
    float *found = draw((size_t)n_sums * n), *right = malloc((size_t)n_sums * n * sizeof *right);
    float *out[64];
    const float *of[64];
    assert_non_null(right);
    for (uint32_t q = 0; q < n_sums; q++) {
        out[q] = found + (size_t)q * n;
        of[q] = weights + (size_t)q * n_rows;
        for (uint32_t i = 0; i < n; i++) {
            float sum = resume ? out[q][i] : 0;
            for (uint32_t r = 0; r < n_rows; r++)
                sum = fmaf(of[q][r], rows[r * stride + i], sum);
            right[(size_t)q * n + i] = sum;
        }
    }
    const weighted_sums sums = {.out = out,
                                .weights = of,
                                .rows = rows,
                                .stride = stride,
                                .n_sums = n_sums,
                                .n_rows = n_rows,
                                .n = n,
                                .resume = resume};
    k->sum_rows(&sums);
    expect_bits(k->name, found, right, (size_t)n_sums * n);
    free(rows);
    free(weights);
    free(found);
    free(right);
}

static void test_generate_attention_sums_rows_in_their_order(void **state)
{
    static const uint32_t widths[] = {1, 8, 16, 17, 64, 80, 128, 131};
    (void)state;
    for (uint32_t t = 0; kernels_at(t); t++)
        for (uint32_t n_sums = 1; n_sums < 34; n_sums += 4)
            for (size_t w = 0; w < COUNT(widths); w++)
                check_sums(kernels_at(t), n_sums, 1 + n_sums * 5 % 37, widths[w], w % 2);
}

/* ---- Softmax ---- */

static void check_softmax(uint32_t n, float spread)
{
    float *x = draw(n), *right = malloc(n * sizeof *x), *found = malloc(n * sizeof *x);
    const float scale = 0.088388346f;
    assert_true(right && found);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= spread;
    memcpy(right, x, n * sizeof *x);
    kernels_at(0)->softmax(right, n, scale);
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, (double)(x[i] * scale));
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)(x[i] * scale) - most);
    for (uint32_t i = 0; i < n; i++) {
        /* Differences from `most` are rounded at their own size; n sums; a quotient. */
        const double is = exp((double)(x[i] * scale) - most) / sum;
        const double bar = is * (88 + 4 + n / 16.0 + 8) * 0x1p-24 + 1e-37;
        if (!(fabs((double)right[i] - is) <= bar))
            fail_msg("%u of %u: %.9g, not %.9g", i, n, (double)right[i], is);
    }
    for (uint32_t t = 1; kernels_at(t); t++) {
        memcpy(found, x, n * sizeof *x);
        kernels_at(t)->softmax(found, n, scale);
        expect_bits(kernels_at(t)->name, found, right, n);
    }
    free(x);
    free(right);
    free(found);
}

static void test_generate_attention_softmax_is_close_and_the_same_everywhere(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 70; n++) {
        check_softmax(n, 1);
        check_softmax(n, 400);
    }
    check_softmax(4097, 30);
    for (uint32_t t = 0; kernels_at(t); t++) {
        float broken[3] = {1, NAN, 2}, far[2] = {0, -1e30f};
        kernels_at(t)->softmax(broken, 3, 1);
        assert_true(isnan(broken[0]) && isnan(broken[1]) && isnan(broken[2]));
        kernels_at(t)->softmax(far, 2, 1);
        assert_true(far[0] == 1 && far[1] == 0);
    }
}

/* ---- Attention ---- */

enum { BLOCK = 16, BLOCKS = 24, LONGEST = BLOCK * (BLOCKS / 2) };

/* With latents, a key's first value_dim elements are the value. */
typedef struct shape {
    uint32_t heads, kv_heads, head_dim, window;
    uint32_t value_dim; /* 0 = head_dim, without latents */
} shape;

static uint32_t value_dim(const shape *s)
{
    return s->value_dim ? s->value_dim : s->head_dim;
}

typedef struct cache {
    compute compute;
    attention attention;
    moepage_kv_layer_view view;
    uint32_t tables[2][BLOCKS / 2]; /* of two sequences, whose blocks alternate backwards */
    float *memory, *k, *v;          /* [2][LONGEST][kv_heads][head_dim]; v is in k with latents */
} cache;

static void open_cache(cache *c, const shape *s, uint32_t threads)
{
    const size_t width = (size_t)s->kv_heads * s->head_dim;
    const model_config model = {.heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .value_dim = value_dim(s),
                                .latent = {.rank = s->value_dim},
                                .score_scale = 1.0f / sqrtf((float)s->head_dim)};
    const uint64_t block = (uint64_t)BLOCK * attention_bytes_per_token(&model);
    assert_int_equal(block, BLOCK * width * (s->value_dim ? 4 : 8));
    *c = (cache){.view = {.id_stride = 1, .block_bytes = block, .granule_bytes = block}};
    c->compute = (compute){workers_start(threads, attention_scratch_floats(LONGEST, BLOCK)),
                           kernels_choose(), MOEPAGE_MATH_FP32};
    assert_non_null(c->compute.workers);
    c->attention = attention_of(&model, &c->compute, BLOCK);
    c->memory = malloc(BLOCKS * block);
    assert_non_null(c->memory);
    memset(c->memory, 0xff, BLOCKS * block); /* NaN: what nobody wrote counts for nobody */
    c->view.base = c->memory;
    c->k = draw(2 * LONGEST * width);
    c->v = draw(2 * LONGEST * width);
    for (uint32_t i = 0; i < BLOCKS; i++)
        c->tables[i % 2][i / 2] = BLOCKS - 1 - i;
}

static void close_cache(cache *c)
{
    workers_stop(c->compute.workers);
    free(c->memory);
    free(c->k);
    free(c->v);
}

static void store(cache *c, uint32_t sequence, uint64_t first, uint32_t n)
{
    const size_t width = (size_t)c->attention.kv_heads * c->attention.head_dim;
    for (uint32_t i = 0; i < n; i++) {
        const attention_row row = {c->tables[sequence], first + i};
        const size_t at = (sequence * (size_t)LONGEST + first + i) * width;
        const float *k = c->k + at;
        if (c->attention.latent)
            attention_store(&c->attention, &c->view, &row, 1, k + c->attention.value_dim, k);
        else
            attention_store(&c->attention, &c->view, &row, 1, k, c->v + at);
    }
}

/* In the order that attention.h states. */
static float naive_score(const shape *s, const float *q, const float *k)
{
    float sum = 0;
    if (s->value_dim)
        return kernels_at(0)->dot(q, k, s->head_dim);
    for (uint32_t i = 0; i < s->head_dim; i++)
        sum = fmaf(q[i], k[i], sum);
    return sum;
}

/* One head of one row. */
static void naive_head(const cache *c, const shape *s, uint32_t sequence, uint64_t position,
                       uint32_t head, const float *sinks, const float *q, float *out)
{
    const size_t width = (size_t)s->kv_heads * s->head_dim;
    const uint64_t start = position + 1 > s->window ? position + 1 - s->window : 0;
    const size_t base =
        sequence * (size_t)LONGEST * width + head / (s->heads / s->kv_heads) * s->head_dim;
    const uint32_t n = (uint32_t)(position + 1 - start);
    const float scale = 1.0f / sqrtf((float)s->head_dim);
    float weights[LONGEST + 1];
    const float *values = s->value_dim ? c->k : c->v;
    for (uint64_t p = start; p <= position; p++) {
        const float sum = naive_score(s, q, c->k + base + p * width);
        weights[p - start] = sinks ? sum * scale : sum;
    }
    weights[n] = sinks ? sinks[head] : 0;
    kernels_at(0)->softmax(weights, sinks ? n + 1 : n, sinks ? 1 : scale);
    for (uint32_t i = 0; i < value_dim(s); i++) {
        out[i] = 0;
        for (uint64_t p = start; p <= position; p++)
            out[i] = fmaf(weights[p - start], values[base + p * width + i], out[i]);
    }
}

/* A prompt's rows and a row of another sequence, together and one by one. */
static void check_attention(const shape *s, uint32_t threads, uint64_t first, uint32_t n,
                            const float *sinks)
{
    enum { OTHER = 77 };
    const size_t width = (size_t)s->heads * s->head_dim, sums = (size_t)s->heads * value_dim(s);
    cache c;
    open_cache(&c, s, threads);
    attention_row *rows = malloc((n + 1) * sizeof *rows);
    float *q = draw((n + 1) * width), *right = malloc((n + 1) * sums * sizeof *right);
    float *found = malloc((n + 1) * sums * sizeof *found);
    assert_true(rows && right && found);
    store(&c, 0, 0, (uint32_t)first + n);
    store(&c, 1, 0, OTHER + 1);
    for (uint32_t r = 0; r <= n; r++) {
        const uint32_t sequence = r == n;
        rows[r] = (attention_row){c.tables[sequence], sequence ? OTHER : first + r};
        for (uint32_t h = 0; h < s->heads; h++)
            naive_head(&c, s, sequence, rows[r].position, h, sinks, q + r * width + h * s->head_dim,
                       right + r * sums + h * value_dim(s));
    }
    attention_run(&c.attention, &c.view, rows, n + 1, s->window, sinks, q, found);
    expect_bits("together", found, right, (n + 1) * sums);
    for (uint32_t r = 0; r <= n; r++) {
        attention_run(&c.attention, &c.view, rows + r, 1, s->window, sinks, q + r * width, found);
        expect_bits("alone", found, right + r * sums, sums);
    }
    free(rows);
    free(q);
    free(right);
    free(found);
    close_cache(&c);
}

static void test_generate_attention_rows_have_their_own_bits(void **state)
{
    static const shape shapes[] = {{8, 2, 64, UINT32_MAX, 0},  {4, 4, 24, UINT32_MAX, 0},
                                   {32, 4, 128, 40, 0},        {6, 1, 80, 16, 0},
                                   {7, 7, 33, 1, 0},           {40, 1, 16, 100, 0},
                                   {4, 1, 72, UINT32_MAX, 64}, {16, 1, 40, UINT32_MAX, 33},
                                   {40, 1, 24, 50, 16}};
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (uint32_t threads = 1; threads <= 3; threads++) {
            float *sinks = draw(shapes[i].heads);
            check_attention(&shapes[i], threads, 0, 37, NULL);
            check_attention(&shapes[i], threads, 121, 9 + threads, NULL);
            check_attention(&shapes[i], threads, 121, 9 + threads, sinks);
            check_attention(&shapes[i], threads, LONGEST - 20, 20, sinks);
            free(sinks);
        }
}

/* Where scores of all queries have no room, fewer are computed at once: the same bits. */
static void test_generate_attention_bounds_its_scratch_in_long_contexts(void **state)
{
    enum { HEADS = 32, DIM = 4, LONG = 40000, N_BLOCKS = LONG / BLOCK, ROWS = 2 };
    static uint32_t table[N_BLOCKS];
    const model_config model = {.heads = HEADS, .kv_heads = 1, .head_dim = DIM, .value_dim = DIM};
    const uint64_t block = (uint64_t)BLOCK * attention_bytes_per_token(&model);
    compute c = {workers_start(1, attention_scratch_floats(LONG, BLOCK)), kernels_choose(),
                 MOEPAGE_MATH_FP32};
    attention a = attention_of(&model, &c, BLOCK);
    float *k = draw(LONG * DIM), *v = draw(LONG * DIM), *q = draw(ROWS * HEADS * DIM);
    float *weights = malloc(LONG * sizeof *weights), *memory = malloc(N_BLOCKS * block);
    float found[ROWS * HEADS * DIM], right[DIM];
    const moepage_kv_layer_view view = {.id_stride = 1,
                                        .base = memory,
                                        .block_bytes = block,
                                        .granule_bytes = block};
    attention_row rows[ROWS];
    (void)state;
    assert_true(attention_scratch_floats(1u << 17, BLOCK) * sizeof(float) <= 9u << 19);
    assert_true(attention_scratch_floats(1u << 17, BLOCK) >= 8u << 17);
    assert_true(attention_scratch_floats(1u << 21, BLOCK) > 1u << 21);
    assert_true(c.workers && weights && memory);
    a.scale = 0.5f;
    for (uint32_t i = 0; i < LONG; i++) {
        table[i / BLOCK] = N_BLOCKS - 1 - i / BLOCK;
        attention_store(&a, &view, &(attention_row){table, i}, 1, k + i * DIM, v + i * DIM);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (attention_row){table, LONG - ROWS + r};
    attention_run(&a, &view, rows, ROWS, UINT32_MAX, NULL, q, found);
    for (uint32_t i = 0; i < ROWS * HEADS; i += 7) {
        const uint32_t n = (uint32_t)rows[i / HEADS].position + 1;
        for (uint32_t p = 0; p < n; p++) {
            weights[p] = 0;
            for (uint32_t d = 0; d < DIM; d++)
                weights[p] = fmaf(q[i * DIM + d], k[p * DIM + d], weights[p]);
        }
        kernels_at(0)->softmax(weights, n, a.scale);
        memset(right, 0, sizeof right);
        for (uint32_t p = 0; p < n; p++)
            for (uint32_t d = 0; d < DIM; d++)
                right[d] = fmaf(weights[p], v[p * DIM + d], right[d]);
        expect_bits("long", found + i * DIM, right, DIM);
    }
    workers_stop(c.workers);
    free(k);
    free(v);
    free(q);
    free(weights);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_attention_sums_rows_in_their_order),
        cmocka_unit_test(test_generate_attention_softmax_is_close_and_the_same_everywhere),
        cmocka_unit_test(test_generate_attention_rows_have_their_own_bits),
        cmocka_unit_test(test_generate_attention_bounds_its_scratch_in_long_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
