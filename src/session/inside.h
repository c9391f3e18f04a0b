/* inside.h — the session room's private header: a session's state, and the steps of
 * running a layer.
 *
 * Routing turns the caller's top-k into a list of distinct experts with their rows, cuts it
 * into groups that fit what the session may hold at once (groups.c), and holds the first
 * group's experts. Plans (plan.c) show a group to callers with kernels of their own; ffn.c
 * runs all groups itself. Flights and their arrays are allocated with the session, so that a
 * step allocates nothing. */
#ifndef MP_SESSION_INSIDE_H
#define MP_SESSION_INSIDE_H

#include "base/handle.h"
#include "device/cuda_ext.h"
#include "kv/kv.h"
#include "session/operands.h"
#include "session/session.h"

#define MP_MAX_FLIGHTS 4
#define MP_MAX_FEATURES 8

/* A session's scratch on one device. */
typedef struct mp_device_scratch {
    struct moepage_device *home;
    mp_device *device;
    mp_stream *compute;
    void *memory; /* one block of the device's workspace */
    uint64_t memory_bytes;
    void *x;        /* [max_tokens][hidden] operand type */
    void *inner;    /* [max_rows][intermediate] operand type */
    float *partial; /* [max_rows][hidden], the first device's; NULL if lines are in host memory */
    void *fast;     /* [session's fast_bytes] of launches with MATH_BF16_FAST */
    mp_ffn_expert *experts; /* [entries] host memory: arguments of launches */
    uint32_t n_experts;     /* of these, used by launches of the current group */
    mp_tick last;           /* last launch */
} mp_device_scratch;

/* What crosses between the devices of a session over several (exchange.c). */
typedef struct mp_exchange {
    mp_cuda_shared host; /* where they do not reach the first one's workspace: host memory for it */
    void *x;             /* [max_tokens][hidden] where the others find operands */
    float *partial; /* [max_rows][hidden] of all devices; one device's alone is its scratch's */
} mp_exchange;

typedef struct mp_aside mp_aside; /* experts that the host computes for a device (aside.c) */

typedef enum mp_step_event {
    MP_ON_CHECK,
    MP_ON_BEGIN,
    MP_ON_BEFORE_ROUTE,
    MP_ON_HOLD,
    MP_ON_ROUTED,
    MP_ON_RETIRED,
    MP_ON_ENDED,
    MP_ON_TAKEN,
    MP_STEP_EVENTS
} mp_step_event;

typedef struct mp_feature {
    const mp_step_hooks *hooks;
    void *state;
} mp_feature;

typedef struct mp_feature_list {
    uint32_t n;
    mp_feature at[MP_MAX_FEATURES];
} mp_feature_list;

struct moepage_session {
    mp_handle handle;
    mp_step_view step;
    mp_kv_reader *kv;                   /* the session, as its KV pool knows it; or NULL */
    uint32_t kv_device;                 /* on whose stream it reads KV */
    const void *taken_by;               /* the engine that runs its layers, or NULL */
    mp_feature_list features;           /* all, in the order of attaching */
    mp_feature_list on[MP_STEP_EVENTS]; /* those with a function for an event */
    uint32_t math;        /* of launches: MOEPAGE_MATH_*, as far as the devices distinguish them */
    uint64_t fast_bytes;  /* of scratch for math BF16_FAST; 0 = none */
    mp_operands operands; /* where experts' operands are */
    uint32_t max_entries;
    uint8_t *scan_token;         /* [max_tokens] 1 for tokens of prefill */
    moepage_session_stats stats; /* since creation */
    mp_flight flights[MP_MAX_FLIGHTS];
    mp_device_scratch scratch[MOEPAGE_MAX_DEVICES];
    mp_exchange exchange;
    mp_aside *aside;       /* MISS_HOST on asynchronous devices; or NULL */
    uint32_t *local;       /* [experts] index of an expert among the flight's, by stamp */
    uint32_t *local_stamp; /* [experts] */
    uint32_t stamp;
    uint32_t *distinct;     /* [experts] ids in order of first appearance */
    uint32_t *order;        /* [experts] scratch: ids reordered, hinted keys */
    uint32_t *order_counts; /* [experts] scratch */
    uint32_t *counts;       /* [max_entries] rows per entry while sorting */
    float *ones;            /* [max_rows] the weights of routing that has none */
    bool *token_placed;     /* [max_tokens] while grouping by tokens */
    bool *launched;         /* [max_entries] during moepage_session_ffn */
};

/* ---- exchange.c ---- */

/* Does a layer's x cross from the first device to others? */
static inline bool mp_exchange_crosses(const struct moepage_session *session)
{
    return session->step.async && session->step.shape.n_devices > 1;
}

