/* router.h — from router logits to top-k experts and their weights. */
#ifndef EXAMPLE_ROUTER_H
#define EXAMPLE_ROUTER_H

#include "common/config.h"

/* Routes one row: `logits` [experts] becomes the full probabilities in place; ids and their weights
 * `top` [top_k] are written best first, ties to the lower id. */
typedef void router_fn(const void *user, const model_config *config, float *logits, int32_t *ids,
                       float *top);

/* Routes like the model itself; `user` is not used. */
router_fn router_choose;

#endif
