/* Records each layer's most recent routing. */
#include "policy/previous.h"

#include <string.h>

uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts)
{
    return (uint64_t)layers * (1 + (uint64_t)experts) * sizeof(uint32_t);
}

void mp_previous_note(uint32_t *lines, uint32_t experts, uint32_t layer, const uint32_t *ids,
                      uint32_t n)
{
    uint32_t *line = lines + (uint64_t)layer * (1 + (uint64_t)experts);
    line[0] = n;
    memcpy(line + 1, ids, n * sizeof *ids);
}

const uint32_t *mp_previous_set(const uint32_t *lines, uint32_t experts, uint32_t layer,
                                uint32_t *n)
{
    const uint32_t *line = lines + (uint64_t)layer * (1 + (uint64_t)experts);
    *n = line[0];
    return line + 1;
}
