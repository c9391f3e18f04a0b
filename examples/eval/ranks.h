/* ranks.h — routers that omit some of a token's choices, for the ablation of LYNX 3.2. */
#ifndef EVAL_RANKS_H
#define EVAL_RANKS_H

#include "common/router.h"

typedef struct ranks {
    uint32_t keep; /* first choices to keep, which share the weight of the rest; 0 = all */
    uint32_t deny; /* rank, from 1, replaced by the next best expert; 0 = none */
} ranks;

/* Softmax routers only. `user` is a ranks. */
router_fn ranks_choose;

#endif
