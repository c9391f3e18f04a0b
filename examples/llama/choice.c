/* Whose kernels multiply a model's experts: this library's where they are at least as fast as the host's dot products, by
 * the time of one row, as a token has it, in one thread. One choice for all of a run, because the bits of sums
 * differ. */
#include "plugin.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 7, LEAST_BYTES = 4 << 20 };

/* A product of one row: of weights that are all zero, which takes as long as any other. */
typedef struct trial {
    moepage_device *device; /* of one thread */
    enum ggml_type type;
    int64_t columns, rows;
    char *weights;
    float *x, *out;
    void *rounded; /* the host's form of x */
} trial;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static bool multiply_own(const trial *of)
{
    const moepage_linear linear =
        MOEPAGE_LINEAR(.math = layers_math(of->type), .n_rows = 1, .n_in = (uint32_t)of->columns,
                       .n_out = (uint32_t)of->rows, .w_dtype = layers_dtype(of->type), .x = of->x,
                       .w = of->weights, .out = of->out);
    if (!moepage_device_linear(of->device, &linear))
        return true;
    say("%s", moepage_last_error());
    return false;
}

/* The best of several rounds of both, in turn; of the host none, if it has no dot products to be found. False, after a
 * sentence, if ours fails. */
static bool time_both(const trial *of, double *own_ms, double *host_ms)
{
    *own_ms = *host_ms = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = now_ms();
        if (!multiply_own(of))
            return false;
        const double middle = now_ms();
        const bool host = rows_multiply_one(of->type, of->columns, of->rows, of->weights, of->x,
                                            of->rounded, of->out);
        const double end = now_ms();
        *own_ms = fmin(*own_ms, middle - start);
        *host_ms = host ? fmin(*host_ms, end - middle) : INFINITY;
    }
    return true;
}

/* Memory that was never written to is one page of zeros, which caches have. */
static void take_pages(char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4096)
        ((volatile char *)memory)[i] = 0;
}

static bool try_bank(moepage_device *device, const bank *from, double *own_ms, double *host_ms)
{
    const size_t row_bytes = ggml_row_size(from->type, from->columns);
    int64_t rows = from->rows;
    while ((size_t)rows * row_bytes < LEAST_BYTES)
        rows *= 2;
    trial of = {.device = device,
                .type = from->type,
                .columns = from->columns,
                .rows = rows,
                .weights = calloc((size_t)rows, row_bytes),
                .rounded = malloc((size_t)from->columns * sizeof(float)),
                .x = calloc((size_t)from->columns, sizeof(float)),
                .out = calloc((size_t)rows, sizeof(float))};
    const bool has_memory = of.weights && of.x && of.out && of.rounded;
    if (!has_memory)
        say("no memory to measure kernels");
    else
        take_pages(of.weights, (size_t)rows * row_bytes);
    const bool measured = has_memory && time_both(&of, own_ms, host_ms);
    free(of.weights);
    free(of.rounded);
    free(of.x);
    free(of.out);
    return measured;
}

/* ---- all types ---- */

static bool is_known(const paged_model *of)
{
    for (uint32_t l = 0; l < of->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++)
            if (of->banks[l][k].address && layers_dtype(of->banks[l][k].type) == MOEPAGE_DTYPE_U8)
                return false;
    return true;
}

/* Sums the times of all banks, each kind of them being measured once in each type: a model's layers have one shape. */
static bool measure(const paged_model *of, moepage_device *device, double *own_ms, double *host_ms)
{
    double times[GGML_TYPE_COUNT][MOST_BANKS][2] = {0};
    for (uint32_t l = 0; l < of->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++) {
            const bank *from = &of->banks[l][k];
            double *both = times[from->type][k];
            if (!from->address)
                continue;
            if (both[0] == 0 && !try_bank(device, from, &both[0], &both[1]))
                return false;
            *own_ms += both[0];
            *host_ms += both[1];
        }
    return true;
}

static bool open_device(const paged_model *of, moepage_device **out)
{
    uint64_t columns = 0;
    for (uint32_t l = 0; l < of->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++)
            if (of->banks[l][k].address && (uint64_t)of->banks[l][k].columns > columns)
                columns = (uint64_t)of->banks[l][k].columns;
    const uint64_t workspace = columns * sizeof(float) + 4096;
    const moepage_device_config config =
        MOEPAGE_DEVICE_CONFIG(.budget_bytes = workspace + (1 << 16), .workspace_bytes = workspace,
                              .threads = 1);
    if (!moepage_device_open("host", &config, out))
        return true;
    say("%s", moepage_last_error());
    return false;
}

bool choice_make(paged_model *of, const settings *chosen)
{
    moepage_device *device;
    double own_ms = 0, host_ms = 0;
    const bool known = is_known(of);
    of->own_kernels = chosen->kernels == KERNELS_OWN;
    if (of->own_kernels && !known) {
        say("MOEPAGE_KERNELS=moepage: this model has experts in blocks that only llama.cpp's know");
        return false;
    }
    if (of->device.device) {
        say("experts are in memory of %s, whose kernels compute",
            ggml_backend_dev_name(of->device.device));
        return true;
    }
    if (chosen->kernels != KERNELS_AUTO || !known) {
        say("kernels of %s", of->own_kernels ? "moepage" : "llama.cpp");
        return true;
    }
    if (!open_device(of, &device))
        return false;
    const bool measured = measure(of, device, &own_ms, &host_ms);
    moepage_device_close(device);
    of->own_kernels = own_ms <= host_ms;
    if (measured)
        say("kernels of %s: %.1f ms by moepage's for a row of every bank, %.1f ms by llama.cpp's",
            of->own_kernels ? "moepage" : "llama.cpp", own_ms, host_ms);
    return measured;
}
