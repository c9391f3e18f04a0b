/* Collects tensors to code. */
#include "bench/weights.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/open_model.h"
#include "moepage.h"
#include "pack/random_weights.h"

#define MATRIX (2048u * 768u)
#define SIGMA 0.02

static int make_room(bench_weights *out, uint64_t bytes, uint64_t n_tensors)
{
    out->memory = malloc(bytes);
    out->tensors = calloc(n_tensors, sizeof *out->tensors);
    return out->memory && out->tensors ? RUN_OK : fail_memory();
}

static void add(bench_weights *w, uint64_t elements, uint32_t dtype)
{
    w->tensors[w->n_tensors++] = (bench_tensor){w->memory + w->bytes, elements, dtype};
    w->bytes += elements * 2;
    w->longest = elements > w->longest ? elements : w->longest;
}

static int open_random(uint64_t bytes, bench_weights *out)
{
    random_weights gaussian;
    uint32_t n = (uint32_t)(bytes / (MATRIX * 2)) + 1;
    int code = make_room(out, n * MATRIX * 2ull, n);
    if (code)
        return code;
    random_weights_init(&gaussian, WEIGHTS_GAUSSIAN, SIGMA);
    for (uint32_t i = 0; i < n; i++) {
        add(out, MATRIX, MOEPAGE_DTYPE_BF16);
        random_weights_fill(&gaussian, random_key(1, i, 0, 0), 0, MATRIX * 2, out->tensors[i].data);
    }
    return RUN_OK;
}

/* Takes the 16-bit tensors of one expert. */
static void take(const moepage_expert_tensor *tensors, uint32_t n, const unsigned char *slot,
                 bench_weights *out)
{
    for (uint32_t t = 0; t < n; t++)
        if (tensors[t].dtype == MOEPAGE_DTYPE_BF16 || tensors[t].dtype == MOEPAGE_DTYPE_F16) {
            memcpy(out->memory + out->bytes, slot + tensors[t].offset, tensors[t].bytes);
            add(out, tensors[t].bytes / 2, tensors[t].dtype);
        }
}

static int read_experts(const moepage_model *model, const char *path, uint64_t bytes,
                        bench_weights *out)
{
    moepage_model_info info = {.struct_size = sizeof info};
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    if (moepage_model_get_info(model, &info) ||
        moepage_model_get_expert_tensors(model, tensors, MOEPAGE_MAX_EXPERT_TENSORS))
        return fail_library(RUN_FAILED, "model");
    uint64_t all = (uint64_t)info.moe_layers * info.experts;
    uint64_t n = bytes / info.expert_bytes + 1;
    n = n < all ? n : all;
    unsigned char *slot = malloc(info.slot_bytes);
    if (!slot)
        return fail_memory();
    int code = make_room(out, n * info.expert_bytes, n * info.expert_tensors);
    for (uint64_t i = 0; i < n && !code; i++) {
        uint64_t at = i * all / n;
        if (moepage_model_read_expert(model, (uint32_t)(at / info.experts),
                                      (uint32_t)(at % info.experts), slot, info.slot_bytes))
            code = fail_file(RUN_FAILED, path);
        else
            take(tensors, info.expert_tensors, slot, out);
    }
    free(slot);
    if (!code && !out->n_tensors)
        code = fail(RUN_REFUSED, "the experts have no BF16 or F16 tensor");
    return code;
}

int bench_weights_open(const char *model, uint64_t bytes, bench_weights *out)
{
    *out = (bench_weights){0};
    if (!model)
        return open_random(bytes, out);
    moepage_model *opened = NULL;
    int code = open_model(model, &opened);
    if (code)
        return code;
    code = read_experts(opened, model, bytes, out);
    moepage_model_close(opened);
    return code;
}

void bench_weights_close(bench_weights *w)
{
    free(w->memory);
    free(w->tensors);
    *w = (bench_weights){0};
}
