/* gguf.h — a GGUF model: one .gguf file, or all parts of a split one, as one directory.
 *
 * The parts of a split model are <name>-00001-of-<count>.gguf and so on. The first holds the
 * metadata; each says which part it is, of how many, and how many tensors there are in all. */
#ifndef MP_MODEL_GGUF_H
#define MP_MODEL_GGUF_H

#include "model/gguf_file.h"
#include "moepage.h"

/* A tensor that is computed from stored ones. */
typedef struct mp_gguf_computed {
    mp_gguf_tensor tensor;
    mp_computed computed; /* what it points to */
} mp_gguf_computed;

typedef struct mp_gguf {
    mp_gguf_file **files; /* [n_files] in the order of the parts */
    uint32_t n_files;
    mp_gguf_tensor **tensors; /* [n_tensors] of all files, sorted by name */
    uint64_t n_tensors;
    uint64_t tensor_bytes; /* total size of the tensors, as they are stored */
    uint64_t n_computed;
    mp_gguf_computed *computed; /* [n_computed] in the directory in the place of stored ones */
    mp_gguf_tensor **dense;     /* [n_dense] all but the routed experts', once listed */
    uint64_t n_dense;
} mp_gguf;

/* Opens the file and, if it is the first part of a split model, all other parts beside it. Errors
 * name the file at fault; another part than the first is UNSUPPORTED with the first one's name. */
moepage_status mp_gguf_open(const char *path, mp_gguf **out);

/* Closes the files and frees everything; NULL is a no-op. */
void mp_gguf_close(mp_gguf *gguf);

/* Returns the metadata of the model, which is the first part's. */
const mp_gguf_metadata *mp_gguf_metadata_of(const mp_gguf *gguf);

/* Returns the tensor of that name, or NULL. */
mp_gguf_tensor *mp_gguf_find(const mp_gguf *gguf, const char *name);

/* Finds the tensor of that name; NOT_FOUND with a sentence if it is absent. */
moepage_status mp_gguf_require(const mp_gguf *gguf, const char *name, mp_gguf_tensor **out);

/* Returns the index in `tensors` of the first name that is not less than `name`. */
uint64_t mp_gguf_lower_bound(const mp_gguf *gguf, const char *name);

/* Completes tensors of NVFP4 with the scales beside them. FORMAT for such a scale of another shape. */
moepage_status mp_gguf_fp4_complete(mp_gguf *gguf);

/* Returns true if a tensor is neither the routed experts' nor part of another. */
bool mp_gguf_is_dense(const mp_gguf_tensor *tensor);

/* Fills `dense`; call it once the routed tensors are marked. */
moepage_status mp_gguf_list_dense(mp_gguf *gguf);

#endif
