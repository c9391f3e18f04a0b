/* room.h — admission and preemption: the schedule's decisions carried out on the KV pool. */
#ifndef SERVE_ROOM_H
#define SERVE_ROOM_H

#include "serve/server.h"

/* Admits candidates as long as there is room for the whole prompt (or, if that is more, for what a
 * preempted request holds and its next token) beside the unfinished prompts of running requests and
 * one more block for each of those. A new request that would not fit into an empty pool is
 * refused. */
int room_let_in(server *s);

/* Appends the step's tokens to their sequences. If one does not fit, the lowest-ranked request is
 * preempted, possibly the same one: its blocks go to host memory, and it leaves the step. */
int room_reserve(server *s);

/* Preempts until at most `blocks` are in use, or one request runs. */
int room_shrink(server *s, uint64_t blocks);

/* Frees the sequence of a finished request. */
int room_free(server *s, uint32_t request);

/* Frees the sequences of requests that an interrupted run has not finished, and checks that the
 * pool is empty again: no sequence, every block free. One line and RUN_FAILED if not. */
int room_close(server *s);

#endif
