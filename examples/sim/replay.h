/* replay.h — runs a trace's routing through a cache of experts and counts misses. */
#ifndef SIM_REPLAY_H
#define SIM_REPLAY_H

#include "sim/options.h"
#include "sim/routes.h"

typedef struct sim_replay_config {
    const char *policy; /* an eviction policy of the library, or "belady" */
    uint64_t
        capacity; /* experts; with SIM_SCOPE_LAYER divided equally over the layers, rounded down */
    sim_scope scope;
    sim_access access;
    uint64_t first_counted; /* earlier rows go through the cache but are not counted */
} sim_replay_config;

typedef struct sim_replay_result {
    uint64_t accesses;
    uint64_t misses;
    uint64_t first; /* misses that are a key's first use */
} sim_replay_result;

/* Serves the whole trace, one token after another, as the live pool would.
 *
 * SIM_ACCESS_LAYER: a layer's experts are known at once. None of them is a victim; victims leave
 * first, then, in the file's order, resident members are touched and the others inserted.
 * SIM_ACCESS_SEQUENTIAL: each expert is a set of its own. RUN_REFUSED for an impossible
 * configuration, after a line on stderr. */
int sim_replay(const sim_trace *trace, const sim_replay_config *config, sim_replay_result *out);

/* One line of a table of results. */
typedef struct sim_replay_row {
    sim_replay_config config;
    sim_replay_result result;
} sim_replay_row;

/* Replays every policy of the options at every capacity: `rows` [policies.n * capacities.n], by
 * policy. */
int sim_replay_all(const sim_trace *trace, const sim_options *options, sim_replay_row *rows);

const char *sim_scope_name(sim_scope scope);
const char *sim_access_name(sim_access access);

/* Prints them as a table or as {"results": [...]}. */
int sim_replay_main(const sim_trace *trace, const sim_options *options);

#endif
