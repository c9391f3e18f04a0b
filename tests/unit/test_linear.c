/* Dense products: moepage_device_linear and its kernel on every instruction set that this CPU runs, bit
 * for bit against naive sums in the documented order, whatever the rows, parts, threads and callers. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "codec/blocks.h"
#include "kernel_sets.h"
#include "naive_int8.h"
#include "numbers.h"
#include "random_blocks.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define F16 MOEPAGE_DTYPE_F16
#define BF16 MOEPAGE_DTYPE_BF16
#define F8 MOEPAGE_DTYPE_F8_E4M3

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* ---- A product, and what it must be ---- */

typedef struct product {
    uint32_t n_rows, n_in, n_out, w_dtype, bias_dtype, math;
    float *x;       /* [n_rows][n_in] BF16 numbers: the same operands in either math */
    uint16_t *half; /* the same, as BF16 */
    void *w;        /* ends where readable memory does */
    uint64_t w_bytes;
    void *bias;
    mp_block_scale scale; /* of F8 */
    void *scales;         /* they end there, too */
    uint64_t n_scales;
    float *values; /* of w, as floats */
    float *want;
} product;

/* A sum of 16 lanes: FP32 math visits l, l + 16, l + 32 ... in lane l; BF16 math pairs, the odd element
 * of each first. */
static float naive_dot(uint32_t math, const float *x, const float *w, uint32_t n)
{
    float lanes[16] = {0};
    const uint32_t turn = math == MOEPAGE_MATH_FP32 ? 16 : 32;
    for (uint32_t base = 0; base < n; base += turn)
        for (uint32_t lane = 0; lane < 16; lane++)
            for (uint32_t j = 0; j < turn / 16; j++) {
                const uint32_t i = turn == 16 ? base + lane : base + 2 * lane + 1 - j;
                if (i < n)
                    lanes[lane] = fmaf(x[i], w[i], lanes[lane]);
            }
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    return lanes[0];
}

/* The product of 4 and 24 digits is exact in double: it is rounded here, once. */
static void read_scaled(product *p)
{
    const uint32_t rows = p->scale.rows, columns = p->scale.columns;
    const uint64_t across = (p->n_in - 1) / columns + 1;
    p->w_bytes = (uint64_t)p->n_out * p->n_in;
    p->w = num_e4m3_array(p->w_bytes);
    p->n_scales = ((p->n_out - 1) / rows + 1) * across;
    p->scales = num_array(p->scale.dtype, p->n_scales);
    for (uint64_t i = 0; i < p->w_bytes; i++) {
        const uint64_t at = i / p->n_in / rows * across + i % p->n_in / columns;
        p->values[i] =
            (float)(num_e4m3(((const uint8_t *)p->w)[i]) * num_get(p->scale.dtype, p->scales, at));
    }
}

static void read_weights(product *p)
{
    const mp_block_format *format = mp_block_format_of(p->w_dtype);
    const uint64_t n = (uint64_t)p->n_out * p->n_in;
    p->values = malloc(n * sizeof *p->values);
    assert_non_null(p->values);
    if (p->w_dtype == F8) {
        read_scaled(p);
    } else if (format) {
        p->w_bytes = n / format->weights * format->bytes;
        p->w = guarded_alloc(p->w_bytes);
        random_blocks(p->w_dtype, n / format->weights, p->w);
        mp_block_decode(format, p->w, n / format->weights, p->values);
    } else {
        p->w_bytes = n * num_bytes(p->w_dtype);
        p->w = num_array(p->w_dtype, n);
        for (uint64_t i = 0; i < n; i++)
            p->values[i] = num_get(p->w_dtype, p->w, i);
    }
    for (uint64_t i = 0; i < n && p->math != MOEPAGE_MATH_FP32; i++)
        p->values[i] = (float)num_rounded(BF16, p->values[i]);
}

