/* size.h — caps of a controller's users (WiSP 5.4, G.1): how many experts each of them needs, and all together.
 *
 * A user, or a tenant, is a predictor that counts uses. At every burst's end
 *
 *   window    its uses of the last EPOCH_BURSTS to twice as many bursts that it took part in, or more if these are
 *             too few to bound what is unseen; the first has all that the predictor had learnt before
 *   needs     the experts that cover the requested part of the window, surely (mp_rightsize_surely), and those that
 *             cover it of the last burst, so that new routing counts at once
 *   the cap   the experts that any user needs who took part in the last EPOCH_BURSTS bursts, each once; in a pool
 *             divided by layers those of the fullest layer. None while one of them has no sure window
 *
 * A cap rises at once and falls by more than a sixteenth, so that the split does not follow every burst.
 *
 * Not thread-safe: the controller's `ticking` is held. */
#ifndef MP_CONTROLLERS_SIZE_H
#define MP_CONTROLLERS_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "features/shared_predictor.h"
#include "planning/rightsize.h"

/* The keys' arrays have [layers * experts]. */
typedef struct mp_size_user {
    struct moepage_predictor *predictor; /* held */
    uint32_t *known;                     /* its counts at the last burst's end */
    uint32_t *older, *newer;             /* uses in the two parts of the window */
    uint8_t *needs;                      /* 1 for each expert */
    mp_working_set set;                  /* of the window */
    uint64_t experts;                    /* that it needs; 0: not sure */
    uint32_t bursts;                     /* of the newer part */
    uint32_t idle;                       /* bursts since it took part */
} mp_size_user;

typedef struct mp_size {
    mp_size_user *users;
    uint32_t n;
    uint32_t layers, experts; /* of the model */
    double coverage;
    uint32_t *uses, *recent; /* scratch, by key */
    uint8_t *needs;          /* any user's */
    uint64_t needed;         /* experts, of all users; 0: not sure */
    uint64_t competing;      /* the cap: the same of one part of the pool; 0: none */
} mp_size;

/* Holds the predictors, which have the model's shape and count uses, or fails with nothing held. Zero-filled, a size has
 * no users. */
moepage_status mp_size_open(mp_size *size, const struct moepage_model *model,
                            struct moepage_predictor *const *predictors, uint32_t n,
                            double coverage);
void mp_size_close(mp_size *size);
/* Ends a burst. `divided`: layers do not compete with each other for slots. */
void mp_size_burst(mp_size *size, bool divided);

#endif
