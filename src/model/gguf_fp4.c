/* Gives tensors of NVFP4 the scales that GGUF files keep beside them, one for a matrix or for each expert's: in
 * blocks that carry them. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/repack.h"
#include "model/shape.h"

#define WEIGHT "weight"
#define MAX_NAME 192u
#define MAX_ENDING 16u

/* Finds the tensor that has another word than the weights' at the end of its name; NULL if there is none. */
static mp_gguf_tensor *beside(const mp_gguf *gguf, const mp_gguf_tensor *weights, const char *end)
{
    char name[MAX_NAME];
    const size_t length = strlen(weights->name), tail = strlen(WEIGHT);
    if (length < tail || length + MAX_ENDING > MAX_NAME ||
        strcmp(weights->name + length - tail, WEIGHT) != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s%s", (int)(length - tail), weights->name, end);
    return mp_gguf_find(gguf, name);
}

static mp_gguf_tensor *scale_of(const mp_gguf *gguf, const mp_gguf_tensor *weights)
{
    return weights->dtype == MOEPAGE_DTYPE_NVFP4 ? beside(gguf, weights, "scale") : NULL;
}

/* Numbers: one, or one of each matrix. */
static moepage_status check_scale(const mp_gguf_tensor *weights, const mp_gguf_tensor *scale)
{
    if (!scale)
        return MOEPAGE_OK;
    const uint64_t n = weights->rank > 2 ? weights->shape[2] : 1;
    if (weights->rank >= 2 && weights->rank <= 3 && scale->dtype == MOEPAGE_DTYPE_F32 &&
        scale->rank == 1 && scale->shape[0] == n)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_FORMAT,
        "%.120s: tensor \"%.160s\" has dimensions %s, scales of \"%.160s\" are F32 [%llu]",
        scale->file->file.name, scale->name, mp_shape_show(scale->shape, scale->rank).text,
        weights->name, (unsigned long long)n);
}

/* A longer name's scale would not be found, and the weights would be others without it. */
static moepage_status check_name(const mp_gguf_tensor *weights)
{
    if (weights->dtype != MOEPAGE_DTYPE_NVFP4 || strlen(weights->name) + MAX_ENDING <= MAX_NAME)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_UNSUPPORTED,
        "%.120s: tensor \"%.160s...\" has a name of %zu bytes: of NVFP4 up to %u are read",
        weights->file->file.name, weights->name, strlen(weights->name), MAX_NAME - MAX_ENDING);
}

/* Describes the tensor that takes the place of the weights. */
static void complete(const mp_gguf_tensor *weights, mp_gguf_tensor *scale, mp_gguf_computed *out)
{
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_NVFP4G64_F32, MOEPAGE_DTYPE_NVFP4G128_F32,
                                      MOEPAGE_DTYPE_NVFP4G256_F32};
    const uint64_t columns = weights->shape[0];
    const uint64_t rows = weights->shape[1] * (weights->rank > 2 ? weights->shape[2] : 1);
    mp_repack *how = &out->computed.how;
    out->tensor = *weights;
    out->tensor.dtype = dtypes[mp_fp4_block(columns) / 128];
    *how = (mp_repack){.kind = &mp_repack_nvfp4_blocks,
                       .rows = rows,
                       .n_sources = 2,
                       .sources = {{rows, rows ? weights->bytes / rows : 0},
                                   {scale->shape[0], sizeof(float)}}};
    mp_shape_bytes(out->tensor.dtype, 1, &columns, &how->row_bytes);
    out->computed.stored[0] = (mp_file_span){&weights->file->file, weights->offset};
    out->computed.stored[1] = (mp_file_span){&scale->file->file, scale->offset};
    out->tensor.bytes = rows * how->row_bytes;
    out->tensor.computed = &out->computed;
    scale->is_part = true;
}

/* Scales of activations, which are not quantised here. */
static void skip_input_scales(const mp_gguf *gguf)
{
    for (uint64_t i = 0; i < gguf->n_tensors; i++)
        if (gguf->tensors[i]->dtype == MOEPAGE_DTYPE_NVFP4) {
            mp_gguf_tensor *unused = beside(gguf, gguf->tensors[i], "input_scale");
            if (unused)
                unused->is_part = true;
        }
}

moepage_status mp_gguf_fp4_complete(mp_gguf *gguf)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < gguf->n_tensors; i++) {
        const mp_gguf_tensor *scale = scale_of(gguf, gguf->tensors[i]);
        moepage_status status = check_name(gguf->tensors[i]);
        if (!status)
            status = check_scale(gguf->tensors[i], scale);
        if (status)
            return status;
        n += scale != NULL;
    }
    skip_input_scales(gguf);
    if (!n)
        return MOEPAGE_OK;
    gguf->computed = mp_alloc_array(n, sizeof *gguf->computed);
    if (!gguf->computed)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %llu matrices",
                       (unsigned long long)n);
    for (uint64_t i = 0; i < gguf->n_tensors; i++) {
        mp_gguf_tensor *scale = scale_of(gguf, gguf->tensors[i]);
        if (!scale)
            continue;
        mp_gguf_computed *computed = &gguf->computed[gguf->n_computed++];
        complete(gguf->tensors[i], scale, computed);
        gguf->tensors[i] = &computed->tensor;
    }
    return MOEPAGE_OK;
}
