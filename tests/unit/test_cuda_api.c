/* Entry points of moepage_cuda.h: what they refuse, and, over the simulated driver or a real one,
 * that what they accept reaches the caller's stream, is captured into graphs and replayed. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "gpu_reach.h"
#include "graph_rig.h"
#include "moepage_cuda.h"
#include "naive_router.h"
#include "numbers.h"
#include "sim_cuda.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16

static const moepage_device_config small = {.struct_size = sizeof small,
                                            .threads = 1,
                                            .budget_bytes = 16u << 20};

/* ---- Arguments, on a device that does none of it ---- */

static moepage_device *host;

static int open_host(void **state)
{
    (void)state;
    return moepage_device_open("host", &small, &host);
}

static int close_host(void **state)
{
    (void)state;
    return moepage_device_close(host);
}

/* Aligned memory that nothing looks at; and structs that nothing is wrong with. */
static _Alignas(64) char somewhere[64];

static moepage_cuda_dequant int4 = {.struct_size = sizeof int4,
                                    .form = MOEPAGE_FORM_INT4,
                                    .group = 32,
                                    .dst_dtype = BF16,
                                    .rows = 4,
                                    .columns = 64,
                                    .src = somewhere,
                                    .dst = somewhere};
static moepage_cuda_dequant f8 = {.struct_size = sizeof f8,
                                  .form = MOEPAGE_FORM_DENSE,
                                  .group = 128,
                                  .src_dtype = MOEPAGE_DTYPE_F8_E4M3,
                                  .dst_dtype = F32,
                                  .scale_dtype = F32,
                                  .rows = 4,
                                  .columns = 64,
                                  .block_rows = 128,
                                  .src = somewhere,
                                  .scales = somewhere,
                                  .dst = somewhere};
static moepage_cuda_gemv gemv = {.struct_size = sizeof gemv,
                                 .form = MOEPAGE_FORM_INT2,
                                 .group = 128,
                                 .dtype = F32,
                                 .n_tokens = 16,
                                 .rows = 4,
                                 .columns = 64,
                                 .w = somewhere,
                                 .x = somewhere,
                                 .y = somewhere};
static moepage_cuda_rows rows = {.struct_size = sizeof rows,
                                 .n = 2,
                                 .limit = 2,
                                 .row_bytes = 6,
                                 .index = (const int32_t *)(const void *)somewhere,
                                 .in = somewhere,
                                 .out = somewhere};
static moepage_cuda_topk topk = {.struct_size = sizeof topk,
                                 .gate = MOEPAGE_CUDA_GATE_SIGMOID_NORM,
                                 .dtype = F32,
                                 .n_tokens = 1,
                                 .experts = 40,
                                 .top_k = 32,
                                 .logits = somewhere,
                                 .bias = (const float *)(const void *)somewhere,
                                 .ids = (int32_t *)(void *)somewhere,
                                 .weights = (float *)(void *)somewhere};
static moepage_cuda_remap remap = {.struct_size = sizeof remap,
                                   .dtype = F32,
                                   .n_tokens = 1024,
                                   .experts = 1024,
                                   .top_k = 8,
                                   .keep = 8,
                                   .alpha = 1,
                                   .beta = 3,
                                   .base = 1,
                                   .logits = somewhere,
                                   .ids = (int32_t *)(void *)somewhere,
                                   .weights = (float *)(void *)somewhere,
                                   .scratch = somewhere};
static moepage_cuda_decode decode = {.struct_size = sizeof decode,
                                     .n_jobs = 1,
                                     .jobs = (const void *)somewhere};

/* One field of a good struct made bad: the sentence names it. */
#define REFUSED(function, good, field, value, words)                                    \
    do {                                                                                \
        __typeof__(good) bad = (good);                                                  \
        bad.field = (value);                                                            \
        assert_int_equal(function(host, (const void *)&bad, NULL), MOEPAGE_E_ARGUMENT); \
        if (!strstr(moepage_last_error(), words))                                       \
            fail_msg("\"%s\" does not say \"%s\"", moepage_last_error(), words);        \
    } while (0)

