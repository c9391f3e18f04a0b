/* room.h — where the schedule meets the KV pool: who fits, who goes, who comes back. */
#ifndef SERVE_ROOM_H
#define SERVE_ROOM_H

#include "serve/server.h"

/* Lets in whoever is next for as long as there is room: for its whole prompt, or for what a preempted
 * request holds and its next token if that is more, beside what is still to come of the prompts that run
 * and a block more of each that runs. A new request that would not fit into an empty pool is refused. */
int room_let_in(server *s);

/* Appends the step's tokens to their sequences. Where one does not fit, the lowest-ranked request is
 * preempted, perhaps that one itself: its blocks go to host memory, and it leaves the step. */
int room_reserve(server *s);

/* Preempts until no more than `blocks` are in use, or one request runs. */
int room_shrink(server *s, uint64_t blocks);

/* Frees the sequence of a request that has ended. */
int room_free(server *s, uint32_t request);

/* Frees what requests hold that an interrupted run has not finished, and sees that the pool is then as it
 * was: no sequence, every block free. One line and RUN_FAILED if not. */
int room_close(server *s);

#endif
