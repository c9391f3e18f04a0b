/* expert_pair.h — the two tensors of an expert in synthetic models. */
#ifndef EXAMPLE_EXPERT_PAIR_H
#define EXAMPLE_EXPERT_PAIR_H

#include "moepage.h"

#define EXPERT_PAIR 2

static inline void expert_pair(uint32_t dtype, uint32_t hidden, uint32_t intermediate,
                               moepage_expert_tensor out[EXPERT_PAIR])
{
    out[0] = (moepage_expert_tensor){.role = MOEPAGE_ROLE_GATE_UP,
                                     .dtype = dtype,
                                     .rank = 2,
                                     .shape = {2ull * intermediate, hidden}};
    out[1] = (moepage_expert_tensor){.role = MOEPAGE_ROLE_DOWN,
                                     .dtype = dtype,
                                     .rank = 2,
                                     .shape = {hidden, intermediate}};
}

#endif
