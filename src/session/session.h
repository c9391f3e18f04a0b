/* session.h — one stream of steps over a pool: what is open, and the scratch it works in.
 *
 *   begin -> { route -> [next_group]* | ffn -> retire } per layer -> end
 *
 * An open layer is a flight. Routing turns the caller's top-k into a list of distinct experts with
 * their rows, cuts it into groups that fit what the session may hold at once (groups.c), and holds
 * the first group's experts. Plans (plan.c) show a group to callers with kernels of their own;
 * ffn.c runs all groups itself. Flights and their arrays are allocated with the session, so that a
 * step allocates nothing. */
#ifndef MP_SESSION_SESSION_H
#define MP_SESSION_SESSION_H

#include "control/regime.h"
#include "kv/kv.h"
#include "policy/previous.h"
#include "pool/expert_pool.h"
#include "session/operands.h"
#include "trace/trace.h"

#define MP_MAX_FLIGHTS 4

/* A group: entries [first_entry, first_entry + n_entries) of its flight, and its tokens when the
 * grouping is by tokens. */
typedef struct mp_group {
    uint32_t first_entry;
    uint32_t n_entries;
    uint32_t first_token;
    uint32_t n_tokens;
} mp_group;

/* An open layer. An entry is one expert of one group; grouped by tokens, an expert can have an
 * entry in several groups. */
typedef struct mp_flight {
    bool open;
    bool overlap;   /* two groups may be held at once: one computes, the next loads */
    bool by_tokens; /* groups are of tokens, not of experts */
    bool planned;   /* the caller's own kernels read its slots */
    bool lies;      /* what is not in a slot may be computed where it lies */
    bool streams;   /* the layer is served by streaming */
    void *native;   /* the stream that they run on */
    uint32_t layer;
    uint32_t n_tokens;
    uint32_t top_k;
    uint32_t n_entries;
    uint32_t n_groups;
    uint32_t n_distinct;                    /* experts routed to */
    uint32_t missed;                        /* loaded on demand, or late */
    uint32_t group;                         /* current */
    bool dropped;                           /* an error let go of the current group */
    uint32_t reserved[MOEPAGE_MAX_DEVICES]; /* most slots that it holds at once */
    mp_hold *holds;                         /* [entries] */
    uint32_t *first_row;                    /* [entries + 1] into rows */
    uint32_t *rows;                         /* [max_rows] token * top_k + k, by entry */
    mp_group *groups;                       /* [entries] */
    uint32_t *tokens;                       /* [max_tokens] by group, ascending inside one */
    int32_t *ids;                           /* [max_rows] effective routing */
    float *weights;                         /* [max_rows] */
    moepage_plan_expert *plan_experts;      /* [entries] */
    const void **plan_tensors;              /* [entries][n_tensors] */
    int32_t *expert_map;                    /* [experts], -1 between groups */
} mp_flight;

/* A session's scratch on one device. */
typedef struct mp_bench {
    mp_stream *compute;
    void *memory; /* one block of the device's workspace */
    uint64_t memory_bytes;
    void *x;                /* [max_tokens][hidden] operand type */
    void *inner;            /* [max_rows][intermediate] operand type */
    float *partial;         /* [max_rows][hidden], first device only */
    void *fast;             /* [session's fast_bytes] of launches with MATH_BF16_FAST */
    mp_ffn_expert *experts; /* [entries] host memory: arguments of launches */
    uint32_t n_experts;     /* of them in use by launches of the current group */
    mp_tick last;           /* last launch */
} mp_bench;

