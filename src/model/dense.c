/* Reads dense tensors, and holds their bytes. */
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/file.h"
#include "model/model.h"

#define HELD_ALIGN 64u /* as in a pack: enough for every vector of the host */

moepage_status mp_dense_read(const mp_dense_tensor *tensor, void *out)
{
    if (!tensor->file) {
        if (tensor->bytes)
            memcpy(out, tensor->data, tensor->bytes);
        return MOEPAGE_OK;
    }
    moepage_status status =
        tensor->computed ? mp_computed_read(tensor->computed, 0, tensor->bytes, out)
                         : mp_model_file_read(tensor->file, tensor->offset, tensor->bytes, out);
    if (!status && tensor->has_sum && XXH3_64bits(out, tensor->bytes) != tensor->xxh3)
        status = mp_fail(MOEPAGE_E_FORMAT, "%.160s: its bytes do not match their checksum",
                         tensor->file->name);
    return status ? mp_fail_within(status, "tensor \"%.160s\"", tensor->name) : MOEPAGE_OK;
}

/* A pack's tensors were checked whole when it was opened, and the file is still the one that was opened. */
moepage_status mp_dense_read_part(const mp_dense_tensor *tensor, uint64_t offset, uint64_t bytes,
                                  void *out)
{
    if (!tensor->file) {
        memcpy(out, (const char *)tensor->data + offset, bytes);
        return MOEPAGE_OK;
    }
    moepage_status status =
        tensor->computed ? mp_computed_read(tensor->computed, offset, bytes, out)
                         : mp_model_file_read(tensor->file, tensor->offset + offset, bytes, out);
    return status ? mp_fail_within(status, "tensor \"%.160s\"", tensor->name) : MOEPAGE_OK;
}

/* A multiple of HELD_ALIGN, with the block's own address before it. */
static void *alloc_held(uint64_t bytes)
{
    char *block = mp_realloc(NULL, bytes + HELD_ALIGN + sizeof(void *));
    if (!block)
        return NULL;
    uintptr_t first = (uintptr_t)block + sizeof(void *);
    char *held = block + sizeof(void *) + (HELD_ALIGN - first % HELD_ALIGN) % HELD_ALIGN;
    memcpy(held - sizeof(void *), &block, sizeof block);
    return held;
}

void mp_dense_free(void *held)
{
    void *block = NULL;
    if (held)
        memcpy(&block, (char *)held - sizeof(void *), sizeof block);
    mp_free(block);
}

moepage_status mp_dense_hold(const mp_dense_tensor *tensor)
{
    void *bytes = alloc_held(tensor->bytes);
    if (!bytes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory for tensor \"%.160s\", %llu bytes",
                       tensor->file->name, tensor->name, (unsigned long long)tensor->bytes);
    moepage_status status = mp_dense_read(tensor, bytes);
    if (status)
        mp_dense_free(bytes);
    else
        *tensor->held = bytes;
    return status;
}
