/* session.h — the door of a session: one stream of steps over a pool.
 *
 *   begin -> { route -> [next_group]* | ffn -> retire } per layer -> end
 *
 * step_hooks.h is for the optional parts of a step. */
#ifndef MP_SESSION_SESSION_H
#define MP_SESSION_SESSION_H

#include "device/kernels.h"
#include "session/step_hooks.h"

struct moepage_kv_pool;

/* ---- life (session.c) ---- */

/* Checks a config and fills in its defaults. */
moepage_status mp_session_fill_defaults(const struct moepage_model *model,
                                        const moepage_session_config *given,
                                        moepage_session_config *config);
/* `config` has been through mp_session_fill_defaults. */
uint64_t mp_session_workspace(const struct moepage_model *model,
                              const moepage_session_config *config);
moepage_status mp_session_create(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                                 const moepage_session_config *config,
                                 struct moepage_session **out);
/* Cancels an open step and closes all attached features. */
moepage_status mp_session_destroy(struct moepage_session *session);

/* Since creation. */
const moepage_session_stats *mp_session_stats(const struct moepage_session *session);

/* ---- steps (step.c) ---- */

moepage_status mp_session_begin(struct moepage_session *session, const moepage_step *step);
moepage_status mp_session_hint(struct moepage_session *session, uint32_t layer,
                               const int32_t *experts, uint32_t n);
moepage_status mp_session_retire(struct moepage_session *session, uint32_t layer);
moepage_status mp_session_end(struct moepage_session *session, moepage_session_stats *stats);
/* Fails with STATE, and leaves the step open, while the stream of an open plan
 * is being captured. */
moepage_status mp_session_cancel(struct moepage_session *session);

/* ---- layers (route.c, plan.c, ffn.c) ---- */

moepage_status mp_session_route(struct moepage_session *session, uint32_t layer,
                                const moepage_routing *routing, moepage_plan *plan);
moepage_status mp_session_next_group(struct moepage_session *session, uint32_t layer,
                                     moepage_plan *plan);
moepage_status mp_session_ffn(struct moepage_session *session, uint32_t layer,
                              const moepage_ffn *ffn);

/* ---- products of a plan's experts, in the caller's threads (product.c) ---- */

moepage_status mp_session_convert(struct moepage_session *session, uint32_t layer,
                                  const moepage_product *product, uint32_t share,
                                  uint32_t n_shares);
moepage_status mp_session_multiply(struct moepage_session *session, uint32_t layer,
                                   const moepage_product *product, uint32_t share,
                                   uint32_t n_shares);

/* ---- another engine runs the layers (session.c) ---- */

/* Scratch on the first device. */
typedef struct mp_session_scratch {
    void *x;        /* [max_tokens][hidden] operand type */
    void *inner;    /* [max_rows][intermediate] operand type */
    float *partial; /* [max_rows][hidden] */
    uint32_t math;  /* of launches: MOEPAGE_MATH_* */
} mp_session_scratch;

/* What launches of a layer's experts in slots share, everything else zero; *image: where their operands are in
 * a slot. */
mp_kernel_experts_args mp_session_experts(const struct moepage_session *session, uint32_t layer,
                                          mp_ffn_layout *image);

/* Gives the scratch to `by` once the session's own work on it is done. No step is open, and none
 * can begin until the scratch is given back. */
moepage_status mp_session_take(struct moepage_session *session, const void *by,
                               mp_session_scratch *out);
void mp_session_give_back(struct moepage_session *session);
bool mp_session_is_taken(const struct moepage_session *session);
/* Returns true if a feature may change what layers are routed to. */
bool mp_session_is_rerouted(const struct moepage_session *session);

/* Returns the aligned size of a part of a session's block of workspace. */
static inline uint64_t mp_session_align(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

#endif
