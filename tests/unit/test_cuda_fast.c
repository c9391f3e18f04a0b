/* MATH_BF16_FAST over the simulated driver and a simulated cuBLAS: which experts cuBLAS computes,
 * that results are right whichever side computes them, and its refusals and failures. */

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "kernels/fast_args.h"
#include "numbers.h"
#include "reference.h"
#include "sim_blas.h"
#include "sim_cuda.h"
#include "testing.h"

#define MARK 0x5b /* where nothing was written */
#define LEAST MP_FAST_LEAST_ROWS
#define CHUNK MP_FAST_ROWS

static struct {
    uint32_t lines[8];
    char last[512];
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    (void)user;
    heard.lines[level]++;
    snprintf(heard.last, sizeof heard.last, "%s", text);
}

static mp_device *device;
static const mp_device_ops *ops;

static const moepage_device_config machine = {.struct_size = sizeof machine,
                                              .threads = 1,
                                              .budget_bytes = 256u << 20,
                                              .workspace_bytes = 192u << 20,
                                              .log = hear};

static void open_device(bool with_blas)
{
    memset(&heard, 0, sizeof heard);
    const mp_cuda_driver *driver = sim_cuda_open(&(sim_cuda_config){.seed = 5});
    const mp_cuda_blas *blas = sim_blas_open(driver);
    if (mp_cuda_device_open(driver, with_blas ? blas : NULL, with_blas ? NULL : "not here",
                            sim_images, sim_n_images, 0, &machine, &device))
        fail_msg("%s", moepage_last_error());
    ops = device->ops;
}

static void close_machine(void)
{
    sim_blas_close();
    sim_cuda_close();
}

static void close_device(void)
{
    ops->close(device);
    close_machine();
}

static bool fast_open(void)
{
    bool is_there = false;
    assert_int_equal(ops->cuda->fast_open(device, &is_there), MOEPAGE_OK);
    return is_there;
}

/* Device memory full of marks. */
static void *new_memory(uint64_t bytes)
{
    void *memory = NULL;
    assert_int_equal(ops->alloc(device, MP_MEMORY_WORKSPACE, bytes, &memory), MOEPAGE_OK);
    return memset(memory, MARK, bytes);
}

static void free_memory(void *memory, uint64_t bytes)
{
    ops->free(device, MP_MEMORY_WORKSPACE, memory, bytes);
}

/* ---- A layer ---- */

#define MAX_EXPERTS 8

typedef struct layer {
    uint32_t experts, hidden, intermediate, dtype;
    uint32_t n_rows[MAX_EXPERTS];
    uint32_t shift;   /* bytes that weights lie off their alignment */
    uint32_t chunks;  /* that the scratch holds at a time; 0 = no scratch */
    uint32_t x_shift; /* as `shift`, of x */
    mp_ffn_expert table[MAX_EXPERTS];
    uint32_t tokens, total;
    uint32_t *rows;
    unsigned char *memory; /* on the device: weights, x, inner, partial */
    uint64_t bytes, used;
    void *x, *inner;
    float *partial;
    unsigned char *scratch;
    uint64_t scratch_bytes;
    mp_stream *stream;
} layer;

static void *take(layer *l, uint64_t bytes, uint32_t shift)
{
    void *at = l->memory + l->used + shift;
    l->used += (bytes + shift + 63) / 64 * 64;
    assert_true(l->used <= l->bytes);
    return at;
}

static const void *tensor(layer *l, uint64_t n, double scale)
{
    const uint32_t size = reference_size(l->dtype);
    char *out = take(l, n * size, l->shift);
    for (uint64_t i = 0; i < n; i++) {
        char one[4]; /* a store may be of more than is aligned */
        reference_store(one, 0, l->dtype, num_random() * scale);
        memcpy(out + i * size, one, size);
    }
    return out;
}

/* Biases have few digits: whether they are rounded is left open. */
static const void *bias(layer *l, uint64_t n)
{
    char *out = take(l, n * reference_size(l->dtype), 0);
    for (uint64_t i = 0; i < n; i++)
        reference_store(out, i, l->dtype, floor(num_random() * 8) / 16);
    return out;
}

