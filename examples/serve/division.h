/* division.h — how many expert slots and KV blocks an arm begins with. */
#ifndef SERVE_DIVISION_H
#define SERVE_DIVISION_H

#include "common/budget.h"
#include "serve/arms.h"
#include "serve/arrivals.h"
#include "serve/serve_options.h"

/* What is to be divided. */
typedef struct estate {
    uint64_t bytes; /* of the arena: experts and KV */
    uint64_t slot_bytes, block_bytes;
    uint64_t experts;       /* of the model */
    uint64_t layer_experts; /* of one layer: fewer slots are never given */
    uint64_t moe_layers;
    uint64_t floor_blocks; /* that the longest request needs: fewer are never given */
    uint64_t
        usual_blocks; /* that as many as may run at once need, on average: WiSP's eq. 6, as far as
                              there is room for it beside one layer's experts */
    bool shared_out;  /* slots are a multiple of the layers: --scope layer */
} estate;

/* One line and RUN_REFUSED if the budget has no room for one layer's experts and the longest
 * request. */
int estate_open(const serve_options *opts, const moepage_model_info *model,
                const model_config *config, const arrivals *a, estate *out);

/* `slots`, brought into what is possible; the rest is KV's. */
void estate_divide(const estate *e, const serve_options *opts, const arrivals *a, uint64_t slots,
                   budget *out);

/* Slots for so many percent of the bytes. */
uint64_t estate_share(const estate *e, uint32_t percent);

/* Whole layers out of half of the bytes, two of them at least; 0 if there is no room for two. */
uint64_t estate_whole_layers(const estate *e);

#endif
