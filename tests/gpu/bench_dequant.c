/* Dequantisation, by bytes of BF16 that come out, and products with quantised weights, by bytes of
 * weights that go in. */
#include <stdlib.h>

#include "exph_data.h"
#include "gpu_bench.h"

#define MB (1ull << 20)
#define GROUP 64u

typedef struct matrix {
    uint32_t form;
    uint64_t rows, columns, bytes;
    void *packed, *scales, *out, *x;
} matrix;

static uint64_t packed_bytes(const matrix *m)
{
    uint64_t bits = m->form == MOEPAGE_FORM_INT4 ? 4 : m->form == MOEPAGE_FORM_INT2 ? 2 : 8;
    uint64_t values = (m->rows * (m->columns * bits / 8) + 15) / 16 * 16;
    return m->form == MOEPAGE_FORM_DENSE ? m->rows * m->columns
                                         : values + m->rows * (m->columns / GROUP) * 2;
}

/* Any bits are weights and scales. */
static void *noise(gpu_bench *b, uint64_t bytes)
{
    exph_random random = exph_random_of(bytes);
    uint64_t n = bytes / 8 + 1;
    uint64_t *words = malloc(n * 8);
    if (!words)
        gpu_die("out of host memory");
    for (uint64_t i = 0; i < n; i++)
        words[i] = exph_next(&random) & 0xbfffbfffbfffbfffu; /* halves that are finite */
    void *memory = gpu_put(b, words, n * 8);
    free(words);
    return memory;
}

static void dequantise(gpu_bench *b, void *user)
{
    const matrix *m = user;
    bool f8 = m->form == MOEPAGE_FORM_DENSE;
    const moepage_cuda_dequant args = {
        .struct_size = sizeof args,
        .form = m->form,
        .group = f8 ? 128 : GROUP,
        .src_dtype = f8 ? MOEPAGE_DTYPE_F8_E4M3 : 0,
        .dst_dtype = MOEPAGE_DTYPE_BF16,
        .scale_dtype = f8 ? MOEPAGE_DTYPE_F32 : 0,
        .rows = m->rows,
        .columns = m->columns,
        .block_rows = f8 ? 128 : 0,
        .src = m->packed,
        .scales = f8 ? m->scales : NULL,
        .dst = m->out,
    };
    gpu_must(moepage_cuda_dequantise(b->home, &args, b->stream), "dequantising");
}

typedef struct product {
    matrix *m;
    uint32_t n_tokens;
} product;

static void multiply(gpu_bench *b, void *user)
{
    const product *p = user;
    const moepage_cuda_gemv args = {
        .struct_size = sizeof args,
        .form = p->m->form,
        .group = GROUP,
        .dtype = MOEPAGE_DTYPE_BF16,
        .n_tokens = p->n_tokens,
        .rows = p->m->rows,
        .columns = p->m->columns,
        .w = p->m->packed,
        .x = p->m->x,
        .y = p->m->out,
    };
    gpu_must(moepage_cuda_gemv_run(b->home, &args, b->stream), "multiplying");
}

static void run_form(gpu_bench *b, uint32_t form, const char *name, uint64_t rows, uint64_t columns)
{
    char label[96];
    matrix m = {.form = form, .rows = rows, .columns = columns};
    m.bytes = packed_bytes(&m);
    m.packed = noise(b, m.bytes);
    m.scales = noise(b, (rows / 128 + 1) * (columns / 128 + 1) * 4);
    m.out = gpu_device_memory(b, rows * columns * 2);
    m.x = noise(b, 16 * columns * 2);
    snprintf(label, sizeof label, "%s to bf16, %llu x %llu", name, (unsigned long long)rows,
             (unsigned long long)columns);
    gpu_spread time = gpu_time(b, dequantise, &m, 20);
    gpu_row(b, label, gpu_rate(time, (double)rows * (double)columns * 2e-9), "GB/s",
            "\"seconds\": %.9g, \"moved_gb_per_s\": %.5g", time.median,
            ((double)rows * (double)columns * 2 + (double)m.bytes) / time.median / 1e9);
    for (uint32_t tokens = 1; tokens <= 16 && form != MOEPAGE_FORM_DENSE; tokens *= 4) {
        product p = {&m, tokens};
        snprintf(label, sizeof label, "%s times %u token%s, %llu x %llu", name, tokens,
                 tokens > 1 ? "s" : "", (unsigned long long)rows, (unsigned long long)columns);
        time = gpu_time(b, multiply, &p, 20);
        gpu_row(b, label, gpu_rate(time, (double)m.bytes / 1e9), "GB/s", "\"seconds\": %.9g",
                time.median);
    }
    gpu_free_device(b, m.packed);
    gpu_free_device(b, m.scales);
    gpu_free_device(b, m.out);
    gpu_free_device(b, m.x);
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t form;
        const char *name;
    } forms[] = {{MOEPAGE_FORM_INT8, "int8"},
                 {MOEPAGE_FORM_INT4, "int4"},
                 {MOEPAGE_FORM_INT2, "int2"},
                 {MOEPAGE_FORM_DENSE, "fp8 with 128 x 128 scales"}};
    gpu_bench b;
    gpu_bench_open(&b, "dequant", argc, argv, 32 * MB, 64 * MB);
    for (uint32_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        run_form(&b, forms[i].form, forms[i].name, gpu_size(&b, 16384, 128),
                 gpu_size(&b, 8192, 256));
        run_form(&b, forms[i].form, forms[i].name, gpu_size(&b, 1536, 64), gpu_size(&b, 2048, 128));
    }
    return gpu_bench_close(&b);
}
