/* team.h — threads that fork and join on one job at a time, for kernels of tens of microseconds.
 *
 * A job is cut into parts. The threads that are awake, the caller of mp_team_run included, claim
 * them one by one. So a member that the system has not woken yet causes no delay: it finds no parts
 * left. After a job, members spin briefly before they sleep, because the next phase of a kernel
 * follows at once. */
#ifndef MP_DEVICE_TEAM_H
#define MP_DEVICE_TEAM_H

#include "moepage.h"

typedef struct mp_team mp_team;

/* Runs one part of a job. Parts are disjoint and run in any order on any member. */
typedef void (*mp_team_fn)(void *context, uint32_t part, uint32_t n_parts);

/* The most parts that fit in the claim word. */
#define MP_TEAM_MAX_PARTS 65535u

/* Creates a team of `members` (>= 1) threads, counting the caller of mp_team_run. May
 * fail with NO_MEMORY. */
moepage_status mp_team_create(uint32_t members, mp_team **out);

/* Ends the threads; no job is running. NULL is a no-op. */
void mp_team_destroy(mp_team *team);

/* Runs all parts (1..MP_TEAM_MAX_PARTS) and returns when the last is done and all writes are
 * visible. Any thread may call it, but one at a time. */
void mp_team_run(mp_team *team, mp_team_fn fn, void *context, uint32_t n_parts);

#endif