struct moepage_session {
    mp_handle handle;
    struct moepage_expert_pool *pool;
    mp_kv_reader *kv;              /* of its KV pool, or NULL */
    moepage_session_config config; /* defaults filled in */
    uint32_t math;                 /* of launches: MOEPAGE_MATH_* as the devices tell them apart */
    uint64_t fast_bytes;           /* of scratch for math BF16_FAST; 0 = none */
    mp_operands operands;          /* where launches find them */
    bool async;                    /* the devices' work outlasts the calls that submit it */
    uint32_t max_rows;             /* max_tokens * max_top_k */
    uint32_t max_entries;
    mp_client client;
    struct moepage_cuda_path *path; /* that has taken the session over, or NULL */
    bool step_open;
    uint32_t n_tokens;   /* of the open step */
    uint8_t *scan_token; /* [max_tokens] 1 for tokens of prefill */
    bool any_scan, all_scan;
    bool prefill; /* the open step is nothing but */
    bool decode;  /* likewise: it has no token of prefill */
    uint64_t step_began_ns;
    moepage_session_stats stats;      /* since creation */
    moepage_session_stats step_stats; /* of the open step */
    mp_flight flights[MP_MAX_FLIGHTS];
    mp_bench benches[MOEPAGE_MAX_DEVICES];
    uint32_t *local;       /* [experts] index of an expert among the flight's, by stamp */
    uint32_t *local_stamp; /* [experts] */
    uint32_t stamp;
    uint32_t *distinct;     /* [experts] ids in order of first appearance */
    uint32_t *order;        /* [experts] scratch: ids reordered, predictions */
    uint32_t *order_counts; /* [experts] scratch */
    uint32_t *counts;       /* [max_entries] rows per entry while sorting */
    bool *token_placed;     /* [max_tokens] while grouping by tokens */
    bool *launched;         /* [max_entries] during moepage_session_ffn */
    uint32_t *previous;     /* lines of policy/previous.h, or NULL: whichever sequences they were */
    struct mp_predicting *predicting; /* or NULL */
    struct mp_remapping *remapping;   /* or NULL: it is off */
    mp_regime_config regime;          /* of MOEPAGE_REGIME_AUTO */
    mp_regime_layer *regimes;         /* [layers], or NULL */
    double load_ns;                   /* of one expert, as last seen; 0 = not known */
    uint64_t mark_ns;                 /* when the last layer was retired, or the step began */
    uint64_t mark_stall_ns;           /* the open step's stalls until then */
    struct moepage_trace *trace;      /* or NULL */
};

/* Writes the keys of what a layer used last time to session->order; returns how many. */
static inline uint32_t mp_session_previous_keys(struct moepage_session *session, uint32_t layer)
{
    uint32_t n, experts = session->pool->experts;
    const uint32_t *set = mp_previous_set(session->previous, experts, layer, &n);
    for (uint32_t i = 0; i < n; i++)
        session->order[i] = layer * experts + set[i];
    return n;
}

