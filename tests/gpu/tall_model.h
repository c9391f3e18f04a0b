/* tall_model.h — a model of real size out of a few experts' bytes: every layer's experts are
 * those of a small pack, again and again, and the pack lies in pinned memory once. A GPU's loads
 * cannot tell it from a model whose experts all are different; host memory can.
 *
 * It is served as a pack is that is mapped: no host tier, transfers straight out of pinned
 * memory, in whichever form the pool asks for. */
#ifndef MP_TESTS_TALL_MODEL_H
#define MP_TESTS_TALL_MODEL_H

#include "gpu_bench.h"

typedef struct tall_shape {
    const char *name;
    uint32_t layers, experts, top_k, hidden, intermediate;
} tall_shape;

typedef struct tall_model {
    tall_shape shape;
    uint32_t distinct; /* experts that are really there */
    moepage_model *model;
    uint64_t expert_bytes;      /* dense */
    uint64_t exph_bytes;        /* of an image, on average */
    const unsigned char *dense; /* pinned: the first of `distinct` dense images */
    uint64_t dense_stride;
    struct tall_hidden *hidden; /* what is put back before the model is closed */
} tall_model;

/* BF16 experts with a fused gate and up. */
void tall_open(gpu_bench *b, const tall_shape *shape, uint32_t distinct, tall_model *out);
void tall_close(gpu_bench *b, tall_model *m);

#endif
