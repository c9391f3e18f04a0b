/* checkpoint.h — a Hugging Face checkpoint directory: config.json and every tensor by name.
 *
 * The files are model.safetensors if it exists, else those named in model.safetensors.index.json,
 * else every *.safetensors file, in the order of their names. */
#ifndef MP_MODEL_CHECKPOINT_H
#define MP_MODEL_CHECKPOINT_H

#include <stdbool.h>

#include "base/json.h"
#include "model/safetensors.h"
#include "moepage.h"

/* Tensors that the files do not have, computed from others that they have. */
typedef struct mp_computed_tensors {
    mp_tensor *tensors;    /* [n] */
    mp_computed *computed; /* [n] what they point to */
    char *names;           /* theirs, back to back */
    uint64_t n, name_bytes;
} mp_computed_tensors;

typedef struct mp_checkpoint {
    char *config_text;     /* config.json, NUL-terminated */
    mp_safetensors *files; /* [n_files] */
    uint32_t n_files;
    mp_tensor **tensors; /* [n_tensors] of all files, and computed ones, sorted by name */
    uint64_t n_tensors;
    mp_computed_tensors computed;
    mp_tensor **dense; /* [n_dense] all but the routed experts' and parts of others, once listed */
    uint64_t n_dense;
} mp_checkpoint;

/* Opens all files in `dir`; the parsed config goes to *config, whose root the caller releases with
 * json_decref(config->root). */
moepage_status mp_checkpoint_open(const char *dir, mp_checkpoint **out, mp_json *config);

/* Closes the files and frees everything; NULL is a no-op. */
void mp_checkpoint_close(mp_checkpoint *checkpoint);

/* Returns the tensor of that name, or NULL. */
mp_tensor *mp_checkpoint_find(const mp_checkpoint *checkpoint, const char *name);

/* Finds the tensor of that name; NOT_FOUND with a sentence if it is absent. */
moepage_status mp_checkpoint_require(const mp_checkpoint *checkpoint, const char *name,
                                     mp_tensor **out);

/* Returns the index in `tensors` of the first name that is not less than `name`. */
uint64_t mp_checkpoint_lower_bound(const mp_checkpoint *checkpoint, const char *name);

/* Makes room for n computed tensors, of which the names take so many bytes. NO_MEMORY. */
moepage_status mp_computed_alloc(uint64_t n, uint64_t name_bytes, mp_computed_tensors *to);

/* Adds the computed tensors to the directory, in the place of a part that has the name of one. FORMAT if a file
 * has another of such a name. */
moepage_status mp_checkpoint_add_computed(mp_checkpoint *checkpoint);

/* Returns true if a tensor is neither a routed expert's nor part of another. */
bool mp_checkpoint_is_dense(const mp_tensor *tensor);

/* Fills `dense`; call it once the routed tensors are marked. */
moepage_status mp_checkpoint_list_dense(mp_checkpoint *checkpoint);

#endif