static void test_cuda_api_says_that_the_host_does_none_of_it(void **state)
{
    moepage_cuda_info info = {.struct_size = sizeof info};
    (void)state;
    const moepage_status got[] = {
        moepage_cuda_get_info(host, &info),         moepage_cuda_exph_decode(host, &decode, NULL),
        moepage_cuda_dequantise(host, &int4, NULL), moepage_cuda_dequantise(host, &f8, NULL),
        moepage_cuda_gemv_run(host, &gemv, NULL),   moepage_cuda_gather(host, &rows, NULL),
        moepage_cuda_scatter(host, &rows, NULL),    moepage_cuda_topk_run(host, &topk, NULL),
        moepage_cuda_remap_run(host, &remap, NULL)};
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        assert_int_equal(got[i], MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "\"host\""));
}

static void test_cuda_api_checks_handles_and_struct_sizes(void **state)
{
    moepage_cuda_topk own = topk;
    moepage_cuda_info info = {.struct_size = 8};
    (void)state;
    assert_int_equal(moepage_cuda_topk_run(NULL, &own, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_cuda_topk_run((moepage_device *)(void *)somewhere, &own, NULL),
                     MOEPAGE_E_HANDLE);
    assert_int_equal(moepage_cuda_topk_run(host, NULL, NULL), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "args"));
    own.struct_size = 0;
    assert_int_equal(moepage_cuda_topk_run(host, &own, NULL), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_cuda_get_info(host, &info), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_cuda_get_info(host, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_cuda_get_info(NULL, &info), MOEPAGE_E_ARGUMENT);
    struct {
        moepage_cuda_topk known;
        uint64_t unknown;
    } newer = {topk, 1};
    newer.known.struct_size = sizeof newer;
    assert_int_equal(moepage_cuda_topk_run(host, &newer.known, NULL), MOEPAGE_E_VERSION);
}

static void test_cuda_api_refuses_weights_that_are_none(void **state)
{
    (void)state;
    REFUSED(moepage_cuda_exph_decode, decode, jobs, NULL, "jobs");
    REFUSED(moepage_cuda_exph_decode, decode, jobs, (const void *)(somewhere + 4), "jobs");
    REFUSED(moepage_cuda_dequantise, int4, form, MOEPAGE_FORM_EXPH, "form");
    REFUSED(moepage_cuda_dequantise, int4, group, 33, "group");
    REFUSED(moepage_cuda_dequantise, int4, rows, 0, "rows");
    REFUSED(moepage_cuda_dequantise, int4, rows, 1ull << 31, "rows");
    REFUSED(moepage_cuda_dequantise, int4, rows, (1ull << 28) + 1, "2^34");
    REFUSED(moepage_cuda_dequantise, int4, columns, 1ull << 31, "columns");
    REFUSED(moepage_cuda_dequantise, int4, src_dtype, F32, "src_dtype");
    REFUSED(moepage_cuda_dequantise, int4, scale_dtype, F32, "scale_dtype");
    REFUSED(moepage_cuda_dequantise, int4, block_rows, 1, "block_rows");
    REFUSED(moepage_cuda_dequantise, int4, scales, somewhere, "scales");
    REFUSED(moepage_cuda_dequantise, int4, src, NULL, "src");
    REFUSED(moepage_cuda_dequantise, int4, src, somewhere + 8, "src");
    REFUSED(moepage_cuda_dequantise, int4, dst_dtype, MOEPAGE_DTYPE_I8, "dst_dtype");
    REFUSED(moepage_cuda_dequantise, int4, dst, NULL, "dst");
    REFUSED(moepage_cuda_dequantise, int4, dst, somewhere + 1, "dst");
    REFUSED(moepage_cuda_dequantise, f8, src_dtype, MOEPAGE_DTYPE_F8_E5M2, "src_dtype");
    REFUSED(moepage_cuda_dequantise, f8, scale_dtype, MOEPAGE_DTYPE_F16, "scale_dtype");
    REFUSED(moepage_cuda_dequantise, f8, scale_dtype, MOEPAGE_DTYPE_NONE, "NONE");
    REFUSED(moepage_cuda_dequantise, f8, group, 0, "group");
    REFUSED(moepage_cuda_dequantise, f8, block_rows, 0, "block_rows");
    REFUSED(moepage_cuda_dequantise, f8, scales, NULL, "scales");
    REFUSED(moepage_cuda_dequantise, f8, scales, somewhere + 2, "scales");
    REFUSED(moepage_cuda_dequantise, f8, src, NULL, "src");
    REFUSED(moepage_cuda_dequantise, f8, dst, somewhere + 2, "dst");
    moepage_cuda_dequant plain = f8;
    plain.scale_dtype = MOEPAGE_DTYPE_NONE;
    plain.scales = NULL;
    REFUSED(moepage_cuda_dequantise, plain, columns, 64, "group");
    plain.group = 0;
    REFUSED(moepage_cuda_dequantise, plain, columns, 64, "block_rows");
}

static void test_cuda_api_refuses_products_that_are_none(void **state)
{
    (void)state;
    REFUSED(moepage_cuda_gemv_run, gemv, form, MOEPAGE_FORM_DENSE, "form");
    REFUSED(moepage_cuda_gemv_run, gemv, group, 0, "group");
    REFUSED(moepage_cuda_gemv_run, gemv, dtype, MOEPAGE_DTYPE_F8_E4M3, "dtype");
    REFUSED(moepage_cuda_gemv_run, gemv, n_tokens, 17, "n_tokens");
    REFUSED(moepage_cuda_gemv_run, gemv, reserved, 1, "reserved");
    REFUSED(moepage_cuda_gemv_run, gemv, rows, 0, "rows");
    REFUSED(moepage_cuda_gemv_run, gemv, columns, 0, "columns");
    REFUSED(moepage_cuda_gemv_run, gemv, w, somewhere + 8, "w is");
    REFUSED(moepage_cuda_gemv_run, gemv, x, somewhere + 2, "x is");
    REFUSED(moepage_cuda_gemv_run, gemv, y, NULL, "y is");
}

static void test_cuda_api_refuses_rows_that_are_none(void **state)
{
    (void)state;
    REFUSED(moepage_cuda_gather, rows, row_bytes, 0, "row_bytes");
    REFUSED(moepage_cuda_gather, rows, row_bytes, 7, "row_bytes");
    REFUSED(moepage_cuda_scatter, rows, limit, 1u << 31, "limit");
    REFUSED(moepage_cuda_gather, rows, in_stride, 4, "in_stride");
    REFUSED(moepage_cuda_scatter, rows, out_stride, 9, "out_stride");
    REFUSED(moepage_cuda_gather, rows, index, NULL, "index");
    REFUSED(moepage_cuda_gather, rows, in, somewhere + 1, "in is");
    REFUSED(moepage_cuda_scatter, rows, out, NULL, "out is");
}

static void test_cuda_api_refuses_routers_that_are_none(void **state)
{
    (void)state;
    REFUSED(moepage_cuda_topk_run, topk, gate, 4, "gate");
    REFUSED(moepage_cuda_topk_run, topk, gate, 0, "bias");
    REFUSED(moepage_cuda_topk_run, topk, dtype, 0, "dtype");
    REFUSED(moepage_cuda_topk_run, topk, experts, 0, "experts");
    REFUSED(moepage_cuda_topk_run, topk, experts, 1025, "experts");
    REFUSED(moepage_cuda_topk_run, topk, experts, 31, "top_k");
    REFUSED(moepage_cuda_topk_run, topk, top_k, 0, "top_k");
    REFUSED(moepage_cuda_topk_run, topk, top_k, 33, "top_k");
    REFUSED(moepage_cuda_topk_run, topk, scale, INFINITY, "scale");
    REFUSED(moepage_cuda_topk_run, topk, reserved, 1, "reserved");
    REFUSED(moepage_cuda_topk_run, topk, logits, NULL, "logits");
    REFUSED(moepage_cuda_topk_run, topk, bias, (const void *)(somewhere + 2), "bias");
    REFUSED(moepage_cuda_topk_run, topk, ids, NULL, "ids");
    REFUSED(moepage_cuda_topk_run, topk, weights, NULL, "weights");
    REFUSED(moepage_cuda_remap_run, remap, n_tokens, 1025, "n_tokens");
    REFUSED(moepage_cuda_remap_run, remap, keep, 7, "keep");
    REFUSED(moepage_cuda_remap_run, remap, alpha, 0, "alpha");
    REFUSED(moepage_cuda_remap_run, remap, alpha, NAN, "alpha");
    REFUSED(moepage_cuda_remap_run, remap, alpha, 0.99f, "3 * alpha");
    REFUSED(moepage_cuda_remap_run, remap, beta, 0, "beta");
    REFUSED(moepage_cuda_remap_run, remap, beta, 1.5f, "beta");
    REFUSED(moepage_cuda_remap_run, remap, beta, 64, "beta");
    REFUSED(moepage_cuda_remap_run, remap, beta, NAN, "beta");
    REFUSED(moepage_cuda_remap_run, remap, base, 0.5f, "base");
    REFUSED(moepage_cuda_remap_run, remap, base, NAN, "base");
    REFUSED(moepage_cuda_remap_run, remap, bonus, -1, "bonus");
    REFUSED(moepage_cuda_remap_run, remap, bonus, 1, "preferred");
    REFUSED(moepage_cuda_remap_run, remap, scratch, somewhere + 32, "scratch");
    REFUSED(moepage_cuda_remap_run, remap, weights, NULL, "weights");
}

static void test_cuda_api_knows_the_size_of_scratch(void **state)
{
    (void)state;
    assert_int_equal(moepage_cuda_remap_scratch(1025, 8), 0);
    assert_int_equal(moepage_cuda_remap_scratch(8, 1025), 0);
    /* A byte for each token's expert; a float and two bytes for each expert. */
    assert_int_equal(moepage_cuda_remap_scratch(64, 128), 64 * 128 + 128 * 4 + 128 * 2);
    assert_in_range(moepage_cuda_remap_scratch(3, 5), 3 * 5 + 5 * 6, 4 * 64);
}

/* ---- The same on a GPU, simulated or not ---- */

enum { EXPERTS = 24, TOP_K = 3, COLUMNS = 64, ROWS = 5 };

typedef struct gpu {
    moepage_device *device;
    mp_cuda *cuda;
    mp_cu_stream stream;
    float *logits, *weights, *out; /* device memory, which the test may touch */
    int32_t *ids;
    unsigned char *packed, *scratch;
    uint64_t used[6];
} gpu;

static void *take(gpu *g, uint32_t which, uint64_t bytes)
{
    void *memory = NULL;
    g->used[which] = bytes;
    if (gpu_reach())
        return guarded_alloc((bytes + 63) / 64 * 64); /* and zeroed */
    assert_int_equal(mp_home_workspace_alloc(g->device, bytes, &memory), MOEPAGE_OK);
    memset(memory, 0, bytes);
    return memory;
}

static void open_gpu(gpu *g)
{
    moepage_device_config config = small;
    config.workspace_bytes = 1u << 20;
    g->device = device_rig_open(&config);
    g->cuda = mp_cuda_of(g->device->device);
    assert_int_equal(mp_cuda_enter(g->cuda), MOEPAGE_OK);
    assert_int_equal(g->cuda->driver->stream_create(&g->stream, MP_CU_STREAM_NON_BLOCKING, 0), 0);
    mp_cuda_leave(g->cuda);
    g->logits = take(g, 0, 2 * EXPERTS * sizeof(float));
    g->weights = take(g, 1, 2 * TOP_K * sizeof(float));
    g->out = take(g, 2, ROWS * COLUMNS * sizeof(float));
    g->ids = take(g, 3, 16 * sizeof(int32_t));
    g->packed = take(g, 4, 4096);
    g->scratch = take(g, 5, moepage_cuda_remap_scratch(2, EXPERTS));
}

static void finish(gpu *g)
{
    assert_int_equal(mp_cuda_enter(g->cuda), MOEPAGE_OK);
    assert_int_equal(g->cuda->driver->stream_sync(g->stream), 0);
    mp_cuda_leave(g->cuda);
}

static void close_gpu(gpu *g)
{
    void *memory[] = {g->logits, g->weights, g->out, g->ids, g->packed, g->scratch};
    finish(g);
    for (uint32_t i = 0; i < 6; i++) {
        if (gpu_reach())
            guarded_free(memory[i], (g->used[i] + 63) / 64 * 64);
        else
            mp_home_workspace_free(g->device, memory[i], g->used[i]);
    }
    assert_int_equal(mp_cuda_enter(g->cuda), MOEPAGE_OK);
    assert_int_equal(g->cuda->driver->stream_destroy(g->stream), 0);
    mp_cuda_leave(g->cuda);
    device_rig_close(g->device);
}

static void set_logits(gpu *g, uint32_t seed)
{
    for (uint32_t i = 0; i < 2 * EXPERTS; i++)
        g->logits[i] = (float)((i + 1 + seed) * 7919u % 113) / 16;
}

static moepage_cuda_topk topk_of(const gpu *g)
{
    return (moepage_cuda_topk){.struct_size = sizeof(moepage_cuda_topk),
                               .gate = MOEPAGE_CUDA_GATE_SOFTMAX_TOP,
                               .dtype = F32,
                               .n_tokens = 2,
                               .experts = EXPERTS,
                               .top_k = TOP_K,
                               .logits = g->logits,
                               .ids = g->ids,
                               .weights = g->weights};
}

static void expect_routed(const gpu *g, const bool *kept)
{
    const moepage_cuda_topk router = topk_of(g);
    for (uint32_t t = 0; t < 2; t++) {
        naive_choice want;
        naive_route(&router, t, kept, &want);
        for (uint32_t k = 0; k < TOP_K; k++) {
            assert_int_equal(g->ids[t * TOP_K + k], want.ids[k]);
            assert_true(fabs(g->weights[t * TOP_K + k] - want.weights[k]) < 1e-6);
        }
    }
}

static void test_cuda_api_tells_of_the_gpu(void **state)
{
    gpu g;
    moepage_cuda_info info = {.struct_size = sizeof info};
    (void)state;
    open_gpu(&g);
    assert_int_equal(moepage_cuda_get_info(g.device, &info), MOEPAGE_OK);
    assert_int_equal(info.struct_size, sizeof info);
    assert_in_range(info.compute_major, 8, 99);
    assert_in_range(info.multiprocessors, 1, 4096);
    if (device_rig_is_simulated()) {
        assert_int_equal(info.compute_major, 9);
        assert_int_equal(info.multiprocessors, 4);
        assert_string_equal(info.name, "Simulated GPU");
    }
    close_gpu(&g);
}

static void test_cuda_api_routes_on_the_callers_stream(void **state)
{
    gpu g;
    (void)state;
    open_gpu(&g);
    const moepage_cuda_topk args = topk_of(&g);
    if (!device_rig_is_simulated())
        set_logits(&g, 0);
    else
        sim_cuda_hold(g.stream);
    assert_int_equal(moepage_cuda_topk_run(g.device, &args, g.stream), MOEPAGE_OK);
    if (device_rig_is_simulated()) {
        assert_int_equal(sim_cuda_pending(g.stream), 1);
        set_logits(&g, 0); /* what the stream finds when it comes to it counts */
        sim_cuda_release(g.stream);
    }
    finish(&g);
    expect_routed(&g, NULL);
    close_gpu(&g);
}

static void test_cuda_api_replays_what_was_captured_on_new_inputs(void **state)
{
    gpu g;
    (void)state;
    open_gpu(&g);
    const moepage_cuda_topk router = topk_of(&g);
    const moepage_cuda_remap args = {.struct_size = sizeof args,
                                     .gate = router.gate,
                                     .dtype = F32,
                                     .n_tokens = 2,
                                     .experts = EXPERTS,
                                     .top_k = TOP_K,
                                     .keep = TOP_K + 1,
                                     .alpha = 1,
                                     .beta = 3,
                                     .logits = g.logits,
                                     .ids = g.ids,
                                     .weights = g.weights,
                                     .scratch = g.scratch};
    const moepage_cuda_rows gather = {.struct_size = sizeof gather,
                                      .n = TOP_K,
                                      .limit = EXPERTS,
                                      .row_bytes = 4,
                                      .index = g.ids,
                                      .in = g.logits,
                                      .out = g.out};
    moepage_cuda_rows scatter = gather;
    scatter.in = g.weights;
    scatter.out = g.out + EXPERTS;
    graph_rig_begin(g.cuda, g.stream);
    assert_int_equal(moepage_cuda_remap_run(g.device, &args, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_gather(g.device, &gather, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_scatter(g.device, &scatter, g.stream), MOEPAGE_OK);
    graph_rig *graph = graph_rig_end(g.cuda, g.stream);
    assert_int_equal(graph_rig_nodes(graph), 3);
    for (uint32_t seed = 0; seed < 4; seed++) {
        bool kept[NAIVE_MAX_EXPERTS];
        set_logits(&g, seed);
        memset(g.out, 0, g.used[2]);
        graph_rig_launch(graph, g.stream);
        finish(&g);
        assert_true(naive_keep(&args, kept));
        expect_routed(&g, kept);
        for (uint32_t k = 0; k < TOP_K; k++) {
            assert_true(g.out[k] == g.logits[g.ids[k]]);
            assert_true(g.out[EXPERTS + g.ids[k]] == g.weights[k]);
        }
    }
    graph_rig_destroy(graph);
    close_gpu(&g);
}

/* INT8, one group per row: bytes, then from a multiple of 16 the scales. */
static void test_cuda_api_dequantises_and_multiplies(void **state)
{
    gpu g;
    (void)state;
    open_gpu(&g);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
        g.packed[i] = (unsigned char)(i * 37 % 255 - 127);
    for (uint32_t r = 0; r < ROWS; r++)
        memcpy(g.packed + ROWS * COLUMNS + 2 * r, (const uint16_t[]){0x3c00}, 2);
    const moepage_cuda_dequant whole = {.struct_size = sizeof whole,
                                        .form = MOEPAGE_FORM_INT8,
                                        .group = 64,
                                        .dst_dtype = F32,
                                        .rows = ROWS,
                                        .columns = COLUMNS,
                                        .src = g.packed,
                                        .dst = g.out};
    const moepage_cuda_gemv product = {.struct_size = sizeof product,
                                       .form = MOEPAGE_FORM_INT8,
                                       .group = 64,
                                       .dtype = F32,
                                       .n_tokens = 1,
                                       .rows = ROWS,
                                       .columns = COLUMNS,
                                       .w = g.packed,
                                       .x = g.out + COLUMNS, /* the second row of W */
                                       .y = g.logits};
    assert_int_equal(moepage_cuda_dequantise(g.device, &whole, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_gemv_run(g.device, &product, g.stream), MOEPAGE_OK);
    finish(&g);
    for (uint32_t r = 0; r < ROWS; r++) {
        int64_t sum = 0;
        for (uint32_t c = 0; c < COLUMNS; c++) {
            const int64_t w = (int8_t)g.packed[r * COLUMNS + c];
            assert_true(g.out[r * COLUMNS + c] == w);
            sum += w * (int8_t)g.packed[COLUMNS + c];
        }
        assert_true(g.logits[r] == sum);
    }
    close_gpu(&g);
}

/* Unknown on a real GPU. */
static uint64_t launches(void)
{
    return device_rig_is_simulated() ? sim_cuda_get_stats().calls[SIM_launch] : 0;
}

static void test_cuda_api_submits_nothing_when_there_is_nothing_to_do(void **state)
{
    gpu g;
    (void)state;
    open_gpu(&g);
    const uint64_t before = launches();
    moepage_cuda_decode no_jobs = {.struct_size = sizeof no_jobs};
    moepage_cuda_rows no_rows = {.struct_size = sizeof no_rows, .row_bytes = 2};
    moepage_cuda_gemv no_products = gemv;
    moepage_cuda_topk no_tokens = topk;
    moepage_cuda_remap no_batch = remap;
    no_products.n_tokens = no_tokens.n_tokens = no_batch.n_tokens = 0;
    no_products.w = no_tokens.logits = no_batch.scratch = NULL;
    assert_int_equal(moepage_cuda_exph_decode(g.device, &no_jobs, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_gather(g.device, &no_rows, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_scatter(g.device, &no_rows, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_gemv_run(g.device, &no_products, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_topk_run(g.device, &no_tokens, g.stream), MOEPAGE_OK);
    assert_int_equal(moepage_cuda_remap_run(g.device, &no_batch, g.stream), MOEPAGE_OK);
    assert_int_equal(launches(), before);
    close_gpu(&g);
}

static void test_cuda_api_hands_on_what_a_launch_fails_with(void **state)
{
    gpu g;
    (void)state;
    if (!device_rig_is_simulated())
        skip();
    open_gpu(&g);
    const moepage_cuda_topk args = topk_of(&g);
    sim_cuda_fail(SIM_launch, 1, MP_CU_LAUNCH_OUT_OF_RESOURCES, false);
    assert_int_equal(moepage_cuda_topk_run(g.device, &args, g.stream), MOEPAGE_E_DEVICE);
    set_logits(&g, 3);
    assert_int_equal(moepage_cuda_topk_run(g.device, &args, g.stream), MOEPAGE_OK);
    finish(&g);
    expect_routed(&g, NULL);
    close_gpu(&g);
}

/* Dense products are the host's: a GPU has libraries for them. */
static void test_cuda_api_leaves_dense_products_to_the_callers_library(void **state)
{
    static const float x[4], w[8];
    float out[2] = {7, 7};
    (void)state;
    moepage_device *device = device_rig_open(&small);
    const moepage_linear linear = MOEPAGE_LINEAR(.n_rows = 1, .n_in = 4, .n_out = 2, .w_dtype = F32,
                                                 .x = x, .w = w, .out = out);
    assert_int_equal(moepage_device_linear(device, &linear), MOEPAGE_E_UNSUPPORTED);
    assert_string_equal(moepage_last_error(), "cuda:0: dense products run on host devices only: "
                                              "use a library of the GPU's");
    assert_true(out[0] == 7 && out[1] == 7);
    device_rig_close(device);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 0);
    const struct CMUnitTest arguments[] = {
        cmocka_unit_test(test_cuda_api_says_that_the_host_does_none_of_it),
        cmocka_unit_test(test_cuda_api_checks_handles_and_struct_sizes),
        cmocka_unit_test(test_cuda_api_refuses_weights_that_are_none),
        cmocka_unit_test(test_cuda_api_refuses_products_that_are_none),
        cmocka_unit_test(test_cuda_api_refuses_rows_that_are_none),
        cmocka_unit_test(test_cuda_api_refuses_routers_that_are_none),
        cmocka_unit_test(test_cuda_api_knows_the_size_of_scratch),
    };
    const struct CMUnitTest simulated[] = {
        cmocka_unit_test(test_cuda_api_tells_of_the_gpu),
        cmocka_unit_test(test_cuda_api_routes_on_the_callers_stream),
        cmocka_unit_test(test_cuda_api_replays_what_was_captured_on_new_inputs),
        cmocka_unit_test(test_cuda_api_dequantises_and_multiplies),
        cmocka_unit_test(test_cuda_api_submits_nothing_when_there_is_nothing_to_do),
        cmocka_unit_test(test_cuda_api_hands_on_what_a_launch_fails_with),
        cmocka_unit_test(test_cuda_api_leaves_dense_products_to_the_callers_library),
    };
    return cmocka_run_group_tests(arguments, open_host, close_host) +
           cmocka_run_group_tests(simulated, NULL, NULL);
}
