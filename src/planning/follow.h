/* follow.h — a budget that follows the system's memory: how large it should be now. */
#ifndef MP_PLANNING_FOLLOW_H
#define MP_PLANNING_FOLLOW_H

#include <stdint.h>

typedef struct mp_follow_input {
    uint64_t budget;      /* now, or where it moves to */
    uint64_t held;        /* of it, what the system has given */
    uint64_t available;   /* that the system could still give to anybody */
    uint64_t reserve;     /* to be left to others */
    uint64_t least, most; /* budgets; least <= most */
} mp_follow_input;

/* Returns the budget. It stays while `available` is within half of the reserve from the reserve, so that what others
 * take and give back for a moment moves nothing; otherwise it becomes what leaves the reserve. */
uint64_t mp_follow_budget(const mp_follow_input *input);

#endif
