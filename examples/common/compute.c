/* Matrix products in panels of weight rows, and the small functions around them. */
#include "common/compute.h"

#include <math.h>

/* Weight rows widened together: each activation row, once loaded, is multiplied with all of
 * them. */
#define PANEL 8

typedef struct linear_job {
    const compute *c;
    const float *x;
    uint32_t n;
    const matrix *w;
    const float *bias;
    float *y;
} linear_job;

size_t compute_scratch_floats(uint32_t columns)
{
    return (size_t)PANEL * columns;
}

static void linear_panel(void *arg, uint32_t item, float *scratch)
{
    const linear_job *job = arg;
    const matrix *w = job->w;
    uint32_t first = item * PANEL;
    uint32_t count = w->rows - first < PANEL ? w->rows - first : PANEL;
    const unsigned char *source = w->data;
    for (uint32_t j = 0; j < count; j++)
        job->c->kernels->widen(scratch + (size_t)j * w->columns,
                               source + (first + j) * matrix_row_bytes(w), w->dtype, w->columns);
    if (w->dtype != MOEPAGE_DTYPE_BF16)
        compute_round(job->c, scratch, (size_t)count * w->columns);
    for (uint32_t r = 0; r < job->n; r++) {
        const float *x = job->x + (size_t)r * w->columns;
        float *y = job->y + (size_t)r * w->rows + first;
        for (uint32_t j = 0; j < count; j++) {
            float sum = job->c->kernels->dot(x, scratch + (size_t)j * w->columns, w->columns);
            y[j] = job->bias ? sum + job->bias[first + j] : sum;
        }
    }
}

void compute_linear(const compute *c, const float *x, uint32_t n, const matrix *w,
                    const float *bias, float *y)
{
    linear_job job = {c, x, n, w, bias, y};
    workers_run(c->workers, (w->rows + PANEL - 1) / PANEL, (uint64_t)w->rows * w->columns * n,
                linear_panel, &job);
}

void compute_rms_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                      const float *scale, float eps, float *out)
{
    for (uint32_t r = 0; r < n; r++, x += width, out += width) {
        float mean = c->kernels->dot(x, x, width) / (float)width;
        float inverse = 1.0f / sqrtf(mean + eps);
        for (uint32_t i = 0; i < width; i++)
            out[i] = x[i] * inverse * scale[i];
    }
}

void compute_layer_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                        const norm_weights *norm, float eps, float *out)
{
    for (uint32_t r = 0; r < n; r++, x += width, out += width) {
        double sum = 0;
        for (uint32_t i = 0; i < width; i++)
            sum += (double)x[i];
        float mean = (float)(sum / width);
        for (uint32_t i = 0; i < width; i++)
            out[i] = x[i] - mean;
        float inverse = 1.0f / sqrtf(c->kernels->dot(out, out, width) / (float)width + eps);
        for (uint32_t i = 0; i < width; i++)
            out[i] = out[i] * inverse * norm->scale[i] + norm->shift[i];
    }
}

void compute_swiglu(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void compute_round(const compute *c, float *x, size_t n)
{
    if (c->math != MOEPAGE_MATH_BF16 && c->math != MOEPAGE_MATH_BF16_FAST)
        return;
    const size_t most = 1u << 30; /* the kernel counts in 32 bits */
    for (; n > most; x += most, n -= most)
        c->kernels->round_bf16(x, (uint32_t)most);
    c->kernels->round_bf16(x, (uint32_t)n);
}

void compute_softmax(float *x, uint32_t n)
{
    float most = x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - most);
        sum += x[i];
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}
