/* Splits tensors into byte planes and merges them again. */
#include "model/planes.h"

#include <string.h>

#include "model/dtype.h"

/* Splits two-byte elements, the common case, in a separate loop that compilers vectorise. */
static void split2(const unsigned char *in, uint64_t n, unsigned char *out)
{
    for (uint64_t i = 0; i < n; i++) {
        out[i] = in[2 * i];
        out[n + i] = in[2 * i + 1];
    }
}

static void merge2(const unsigned char *in, uint64_t n, unsigned char *out)
{
    for (uint64_t i = 0; i < n; i++) {
        out[2 * i] = in[i];
        out[2 * i + 1] = in[n + i];
    }
}

/* Blocks are bytes: their scales and packed weights have no planes in common. */
static uint64_t width_of(const moepage_expert_tensor *tensor)
{
    uint64_t width = mp_dtype_bytes(tensor->dtype);
    return width ? width : 1;
}

void mp_planes_split(const mp_layout *layout, uint32_t n_tensors, const unsigned char *slot,
                     unsigned char *planes)
{
    for (uint32_t t = 0; t < n_tensors; t++) {
        const moepage_expert_tensor *tensor = &layout->tensors[t];
        const unsigned char *in = slot + tensor->offset;
        uint64_t width = width_of(tensor), n = tensor->bytes / width;
        if (width == 1)
            memcpy(planes, in, n);
        else if (width == 2)
            split2(in, n, planes);
        else
            for (uint64_t b = 0; b < width; b++)
                for (uint64_t i = 0; i < n; i++)
                    planes[b * n + i] = in[i * width + b];
        planes += tensor->bytes;
    }
}

void mp_planes_merge(const mp_layout *layout, uint32_t n_tensors, const unsigned char *planes,
                     unsigned char *slot)
{
    for (uint32_t t = 0; t < n_tensors; t++) {
        const moepage_expert_tensor *tensor = &layout->tensors[t];
        unsigned char *out = slot + tensor->offset;
        uint64_t width = width_of(tensor), n = tensor->bytes / width;
        if (width == 1)
            memcpy(out, planes, n);
        else if (width == 2)
            merge2(planes, n, out);
        else
            for (uint64_t b = 0; b < width; b++)
                for (uint64_t i = 0; i < n; i++)
                    out[i * width + b] = planes[b * n + i];
        planes += tensor->bytes;
    }
}
