/* Remembers what each layer was routed to last time.
 *
 * Per layer a count and that many expert ids, in the order in which they were routed. */
#include "session/previous.h"

#include <string.h>

struct mp_previous {
    uint32_t experts; /* per layer: the length of a line */
    uint32_t lines[]; /* [layers][1 + experts]: count, ids */
};

uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts)
{
    return sizeof(mp_previous) + (uint64_t)layers * (1 + (uint64_t)experts) * sizeof(uint32_t);
}

void mp_previous_init(mp_previous *previous, uint32_t layers, uint32_t experts)
{
    memset(previous, 0, mp_previous_bytes(layers, experts));
    previous->experts = experts;
}

void mp_previous_note(mp_previous *previous, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    uint32_t *line = &previous->lines[(uint64_t)layer * (1 + previous->experts)];
    line[0] = n;
    memcpy(line + 1, experts, n * sizeof *experts);
}

uint32_t mp_previous_set(const mp_previous *previous, uint32_t layer, uint32_t *out)
{
    const uint32_t *line = &previous->lines[(uint64_t)layer * (1 + previous->experts)];
    memcpy(out, line + 1, line[0] * sizeof *out);
    return line[0];
}
