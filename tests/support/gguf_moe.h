/* gguf_moe.h — a whole small model as a GGUF file; usually 4 experts of H = 32 and I = 64, top 2, so
 * that no two lengths are alike. */
#ifndef GGUF_MOE_H
#define GGUF_MOE_H

#include "gguf_writer.h"

enum { GM_LAYERS = 3, GM_EXPERTS = 4, GM_TOP_K = 2, GM_HIDDEN = 32, GM_WIDTH = 64, GM_TOKENS = 7 };

typedef struct gguf_moe {
    const char *architecture;
    const char *width_key; /* of an expert's I */
    uint32_t layers;       /* with experts */
    uint32_t dense;        /* layers before them, without */
    uint32_t type;         /* of experts' matrices */
    uint32_t hidden, width, experts;
    bool fused; /* gate and up in one tensor */
    bool biases;
} gguf_moe;

/* A qwen3moe of GM_LAYERS layers and the lengths above, experts in Q8_0. */
gguf_moe gguf_moe_usual(void);

/* Appends the model's metadata and tensors. */
void gguf_moe_make(gguf_writer *w, const gguf_moe *of);

/* The metadata alone; `skip` is the end of a key to leave out, or NULL. */
void gguf_moe_values(gguf_writer *w, const gguf_moe *of, const char *skip);

/* Gives the experts' tensor "blk.<layer>.ffn_<part>_exps.weight" another type. */
void gguf_moe_retype(gguf_writer *w, uint32_t layer, const char *part, uint32_t type);

#endif
