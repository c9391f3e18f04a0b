/* The kernels of examples/cuda in their CPU form, threads and blocks in random orders, against what
 * moepage-generate computes on the host: the same bits where no sum is taken in another order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/compute.h"
#include "common/rope.h"
#include "cuda/entries.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Running a kernel -------------------------------------------------------------------- */

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static void shuffle(uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = draw(i), swap = order[j];
        order[j] = order[i - 1];
        order[i - 1] = swap;
    }
}

/* run_<name>(arguments, blocks): shared memory begins as garbage. */
#define RUN(name, args_type, shared_type, n_threads)                  \
    static void run_##name(const args_type *args, uint32_t n_blocks)  \
    {                                                                 \
        uint32_t order[n_threads], *blocks = calloc(n_blocks, 4);     \
        gpu_threads visited = {n_threads, order};                     \
        shared_type memory;                                           \
        assert_non_null(blocks);                                      \
        shuffle(blocks, n_blocks);                                    \
        for (uint32_t b = 0; b < n_blocks; b++) {                     \
            shuffle(order, n_threads);                                \
            memset(&memory, 0xff, sizeof memory);                     \
            gpu_##name(args, &memory, blocks[b], n_blocks, &visited); \
        }                                                             \
        free(blocks);                                                 \
    }
GPU_ENTRIES(RUN)

/* ---- Numbers ----------------------------------------------------------------------------- */

static float draw_float(void)
{
    return (float)draw(1u << 20) / (1 << 19) - 1;
}

static float *draw_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = draw_float();
    return x;
}

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, from, bytes);
    return copy;
}

static void assert_close(const float *found, const float *right, size_t n, double bar)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)found[i] - (double)right[i]) <= bar))
            fail_msg("value %zu is %.9g, not %.9g", i, (double)found[i], (double)right[i]);
}

/* Finite numbers of a dtype, in memory that a vector may be loaded from. */
static void *draw_stored(uint32_t dtype, size_t n)
{
    const size_t size = dtype == GPU_F32 ? 4 : 2;
    unsigned char *stored = aligned_alloc(16, (n * size + 15) / 16 * 16);
    assert_non_null(stored);
    for (size_t i = 0; i < n; i++) {
        float x = draw_float();
        uint16_t half =
            dtype == GPU_BF16 ? gpu_to_bf16(x) : (uint16_t)(draw(0x3c00) | draw(2) << 15);
        memcpy(stored + i * size, size == 4 ? (void *)&x : (void *)&half, size);
    }
    return stored;
}

static compute plain_compute(void)
{
    compute c = {workers_start(1, 1u << 16), kernels_choose(), MOEPAGE_MATH_FP32};
    assert_non_null(c.workers);
    return c;
}

static void test_generate_kernels_widen_every_half_exactly(void **state)
{
    static const uint32_t dtypes[] = {GPU_F16, GPU_BF16};
    enum { N = 1 << 16 };
    uint16_t *halves = malloc(N * sizeof *halves);
    float *right = malloc(N * sizeof *right), *found = malloc(N * sizeof *found);
    (void)state;
    assert_true(halves && right && found);
    for (uint32_t i = 0; i < N; i++)
        halves[i] = (uint16_t)i;
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        gpu_convert_args args = {.x = halves, .out = found, .n = N, .dtype = dtypes[d]};
        run_convert(&args, N / GPU_STRETCH);
        kernels_choose()->widen(right, halves, dtypes[d], N);
        for (uint32_t i = 0; i < N; i++)
            if (isnan(right[i]) ? !isnan(found[i]) : memcmp(&found[i], &right[i], 4))
                fail_msg("dtype %u, %04x: %g, not %g", dtypes[d], i, (double)found[i],
                         (double)right[i]);
    }
    free(halves);
    free(right);
    free(found);
}

