/* Reading steps; and a list that is searched from its end, for steps go on with the latest ones. */
#include "sim/sequences.h"

#include <stdlib.h>

#include "common/fail.h"

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

int sim_steps_read(const char *path, int (*begin)(void *user, const moepage_trace_info *info),
                   int (*take)(void *user, const moepage_trace_step *step), void *user)
{
    moepage_trace *file = NULL;
    moepage_trace_info info = {.struct_size = sizeof info};
    moepage_trace_step step = {.struct_size = sizeof step};
    if (moepage_trace_open(path, &file) || moepage_trace_get_info(file, &info)) {
        int code = fail_file(RUN_REFUSED, path);
        moepage_trace_close(file);
        return code;
    }
    int code = begin(user, &info);
    moepage_status status = MOEPAGE_OK;
    while (!code && !(status = moepage_trace_next(file, &step)))
        code = take(user, &step);
    if (!code && status != MOEPAGE_E_END)
        code = fail_file(RUN_REFUSED, path);
    moepage_trace_close(file);
    return code;
}