/* What a part of a session's block of workspace takes there. */
static inline uint64_t mp_session_align(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

/* Which cause the time goes to that a session waits for an expert. */
static inline uint64_t *mp_session_stall_cause(moepage_session_stats *stats, const mp_hold *hold)
{
    if (hold->cold)
        return &stats->stall_cold_ns;
    return hold->kind == MP_HOLD_LATE ? &stats->stall_late_ns : &stats->stall_load_ns;
}

/* The clock of a session's stalls and steps. */
static inline uint64_t mp_session_now_ns(const struct moepage_session *session)
{
    mp_device *device = session->pool->shards[0].home->device;
    return device->ops->now_ns(device);
}

/* The stream that a session's work on a device runs on, when loads are ordered before it there;
 * NULL when the caller itself waits for them. */
static inline mp_stream *mp_session_reader(const struct moepage_session *session, uint32_t shard)
{
    return session->async ? session->benches[shard].compute : NULL;
}

/* ---- session.c ---- */
/* Checks a config and fills in what it leaves to the library. */
moepage_status mp_session_fill_defaults(const struct moepage_model *model,
                                        const moepage_session_config *given,
                                        moepage_session_config *config);
moepage_status mp_session_workspace(const struct moepage_model *model,
                                    const moepage_session_config *config, uint64_t *bytes);
moepage_status mp_session_create(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                                 const moepage_session_config *config,
                                 struct moepage_session **out);
moepage_status mp_session_destroy(struct moepage_session *session);

/* ---- step.c ---- */
moepage_status mp_session_begin(struct moepage_session *session, const moepage_step *step);
moepage_status mp_session_hint(struct moepage_session *session, uint32_t layer,
                               const int32_t *experts, uint32_t n);
moepage_status mp_session_retire(struct moepage_session *session, uint32_t layer);
moepage_status mp_session_end(struct moepage_session *session, moepage_session_stats *stats);
/* STATE, and the step stays open, while the stream of an open plan is being captured. */
moepage_status mp_session_cancel(struct moepage_session *session);
/* Tells the pool what the open flights reserve, and `opening` (NULL: none). */
void mp_session_tell_reserved(struct moepage_session *session, const mp_flight *opening);
/* The open flight of a layer, or NULL with a sentence. */
mp_flight *mp_session_flight(struct moepage_session *session, uint32_t layer);

/* ---- route.c ---- */
moepage_status mp_session_route(struct moepage_session *session, uint32_t layer,
                                const moepage_routing *routing, moepage_plan *plan);

/* ---- streaming.c ---- */
moepage_status mp_streaming_open(struct moepage_session *session);
void mp_streaming_close(struct moepage_session *session);
/* Streams nothing from now on; or again what the config says. No step is open. */
void mp_streaming_suspend(struct moepage_session *session, bool suspended);
void mp_streaming_begin(struct moepage_session *session);
/* How a layer about to be routed is served. */
bool mp_streaming_serves(const struct moepage_session *session, uint32_t layer);
/* The layer has been routed, its first group is held: sees to the next streaming one. */
void mp_streaming_routed(struct moepage_session *session, const mp_flight *flight);
/* The layer has been retired: the same again, and decides how the layer is served next time. */
void mp_streaming_retired(struct moepage_session *session, const mp_flight *flight);

/* ---- groups.c ---- */
/* Collects the flight's distinct experts into session->distinct and session->counts; checks ids
 * and weights. */
moepage_status mp_groups_collect(struct moepage_session *session, mp_flight *flight,
                                 const moepage_routing *routing, uint32_t *n_distinct);
/* Cuts the collected experts into groups and sorts the rows. */
moepage_status mp_groups_form(struct moepage_session *session, mp_flight *flight,
                              uint32_t n_distinct, bool for_plan);

/* ---- plan.c ---- */
/* Holds the current group's experts: the resident ones at once, the others as loads under way. */
moepage_status mp_plan_hold(struct moepage_session *session, mp_flight *flight, uint32_t group);
/* Lets go of a group. On asynchronous devices its slots stay as they are until what was launched so
 * far has passed; where callers' kernels read them, mp_plan_mark comes first. */
void mp_plan_release(struct moepage_session *session, mp_flight *flight, uint32_t group);
/* Notes where the caller's stream is: its kernels up to here read the flight's slots. */
moepage_status mp_plan_mark(struct moepage_session *session, const mp_flight *flight);
/* After an error: lets go of everything, so that the layer can be run again from its start. */
void mp_plan_drop(struct moepage_session *session, mp_flight *flight);
/* Makes the current group's experts usable: at once, or by what the caller submits to the flight's
 * stream from now on. */
moepage_status mp_plan_hand_over(struct moepage_session *session, const mp_flight *flight);
/* Describes the current group. */
void mp_plan_fill(struct moepage_session *session, mp_flight *flight, moepage_plan *plan);
moepage_status mp_session_next_group(struct moepage_session *session, uint32_t layer,
                                     moepage_plan *plan);

/* ---- watched.c ---- */
void mp_session_note_phase(struct moepage_session *session, const moepage_step *step);
/* The step's stats are complete. */
void mp_session_tell_step(const struct moepage_session *session);

/* ---- ffn.c ---- */
moepage_status mp_session_ffn(struct moepage_session *session, uint32_t layer,
                              const moepage_ffn *ffn);

#endif
