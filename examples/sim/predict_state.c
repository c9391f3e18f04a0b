/* Zeroed, aligned memory. */
#include "sim/predict_state.h"

#include <stdlib.h>
#include <string.h>

void *sim_alloc_state(uint64_t bytes)
{
    uint64_t padded = bytes ? (bytes + 63) & ~UINT64_C(63) : 64;
    void *memory = aligned_alloc(64, padded);
    return memory ? memset(memory, 0, padded) : NULL;
}