static void fill_expert(layer *l, mp_ffn_expert *expert, uint32_t biases)
{
    const uint64_t h = l->hidden, i = l->intermediate;
    expert->gate = tensor(l, h * i, 1 / sqrt((double)h));
    expert->up = tensor(l, h * i, 1 / sqrt((double)h));
    expert->down = tensor(l, h * i, 1 / sqrt((double)i));
    expert->gate_bias = biases & 1 ? bias(l, i) : NULL;
    expert->up_bias = biases & 2 ? bias(l, i) : NULL;
    expert->down_bias = biases & 4 ? bias(l, h) : NULL;
}

/* Expert e has slot e of some of the tokens, in no order. Between them are rows that belong
 * to no expert. */
static void route(layer *l)
{
    for (uint32_t e = 0; e < l->experts; e++)
        l->tokens = l->tokens > l->n_rows[e] ? l->tokens : l->n_rows[e];
    l->tokens += 3;
    l->rows = calloc(l->tokens * l->experts, sizeof *l->rows);
    for (uint32_t e = 0; e < l->experts; e++) {
        uint32_t *mine = l->rows + l->total;
        l->table[e].first_row = l->total;
        l->table[e].n_rows = l->n_rows[e];
        uint32_t first = num_random_bits() % l->tokens;
        for (uint32_t i = 0; i < l->n_rows[e]; i++)
            mine[i] = (first + i) % l->tokens * l->experts + e;
        for (uint32_t i = l->n_rows[e]; i > 1; i--) {
            uint32_t j = num_random_bits() % i, row = mine[j];
            mine[j] = mine[i - 1];
            mine[i - 1] = row;
        }
        l->total += l->n_rows[e];
    }
}

static uint64_t partial_bytes(const layer *l)
{
    return (uint64_t)l->tokens * l->experts * l->hidden * sizeof(float);
}

static void open_layer(layer *l)
{
    const uint64_t weights = (uint64_t)l->hidden * l->intermediate * 3 + l->hidden * 6;
    route(l);
    l->bytes = partial_bytes(l) + l->experts * (weights * 4 + 1024) + 65536 +
               (uint64_t)(l->tokens + l->total) * (l->hidden + l->intermediate) * 2;
    l->memory = new_memory(l->bytes);
    for (uint32_t e = 0; e < l->experts; e++)
        fill_expert(l, &l->table[e], e);
    l->x = take(l, (uint64_t)l->tokens * l->hidden * 2, l->x_shift);
    for (uint64_t i = 0; i < (uint64_t)l->tokens * l->hidden; i++)
        reference_store(l->x, i, MOEPAGE_DTYPE_BF16, num_random());
    l->inner = take(l, (uint64_t)l->total * l->intermediate * 2, 0);
    l->partial = take(l, partial_bytes(l), 0);
    if (l->chunks) { /* as little aligned as scratch may be */
        l->scratch_bytes = MP_FAST_ALIGN + MP_FAST_LIBRARY_BYTES +
                           l->chunks * mp_fast_chunk_bytes(l->hidden, l->intermediate);
        l->scratch = (unsigned char *)new_memory(l->scratch_bytes + 128) + 64;
    }
    assert_int_equal(ops->stream_create(device, MP_STREAM_COMPUTE, &l->stream), MOEPAGE_OK);
}

static void close_layer(layer *l)
{
    ops->stream_destroy(l->stream);
    free_memory(l->memory, l->bytes);
    if (l->scratch) {
        for (uint32_t i = 0; i < 64; i++) /* nobody writes beside it */
            assert_true(l->scratch[-1 - (int)i] == MARK &&
                        l->scratch[l->scratch_bytes + i] == MARK);
        free_memory(l->scratch - 64, l->scratch_bytes + 128);
    }
    free(l->rows);
}

