/* flight.h — a flight: an open layer, from routing to retiring. Sessions write it,
 * features read it.
 *
 * An entry is one expert of one group. If groups are of tokens, an expert can have entries
 * in several groups. */
#ifndef MP_SESSION_FLIGHT_H
#define MP_SESSION_FLIGHT_H

#include "moepage.h"
#include "pool/pool.h"

/* Entries [first_entry, first_entry + n_entries) of a flight, held at once, and its tokens if the
 * grouping is by tokens. */
typedef struct mp_group {
    uint32_t first_entry;
    uint32_t n_entries;
    uint32_t first_token;
    uint32_t n_tokens;
} mp_group;

typedef struct mp_flight {
    bool open;
    bool overlap;   /* two groups may be held at once: one computes, the next loads */
    bool by_tokens; /* groups are of tokens, not of experts */
    bool planned;   /* the caller's own kernels read its slots */
    bool in_place;  /* experts without a slot may be computed in host memory */
    bool dropped;   /* after an error the current group was released */
    void *native;   /* the stream that the caller's kernels run on */
    uint32_t layer;
    uint32_t n_tokens;
    uint32_t top_k;
    uint32_t n_entries;
    uint32_t n_groups;
    uint32_t n_distinct;                    /* experts routed to */
    const uint32_t *distinct;               /* their ids, until the next layer is routed */
    uint32_t missed;                        /* experts loaded on demand, or late */
    uint32_t group;                         /* current */
    uint32_t reserved[MOEPAGE_MAX_DEVICES]; /* the most slots that it holds at once */
    bool takes_part[MOEPAGE_MAX_DEVICES];   /* devices that have any of its experts */
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

#endif
