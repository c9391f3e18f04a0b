/* gguf_model.h — a GGUF file as a model: the meaning of its metadata, and which of its tensors hold
 * routed experts.
 *
 * Tensors have the same names in all architectures, so an architecture is little more than a row of
 * a table (gguf_config.c). In names, {L} below stands for the layer. */
#ifndef MP_MODEL_GGUF_MODEL_H
#define MP_MODEL_GGUF_MODEL_H

#include <stdbool.h>

#include "model/gguf.h"
#include "model/model.h"

typedef struct mp_gguf_architecture {
    const char *name;      /* as general.architecture has it */
    const char *width_key; /* the experts' intermediate size, after the name and a dot */
    mp_activation activation;
} mp_gguf_architecture;

/* The metadata as the library uses it. */
typedef struct mp_gguf_config {
    const mp_gguf_architecture *architecture;
    uint32_t layers;
    uint32_t first_moe; /* layers before it are dense, all others have routed experts */
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t shared;
    uint32_t vocabulary;
} mp_gguf_config;

/* Reads and checks the metadata. */
moepage_status mp_gguf_config_read(const mp_gguf *gguf, mp_gguf_config *out);

/* A tensor's name, "blk.{L}." and more. */
typedef struct mp_gguf_name {
    char text[64];
} mp_gguf_name;

mp_gguf_name mp_gguf_name_of(uint32_t layer, const char *rest);

/* Fails unless the tensor has exactly this shape, which is in the file's order. */
moepage_status mp_gguf_shape_check(const mp_gguf_tensor *tensor, const uint64_t *shape,
                                   uint32_t rank);

/* Checks that every router exists, is [E, H] and, unless it is in blocks, finite. */
moepage_status mp_gguf_routers_check(const mp_gguf_config *config, const mp_gguf *gguf);

/* Fills the model's layouts and spans from the files, and marks the routed tensors there. The
 * model's info must already hold the config's numbers. */
moepage_status mp_gguf_experts_bind(const mp_gguf_config *config, mp_gguf *gguf,
                                    struct moepage_model *model);

#endif