static moepage_status try_layer(layer *l, uint32_t math)
{
    mp_tick tick = 0;
    mp_kernel_experts_args args = {
        .x = l->x,
        .experts = l->table,
        .rows = l->rows,
        .inner = l->inner,
        .partial = l->partial,
        .n_experts = l->experts,
        .top_k = l->experts,
        .hidden = l->hidden,
        .intermediate = l->intermediate,
        MP_ONE_DTYPE(l->dtype),
        .math = math,
        .scale = {.dtype = MOEPAGE_DTYPE_NONE, .rows = 1, .columns = 1},
        .scratch = l->scratch,
        .scratch_bytes = l->scratch_bytes,
    };
    moepage_status status = ops->launch(l->stream, MP_KERNEL_EXPERTS, &args, &tick);
    return status ? status : ops->sync(l->stream, tick);
}

/* The results, to be freed. */
static float *run_layer(layer *l, uint32_t math)
{
    memset(l->partial, MARK, partial_bytes(l));
    if (try_layer(l, math))
        fail_msg("%s", moepage_last_error());
    float *out = malloc(partial_bytes(l));
    return memcpy(out, l->partial, partial_bytes(l));
}

static void check_row(const layer *l, uint32_t e, uint32_t row, const float *got)
{
    double want[256], bound[256];
    const uint16_t *x = (const uint16_t *)l->x + (uint64_t)(row / l->experts) * l->hidden;
    assert_true(l->hidden <= 256);
    reference_expert_row(&l->table[e], x, l->hidden, l->intermediate, l->dtype, MOEPAGE_MATH_BF16,
                         want, bound);
    for (uint32_t h = 0; h < l->hidden; h++) {
        if (!(fabs(got[h] - want[h]) <= bound[h]))
            fail_msg("expert %u, row %u, element %u is %.9g, should be %.9g +- %.2g", e, row, h,
                     got[h], want[h], bound[h]);
    }
}

static bool is_marked(const float *row, uint32_t hidden)
{
    for (uint64_t i = 0; i < hidden * sizeof *row; i++) {
        if (((const unsigned char *)row)[i] != MARK)
            return false;
    }
    return true;
}

/* Every row that an expert has is right, and no other was written. One in `step` is looked at, and
 * those at the ends of chunks. */
static void check_results(const layer *l, const float *partial, uint32_t step)
{
    bool *written = calloc(l->tokens * l->experts, sizeof *written);
    for (uint32_t e = 0; e < l->experts; e++) {
        for (uint32_t i = 0; i < l->n_rows[e]; i++) {
            const uint32_t row = l->rows[l->table[e].first_row + i];
            written[row] = true;
            if (i % step == 0 || i % CHUNK == CHUNK - 1 || i == l->n_rows[e] - 1)
                check_row(l, e, row, partial + (uint64_t)row * l->hidden);
        }
    }
    for (uint32_t row = 0; row < l->tokens * l->experts; row++)
        assert_int_equal(is_marked(partial + (uint64_t)row * l->hidden, l->hidden), !written[row]);
    free(written);
}

/* Elements of an expert's rows that have other bits in `b`. */
static uint64_t count_differing(const layer *l, uint32_t e, const float *a, const float *b)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_rows[e]; i++) {
        const uint64_t at = (uint64_t)l->rows[l->table[e].first_row + i] * l->hidden;
        for (uint32_t h = 0; h < l->hidden; h++)
            n += num_bits(a[at + h]) != num_bits(b[at + h]);
    }
    return n;
}

/* Experts of all sorts in one launch. */
static layer mixed(uint32_t chunks)
{
    return (layer){.experts = 8,
                   .hidden = 72,
                   .intermediate = 40,
                   .dtype = MOEPAGE_DTYPE_BF16,
                   .chunks = chunks,
                   .n_rows = {LEAST, 3, 2 * CHUNK + 2, LEAST - 1, 0, CHUNK, 40, CHUNK + 1}};
}
#define MIXED_CHUNKS 7u

/* ---- Who computes what ---- */