/* Returns the bytes of an asynchronous device's operands of so many tokens. */
static inline uint64_t mp_exchange_x_bytes(const struct moepage_session *session, uint32_t n_tokens)
{
    const uint64_t operand = session->math == MOEPAGE_MATH_FP32 ? 4 : 2;
    return (uint64_t)n_tokens * session->step.shape.model->info.hidden * operand;
}

/* Takes host memory for operands and lines of so many bytes, if the devices reach the first one's workspace
 * by no other way. After all scratch. NO_MEMORY. */
moepage_status mp_exchange_open(struct moepage_session *session, uint64_t x_bytes,
                                uint64_t partial_bytes);
void mp_exchange_close(struct moepage_session *session);
/* Put later work of all devices behind the caller's stream, and that stream behind all that they have been
 * given; `mark` gives each an end that a slot's next writer can wait for. On asynchronous devices. */
moepage_status mp_exchange_enter(struct moepage_session *session, void *native);
moepage_status mp_exchange_mark(struct moepage_session *session);
moepage_status mp_exchange_follow(struct moepage_session *session, void *native);
/* DEVICE if any of several devices has failed by now: a failure beyond the first reaches no stream of the
 * caller's. */
moepage_status mp_exchange_ask(struct moepage_session *session);
/* Give the devices that take part in a layer the operands that the first has, and put its later work behind
 * theirs; DEVICE if one of them is known to have failed. Nothing to do where there is one device, or hosts. */
moepage_status mp_exchange_spread(struct moepage_session *session, const mp_flight *flight);
moepage_status mp_exchange_gather(struct moepage_session *session, const mp_flight *flight);

/* ---- aside.c ---- */

/* Opens a session's aside, for operands and lines of so many bytes, after all scratch. NO_MEMORY; what opening a
 * host device says. */
moepage_status mp_aside_open(struct moepage_session *session, uint64_t x_bytes,
                             uint64_t partial_bytes);
/* After scratch, whose stream may read the aside's memory. Without one a no-op. */
void mp_aside_close(struct moepage_session *session);
/* Sets may_run_in_place of those absent experts that had better be computed here. `holds` are of the flight. */
void mp_aside_choose(struct moepage_session *session, const mp_flight *flight, mp_hold *holds,
                     uint32_t n);
/* Starts to bring the flight's operands here: what the first device has submitted so far makes them. */
moepage_status mp_aside_fetch(struct moepage_session *session, const mp_flight *flight,
                              const void *x);
/* Runs `args` on the host, with mp_aside_experts [max_entries] as its experts, once the operands are there, and
 * starts to bring the lines of its rows to those that are summed. Memory is this file's own, not args'. Blocks. */
mp_ffn_expert *mp_aside_experts(struct moepage_session *session);
moepage_status mp_aside_run(struct moepage_session *session, const mp_kernel_experts_args *args);

/* ---- step.c ---- */

/* Returns the open flight of a layer, or NULL with a sentence. */
mp_flight *mp_session_flight(struct moepage_session *session, uint32_t layer);

/* ---- groups.c ---- */

/* Collects the flight's distinct experts into session->distinct and session->counts; checks
 * ids and weights. */
moepage_status mp_groups_collect(struct moepage_session *session, mp_flight *flight,
                                 const moepage_routing *routing);
/* Cuts the collected experts into groups, sorts the rows, and reserves what the flight will hold. */
moepage_status mp_groups_form(struct moepage_session *session, mp_flight *flight);
/* Reports to the pool what the open flights reserve, and `opening` (or NULL). */
void mp_groups_reserve(struct moepage_session *session, const mp_flight *opening);

/* ---- plan.c ---- */

/* Holds a group's experts: the resident ones at once, the others as loads under way. */
moepage_status mp_plan_hold(struct moepage_session *session, mp_flight *flight, uint32_t group);
/* Waits for those of n experts that are not ready; on asynchronous devices, loads that can no longer
 * fail are only put before the session's work there. The time since *since_ns, which is set to now, is
 * charged to the stalls, by what was waited for. */
moepage_status mp_plan_wait(struct moepage_session *session, mp_hold *holds, uint32_t n,
                            uint64_t *since_ns);
/* Releases a group. On asynchronous devices its slots are not overwritten before the launches so
 * far have run; if the caller's kernels read them, mp_plan_mark has to be called first. */
void mp_plan_release(struct moepage_session *session, mp_flight *flight, uint32_t group);
/* Marks the present end of the caller's stream: kernels up to there read the flight's slots. */
moepage_status mp_plan_mark(struct moepage_session *session, const mp_flight *flight);
/* After an error: releases all groups, so that the layer can be run again from its start. */
void mp_plan_drop(struct moepage_session *session, mp_flight *flight);
/* Makes the current group's experts usable, at once or for work that is submitted to the flight's
 * stream from now on, and describes them. */
moepage_status mp_plan_hand_over(struct moepage_session *session, mp_flight *flight,
                                 moepage_plan *plan);

#endif
