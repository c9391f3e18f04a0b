/* twin_model.h — examples/models/tiny-qwen3moe as a GGUF file, its tensors in types of the caller's
 * choice, and a checkpoint in F32 of the very values that this file has. */
#ifndef TWIN_MODEL_H
#define TWIN_MODEL_H

#include "gguf_writer.h"

#define TWIN_MODEL "examples/models/tiny-qwen3moe"

enum { TWIN_LAYERS = 8, TWIN_EXPERTS = 64, TWIN_HIDDEN = 128, TWIN_TOKENS = 260 };

/* GGML_F32, _F16, _BF16, _Q8_0 or _Q4_0. Norms and routers are F32, as converters write them. */
typedef struct twin_types {
    uint32_t inner[2], down[2]; /* experts' gates and ups, and downs, in even and in odd layers */
    uint32_t attention;
    uint32_t ends; /* embeddings and head */
} twin_types;

/* Appends the model's metadata and its tensors, quantised where the types say so. */
void twin_make(gguf_writer *w, const twin_types *types);

/* Writes a checkpoint of what `w` has, as twin_make left it, to the directory. */
void twin_write_checkpoint(gguf_writer *w, const char *dir);

#endif
