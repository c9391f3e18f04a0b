/* router.h — from router logits to top-k experts and their weights. */
#ifndef EXAMPLE_ROUTER_H
#define EXAMPLE_ROUTER_H

#include "common/config.h"

/* Routes one row: `logits` [experts] becomes the full probabilities in place, of sigmoids the shares of
 * their sum; ids and their weights `top` [top_k] are written best first, ties to the lower id. `bias`
 * [experts] is added to scores for the choice alone, ROUTER_SIGMOID; NULL = none. */
typedef void router_fn(const void *user, const model_config *config, const float *bias,
                       float *logits, int32_t *ids, float *top);

/* Routes like the model itself; `user` is not used. */
router_fn router_choose;

#endif
