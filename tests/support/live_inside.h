/* live_inside.h — what the parts of a live world share. */
#ifndef LIVE_INSIDE_H
#define LIVE_INSIDE_H

#include <stdio.h>

#include "kv/kv_pool.h"
#include "kv_tokens.h"
#include "live_world.h"
#include "loose_device.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "split/split.h"

#define MAX_SESSIONS 3
#define MAX_FLIGHTS 2
#define MAX_SEQUENCES 6
#define MAX_TOKENS 40
#define MAX_PINS 2
#define KV_LAYERS 2
#define BLOCK_TOKENS 2
#define ARENA_BYTES 40960       /* at most */
#define LEAST_ARENA_BYTES 20480 /* with which a world may begin */
#define WORKSPACE_BYTES 65536
#define LIVE_LAYERS 3 /* of experts, at most */
#define LIVE_KEYS 18
#define LIVE_SLOTS 64

typedef struct live_sequence {
    moepage_seq id; /* 0: none */
    bool swapped;
    uint64_t n;
    uint64_t tags[MAX_TOKENS];
} live_sequence;

typedef struct live_flight {
    bool open;
    uint32_t layer;
    uint32_t group, n_groups;
} live_flight;

typedef struct live_session {
    moepage_session *session;
    mp_stream *native;
    uint32_t grouping, regime;
    uint32_t n_tokens;
    bool step, routed;
    live_flight flights[MAX_FLIGHTS];
    live_sequence sequences[MAX_SEQUENCES];
} live_session;

/* A session that is a path's; live_path.c. */
typedef struct live_path {
    bool on;
    uint32_t owner;
    mp_set_aside aside;
    mp_hold held[LIVE_KEYS];
    uint64_t asked[LIVE_KEYS], now; /* when each was in a message */
} live_path;

/* The budget: what it is and what it moves to, in bytes of the arena. */
typedef struct live_budget {
    uint64_t now, aim;
} live_budget;

/* A move that has been asked for and has not gone through. */
typedef struct live_move {
    bool waits, compress;
    uint64_t slots, blocks;
    uint32_t per_layer;
} live_move;

struct live_world {
    live_config config;
    bank_model *bank;
    loose_device loose;
    pool_rig rig;
    moepage_kv_pool *kv;
    kv_tokens tokens;
    live_session sessions[MAX_SESSIONS];
    struct {
        uint32_t layer, expert;
        bool on;
    } pins[MAX_PINS];
    live_move move;
    live_budget budget;
    live_path path;
    mp_span open; /* of the pool's slots, when it was last looked at; and what they had */
    uint64_t words[LIVE_SLOTS];
    bool pinned[LIVE_SLOTS];
    uint64_t random; /* of the action under way */
    uint64_t next_tag;
    live_counts counts;
    char failure[512];
};

static inline uint32_t live_below(live_world *w, uint32_t n)
{
    return bank_below(&w->random, n);
}

/* The first thing found wrong stays. */
#define MUST(w, condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            if (!*(w)->failure)                                                           \
                snprintf((w)->failure, sizeof(w)->failure, "line %d: %s; last error: %s", \
                         __LINE__, #condition, moepage_last_error());                     \
            return false;                                                                 \
        }                                                                                 \
    } while (0)

extern const uint32_t live_bytes_per_token[KV_LAYERS];

/* One action each, of a session; live_use.c. False when something is wrong. */
bool live_begin(live_world *w, live_session *s);
bool live_route(live_world *w, live_session *s);
bool live_go_on(live_world *w, live_session *s); /* with a layer: its next group, or its end */
bool live_end(live_world *w, live_session *s, bool cancel);
bool live_hint(live_world *w, live_session *s);
bool live_switch(live_world *w, live_session *s);
bool live_pin(live_world *w);
bool live_kv(live_world *w, live_session *s);

/* Asks for something on behalf of a path, or opens one of this session, or closes it. */
bool live_path_act(live_world *w, uint32_t owner);
void live_path_leave_drained(live_world *w);
void live_path_close(live_world *w);

bool live_is_idle(const live_world *w); /* no layer is open */
uint32_t live_sessions(const live_world *w);
/* The slots that so many sessions need: one each, or those of a token. */
uint32_t live_needed(const live_world *w, uint32_t sessions);

/* The budget's moves; live_budget.c. */
bool live_budget_act(live_world *w, mp_stream *native);
/* One attempt at the aim. */
bool live_budget_attempt(live_world *w, uint64_t arena_bytes, mp_stream *native);
static inline bool live_budget_waits(const live_world *w)
{
    return w->budget.aim != w->budget.now;
}
/* Would so much of both sides lie in the parts of the arena that the budget's aim pays for? */
bool live_fits(const live_world *w, uint64_t arena_bytes, uint64_t experts, uint64_t kv);

/* What must hold between any two actions; live_check.c. */
bool live_check(live_world *w);

/* What is known of a sequence is what its table says. */
bool live_get_table(live_world *w, const live_sequence *q, moepage_kv_table *table);

/* A scope's slots if `slots` were all: a layer's share of those of its size, or all of these. */
uint32_t live_capacity(const moepage_expert_pool *pool, const mp_scope *scope, mp_span slots);

#endif
