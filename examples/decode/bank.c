/* Caller-held experts in pinned memory, from which the library copies them directly. */
#include "decode/bank.h"

#include <stdlib.h>
#include <string.h>

#include "common/expert_pair.h"
#include "common/fail.h"
#include "pack/random_weights.h"

#define SIGMA 0.02
#define BF16_BYTES 2

static void fill(const shape *s, uint32_t distinct, uint64_t seed, unsigned char *bytes)
{
    random_weights *weights = malloc(sizeof *weights);
    const uint64_t expert = shape_expert_bytes(s);
    if (!weights) {
        memset(bytes, 0, expert * distinct);
        return;
    }
    random_weights_init(weights, WEIGHTS_GAUSSIAN, SIGMA);
    for (uint32_t e = 0; e < distinct; e++)
        random_weights_fill(weights, random_key(seed, 0, e, 0), 0, expert, bytes + expert * e);
    free(weights);
}

int bank_open(machine *m, const shape *s, uint32_t layers, uint32_t distinct, uint64_t seed,
              bank *out)
{
    moepage_expert_tensor tensors[EXPERT_PAIR];
    const uint64_t expert = shape_expert_bytes(s), keys = (uint64_t)layers * s->experts;
    const uint64_t down = 2ull * s->expert_intermediate * s->hidden * BF16_BYTES;
    memset(out, 0, sizeof *out);
    int code = machine_alloc_pinned(m, expert * distinct, &out->bytes);
    if (code)
        return code;
    out->data = calloc(keys * EXPERT_PAIR, sizeof *out->data);
    if (!out->data)
        return fail_memory();
    fill(s, distinct, seed, out->bytes);
    for (uint64_t k = 0; k < keys; k++) {
        /* Layers differ, so that an expert of the wrong layer gives a wrong result. */
        const uint64_t which = (k % s->experts + k / s->experts * 5) % distinct;
        out->data[k * EXPERT_PAIR] = (const char *)out->bytes + which * expert;
        out->data[k * EXPERT_PAIR + 1] = (const char *)out->bytes + which * expert + down;
    }
    expert_pair(MOEPAGE_DTYPE_BF16, s->hidden, s->expert_intermediate, tensors);
    const moepage_banks banks = {.struct_size = sizeof banks,
                                 .moe_layers = layers,
                                 .experts = s->experts,
                                 .top_k = s->top_k,
                                 .hidden = s->hidden,
                                 .expert_intermediate = s->expert_intermediate,
                                 .n_tensors = EXPERT_PAIR,
                                 .tensors = tensors,
                                 .data = out->data};
    if (moepage_model_open_banks(&banks, NULL, &out->model))
        return fail_library(RUN_FAILED, s->name);
    return RUN_OK;
}

void bank_close(machine *m, bank *b)
{
    moepage_model_close(b->model);
    free(b->data);
    machine_free_pinned(m, b->bytes);
    memset(b, 0, sizeof *b);
}