static void test_generate_kernels_round_as_the_host_does(void **state)
{
    enum { N = 100003 };
    float *x = malloc(N * sizeof *x);
    uint16_t *narrow = malloc(N * sizeof *narrow);
    (void)state;
    assert_true(x && narrow);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t bits = draw(1u << 16) << 16 | draw(1u << 16);
        if (i % 3 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u; /* ties */
        memcpy(&x[i], &bits, sizeof bits);
    }
    float *found = copy_of(x, N * sizeof *x);
    gpu_convert_args to = {.x = x, .out = narrow, .n = N, .dtype = GPU_F32, .to_bf16 = 1};
    run_convert(&to, (N + GPU_STRETCH - 1) / GPU_STRETCH);
    gpu_each_args args = {.x = found, .n = N, .what = GPU_ROUND};
    run_each(&args, (N + GPU_STRETCH - 1) / GPU_STRETCH);
    kernels_choose()->round_bf16(x, N);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t right = gpu_bits_of(x[i]);
        if (isnan(x[i]) ? !isnan(found[i]) : gpu_bits_of(found[i]) != right)
            fail_msg("%u: %08x, not %08x", i, gpu_bits_of(found[i]), right);
        assert_int_equal(narrow[i], gpu_bits_of(found[i]) >> 16);
    }
    free(x);
    free(found);
    free(narrow);
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void test_generate_kernels_embed_the_tokens_rows(void **state)
{
    enum { VOCABULARY = 11, WIDTH = 301, N = 7 };
    (void)state;
    for (uint32_t dtype = GPU_F32; dtype <= GPU_BF16; dtype++) {
        unsigned char *table = draw_stored(dtype, VOCABULARY * WIDTH);
        uint32_t tokens[N];
        float found[N * WIDTH], right[WIDTH];
        for (uint32_t i = 0; i < N; i++)
            tokens[i] = draw(VOCABULARY);
        gpu_embed_args args = {table, tokens, found, dtype, WIDTH};
        run_embed(&args, N);
        for (uint32_t i = 0; i < N; i++) {
            kernels_choose()->widen(right, table + tokens[i] * WIDTH * (dtype == GPU_F32 ? 4u : 2u),
                                    dtype, WIDTH);
            assert_memory_equal(found + i * WIDTH, right, sizeof right);
        }
        free(table);
    }
}

static void check_norm(uint32_t n, uint32_t width, bool centre, bool in_place)
{
    compute c = plain_compute();
    float *x = draw_floats((size_t)n * width), *scale = draw_floats(width);
    float *shift = draw_floats(width), *right = draw_floats((size_t)n * width);
    float *input = copy_of(x, (size_t)n * width * sizeof *x), *found = input;
    norm_weights norm = {.scale = scale, .shift = shift};
    if (!in_place)
        found = draw_floats((size_t)n * width);
    gpu_norm_args args = {.x = input,
                          .scale = scale,
                          .shift = centre ? shift : NULL,
                          .out = found,
                          .width = width,
                          .centre = centre,
                          .eps = 1e-5f};
    run_norm(&args, n);
    if (centre)
        compute_layer_norm(&c, x, n, width, &norm, 1e-5f, right);
    else
        compute_rms_norm(&c, x, n, width, scale, 1e-5f, right);
    assert_close(found, right, (size_t)n * width, 2e-6);
    if (!in_place)
        free(found);
    free(x);
    free(scale);
    free(shift);
    free(right);
    free(input);
    workers_stop(c.workers);
}

static void test_generate_kernels_norm_as_the_host_does(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        check_norm(5, 32, form & 1, form & 2);
        check_norm(3, 777, form & 1, form & 2);
        check_norm(1, 2048, form & 1, form & 2);
    }
}

/* One operation on elements; `right` is what it should give. */
static void check_each(gpu_each_args args, const float *x, const float *right)
{
    float *found = copy_of(x, args.n * sizeof *x);
    args.x = found;
    run_each(&args, (uint32_t)((args.n + GPU_STRETCH - 1) / GPU_STRETCH));
    assert_memory_equal(found, right, args.n * sizeof *x);
    free(found);
}

static void test_generate_kernels_compute_elements_as_the_host_does(void **state)
{
    enum { ROWS = 9, WIDTH = 333, N = ROWS * WIDTH };
    float *x = draw_floats(N), *other = draw_floats(N), *right = malloc(N * sizeof *right);
    gpu_each_args args = {.other = other, .n = N, .width = WIDTH, .limit = 0.25f};
    (void)state;
    assert_non_null(right);
    memcpy(right, x, N * sizeof *x);
    compute_swiglu(right, other, N);
    args.what = GPU_SWIGLU;
    check_each(args, x, right);
    for (uint32_t i = 0; i < N; i++)
        right[i] = fminf(fmaxf(x[i], -0.25f), 0.25f);
    args.what = GPU_CLIP;
    check_each(args, x, right);
    for (uint32_t i = 0; i < N; i++)
        right[i] = x[i] + other[i];
    args.what = GPU_ADD;
    check_each(args, x, right);
    for (uint32_t i = 0; i < N; i++)
        right[i] = x[i] + other[i % WIDTH];
    args.what = GPU_BIAS;
    check_each(args, x, right);
    for (uint32_t i = 0; i < N; i++)
        right[i] = x[i] * (1.0f / (1.0f + expf(-other[i / WIDTH])));
    args.what = GPU_SCALE;
    check_each(args, x, right);
    free(x);
    free(other);
    free(right);
}

