/* bank_model.h — a model of experts in memory or files: seeded weights, a read callback that can fail,
 * and the experts' arithmetic done naively in double precision.
 *
 * Weights are k/64 for whole k, exact in every dense dtype, so that the reference knows what the
 * library computes with whatever the dtype. No two experts have the same bytes. */
#ifndef BANK_MODEL_H
#define BANK_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* Zero means: F32, fused gate and up, no biases, pointers. */
typedef struct bank_shape {
    uint32_t layers, experts, top_k, hidden, intermediate;
    uint32_t dtype;
    uint32_t odd_dtype; /* of odd MoE layers; 0 = the same */
    bool split;         /* GATE and UP tensors of their own */
    bool bias;
    bool clamped;        /* gpt-oss's activation, with a limit that the sums reach */
    bool callback;       /* the library reads through a callback, else from pointers */
    bool files;          /* neither, but from two files, of which it knows the tensors' places */
    uint32_t pack_forms; /* not 0: served from a pack with these forms (1u << MOEPAGE_FORM_*) */
    int32_t cold_level;  /* zstd level of its DENSE form */
    uint64_t seed;
} bank_shape;

typedef struct bank_model bank_model;
struct bank_model {
    bank_shape shape;
    moepage_model *model;
    uint32_t n_tensors;
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t tensor_at[MOEPAGE_MAX_EXPERT_TENSORS]; /* in an expert's bytes */
    uint64_t expert_bytes;
    /* The same of odd layers. */
    moepage_expert_tensor odd_tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t odd_tensor_at[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t odd_bytes;
    uint64_t stride;      /* the larger of the two */
    unsigned char *bytes; /* [layers][experts][stride] */
    const void **data;    /* [layers][experts][n_tensors] */

    /* The callback: `before` (may block) is called first; then it fails if told to. */
    void (*before)(bank_model *bank, uint32_t layer, uint32_t expert, uint32_t tensor);
    void *user;
    _Atomic uint64_t calls;
    _Atomic uint64_t fail_call;  /* countdown: 1 = the next call fails, once; 0 = none */
    _Atomic uint64_t fail_every; /* one call in so many fails; 0 = none */
    _Atomic uint32_t fail_key;   /* layer * experts + expert whose reads fail; UINT32_MAX = none */
    _Atomic uint32_t *loads;     /* [layers * experts] how often an expert's first byte was read */
};

void bank_model_open(bank_model *bank, const bank_shape *shape);
void bank_model_close(bank_model *bank);

/* Bytes of an expert, and of one of its tensors. */
uint64_t bank_model_expert_bytes(const bank_model *bank, uint32_t layer);
uint64_t bank_model_tensor_bytes(const bank_model *bank, uint32_t layer, uint32_t tensor);

const void *bank_model_tensor(const bank_model *bank, uint32_t layer, uint32_t expert,
                              uint32_t tensor);

/* Do these tensors hold this expert, byte for byte? */
bool bank_model_matches(const bank_model *bank, uint32_t layer, uint32_t expert,
                        const void *const *tensors);

/* y[t] = sum over k of weight * expert(x[t]), in double precision. bound[t][h] is how far FP32
 * arithmetic (`math` MOEPAGE_MATH_BF16: with BF16 operands) may be off: the standard error bound
 * of sums of products, carried through the formula. */
void bank_model_reference(const bank_model *bank, uint32_t layer, uint32_t n_tokens, uint32_t top_k,
                          const int32_t *ids, const float *weights, const float *x, uint32_t math,
                          double *y, double *bound);

/* splitmix64. */
uint64_t bank_random(uint64_t *state);
static inline uint32_t bank_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((bank_random(state) >> 32) * n >> 32);
}

/* Fills a step's routing: per token top_k distinct ids (with `holes`, some are
 * MOEPAGE_NO_EXPERT), and weights in (0, 1). */
void bank_model_route(const bank_model *bank, uint64_t *random, uint32_t n_tokens, uint32_t top_k,
                      bool holes, int32_t *ids, float *weights);

#endif
