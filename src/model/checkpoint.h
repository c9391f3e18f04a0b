/* checkpoint.h — a Hugging Face checkpoint directory: config.json and every tensor by name.
 *
 * Which files: model.safetensors if it is there, else those that model.safetensors.index.json
 * names, else every *.safetensors file, in the order of their names. */
#ifndef MP_MODEL_CHECKPOINT_H
#define MP_MODEL_CHECKPOINT_H

#include <pthread.h>
#include <stdbool.h>

#include "base/json.h"
#include "model/safetensors.h"
#include "moepage.h"

typedef struct mp_checkpoint {
    char *config_text;     /* config.json, NUL-terminated */
    mp_safetensors *files; /* [n_files] */
    uint32_t n_files;
    mp_tensor **tensors; /* [n_tensors] of all files, sorted by name */
    uint64_t n_tensors;
    uint64_t tensor_bytes; /* of all of them */
    mp_tensor **dense;     /* [n_dense] those that are no routed expert's, once they are listed */
    uint64_t n_dense;
    pthread_mutex_t lock; /* guards mp_tensor.aligned */
} mp_checkpoint;

/* Opens everything in `dir`; the directory's parsed config goes to *config, which the caller gives
 * back with json_decref(config->root). */
moepage_status mp_checkpoint_open(const char *dir, mp_checkpoint **out, mp_json *config);

/* NULL is a no-op. */
void mp_checkpoint_close(mp_checkpoint *checkpoint);

/* NULL if there is none. */
mp_tensor *mp_checkpoint_find(const mp_checkpoint *checkpoint, const char *name);

/* The same, with NOT_FOUND and a sentence. */
moepage_status mp_checkpoint_require(const mp_checkpoint *checkpoint, const char *name,
                                     mp_tensor **out);

/* Index in `tensors` of the first name that is not less than `name`. */
uint64_t mp_checkpoint_lower_bound(const mp_checkpoint *checkpoint, const char *name);

/* Fills `dense`, when the routed tensors have been marked. */
moepage_status mp_checkpoint_list_dense(mp_checkpoint *checkpoint);

/* The tensor's data at its dtype's alignment: the mapping, or where the file has it askew, a copy
 * that is made at the first call and owned by the checkpoint; *copied then says so. */
moepage_status mp_checkpoint_align(mp_checkpoint *checkpoint, mp_tensor *tensor, const void **out,
                                   bool *copied);

#endif