static void open_scaled(product *p, uint32_t n_rows, uint32_t n_in, uint32_t n_out,
                        uint32_t w_dtype, mp_block_scale scale, uint32_t math, uint32_t bias_dtype)
{
    const uint64_t n_x = (uint64_t)n_rows * n_in;
    *p = (product){.n_rows = n_rows,
                   .n_in = n_in,
                   .n_out = n_out,
                   .w_dtype = w_dtype,
                   .scale = scale,
                   .math = math,
                   .bias_dtype = bias_dtype};
    p->half = num_array(BF16, n_x);
    p->x = guarded_alloc(n_x * sizeof *p->x);
    for (uint64_t i = 0; i < n_x; i++)
        p->x[i] = num_get(BF16, p->half, i);
    p->bias = bias_dtype ? num_array(bias_dtype, n_out) : NULL;
    read_weights(p);
    p->want = malloc((uint64_t)n_rows * n_out * sizeof *p->want);
    assert_non_null(p->want);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t o = 0; o < n_out; o++) {
            const float sum =
                naive_dot(math, p->x + (uint64_t)r * n_in, p->values + (uint64_t)o * n_in, n_in);
            p->want[(uint64_t)r * n_out + o] =
                p->bias ? sum + num_get(bias_dtype, p->bias, o) : sum;
        }
}

static void open_product(product *p, uint32_t n_rows, uint32_t n_in, uint32_t n_out,
                         uint32_t w_dtype, uint32_t math, uint32_t bias_dtype)
{
    open_scaled(p, n_rows, n_in, n_out, w_dtype, (mp_block_scale){0}, math, bias_dtype);
}

static void close_product(product *p)
{
    const uint64_t n_x = (uint64_t)p->n_rows * p->n_in;
    guarded_free(p->half, n_x * sizeof *p->half);
    guarded_free(p->x, n_x * sizeof *p->x);
    guarded_free(p->w, p->w_bytes);
    guarded_free(p->scales, p->n_scales * num_bytes(p->scale.dtype));
    if (p->bias)
        guarded_free(p->bias, p->n_out * num_bytes(p->bias_dtype));
    free(p->values);
    free(p->want);
}

static float *new_out(const product *p)
{
    float *out = guarded_alloc((uint64_t)p->n_rows * p->n_out * sizeof *out);
    memset(out, 0xa5, (uint64_t)p->n_rows * p->n_out * sizeof *out);
    return out;
}

static void expect_wanted(const product *p, float *out, const char *who)
{
    for (uint64_t i = 0; i < (uint64_t)p->n_rows * p->n_out; i++)
        if (num_bits(out[i]) != num_bits(p->want[i]))
            fail_msg("%s: dtype %u, math %u, %u rows of %u by %u: value %llu is %.9g, not %.9g",
                     who, p->w_dtype, p->math, p->n_rows, p->n_in, p->n_out, (unsigned long long)i,
                     (double)out[i], (double)p->want[i]);
    guarded_free(out, (uint64_t)p->n_rows * p->n_out * sizeof *out);
}

/* ---- The kernel ---- */

static void run_kernel(const mp_host_kernel_set *set, const product *p, uint32_t n_parts)
{
    const bool wide = p->math == MOEPAGE_MATH_FP32;
    float *out = new_out(p);
    const mp_kernel_args args = {.linear = {.x = wide ? (void *)p->x : p->half,
                                            .w = p->w,
                                            .bias = p->bias,
                                            .scales = p->scales,
                                            .out = out,
                                            .n_rows = p->n_rows,
                                            .n_in = p->n_in,
                                            .n_out = p->n_out,
                                            .dtype = p->w_dtype,
                                            .bias_dtype = p->bias_dtype,
                                            .math = p->math,
                                            .scale = p->scale}};
    assert_int_equal(mp_host_kernel_phases(MP_KERNEL_LINEAR), 1);
    for (uint32_t part = n_parts; part-- > 0;)
        mp_host_kernel_run(set, MP_KERNEL_LINEAR, &args, 0, part, n_parts);
    expect_wanted(p, out, mp_host_kernels_name(set));
}

static void check_kernels(uint32_t n_rows, uint32_t n_in, uint32_t n_out, uint32_t dtype)
{
    for (size_t m = 0; m < COUNT(maths); m++) {
        product p;
        open_product(&p, n_rows, n_in, n_out, dtype, maths[m], n_rows % 4);
        for (size_t s = 0; s < n_kernel_sets; s++)
            for (uint32_t parts = 1; parts <= 3; parts += 2)
                run_kernel(kernel_sets[s], &p, parts);
        close_product(&p);
    }
}

static void test_linear_sums_in_the_documented_order(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 1},   {1, 47, 130}, {5, 33, 37},
                                         {7, 64, 19}, {30, 48, 66}, {8, 4131, 3}};
    (void)state;
    for (uint32_t dtype = F32; dtype <= BF16; dtype++)
        for (size_t i = 0; i < COUNT(shapes); i++)
            check_kernels(shapes[i][0], shapes[i][1], shapes[i][2], dtype);
}