static void test_cuda_fast_agrees_with_double_precision(void **state)
{
    (void)state;
    for (uint32_t chunks = 1; chunks <= MIXED_CHUNKS + 1; chunks += chunks == 1 ? 2 : 5) {
        open_device(true);
        assert_true(fast_open());
        layer l = mixed(chunks);
        open_layer(&l);
        float *partial = run_layer(&l, MOEPAGE_MATH_BF16_FAST);
        check_results(&l, partial, 7);
        const uint32_t batches = (MIXED_CHUNKS + chunks - 1) / chunks;
        assert_int_equal(sim_blas_calls(SIM_BLAS_gemm_batched), 2 * batches);
        assert_int_equal(sim_blas_products(), 3 * MIXED_CHUNKS);
        free(partial);
        close_layer(&l);
        close_device();
    }
}

/* Wider than what a block of each kernel takes at a time, either way round. */
static void test_cuda_fast_knows_long_rows(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{MP_FAST_COLUMNS + 8, 24}, {24, MP_FAST_COLUMNS + 8}};
    open_device(true);
    assert_true(fast_open());
    for (uint32_t c = 0; c < 2; c++) {
        layer l = {.experts = 1,
                   .hidden = sizes[c][0],
                   .intermediate = sizes[c][1],
                   .dtype = MOEPAGE_DTYPE_BF16,
                   .chunks = 1,
                   .n_rows = {LEAST}};
        open_layer(&l);
        float *fast = run_layer(&l, MOEPAGE_MATH_BF16_FAST);
        float *exact = run_layer(&l, MOEPAGE_MATH_BF16);
        uint32_t differing = 0;
        for (uint64_t i = 0; i < partial_bytes(&l) / sizeof *fast; i++) {
            assert_true(fabsf(fast[i] - exact[i]) <= 0.05f * (1 + fabsf(exact[i])));
            differing += fast[i] != exact[i];
        }
        assert_true(differing > 0); /* or it was not the library */
        free(fast);
        free(exact);
        close_layer(&l);
    }
    assert_int_equal(sim_blas_calls(SIM_BLAS_gemm_batched), 4);
    close_device();
}

static void test_cuda_fast_leaves_experts_of_few_rows_to_the_exact_kernels(void **state)
{
    (void)state;
    open_device(true);
    assert_true(fast_open());
    layer l = mixed(3);
    open_layer(&l);
    float *exact = run_layer(&l, MOEPAGE_MATH_BF16);
    assert_int_equal(sim_blas_calls(SIM_BLAS_gemm_batched), 0);
    float *fast = run_layer(&l, MOEPAGE_MATH_BF16_FAST);
    for (uint32_t e = 0; e < l.experts; e++) /* the library's sums are in another order */
        assert_int_equal(count_differing(&l, e, fast, exact) > 0, l.n_rows[e] >= LEAST);
    free(exact);
    free(fast);
    close_layer(&l);
    close_device();
}

/* Runs it as BF16_FAST: not the library's, so the bits are those of BF16. */
static void is_exact(layer *l)
{
    const uint64_t before = sim_blas_calls(SIM_BLAS_gemm_batched);
    open_layer(l);
    float *fast = run_layer(l, MOEPAGE_MATH_BF16_FAST);
    float *exact = run_layer(l, MOEPAGE_MATH_BF16);
    assert_memory_equal(fast, exact, partial_bytes(l));
    assert_int_equal(sim_blas_calls(SIM_BLAS_gemm_batched), before);
    free(fast);
    free(exact);
    close_layer(l);
}

