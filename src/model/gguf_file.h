/* gguf_file.h — one .gguf file: open, its header validated, its tensors located.
 *
 * The file is, little-endian: "GGUF", a version, the number of tensors and of metadata values, the
 * metadata, a description of each tensor, and, from the next multiple of the alignment on, the
 * tensors' data. Nothing in the header is trusted: after a successful open every value and every
 * tensor lies inside the file, tensors do not overlap, and each is as large as its type and its
 * dimensions make it. */
#ifndef MP_MODEL_GGUF_FILE_H
#define MP_MODEL_GGUF_FILE_H

#include <stdbool.h>

#include "model/file.h"
#include "model/gguf_values.h"
#include "model/repack.h"
#include "moepage.h"

typedef struct mp_gguf_tensor {
    const char *name; /* owned by the file */
    const struct mp_gguf_file *file;
    uint64_t offset; /* of the data in the file, aligned for the elements of any dtype */
    uint64_t bytes;
    uint64_t shape[MOEPAGE_MAX_RANK]; /* as in the file: neighbours along the first are adjacent */
    uint32_t rank;
    uint32_t ggml_type;
    uint32_t dtype; /* MOEPAGE_DTYPE_*, or NONE for a type outside the public API */
    bool sized;     /* false: the type's size is not known, `bytes` reaches to the next tensor */
    void *held;     /* its bytes once a view has been asked for; see mp_dense_tensor */
    bool routed;    /* true once it is known to belong to routed experts */
    bool
        is_part; /* true once it is known that another tensor is computed from it, or that it is not used */
    const mp_computed *computed; /* how its bytes are computed; NULL: they are in the file */
} mp_gguf_tensor;

typedef struct mp_gguf_file {
    mp_model_file file;
    unsigned char
        *header; /* [header_bytes] of the file's beginning: more than the header, at most */
    uint64_t header_bytes;
    mp_gguf_metadata metadata;
    uint64_t alignment;
    mp_gguf_tensor *tensors; /* [n_tensors] in the order of the header */
    uint64_t n_tensors;
    char *names; /* the tensors' names, back to back */
} mp_gguf_file;

/* Opens and validates the file. *out must not move afterwards: its tensors point to it. Errors name
 * the file, and the key or the tensor. Names of tensors may repeat. */
moepage_status mp_gguf_file_open(const char *path, mp_gguf_file *out);

/* Closes the file; safe on a zero-filled struct. */
void mp_gguf_file_close(mp_gguf_file *file);

#endif
