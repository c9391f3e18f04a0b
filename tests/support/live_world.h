/* live_world.h — a pool of experts and a pool of KV that share the arena of a loose device, and
 * sessions that use both while the split moves; and beside them a plain model of what must be.
 *
 * A world does one action at a time. An action is a number: what it does follows from it and from
 * what the world is by then, so that any list of numbers is a run, and a run without some of its
 * actions is one too. */
#ifndef LIVE_WORLD_H
#define LIVE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "bank_model.h"

typedef struct live_config {
    uint32_t sessions;
    uint32_t scope; /* MOEPAGE_SCOPE_* */
    const char *policy;
    uint32_t chunk_bytes;
    uint32_t regime; /* of the first session; the next one has the next */
    bool dense; /* batches are as wide as they may be: a layer needs nearly all of its experts */
    uint32_t prefetch;
    uint32_t max_group_experts; /* of every other session */
    uint32_t scan_percent;
    uint64_t part_bytes;  /* in which the arena has memory */
    uint64_t arena_bytes; /* that the budget pays for at first; 0 = all there are addresses for */
    uint64_t seed;        /* of the device's order */
} live_config;

typedef struct live_world live_world;

/* The bank outlives the world. */
live_world *live_open(bank_model *bank, const live_config *config);
void live_close(live_world *world);

/* Does one action; false when something is wrong, which live_failure tells. Nothing is to be done
 * with the world then but to close it. */
bool live_act(live_world *world, uint64_t action);

/* Ends what is open, and sees that nothing is lost: a move that waited goes through, or is given up;
 * tokens and experts are what they were; counts add up. `thorough`: every byte is looked at. */
bool live_settle(live_world *world, uint64_t action, bool thorough);

const char *live_failure(const live_world *world);
/* In words, for people. */
const char *live_name(uint64_t action);

/* What happened so far, to see that a run was not an idle one. */
typedef struct live_counts {
    uint64_t routed, refused_routes, moves, busy, refused, compressions, abandoned, relocated,
        overlaps, drained, asked, failed, joined, streamed, changes, shrunk, grown, budget_waits,
        budget_refused, memory_refused, slots_taken, blocks_taken;
} live_counts;
void live_count(const live_world *world, live_counts *sum);

#endif
