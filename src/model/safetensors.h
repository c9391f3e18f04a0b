/* safetensors.h — one .safetensors file: open, its header validated, its tensors located.
 *
 * The file is a u64 little-endian header length, that many bytes of JSON, then the data section,
 * which the tensors fill without gaps or overlaps. Nothing in the header is trusted: after a
 * successful open every tensor lies inside the file and its size is shape x dtype. */
#ifndef MP_MODEL_SAFETENSORS_H
#define MP_MODEL_SAFETENSORS_H

#include "model/dtype.h"
#include "model/file.h"
#include "model/repack.h"
#include "moepage.h"

/* The format's own limit on the header. */
#define MP_SAFETENSORS_MAX_HEADER 100000000u

struct mp_safetensors;

typedef struct mp_tensor {
    const char *name; /* owned by the file */
    const mp_stored_dtype *type;
    const struct mp_safetensors *file;
    uint64_t offset; /* within the file, at any alignment */
    uint64_t bytes;
    uint64_t shape[MOEPAGE_MAX_RANK]; /* only the first dimensions if the rank is higher */
    uint32_t rank;
    uint32_t routed;             /* 1 once it is known to belong to a routed expert */
    uint32_t is_part;            /* 1 once it is known that another tensor is computed from it */
    const mp_computed *computed; /* how its bytes are computed; NULL: they are in the file */
    void *held;                  /* its bytes once a view has been asked for; see mp_dense_tensor */
} mp_tensor;

typedef struct mp_safetensors {
    mp_model_file file;
    mp_tensor *tensors; /* [n_tensors] in the order of the header */
    uint64_t n_tensors;
    char *names; /* the tensors' names, back to back */
} mp_safetensors;

/* Opens and validates the file. *out must not move afterwards: its tensors point to it. Errors name
 * the file and the tensor. */
moepage_status mp_safetensors_open(const char *path, mp_safetensors *out);

/* Closes the file; safe on a zero-filled struct. */
void mp_safetensors_close(mp_safetensors *file);

#endif
