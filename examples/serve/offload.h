/* offload.h — the baseline that knows nothing of routing: static layer offload.
 *
 * As many MoE layers as fit have all their experts in slots for good. Of every other layer all experts
 * are brought in for every step, whatever is routed, through a window of two layers: each layer's
 * while the one before it computes. That is how layers are offloaded by serving engines that have no
 * expert pager; many of them do not load ahead.
 *
 * It is built from pins and hints alone: a layer that stays is pinned; one that comes is hinted a layer
 * ahead, and pinned, which waits for the last of it, while it computes. */
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
    uint32_t resident; /* MoE layers that stay, the first ones */
    uint32_t held;     /* the layer that is pinned while it computes, or OFFLOAD_NONE */
    int32_t *all;      /* [layer_experts] 0, 1, 2 ... */
} offload;

#define OFFLOAD_NONE UINT32_MAX

/* Fills the layers that stay. The pool has whole layers' slots, at least two layers' or all. One line
 * and RUN_FAILED. *out is always safe to close. */
int offload_open(const model_config *model, const host *h, offload *out);
void offload_close(offload *o);

/* For decoder_config.before_layer, with the offload as user. */
int offload_before_layer(void *user, uint32_t layer);

#endif