static void test_cuda_fast_is_exact_where_the_library_has_no_part(void **state)
{
    (void)state;
    open_device(true);
    layer l = mixed(2);
    is_exact(&l); /* nobody has asked for it yet */
    assert_true(fast_open());
    l = mixed(0);
    is_exact(&l);
    l = mixed(1), l.dtype = MOEPAGE_DTYPE_F16;
    is_exact(&l);
    l = mixed(1), l.dtype = MOEPAGE_DTYPE_F32;
    is_exact(&l);
    l = mixed(1), l.hidden = 68;
    is_exact(&l);
    l = mixed(1), l.intermediate = 36;
    is_exact(&l);
    l = mixed(1), l.shift = 2;
    is_exact(&l);
    l = mixed(1), l.x_shift = 8;
    is_exact(&l);
    l = mixed(1), memset(l.n_rows, 0, sizeof l.n_rows), l.n_rows[3] = LEAST - 1;
    is_exact(&l);
    l = mixed(1), memset(l.n_rows, 0, sizeof l.n_rows);
    is_exact(&l);
    close_device();
}

static void test_cuda_fast_scratch_is_enough_for_every_routing(void **state)
{
    (void)state;
    assert_int_equal(mp_fast_scratch_bytes(64, 64, LEAST - 1), 0);
    for (uint32_t rows = LEAST; rows < 40 * CHUNK; rows += 13) {
        uint32_t most = 0; /* chunks, of one expert or of as many as have enough rows */
        for (uint32_t each = LEAST; each <= rows; each++) {
            uint32_t chunks = rows / each * ((each + CHUNK - 1) / CHUNK);
            most = chunks > most ? chunks : most;
        }
        uint64_t bytes = mp_fast_scratch_bytes(64, 64, rows);
        assert_true(mp_fast_capacity(bytes, 64, 64) >= (most < MP_FAST_CHUNKS ? most : 1));
        assert_true(mp_fast_capacity(bytes - 1, 64, 64) < mp_fast_capacity(bytes, 64, 64));
    }
    /* Many rows of large experts: bounded, and never less than a chunk. */
    uint64_t large = mp_fast_scratch_bytes(4096, 14336, 1u << 20);
    assert_true(large <= MP_FAST_ALIGN + MP_FAST_LIBRARY_BYTES + MP_FAST_BATCH_BYTES);
    assert_true(mp_fast_capacity(large, 4096, 14336) >= 2);
    assert_int_equal(mp_fast_capacity(mp_fast_scratch_bytes(1 << 18, 1 << 18, 1 << 20), 1 << 18,
                                      1 << 18),
                     1);
}

/* ---- Two streams at once ---- */

static void *run_often(void *arg)
{
    layer *l = arg;
    for (uint32_t i = 0; i < (getenv("MP_TEST_LONG") ? 30 : 6); i++) {
        if (try_layer(l, MOEPAGE_MATH_BF16_FAST))
            return l;
    }
    return NULL;
}

static void test_cuda_fast_streams_share_a_handle(void **state)
{
    (void)state;
    open_device(true);
    assert_true(fast_open());
    layer l[2] = {mixed(2), mixed(3)};
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++) {
        l[i].experts = 3;
        open_layer(&l[i]);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_often, &l[i]), 0);
    for (uint32_t i = 0; i < 2; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    for (uint32_t i = 0; i < 2; i++) {
        check_results(&l[i], l[i].partial, 17);
        close_layer(&l[i]);
    }
    assert_int_equal(sim_blas_calls(SIM_BLAS_create), 1);
    close_device();
}

/* ---- Without it, and when it fails ---- */

static void test_cuda_fast_without_the_library_is_exact(void **state)
{
    (void)state;
    open_device(false);
    assert_int_equal(heard.lines[MOEPAGE_LOG_INFO], 1);
    assert_non_null(strstr(heard.last, "BF16_FAST runs as MATH_BF16: not here"));
    assert_false(fast_open());
    layer l = mixed(2);
    is_exact(&l);
    assert_int_equal(heard.lines[MOEPAGE_LOG_INFO], 1);
    close_device();
}