static void test_linear_reads_every_block_format(void **state)
{
    static const uint32_t shapes[][3] = {{1, 256, 37}, {7, 1280, 5}, {30, 256, 2}};
    (void)state;
    for (uint32_t dtype = MOEPAGE_DTYPE_Q4_0; dtype <= MOEPAGE_DTYPE_NVFP4G256_F32; dtype++)
        for (size_t i = 0; i < COUNT(shapes); i++)
            check_kernels(shapes[i][0], shapes[i][1], shapes[i][2], dtype);
}

/* Blocks that end with the matrix and past it, in whole pieces of a row and amid them. */
static const mp_block_scale scales[] = {{F32, 128, 128}, {BF16, 128, 128}, {F32, 5, 24},
                                        {BF16, 1, 9999}, {F32, 9999, 1},   {F32, 3, 1500}};

static void test_linear_scales_blocks_of_eight_bits(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 1},   {1, 256, 384}, {5, 133, 37},
                                         {7, 300, 9}, {30, 48, 130}, {8, 4131, 5}};
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t m = 0; m < COUNT(maths); m++)
            for (size_t b = 0; b < COUNT(scales); b++) {
                product p;
                open_scaled(&p, shapes[i][0], shapes[i][1], shapes[i][2], F8, scales[b], maths[m],
                            shapes[i][0] % 4);
                for (size_t s = 0; s < n_kernel_sets; s++)
                    run_kernel(kernel_sets[s], &p, 1 + 2 * (b % 2));
                close_product(&p);
            }
}

/* ---- The call ---- */

#define WORKSPACE (64u << 10)

static moepage_device *open_device(uint32_t threads)
{
    moepage_device *device = NULL;
    if (moepage_device_open("host",
                            &MOEPAGE_DEVICE_CONFIG(.threads = threads, .workspace_bytes = WORKSPACE,
                                                   .budget_bytes = WORKSPACE + (1u << 20)),
                            &device))
        fail_msg("no device: %s", moepage_last_error());
    return device;
}

static moepage_linear linear_of(const product *p, uint32_t x_dtype, float *out)
{
    return MOEPAGE_LINEAR(.math = p->math, .n_rows = p->n_rows, .n_in = p->n_in, .n_out = p->n_out,
                          .x_dtype = x_dtype, .w_dtype = p->w_dtype, .bias_dtype = p->bias_dtype,
                          .x = x_dtype == BF16 ? (void *)p->half : p->x, .w = p->w, .bias = p->bias,
                          .out = out, .scales = p->scales, .scale_dtype = p->scale.dtype,
                          .block_rows = p->scale.rows, .block_columns = p->scale.columns);
}

static void call(moepage_device *device, const product *p, uint32_t x_dtype)
{
    float *out = new_out(p);
    const moepage_linear linear = linear_of(p, x_dtype, out);
    if (moepage_device_linear(device, &linear))
        fail_msg("%s", moepage_last_error());
    expect_wanted(p, out, "moepage_device_linear");
}

static void expect_no_workspace(moepage_device *device)
{
    moepage_device_info info = MOEPAGE_DEVICE_INFO();
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_int_equal(info.used_bytes, 0);
}

static void test_linear_has_the_same_bits_on_any_number_of_threads(void **state)
{
    enum { MOST = 4 };
    static const uint32_t dtypes[] = {F32, BF16, MOEPAGE_DTYPE_Q4_K};
    moepage_device *devices[MOST];
    (void)state;
    for (uint32_t t = 0; t < MOST; t++)
        devices[t] = open_device(t + 1);
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t m = 0; m < COUNT(maths); m++)
            for (uint32_t rows = 1; rows <= 13; rows += 12) {
                product p;
                open_product(&p, rows, 768, rows > 1 ? 413 : 701, dtypes[d], maths[m],
                             rows > 1 ? F16 : 0);
                for (uint32_t t = 0; t < MOST; t++) {
                    call(devices[t], &p, F32);
                    call(devices[t], &p, 0);
                    call(devices[t], &p, BF16);
                }
                close_product(&p);
            }
    for (uint32_t t = 0; t < MOST; t++) {
        expect_no_workspace(devices[t]);
        assert_int_equal(moepage_device_close(devices[t]), MOEPAGE_OK);
    }
}