static void test_generate_kernels_turn_heads_as_the_host_does(void **state)
{
    enum { ROWS = 4, HEADS = 5, DIM = 24, TURNED = 16, HALF = TURNED / 2 };
    float inverse[HALF], cosines[ROWS * HALF], sines[ROWS * HALF];
    const rope r = {.dims = TURNED, .amplitude = 1.1f, .inverse_frequency = inverse};
    float *x = draw_floats(ROWS * HEADS * DIM);
    (void)state;
    for (uint32_t i = 0; i < HALF; i++)
        inverse[i] = powf(10000, -2.0f * (float)i / TURNED);
    for (uint32_t i = 0; i < ROWS; i++)
        rope_angles(&r, draw(5000), cosines + i * HALF, sines + i * HALF);
    float *found = copy_of(x, ROWS * HEADS * DIM * sizeof *x);
    gpu_turn_args args = {found, cosines, sines, HEADS, DIM, HALF, 0};
    run_turn(&args, ROWS);
    for (uint32_t i = 0; i < ROWS * HEADS; i++)
        rope_turn(&r, cosines + i / HEADS * HALF, sines + i / HEADS * HALF, x + i * DIM);
    assert_memory_equal(found, x, ROWS * HEADS * DIM * sizeof *x);
    free(x);
    free(found);
}

/* ---- Products ---------------------------------------------------------------------------- */

