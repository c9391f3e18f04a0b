/* division.h — the initial expert slots and KV blocks of an arena. */
#ifndef SERVE_DIVISION_H
#define SERVE_DIVISION_H

#include "common/budget.h"
#include "serve/arms.h"
#include "serve/arrivals.h"
#include "serve/serve_options.h"

/* The budget to divide, and its constraints. */
typedef struct estate {
    uint64_t bytes; /* of the arena: experts and KV */
    uint64_t slot_bytes, block_bytes;
    uint64_t experts;       /* of the model */
    uint64_t layer_experts; /* of one layer: the least number of slots */
    uint64_t moe_layers;
    uint64_t floor_blocks; /* blocks of the longest request: the least number */
    uint64_t
        usual_blocks; /* average blocks of the requests that may run at once: WiSP's eq. 6, as far
                       * as there is room beside one layer's experts */
    bool shared_out;  /* slots are a multiple of the layers: --scope layer */
} estate;

/* Describes the budget. One line and RUN_REFUSED if it has no room for one layer's experts and the
 * longest request. */
int estate_open(const serve_options *opts, const moepage_model_info *model,
                const model_config *config, const arrivals *a, estate *out);

/* Gives experts `slots`, adjusted to the constraints, and KV the rest. */
void estate_divide(const estate *e, const serve_options *opts, const arrivals *a, uint64_t slots,
                   budget *out);

/* Returns the slots for a percentage of the bytes. */
uint64_t estate_share(const estate *e, uint32_t percent);

/* Returns the slots of whole layers from half of the bytes, at least two layers; 0 if two do not
 * fit. */
uint64_t estate_whole_layers(const estate *e);

#endif
