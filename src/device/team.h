/* team.h — threads that fork and join on one job at a time, for kernels of tens of microseconds.
 *
 * A job is cut into parts that the threads which are awake claim one by one; the caller of mp_team_run
 * takes part. A member that the system has not yet woken therefore causes no delay: it finds the parts
 * gone. Members spin briefly after a job, because the next phase of a kernel follows at once, and
 * then sleep. */
#ifndef MP_DEVICE_TEAM_H
#define MP_DEVICE_TEAM_H

#include "moepage.h"

typedef struct mp_team mp_team;

/* Runs one part of a job. Parts are disjoint and run in any order on any member. */
typedef void (*mp_team_fn)(void *context, uint32_t part, uint32_t n_parts);

/* The most parts that fit in the claim word. */
#define MP_TEAM_MAX_PARTS 65535u

/* A team of `members` (>= 1) threads, the caller of mp_team_run counted in. NO_MEMORY. */
moepage_status mp_team_create(uint32_t members, mp_team **out);

/* No job is running. NULL is a no-op. */
void mp_team_destroy(mp_team *team);

/* Runs all parts (1..MP_TEAM_MAX_PARTS) and returns when the last is done and all its writes are
 * visible. By one thread at a time, any thread. */
void mp_team_run(mp_team *team, mp_team_fn fn, void *context, uint32_t n_parts);

#endif