static void multiply_on_host(const moepage_linear *linear)
{
    moepage_device *device = NULL;
    assert_int_equal(
        moepage_device_open("host", &MOEPAGE_DEVICE_CONFIG(.threads = 1, .budget_bytes = 2u << 20),
                            &device),
        MOEPAGE_OK);
    assert_int_equal(moepage_device_linear(device, linear), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

static void check_linear(uint32_t dtype, uint32_t n, uint32_t rows, uint32_t columns, bool biased)
{
    float *x = draw_stored(GPU_F32, (size_t)n * columns), *bias = draw_floats(rows);
    void *stored = draw_stored(dtype, (size_t)rows * columns);
    float *right = draw_floats((size_t)n * rows), *found = draw_floats((size_t)n * rows);
    float *alone = draw_floats(rows);
    const moepage_linear linear =
        MOEPAGE_LINEAR(.n_rows = n, .n_in = columns, .n_out = rows, .w_dtype = dtype, .x = x,
                       .w = stored, .bias = biased ? bias : NULL, .out = right);
    gpu_linear_args args = {.x = x,
                            .w = stored,
                            .bias = biased ? bias : NULL,
                            .y = found,
                            .n_rows = n,
                            .n_out = rows,
                            .columns = columns,
                            .dtype = dtype};
    run_linear(&args, (uint32_t)gpu_linear_blocks(n, rows));
    multiply_on_host(&linear);
    assert_close(found, right, (size_t)n * rows, 1e-6 * columns);
    /* The last row by itself. */
    args.x = copy_of(x + (size_t)(n - 1) * columns, columns * sizeof *x);
    args.y = alone;
    args.n_rows = 1;
    run_linear(&args, (uint32_t)gpu_linear_blocks(1, rows));
    assert_memory_equal(alone, found + (size_t)(n - 1) * rows, rows * sizeof *alone);
    free((void *)(uintptr_t)args.x);
    free(x);
    free(bias);
    free(stored);
    free(right);
    free(found);
    free(alone);
}

static void test_generate_kernels_multiply_as_the_host_does_alone_or_together(void **state)
{
    (void)state;
    for (uint32_t dtype = GPU_F32; dtype <= GPU_BF16; dtype++) {
        check_linear(dtype, 1, 7, 512, false);
        check_linear(dtype, 19, 6, 132, true);
        check_linear(dtype, 8, 4, 37, true);
        check_linear(dtype, 3, 1, 2, false);
    }
}

/* ---- Attention --------------------------------------------------------------------------- */

typedef struct kv_cache {
    attention host;
    gpu_kv kv;
    moepage_kv_layer_view view;
    float *memory, *gpu_memory; /* the same keys and values, each in its own order */
} kv_cache;

/* `blocks` of 8 tokens, three to a granule that holds other layers' too. */
static kv_cache cache_open(const compute *c, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                           uint32_t blocks)
{
    const model_config model = {.heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .value_dim = head_dim,
                                .score_scale = 1.0f / sqrtf((float)head_dim)};
    const uint64_t block = 8ull * attention_bytes_per_token(&model);
    kv_cache out = {.host = attention_of(&model, c, 8),
                    .view = {.id_stride = 3, .block_bytes = block, .granule_bytes = 7 * block}};
    out.memory = draw_floats((blocks / 3 + 1) * 7 * block / sizeof(float));
    out.gpu_memory = draw_floats((blocks / 3 + 1) * 7 * block / sizeof(float));
    out.view.base = out.memory;
    out.kv = (gpu_kv){out.gpu_memory, block, 7 * block, 3, 8, kv_heads, head_dim};
    return out;
}

/* Rows of two sequences whose blocks lie anywhere; the second is long. */
typedef struct placement {
    uint32_t blocks[128];
    uint64_t positions[8];
    uint32_t tables[8];
    attention_row rows[8];
} placement;

static void place(placement *p, uint64_t first, uint64_t second)
{
    shuffle(p->blocks, COUNT(p->blocks));
    for (uint32_t r = 0; r < 8; r++) {
        p->tables[r] = r < 4 ? 0 : 32;
        p->positions[r] = (r < 4 ? first : second) + r % 4;
        p->rows[r] = (attention_row){p->blocks + p->tables[r], p->positions[r]};
    }
}

/* Gives all positions before the rows' keys and values. */
static void fill_cache(kv_cache *cache, const placement *p)
{
    const size_t width = (size_t)cache->host.kv_heads * cache->host.head_dim;
    for (uint32_t r = 0; r < 8; r += 4)
        for (uint64_t position = 0; position < p->positions[r]; position++) {
            float *k = draw_floats(width), *v = draw_floats(width);
            const attention_row row = {p->rows[r].blocks, position};
            const gpu_places at = {&position, &p->tables[r], p->blocks};
            gpu_store_args store = {cache->kv, at, k, v};
            run_store(&store, 1);
            attention_store(&cache->host, &cache->view, &row, 1, k, v);
            free(k);
            free(v);
        }
}

static void check_attention(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t window,
                            uint64_t first, uint64_t second)
{
    compute c = plain_compute();
    kv_cache cache = cache_open(&c, heads, kv_heads, head_dim, 128);
    placement p;
    const size_t width = (size_t)heads * head_dim, kv_width = (size_t)kv_heads * head_dim;
    float *q = draw_floats(8 * width), *k = draw_floats(8 * kv_width);
    float *v = draw_floats(8 * kv_width), *found = draw_floats(8 * width);
    float *right = draw_floats(8 * width);
    place(&p, first, second);
    fill_cache(&cache, &p);
    const gpu_places at = {p.positions, p.tables, p.blocks};

    gpu_store_args store = {cache.kv, at, k, v};
    run_store(&store, 8);
    attention_store(&cache.host, &cache.view, p.rows, 8, k, v);

    gpu_attend_args attend = {.kv = cache.kv,
                              .at = at,
                              .q = q,
                              .out = found,
                              .heads = heads,
                              .window = window,
                              .scale = 1.0f / sqrtf((float)head_dim)};
    run_attend(&attend, 8 * heads);
    attention_run(&cache.host, &cache.view, p.rows, 8, window, NULL, q, right);
    assert_close(found, right, 8 * width, 2e-6);

    float *owned[] = {q, k, v, found, right, cache.memory, cache.gpu_memory};
    for (size_t i = 0; i < COUNT(owned); i++)
        free(owned[i]);
    workers_stop(c.workers);
}

static void test_generate_kernels_attend_as_the_host_does(void **state)
{
    (void)state;
    check_attention(4, 2, 16, UINT32_MAX, 0, 300);
    check_attention(6, 2, 40, UINT32_MAX, 125, 380); /* at a tile's end */
    check_attention(2, 2, 256, UINT32_MAX, 3, 200);
    check_attention(4, 1, 16, 129, 120, 500);
    check_attention(4, 1, 16, 1, 0, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_kernels_widen_every_half_exactly),
        cmocka_unit_test(test_generate_kernels_round_as_the_host_does),
        cmocka_unit_test(test_generate_kernels_embed_the_tokens_rows),
        cmocka_unit_test(test_generate_kernels_norm_as_the_host_does),
        cmocka_unit_test(test_generate_kernels_compute_elements_as_the_host_does),
        cmocka_unit_test(test_generate_kernels_turn_heads_as_the_host_does),
        cmocka_unit_test(test_generate_kernels_multiply_as_the_host_does_alone_or_together),
        cmocka_unit_test(test_generate_kernels_attend_as_the_host_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
