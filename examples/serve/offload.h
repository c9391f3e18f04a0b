/* offload.h — the baseline that ignores routing: static layer offload.
 *
 * As many MoE layers as fit keep all their experts in slots. All experts of every other layer are
 * loaded in every step, whatever is routed, through a window of two layers: each layer's while the
 * preceding one computes. Serving engines without an expert pager offload layers in this way; many
 * of them do not load ahead.
 *
 * It uses only pins and hints: a layer that stays is pinned; any other is hinted one layer ahead,
 * then pinned while it computes, which waits for its last expert. */
#ifndef SERVE_OFFLOAD_H
#define SERVE_OFFLOAD_H

#include "common/config.h"
#include "common/host.h"

#define OFFLOAD_WINDOW 2 /* layers */

typedef struct offload {
    const model_config *model;
    moepage_expert_pool *experts;
    moepage_session *session;
    uint32_t moe_layers, layer_experts;
    uint32_t resident; /* MoE layers that stay, from the first */
    uint32_t held;     /* the layer pinned while it computes, or OFFLOAD_NONE */
    int32_t *all;      /* [layer_experts] 0, 1, 2 ... */
} offload;

#define OFFLOAD_NONE UINT32_MAX

/* Fills the layers that stay. The pool has whole layers' slots, at least two layers' or all. One
 * line and RUN_FAILED. *out is always safe to close. */
int offload_open(const model_config *model, const host *h, offload *out);
void offload_close(offload *o);

/* Implements decoder_config.before_layer, with the offload as user. */
int offload_before_layer(void *user, uint32_t layer);

#endif