static void test_cuda_fast_says_why_the_library_does_not_start(void **state)
{
    (void)state;
    bool is_there = true;
    open_device(true);
    sim_blas_fail(SIM_BLAS_create, 1, MP_BLAS_ALLOC_FAILED);
    assert_int_equal(ops->cuda->fast_open(device, &is_there), MOEPAGE_E_NO_MEMORY);
    assert_false(is_there);
    assert_non_null(strstr(moepage_last_error(),
                           "starting cuBLAS failed: CUBLAS_STATUS_ALLOC_FAILED (cuBLAS status 3)"));
    assert_true(fast_open()); /* it was for once */
    sim_blas_fail(SIM_BLAS_destroy, 1, MP_BLAS_INTERNAL_ERROR);
    ops->close(device);
    assert_int_equal(heard.lines[MOEPAGE_LOG_WARNING], 1);
    assert_non_null(strstr(heard.last, "ending cuBLAS failed: CUBLAS_STATUS_INTERNAL_ERROR"));
    close_machine();
}

static void test_cuda_fast_failures_are_the_devices(void **state)
{
    (void)state;
    static const struct {
        sim_blas_call call;
        uint64_t nth;
        mp_blas_status result;
        const char *says;
    } cases[] = {
        {SIM_BLAS_set_stream, 1, MP_BLAS_NOT_INITIALIZED, "gate and up failed: CUBLAS_STATUS_NOT_"},
        {SIM_BLAS_set_workspace, 2, MP_BLAS_INVALID_VALUE, "of down failed: CUBLAS_STATUS_INVALID"},
        {SIM_BLAS_gemm_batched, 1, MP_BLAS_EXECUTION_FAILED, "EXECUTION_FAILED (cuBLAS status 13)"},
        {SIM_BLAS_gemm_batched, 2, 99, "of down failed: an unknown error (cuBLAS status 99)"},
    };
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        open_device(true);
        assert_true(fast_open());
        layer l = mixed(2);
        open_layer(&l);
        sim_blas_fail(cases[c].call, cases[c].nth, cases[c].result);
        assert_int_equal(try_layer(&l, MOEPAGE_MATH_BF16_FAST), MOEPAGE_E_DEVICE);
        assert_non_null(strstr(moepage_last_error(), cases[c].says));
        close_layer(&l);
        close_device();
    }
}

/* At any of its products: the launch is right all the same, and it is asked no more. */
static void test_cuda_fast_goes_on_without_a_library_that_refuses(void **state)
{
    (void)state;
    for (uint32_t nth = 1; nth <= 4; nth++) {
        open_device(true);
        assert_true(fast_open());
        layer l = mixed(4);
        open_layer(&l);
        float *exact = run_layer(&l, MOEPAGE_MATH_BF16);
        sim_blas_fail(SIM_BLAS_gemm_batched, nth, MP_BLAS_NOT_SUPPORTED);
        for (uint32_t i = 0; i < 2; i++) {
            float *got = run_layer(&l, MOEPAGE_MATH_BF16_FAST);
            assert_memory_equal(got, exact, partial_bytes(&l));
            free(got);
        }
        assert_int_equal(sim_blas_calls(SIM_BLAS_gemm_batched), nth);
        assert_int_equal(heard.lines[MOEPAGE_LOG_WARNING], 1);
        assert_non_null(strstr(heard.last, "CUBLAS_STATUS_NOT_SUPPORTED"));
        assert_false(fast_open());
        free(exact);
        close_layer(&l);
        close_device();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_fast_agrees_with_double_precision),
        cmocka_unit_test(test_cuda_fast_knows_long_rows),
        cmocka_unit_test(test_cuda_fast_leaves_experts_of_few_rows_to_the_exact_kernels),
        cmocka_unit_test(test_cuda_fast_is_exact_where_the_library_has_no_part),
        cmocka_unit_test(test_cuda_fast_scratch_is_enough_for_every_routing),
        cmocka_unit_test(test_cuda_fast_streams_share_a_handle),
        cmocka_unit_test(test_cuda_fast_without_the_library_is_exact),
        cmocka_unit_test(test_cuda_fast_says_why_the_library_does_not_start),
        cmocka_unit_test(test_cuda_fast_failures_are_the_devices),
        cmocka_unit_test(test_cuda_fast_goes_on_without_a_library_that_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