/* F32 rows that are no BF16 numbers are rounded to them in BF16 math, and kept in FP32 math. */
static void test_linear_rounds_rows_as_the_math_says(void **state)
{
    (void)state;
    moepage_device *device = open_device(2);
    for (size_t m = 0; m < COUNT(maths); m++) {
        product p;
        open_product(&p, 3, 40, 7, F32, maths[m], 0);
        for (uint32_t i = 0; i < 3 * 40; i++)
            p.x[i] = num_random();
        for (uint32_t r = 0; r < 3; r++)
            for (uint32_t o = 0; o < 7; o++) {
                float row[40];
                for (uint32_t i = 0; i < 40; i++)
                    row[i] = maths[m] == MOEPAGE_MATH_FP32
                                 ? p.x[r * 40 + i]
                                 : (float)num_rounded(BF16, p.x[r * 40 + i]);
                p.want[r * 7 + o] = naive_dot(maths[m], row, p.values + o * 40, 40);
            }
        call(device, &p, F32);
        p.math = maths[m] == MOEPAGE_MATH_BF16 ? MOEPAGE_MATH_BF16_FAST : maths[m];
        call(device, &p, F32);
        close_product(&p);
    }
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

static void test_linear_takes_rows_that_lie_apart(void **state)
{
    enum { ROWS = 4, IN = 50, STRIDE = 71 };
    (void)state;
    moepage_device *device = open_device(1);
    product p;
    open_product(&p, ROWS, IN, 9, BF16, MOEPAGE_MATH_FP32, BF16);
    float apart[ROWS * STRIDE], *out = new_out(&p);
    for (uint32_t i = 0; i < ROWS * STRIDE; i++)
        apart[i] = NAN;
    for (uint32_t r = 0; r < ROWS; r++)
        memcpy(apart + r * STRIDE, p.x + r * IN, IN * sizeof *apart);
    moepage_linear linear = linear_of(&p, F32, out);
    linear.x = apart;
    linear.x_stride = STRIDE;
    assert_int_equal(moepage_device_linear(device, &linear), MOEPAGE_OK);
    expect_wanted(&p, out, "a stride");
    close_product(&p);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* Weights in blocks meet rows of 8 bits; others are as in BF16 math. */
static void test_linear_multiplies_in_integers(void **state)
{
    static const uint32_t shapes[][3] = {{1, 256, 37}, {7, 1280, 5}, {60, 256, 2}};
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        moepage_device *device = open_device(threads);
        for (uint32_t dtype = MOEPAGE_DTYPE_Q4_0; dtype <= MOEPAGE_DTYPE_NVFP4G256_F32; dtype++)
            for (size_t i = 0; i < COUNT(shapes); i++) {
                product p;
                open_product(&p, shapes[i][0], shapes[i][1], shapes[i][2], dtype, MOEPAGE_MATH_INT8,
                             i == 1 ? F16 : 0);
                for (uint64_t at = 0; at < (uint64_t)p.n_rows * p.n_out; at++) {
                    const uint64_t row = at / p.n_out, o = at % p.n_out;
                    const uint8_t *w = (const uint8_t *)p.w + o * (p.w_bytes / p.n_out);
                    const float sum = naive_int8_dot(dtype, w, p.x + row * p.n_in, p.n_in);
                    p.want[at] = p.bias ? sum + num_get(F16, p.bias, o) : sum;
                }
                call(device, &p, F32);
                call(device, &p, BF16);
                close_product(&p);
            }
        product p;
        open_product(&p, 5, 96, 11, BF16, MOEPAGE_MATH_BF16, 0);
        p.math = MOEPAGE_MATH_INT8;
        call(device, &p, F32);
        close_product(&p);
        expect_no_workspace(device);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    }
}

/* Eight bits meet floats, in INT8 math those of BF16 math. */
static void test_linear_takes_weights_of_eight_bits(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        moepage_device *device = open_device(threads);
        for (size_t b = 0; b < COUNT(scales); b++)
            for (size_t m = 0; m < COUNT(maths); m++) {
                product p;
                open_scaled(&p, 1 + 6 * (b % 2), 331, 143, F8, scales[b], maths[m], b % 4);
                call(device, &p, F32);
                call(device, &p, BF16);
                if (maths[m] == MOEPAGE_MATH_BF16) {
                    p.math = MOEPAGE_MATH_INT8;
                    call(device, &p, F32);
                }
                close_product(&p);
            }
        expect_no_workspace(device);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    }
}

