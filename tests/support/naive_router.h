/* naive_router.h — routing and remapping by the words of moepage_cuda.h, as plainly as can be. */
#ifndef NAIVE_ROUTER_H
#define NAIVE_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage_cuda.h"

#define NAIVE_MAX_EXPERTS 1024
#define NAIVE_MAX_K 32

/* Of one token: what it chooses, in order, and the exact weights. */
typedef struct naive_choice {
    int32_t ids[NAIVE_MAX_K];
    double weights[NAIVE_MAX_K];
    bool doubtful; /* sigmoids and biases so close that rounding decides */
} naive_choice;

/* `allowed`: experts that there are; NULL = all. */
void naive_route(const moepage_cuda_topk *router, uint32_t token, const bool *allowed,
                 naive_choice *out);

/* Which experts a batch keeps. Returns false where rounding decides. */
bool naive_keep(const moepage_cuda_remap *args, bool *kept);

#endif
