/* The architecture, config.json and dense tensors of a model whose experts the caller holds. */
#include "model/bank_extras.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"
#include "model/shape.h"

#define MAX_ARCHITECTURE 63 /* characters: as many as packs and traces have room for */

bool mp_bank_extras_needed(const moepage_banks *banks)
{
    return banks->read || banks->architecture || banks->config_json || banks->n_dense;
}

static moepage_status check_dims(uint32_t i, const moepage_dense_tensor *tensor)
{
    if (tensor->rank > MOEPAGE_MAX_RANK)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dense tensor %u has rank %u, it must be 0 to %d", i,
                       tensor->rank, MOEPAGE_MAX_RANK);
    for (uint32_t d = tensor->rank; d < MOEPAGE_MAX_RANK; d++)
        if (tensor->shape[d])
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "dense tensor %u has rank %u and shape[%u] = %llu, it must be 0", i,
                           tensor->rank, d, (unsigned long long)tensor->shape[d]);
    return MOEPAGE_OK;
}

static moepage_status check_dense(uint32_t i, const moepage_dense_tensor *tensor, uint64_t *bytes)
{
    if (!tensor->name || !*tensor->name)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dense tensor %u has %s name", i,
                       tensor->name ? "an empty" : "no");
    moepage_status status =
        mp_shape_check_dtype("dense tensor", i, tensor->dtype, MOEPAGE_E_ARGUMENT);
    if (!status)
        status = check_dims(i, tensor);
    if (!status)
        status = mp_shape_check_blocks("dense tensor", i, tensor->dtype, tensor->rank,
                                       tensor->shape, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    if (!mp_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, bytes))
        return mp_fail(MOEPAGE_E_ARGUMENT, "dense tensor %u: its size overflows 64 bits", i);
    if (*bytes && !tensor->data)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dense tensor %u has %llu bytes, but data is NULL", i,
                       (unsigned long long)*bytes);
    uint32_t align = mp_dtype_align(tensor->dtype);
    if ((uintptr_t)tensor->data % align)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "dense tensor %u: data is at %p, it must be at a multiple of %u, as %s is "
                       "read",
                       i, tensor->data, align, mp_dtype_name(tensor->dtype));
    return MOEPAGE_OK;
}

static moepage_status check_all(const moepage_banks *banks, uint64_t *name_bytes,
                                uint64_t *dense_bytes)
{
    if (banks->n_dense && !banks->dense)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_dense is %u, but dense is NULL", banks->n_dense);
    if (banks->architecture &&
        (!*banks->architecture || strlen(banks->architecture) > MAX_ARCHITECTURE))
        return mp_fail(MOEPAGE_E_ARGUMENT, "architecture has %zu characters, it must have 1 to %d",
                       strlen(banks->architecture), MAX_ARCHITECTURE);
    *name_bytes = *dense_bytes = 0;
    for (uint32_t i = 0; i < banks->n_dense; i++) {
        uint64_t bytes;
        moepage_status status = check_dense(i, &banks->dense[i], &bytes);
        if (status)
            return status;
        *name_bytes += strlen(banks->dense[i].name) + 1;
        if (__builtin_add_overflow(*dense_bytes, bytes, dense_bytes))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "dense tensors up to %u: their size overflows 64 bits", i);
    }
    return MOEPAGE_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mp_dense_tensor *)a)->name, ((const mp_dense_tensor *)b)->name);
}

static moepage_status copy_dense(const moepage_banks *banks, mp_bank_extras *extras)
{
    char *name = extras->names;
    for (uint32_t i = 0; i < banks->n_dense; i++) {
        const moepage_dense_tensor *from = &banks->dense[i];
        mp_dense_tensor *to = &extras->dense[extras->n_dense++];
        size_t n = strlen(from->name) + 1;
        *to = (mp_dense_tensor){.name = memcpy(name, from->name, n),
                                .dtype = from->dtype,
                                .rank = from->rank,
                                .data = from->data};
        name += n;
        memcpy(to->shape, from->shape, sizeof to->shape);
        mp_shape_bytes(from->dtype, from->rank, from->shape, &to->bytes);
    }
    if (extras->n_dense)
        qsort(extras->dense, extras->n_dense, sizeof *extras->dense, by_name);
    for (uint64_t i = 1; i < extras->n_dense; i++)
        if (strcmp(extras->dense[i - 1].name, extras->dense[i].name) == 0)
            return mp_fail(MOEPAGE_E_ARGUMENT, "two dense tensors have the name \"%.200s\"",
                           extras->dense[i].name);
    return MOEPAGE_OK;
}

static bool alloc_all(const moepage_banks *banks, uint64_t name_bytes, mp_bank_extras *extras)
{
    if (banks->architecture && !(extras->architecture = mp_strdup(banks->architecture)))
        return false;
    if (banks->config_json && !(extras->config_text = mp_strdup(banks->config_json)))
        return false;
    if (!banks->n_dense)
        return true;
    extras->dense = mp_alloc_array(banks->n_dense, sizeof *extras->dense);
    extras->names = mp_alloc(name_bytes);
    return extras->dense && extras->names;
}

moepage_status mp_bank_extras_create(const moepage_banks *banks, mp_bank_extras **out)
{
    uint64_t name_bytes, dense_bytes;
    moepage_status status = check_all(banks, &name_bytes, &dense_bytes);
    if (status)
        return status;
    mp_bank_extras *extras = mp_alloc(sizeof *extras);
    if (!extras)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    extras->dense_bytes = dense_bytes;
    if (!alloc_all(banks, name_bytes, extras))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u dense tensors",
                         banks->n_dense);
    else
        status = copy_dense(banks, extras);
    if (status) {
        mp_bank_extras_free(extras);
        return status;
    }
    *out = extras;
    return MOEPAGE_OK;
}

void mp_bank_extras_free(mp_bank_extras *extras)
{
    if (!extras)
        return;
    mp_free(extras->architecture);
    mp_free(extras->config_text);
    mp_free(extras->dense);
    mp_free(extras->names);
    mp_free(extras);
}
