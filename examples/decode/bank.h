/* bank.h — a model of a published shape with random experts, only a few of which are stored: expert
 * e of a layer has the bytes of one of `distinct`. This runs models whose weights would not fit
 * into host memory; to the device all experts are distinct. */
#ifndef EXAMPLE_BANK_H
#define EXAMPLE_BANK_H

#include "decode/machine.h"
#include "moepage.h"
#include "pack/shapes.h"

typedef struct bank {
    moepage_model *model;
    void *bytes; /* pinned */
    const void **data;
} bank;

/* Opens `layers` MoE layers of the shape. One line and an exit code on failure. */
int bank_open(machine *m, const shape *s, uint32_t layers, uint32_t distinct, uint64_t seed,
              bank *out);
void bank_close(machine *m, bank *b);

#endif
