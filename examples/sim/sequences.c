/* A list searched from its end: steps mostly continue the latest sequences. */
#include "sim/sequences.h"

#include <stdlib.h>

sim_sequence *sim_sequences_find(sim_sequences *sequences, uint64_t id)
{
    for (uint32_t i = sequences->n; i-- > 0;)
        if (sequences->list[i].id == id)
            return &sequences->list[i];
    if (sequences->n == sequences->room) {
        uint32_t room = sequences->room ? 2 * sequences->room : 64;
        sim_sequence *more = reallocarray(sequences->list, room, sizeof *more);
        if (!more)
            return NULL;
        sequences->list = more;
        sequences->room = room;
    }
    sequences->list[sequences->n] = (sim_sequence){.id = id};
    return &sequences->list[sequences->n++];
}

void sim_sequences_free(sim_sequences *sequences)
{
    free(sequences->list);
    *sequences = (sim_sequences){0};
}
