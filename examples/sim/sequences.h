/* sequences.h — the steps of a trace file of the library, and the sequences that it has, gathered by
 * their ids in the order in which they are met. */
#ifndef SIM_SEQUENCES_H
#define SIM_SEQUENCES_H

#include <stdint.h>

#include "moepage.h"

typedef struct sim_sequence {
    uint64_t id; /* all tokens with id 0 (none) are one sequence */
    uint64_t rows;
    uint64_t next_row, end_row; /* in the output: its next row, and the end of its rows */
    uint64_t prompt_tokens;
} sim_sequence;

typedef struct sim_sequences {
    sim_sequence *list; /* [n] */
    uint32_t n, room;
} sim_sequences;

/* Finds the sequence with that id, or appends a new one; NULL when out of memory. The pointer is
 * invalid after another is added. */
sim_sequence *sim_sequences_find(sim_sequences *sequences, uint64_t id);
void sim_sequences_free(sim_sequences *sequences);

/* Reads the file: `begin` is told what it is, then `take` each step. RUN_OK, theirs, or a code after a
 * line on stderr. */
int sim_steps_read(const char *path, int (*begin)(void *user, const moepage_trace_info *info),
                   int (*take)(void *user, const moepage_trace_step *step), void *user);

#endif