/* A NaN among the scales spoils the rows of its block, as it does an expert's. */
static void test_linear_keeps_a_nan_of_the_scales(void **state)
{
    enum { OUT = 20, ROWS = 8 };
    (void)state;
    moepage_device *device = open_device(2);
    for (size_t m = 0; m < COUNT(maths); m++) {
        product p;
        float out[3 * OUT];
        open_scaled(&p, 3, 70, OUT, F8, (mp_block_scale){BF16, ROWS, 64}, maths[m], 0);
        num_put(BF16, p.scales, 3, NAN); /* of rows 8 to 15 */
        const moepage_linear linear = linear_of(&p, F32, out);
        assert_int_equal(moepage_device_linear(device, &linear), MOEPAGE_OK);
        for (uint32_t i = 0; i < COUNT(out); i++)
            if (i % OUT / ROWS == 1)
                assert_true(isnan(out[i]));
            else
                assert_int_equal(num_bits(out[i]), num_bits(p.want[i]));
        close_product(&p);
    }
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

typedef struct caller {
    moepage_device *device;
    product product;
} caller;

static void *call_often(void *arg)
{
    const caller *c = arg;
    for (int i = 0; i < 20; i++)
        call(c->device, &c->product, i % 2 ? BF16 : F32);
    return NULL;
}

static void test_linear_may_be_called_by_several_threads(void **state)
{
    enum { CALLERS = 3 };
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    (void)state;
    moepage_device *device = open_device(2);
    for (uint32_t i = 0; i < CALLERS; i++) {
        callers[i].device = device;
        open_product(&callers[i].product, 1 + i, 256, 4000 - 1000 * i, BF16, maths[i % 2], 0);
    }
    for (uint32_t i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    for (uint32_t i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < CALLERS; i++)
        close_product(&callers[i].product);
    expect_no_workspace(device);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* ---- What is refused ---- */

static void expect_refusal(moepage_device *device, const moepage_linear *linear,
                           moepage_status status, const char *sentence)
{
    assert_int_equal(moepage_device_linear(device, linear), status);
    assert_string_equal(moepage_last_error(), sentence);
}

static void test_linear_refuses_bad_arguments(void **state)
{
    product p;
    (void)state;
    moepage_device *device = open_device(1);
    open_product(&p, 2, 64, 3, MOEPAGE_DTYPE_Q8_0, MOEPAGE_MATH_FP32, F32);
    float out[6] = {7, 7, 7, 7, 7, 7};
    const moepage_linear good = linear_of(&p, F32, out);
#define REFUSED(sentence, ...)                                                 \
    do {                                                                       \
        moepage_linear bad = good;                                             \
        __VA_ARGS__;                                                           \
        expect_refusal(device, &bad, MOEPAGE_E_ARGUMENT, "linear: " sentence); \
    } while (0)
    expect_refusal(device, NULL, MOEPAGE_E_ARGUMENT, "linear is NULL");
    REFUSED("math is 4, it must be a MOEPAGE_MATH_*", bad.math = 4);
    REFUSED("x_dtype is 2, it must be F32 or BF16", bad.x_dtype = F16);
    REFUSED("w_dtype is 0, it must be F32, F16, BF16, F8_E4M3 or a block format", bad.w_dtype = 0);
    REFUSED("w_dtype is 5, it must be F32, F16, BF16, F8_E4M3 or a block format", bad.w_dtype = 5);
    REFUSED("w_dtype is 39, it must be F32, F16, BF16, F8_E4M3 or a block format",
            bad.w_dtype = 39);
    REFUSED("bias_dtype is 20, it must be F32, F16 or BF16", bad.bias_dtype = 20);
    REFUSED("n_in is 65, it must be a multiple of 32 for weights of Q8_0", bad.n_in = 65);
    REFUSED("n_in is 0", bad.n_in = 0);
    REFUSED("n_out is 0", bad.n_out = 0);
    REFUSED("x_stride is 63, below n_in of 64", bad.x_stride = 63);
    REFUSED("n_out is 4294967295, it must be at most 2147483647", bad.n_out = UINT32_MAX);
    REFUSED("n_in is 4294967264, it must be at most 2147483647", bad.n_in = UINT32_MAX - 31);
    REFUSED("n_rows is 2147483648, it must be at most 2147483647", bad.n_rows = 1u << 31);
    REFUSED("x is NULL", bad.x = NULL);
    REFUSED("w is NULL", bad.w = NULL);
    REFUSED("out is NULL", bad.out = NULL);
    REFUSED("reserved is 1, it must be 0", bad.reserved = 1);
#define UNSCALED "w_dtype is 20, only weights of F8_E4M3 have scales and their blocks"
    REFUSED(UNSCALED, bad.scales = p.x);
    REFUSED(UNSCALED, bad.scale_dtype = F32);
    REFUSED(UNSCALED, bad.block_rows = 1);
    REFUSED(UNSCALED, bad.block_columns = 1);
#define SCALED                                                                     \
    bad.w_dtype = F8, bad.scales = p.x, bad.scale_dtype = F32, bad.block_rows = 1, \
    bad.block_columns = 1
    REFUSED("scales is NULL, weights of F8_E4M3 need them", SCALED, bad.scales = NULL);
    REFUSED("scale_dtype is 2, it must be F32 or BF16", SCALED, bad.scale_dtype = F16);
    REFUSED("scale_dtype is 4, it must be F32 or BF16", SCALED, bad.scale_dtype = F8);
    REFUSED("block_rows is 0, it must be 1 or more", SCALED, bad.block_rows = 0);
    REFUSED("block_columns is 0, it must be 1 or more", SCALED, bad.block_columns = 0);
#undef REFUSED
    moepage_linear none = good;
    none.n_rows = 0;
    assert_int_equal(moepage_device_linear(device, &none), MOEPAGE_OK);
    none.struct_size = 8;
    assert_int_equal(moepage_device_linear(device, &none), MOEPAGE_E_VERSION);
    for (size_t i = 0; i < COUNT(out); i++)
        assert_true(out[i] == 7);
    assert_int_equal(moepage_device_linear(NULL, &good), MOEPAGE_E_ARGUMENT);
    close_product(&p);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* The struct as it was at first ends with `out`. */
static void test_linear_takes_the_struct_of_before_scales(void **state)
{
    product p;
    (void)state;
    moepage_device *device = open_device(1);
    open_product(&p, 2, 64, 3, F32, MOEPAGE_MATH_FP32, 0);
    float *out = new_out(&p);
    moepage_linear linear = linear_of(&p, F32, out);
    linear.struct_size = 72;
    linear.scales = p.x; /* past its end */
    linear.block_rows = linear.reserved = 7;
    assert_int_equal(moepage_device_linear(device, &linear), MOEPAGE_OK);
    expect_wanted(&p, out, "the first struct");
    linear.w_dtype = F8;
    expect_refusal(device, &linear, MOEPAGE_E_ARGUMENT,
                   "linear: scales is NULL, weights of F8_E4M3 need them");
    linear.struct_size = 71;
    assert_int_equal(moepage_device_linear(device, &linear), MOEPAGE_E_VERSION);
    close_product(&p);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* What needs converting takes workspace; what can be read in place does not. */
static void test_linear_says_when_the_workspace_is_too_small(void **state)
{
    product p;
    (void)state;
    moepage_device *device = open_device(2);
    open_product(&p, 5, 6600, 2, BF16, MOEPAGE_MATH_BF16, 0);
    float *out = new_out(&p);
    const moepage_linear linear = linear_of(&p, F32, out);
    expect_refusal(device, &linear, MOEPAGE_E_BUDGET,
                   "66000 bytes of workspace are needed, but of the device's 65536 only 65536 are "
                   "free: raise workspace_bytes");
    guarded_free(out, 5 * 2 * sizeof *out);
    call(device, &p, BF16);
    expect_no_workspace(device);
    close_product(&p);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_sums_in_the_documented_order),
        cmocka_unit_test(test_linear_reads_every_block_format),
        cmocka_unit_test(test_linear_scales_blocks_of_eight_bits),
        cmocka_unit_test(test_linear_has_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(test_linear_rounds_rows_as_the_math_says),
        cmocka_unit_test(test_linear_takes_rows_that_lie_apart),
        cmocka_unit_test(test_linear_multiplies_in_integers),
        cmocka_unit_test(test_linear_takes_weights_of_eight_bits),
        cmocka_unit_test(test_linear_keeps_a_nan_of_the_scales),
        cmocka_unit_test(test_linear_may_be_called_by_several_threads),
        cmocka_unit_test(test_linear_refuses_bad_arguments),
        cmocka_unit_test(test_linear_takes_the_struct_of_before_scales),
        cmocka_unit_test(test_linear_says_when_the_workspace_is_too_small),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
